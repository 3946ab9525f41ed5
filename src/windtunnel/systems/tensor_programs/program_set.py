"""A set of measured tensor programs as flat arrays.

In: an npz file, or the arrays that ``programs/run`` measured. Out: ``ProgramSet``: the statement features, trees,
schedules and times of every program on every device, checked. Not here: measuring, transforms, splits, training.

Letters: P programs, L statements of all programs, N nodes of all serialized trees, D devices, T tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.outputs import whole
from windtunnel.base.reading import ReadLimit, format_value
from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.systems.tensor_programs.model.code_features import CODE_NAMES, VECTOR_BITS
from windtunnel.systems.tensor_programs.set_file import read_set

__all__ = ["ALL_DEVICES", "NUM_FEATURES", "SCHEDULE_SHAPE", "SCHEMA", "ProgramSet", "parts_of", "work_of"]

SCHEMA = 3
NUM_FEATURES = 164
ALL_DEVICES = "all"
SCHEDULE_SHAPE = (25, 22)
"""Steps of a schedule, and numbers per step (TLP: 25 by 22 on CPUs)."""

_DTYPES = {
    "features": np.float16,
    "code": np.float16,
    "leaf_offset": np.int32,
    "leaf_pos": np.int16,
    "tree": np.int16,
    "tree_offset": np.int32,
    "task": np.int32,
    "sched": np.int16,
    "mean_s": np.float32,
    "std_s": np.float32,
    "flops": np.float64,
}


@dataclass(frozen=True)
class ProgramSet:
    """Programs, what they look like, and how long they took.

    Parameters
    ----------
    features : ndarray
        float16 [L, 164], one row per store statement in serial order.
    code : ndarray
        float16 [L, 3, 39], what a code generator makes of each statement by width of vectors (``code_features``).
    leaf_offset : ndarray
        int32 [P + 1]: the statements of program p are rows ``leaf_offset[p]`` up to ``leaf_offset[p + 1]``.
    leaf_pos : ndarray
        int16 [L], the index of the statement in its program's serialized tree, end markers counted.
    tree, tree_offset : ndarray
        int16 [N] and int32 [P + 1], the serialized trees.
    task : ndarray
        int32 [P], row of ``tasks``.
    sched : ndarray
        int16 [P, 25, 22], the schedule's steps, rows of zeros behind the last.
    mean_s, std_s : ndarray
        float32 [P, D], seconds; NaN where a program was not measured.
    flops : ndarray
        float64 [P], floating-point operations.
    devices : tuple of dict
        Name and measured properties of each device.
    tasks : tuple of dict
        ``kind``, ``shape``, ``ops``, ``flops``, ``bytes``, ``networks`` (name to how often it contains the task).
    meta : dict
        Processor, seed, protocol, date, versions.
    """

    features: NDArray[np.float16]
    code: NDArray[np.float16]
    leaf_offset: NDArray[np.int32]
    leaf_pos: NDArray[np.int16]
    tree: NDArray[np.int16]
    tree_offset: NDArray[np.int32]
    task: NDArray[np.int32]
    sched: NDArray[np.int16]
    mean_s: NDArray[np.float32]
    std_s: NDArray[np.float32]
    flops: NDArray[np.float64]
    devices: tuple[dict[str, Any], ...]
    tasks: tuple[dict[str, Any], ...]
    meta: dict[str, Any]

    @property
    def num_programs(self) -> int:
        """Number of programs, P."""
        return len(self.task)

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names in the order of the columns of ``mean_s``."""
        return tuple(str(device["name"]) for device in self.devices)

    @property
    def num_leaves(self) -> NDArray[np.int32]:
        """Store statements of each program, [P]."""
        return np.diff(self.leaf_offset)

    def column(self, device: str) -> int:
        """Which column of ``mean_s`` holds a device."""
        if device not in self.device_names:
            known = ", ".join(self.device_names)
            raise InputError(f"no device {device!r} is in this program set", where="devices", fix=f"one of {known}")
        return self.device_names.index(device)

    def select(self, rows: ArrayLike) -> ProgramSet:
        """The programs of ``rows`` (a mask or indices), in that order; tasks and devices stay as they are."""
        selected = np.arange(self.num_programs)[np.asarray(rows)]
        #      offset   0     3        7   9          program p has rows offset[p] .. offset[p + 1]
        #      rows     |p0   |p1      |p2 |
        # Ragged columns are taken by ranges, the others by row.
        leaves, leaf_offset = _ranges(self.leaf_offset, selected)
        nodes, tree_offset = _ranges(self.tree_offset, selected)
        per_program = {name: getattr(self, name)[selected] for name in ("task", "sched", "mean_s", "std_s", "flops")}
        return replace(
            self,
            features=self.features[leaves],
            code=self.code[leaves],
            leaf_pos=self.leaf_pos[leaves],
            leaf_offset=leaf_offset,
            tree=self.tree[nodes],
            tree_offset=tree_offset,
            **per_program,
        )

    def columns(self, devices: str) -> list[int]:
        """Columns of devices: one by its name, ``@HOST`` those of a host (``@``: the first), ``all``."""
        if devices == ALL_DEVICES:
            return list(range(len(self.devices)))
        result = [column for column, name in enumerate(self.device_names) if devices == f"@{parts_of(name)[1]}"]
        return result or [self.column(devices)]

    def on(self, columns: Sequence[int]) -> ProgramSet:
        """Return the same programs on some devices."""
        selected = list(columns)
        return replace(
            self,
            mean_s=self.mean_s[:, selected],
            std_s=self.std_s[:, selected],
            devices=tuple(self.devices[column] for column in selected),
        )

    def networks(self) -> tuple[str, ...]:
        """Names of all networks whose tasks are in the set, sorted."""
        return tuple(sorted({name for task in self.tasks for name in task["networks"]}))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write one compressed npz; it appears only when it is complete."""
        target = Path(path)
        if target.exists() and not overwrite:
            raise InputError(f"{target} is there already", fix="choose another name, or allow to overwrite")
        check(self, str(target))
        arrays: dict[str, Any] = {name: np.asarray(getattr(self, name), kind) for name, kind in _DTYPES.items()}
        header = {"schema": SCHEMA, "devices": self.devices, "tasks": self.tasks, "meta": self.meta}
        arrays["header"] = np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8)
        with whole(target) as scratch, scratch.open("wb") as file:
            np.savez_compressed(file, **arrays)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, read_limit: int | None = None) -> ProgramSet:
        """Read and check a set.

        Parameters
        ----------
        path : path
        read_limit : int, optional
            The most bytes of memory that reading may take (`windtunnel.base.reading.ReadLimit`).
        """
        source = Path(path)
        arrays, header = read_set(source, ReadLimit(source, read_limit))
        _require_schema(header, arrays, str(source))
        _check_header(header, str(source))
        with np.errstate(invalid="ignore", over="ignore"):  # what is then wrong is named by ``check``
            typed = {name: np.asarray(arrays[name], kind) for name, kind in _DTYPES.items()}
        result = cls(
            **typed,
            devices=tuple(header["devices"]),
            tasks=tuple(header["tasks"]),
            meta=header["meta"],
        )
        check(result, str(source))
        return result

    def merge_devices(self, other: ProgramSet) -> ProgramSet:
        """Return the programs with the devices of both sets; where ``other`` lacks a program, its times are NaN."""
        twice = sorted(set(self.device_names) & set(other.device_names))
        if twice:
            raise InputError(f"both sets have a device {', '.join(twice)}", where="devices", fix="rename it in one")
        # Programs are the same if task and schedule are: they were sampled from one seed on both hosts.
        index = {program: row for row, program in enumerate(self._identities())}
        rows = [index.get(program, -1) for program in other._identities()]
        if -1 in rows:
            raise InputError(f"program {rows.index(-1)} of the other set is not in this one", where="programs")

        def join_columns(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
            added = np.full((self.num_programs, len(other.devices)), np.nan, np.float32)
            added[rows] = second
            return np.concatenate([first, added], axis=1)

        return replace(
            self,
            mean_s=join_columns(self.mean_s, other.mean_s),
            std_s=join_columns(self.std_s, other.std_s),
            devices=self.devices + other.devices,
            meta=self.meta | {"beside": [*self.meta.get("beside", []), other.meta]},
        )

    def _identities(self) -> list[tuple[str, bytes]]:
        """Return what identifies each program: task and schedule."""
        works = [work_of(task) for task in self.tasks]
        return [(works[task], sched.tobytes()) for task, sched in zip(self.task, self.sched, strict=True)]

    @classmethod
    def concatenate(cls, parts: Sequence[ProgramSet]) -> ProgramSet:
        """Return one set of all programs of sets that share tasks and devices."""
        first = parts[0]
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in _DTYPES
            if not name.endswith("offset")
        }
        for name in ("leaf_offset", "tree_offset"):
            sizes = np.concatenate([np.diff(getattr(part, name)) for part in parts])
            joined[name] = _offsets(sizes)
        return replace(first, **joined)


def parts_of(device: str) -> tuple[str, str]:
    """Target and host of a device by its name; of the host that a set was begun on, the second is empty."""
    target, _, host = device.partition("@")
    return target, host


def work_of(task: Mapping[str, Any]) -> str:
    """Return what identifies a task, whatever networks it is listed for."""
    return json.dumps([task.get("kind"), task.get("shape"), task.get("ops")], sort_keys=True, default=str)


def _offsets(sizes: NDArray[Any]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def _ranges(offset: NDArray[np.int32], rows_P: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    sizes = np.diff(offset)[rows_P]
    begins = _offsets(sizes)
    # Rows of all selected ranges without a loop: a running number, shifted per range to its old beginning.
    rows = np.arange(begins[-1]) - np.repeat(begins[:-1] - offset[:-1][rows_P], sizes)
    return rows, begins


def _require_schema(header: Mapping[str, Any], arrays: Mapping[str, Any], where: str) -> None:
    result = header.get("schema")
    if result != SCHEMA:
        raise SchemaVersionError(
            f"this program set has schema {result}, and this version knows {SCHEMA}",
            where=where,
            fix="generate it anew with windtunnel models sample, or use the version that wrote it",
        )
    missing = sorted({field.name for field in fields(ProgramSet)} - set(arrays) - set(header))
    if missing:
        raise InputError(f"the program set lacks {', '.join(missing)}", where=where, fix="windtunnel models sample")


def _check_header(header: Mapping[str, Any], where: str) -> None:
    """Devices have names, tasks say in which networks they are."""
    fix = "windtunnel models sample writes such sets"
    for name in ("devices", "tasks"):
        rows = header[name]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InputError(f"{name} of the header is no list of mappings", where=where, fix=fix)
    if not isinstance(header["meta"], dict):
        raise InputError(f"meta of the header is {format_value(header['meta'])}", where=where, fix=fix)
    for row, device in enumerate(header["devices"]):
        if not isinstance(device.get("name"), str):
            raise InputError(f"device {row} has no name", where=where, fix=fix)
    for row, task in enumerate(header["tasks"]):
        if not isinstance(task.get("networks", {}), dict):
            raise InputError(f"task {row} names no networks", where=where, fix=fix)


def check(programs: ProgramSet, where: str) -> None:
    """Refuse a set that breaks the format."""
    _check_shapes(programs, where)
    _check_labels(programs, where)
    unknown = np.flatnonzero((programs.task < 0) | (programs.task >= len(programs.tasks)))
    if len(unknown):
        raise InputError(
            f"program {unknown[0]} is of task {programs.task[unknown[0]]}, which is not listed", where=where
        )
    empty = np.flatnonzero(programs.num_leaves < 1)
    if len(empty):
        raise InputError(f"program {empty[0]} stores nothing", where=where, fix="leave it out")
    is_finite = np.isfinite(programs.features).all(axis=1) & np.isfinite(programs.code).all(axis=(1, 2))
    if not is_finite.all():
        row = int(np.flatnonzero(~is_finite)[0])
        program = int(np.searchsorted(programs.leaf_offset, row, side="right")) - 1
        raise InputError(f"a feature of program {program} is not finite", where=where)


def _check_shapes(programs: ProgramSet, where: str) -> None:
    P, D, L = programs.num_programs, len(programs.devices), len(programs.leaf_pos)
    expected = {
        "features": (L, NUM_FEATURES),
        "code": (L, len(VECTOR_BITS), len(CODE_NAMES)),
        "leaf_offset": (P + 1,),
        "tree_offset": (P + 1,),
        "sched": (P, *SCHEDULE_SHAPE),
        "mean_s": (P, D),
        "std_s": (P, D),
        "flops": (P,),
    }
    for name, shape in expected.items():
        result = getattr(programs, name).shape
        if result != shape:
            raise InputError(f"{name} has shape {list(result)} instead of {list(shape)}", where=where)
    for name, end in (("leaf_offset", L), ("tree_offset", len(programs.tree))):
        offset = getattr(programs, name)
        if offset[0] != 0 or offset[-1] != end or (np.diff(offset) < 0).any():
            raise InputError(f"{name} does not go from 0 to {end} without going back", where=where)


def _check_labels(programs: ProgramSet, where: str) -> None:
    """A time that is missing is NaN in both; every other one is above zero and finite."""
    mean_s, std_s = programs.mean_s, programs.std_s
    is_missing = np.isnan(mean_s)
    is_wrong = ~is_missing & ~(np.isfinite(mean_s) & (mean_s > 0) & np.isfinite(std_s) & (std_s >= 0))
    if is_wrong.any():
        program, device = (int(index) for index in np.argwhere(is_wrong)[0])
        raise InputError(
            f"program {program} took {mean_s[program, device]:g} s (spread {std_s[program, device]:g} s) on "
            f"{programs.device_names[device]}: a time must be above zero and finite",
            where=where,
            fix="measure it again, or mark it as not measured (NaN)",
        )
    if programs.num_programs and is_missing.all(axis=1).any():
        program = int(np.flatnonzero(is_missing.all(axis=1))[0])
        raise InputError(f"program {program} has no time on any device (all NaN)", where=where, fix="leave it out")
