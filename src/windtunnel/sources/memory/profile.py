"""Memory of a training step by category, layer and line.

In: a table of events. Out: ``MemoryProfile``: bytes by category after every event, at the peak, by layer, by line, with
what a caching allocator would reserve. Needs no torch: a stored profile is read anywhere. Not here: watching a step
(``memory``), pictures (room reports).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from windtunnel.base.outputs import replacing
from windtunnel.base.reading import ReadLimit
from windtunnel.errors import InputError
from windtunnel.hardware.parts import Device
from windtunnel.simulate.memory import ROUNDING_BYTES, compute_reserved_bytes, cublas_bytes
from windtunnel.sources.memory.profile_file import read_events
from windtunnel.units import format_ratio, format_size

__all__ = ["CATEGORIES", "COLUMNS", "SCHEMA", "MemoryProfile", "highest_points"]

SCHEMA = "windtunnel.memory/1"
CATEGORIES = ("weight", "gradient", "optimizer state", "input", "feature map", "workspace", "temporary")
"""By precedence: a storage that is two of them counts as the first."""
COLUMNS = {
    "time_ns": pa.int64(),
    "event": pa.dictionary(pa.int32(), pa.string()),
    "storage": pa.int64(),
    "category": pa.dictionary(pa.int32(), pa.string()),
    "size_bytes": pa.int64(),
    "iteration": pa.int32(),
    "phase": pa.dictionary(pa.int32(), pa.string()),
    "name": pa.dictionary(pa.int32(), pa.string()),
    "layer": pa.dictionary(pa.int32(), pa.string()),
    "line": pa.dictionary(pa.int32(), pa.string()),
}

Int = NDArray[np.int64]
_NUM_POINTS, _NUM_LARGEST = 500, 10  # of a picture, and of the list next to it


@dataclass(frozen=True, eq=False)
class MemoryProfile:
    """What lived in memory, from when to when.

    Parameters
    ----------
    events : pyarrow.Table
        One row per birth, death, change of size or change of category, in order: ``time_ns`` since the beginning,
        ``event``, number of the ``storage``, ``category`` and ``size_bytes`` from then on (0 after a death),
        ``iteration``; and, of the birth, ``phase`` (before, data, forward, backward, update), ``name`` (of the tensor,
        or of the operator that made it), ``layer`` (module path) and ``line`` (of the program).
    meta : mapping
        ``is_fake``, what is included, versions; ``is_uncompiled`` where a program that compiles ran as plain Python.

    Examples
    --------
    >>> births = [(0, "birth", 0, "weight", 4096), (5, "birth", 1, "feature map", 1000)]
    >>> profile = MemoryProfile.of([*births, (9, "death", 1, "feature map", 0)])
    >>> profile.peak_bytes, profile.peak_rounded_bytes, profile.peak_reserved_bytes
    (5096, 5120, 2097152)
    >>> profile.by_category()["feature map"]
    1000
    """

    events: pa.Table = field(repr=False)
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]], meta: Mapping[str, Any] | None = None) -> MemoryProfile:
        """A profile of rows in the order of ``COLUMNS``; what is left off at a row's end is empty."""
        padded = [(*row, *(0, "", "", "", "")[len(row) - 5 :]) for row in rows]
        columns = list(zip(*padded, strict=True)) or [()] * len(COLUMNS)
        arrays = [_column(values, kind) for values, kind in zip(columns, COLUMNS.values(), strict=True)]
        return cls(pa.table(arrays, names=list(COLUMNS)), dict(meta or {}))

    def __str__(self) -> str:
        largest = max(CATEGORIES, key=lambda name: self.by_category()[name])
        share = self.by_category()[largest] / self.peak_bytes if self.peak_bytes else 0.0
        return f"peak {format_size(self.peak_bytes)}, {format_ratio(share)} of it {largest}"

    def on(self, chip: Device) -> MemoryProfile:
        """The same on a GPU of NVIDIA, with what cuBLAS keeps for each thread that multiplies matrices.

        Those are one for the forward passes and one for the backward passes.

        Parameters
        ----------
        chip : Device

        Examples
        --------
        >>> from windtunnel.hardware import device
        >>> steps = [(0, "birth", 0, "weight", 4096, 0, "forward"), (5, "birth", 1, "gradient", 512, 0, "backward")]
        >>> MemoryProfile.of(steps).on(device("h100")).peak_bytes - 4608 == 2 * 32 * 2**20
        True
        """
        if chip.vendor != "NVIDIA":
            return self
        phases = set(self.events.column("phase").unique().to_pylist())
        begin_ns, number = int(self.time_ns.min(initial=0)), int(self._numbers("storage").max(initial=-1)) + 1
        kept_bytes = cublas_bytes(chip.architecture)
        rows = [
            (begin_ns, "birth", number + index, "workspace", kept_bytes, 0, "before", f"cuBLAS, {name}")
            for index, name in enumerate(("forward", "backward"))
            if name == "forward" or name in phases
        ]
        events = pa.concat_tables([MemoryProfile.of(rows).events, self.events])
        return MemoryProfile(events.unify_dictionaries(), {**self.meta, "chip": chip.name})

    # --- over time --------------------------------------------------------------------------------------

    @cached_property
    def time_ns(self) -> Int:
        """Time of every event, int64 [E]."""
        return self._numbers("time_ns")

    @cached_property
    def held_bytes(self) -> Int:
        """Bytes by category after every event, int64 [E, categories]."""
        return np.cumsum(self._changes(self._numbers("size_bytes")), axis=0)

    @cached_property
    def total_bytes(self) -> Int:
        """Bytes after every event, as requested, int64 [E]."""
        total: Int = self.held_bytes.sum(axis=1)
        return total

    @cached_property
    def rounded_bytes(self) -> Int:
        """Bytes after every event, each storage rounded up to 512, int64 [E]."""
        size = self._numbers("size_bytes")
        rounded = -(-size // ROUNDING_BYTES) * ROUNDING_BYTES
        total: Int = np.cumsum(self._changes(rounded), axis=0).sum(axis=1)
        return total

    @cached_property
    def reserved_bytes(self) -> Int:
        """Bytes that PyTorch's caching allocator would have reserved after every event, int64 [E].

        It begins with an empty device and what is alive at the beginning.
        """
        return compute_reserved_bytes(self._numbers("storage"), self._numbers("size_bytes"))

    # --- at the peak ------------------------------------------------------------------------------------

    @cached_property
    def peak_event(self) -> int:
        """Row of the event after which most is held, for the first time."""
        return int(np.argmax(self.total_bytes)) if len(self.total_bytes) else 0

    @cached_property
    def peak_bytes(self) -> int:
        """The most that is held at any time, as requested."""
        return int(self.total_bytes.max(initial=0))

    @cached_property
    def peak_without_workspace_bytes(self) -> int:
        """The most that is held at any time besides workspace, as requested; fake tensors predict this number."""
        without = self.total_bytes - self.held_bytes[:, CATEGORIES.index("workspace")]
        return int(without.max(initial=0))

    @cached_property
    def peak_rounded_bytes(self) -> int:
        """The most that an allocator hands out which rounds to 512 bytes."""
        return int(self.rounded_bytes.max(initial=0))

    @cached_property
    def peak_reserved_bytes(self) -> int:
        """The most that PyTorch's caching allocator would take from a device."""
        return int(self.reserved_bytes.max(initial=0))

    def by_category(self) -> dict[str, int]:
        """Bytes of every category at the peak."""
        held = self.held_bytes[self.peak_event] if len(self.held_bytes) else np.zeros(len(CATEGORIES), dtype=int)
        return dict(zip(CATEGORIES, held.tolist(), strict=True))

    def alive_at(self, event: int) -> pa.Table:
        """Storages that are alive after an event, largest first: name, layer, line, phase, category, bytes."""
        storage = self._numbers("storage")[: event + 1]
        _, from_end = np.unique(storage[::-1], return_index=True)
        last = np.sort(event - from_end)
        size = self._numbers("size_bytes")[last]
        last = last[size > 0]
        order = last[np.argsort(-self._numbers("size_bytes")[last], kind="stable")]
        return self.events.select(["storage", "name", "layer", "line", "phase", "category", "size_bytes"]).take(order)

    def alive_at_peak(self) -> pa.Table:
        """Storages that are alive at the peak, largest first: name, layer, line, phase, category, bytes."""
        return self.alive_at(self.peak_event) if self.events.num_rows else self.events

    def by_layer(self) -> pa.Table:
        """Bytes per module path, phase of birth and category: at the peak, and the most at any time."""
        return self._group_bytes(["layer", "phase", "category"])

    def by_line(self) -> pa.Table:
        """Bytes per source line and category: at the peak, and the most at any time."""
        return self._group_bytes(["line", "category"])

    def at_most(self) -> dict[str, int]:
        """The most of every category at any time."""
        most = self.held_bytes.max(axis=0, initial=0)
        return dict(zip(CATEGORIES, most.tolist(), strict=True))

    # --- keeping ----------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """What a graph's ``meta`` keeps.

        The peak as a whole, of the passes and of the update, its categories and largest storages, and the bytes of
        every category over time at the number of points that a picture has.
        """
        in_update = self._is_update()
        passes = np.where(in_update, -1, self.total_bytes)
        held = self.held_bytes[int(np.argmax(passes))].tolist() if len(passes) else [0] * len(CATEGORIES)
        return {
            "peak_bytes": self.peak_bytes,
            "passes": {
                "peak_bytes": int(passes.max(initial=0)),
                "by_category": dict(zip(CATEGORIES, held, strict=True)),
            },
            "update": {"peak_bytes": int(self.total_bytes[in_update].max(initial=0))},
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "by_category": self.by_category(),
            "curve": self._curve(),
            "largest": self.alive_at_peak().slice(0, _NUM_LARGEST).to_pylist(),
            "num_alive": self.alive_at_peak().num_rows,
        }

    def _curve(self) -> dict[str, Any]:
        points = highest_points(self.time_ns, self.total_bytes)
        held = {name: self.held_bytes[points, index] for index, name in enumerate(CATEGORIES)}
        return {
            "time_ns": self.time_ns[points].tolist(),
            "by_category": {name: values.tolist() for name, values in held.items() if values.any()},
        }

    def _is_update(self) -> NDArray[np.bool_]:
        """Events from the first birth of an update on to the next birth elsewhere, bool [E]."""
        column = self.events.column("phase").combine_chunks()
        is_birth = np.array([text == "birth" for text in self.events.column("event").to_pylist()], dtype=bool)
        code = np.where(is_birth, column.indices.to_numpy(), -1)
        last_birth = np.maximum.accumulate(np.where(is_birth, np.arange(len(code)), 0))
        names = [*column.dictionary.to_pylist(), ""]
        result: NDArray[np.bool_] = (np.array(names) == "update")[code[last_birth]]
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain values with raw units."""
        return {
            "schema": SCHEMA,
            "peak_bytes": self.peak_bytes,
            "peak_without_workspace_bytes": self.peak_without_workspace_bytes,
            "peak_rounded_bytes": self.peak_rounded_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "by_category": self.by_category(),
            "at_most": self.at_most(),
            "num_storages": len(np.unique(self._numbers("storage"))),
            "num_events": self.events.num_rows,
            "meta": dict(self.meta),
        }

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write one Parquet file, whole or not at all.

        Raises
        ------
        InputError
            The file is there already and ``overwrite`` is False.
        """
        target = Path(path)
        if target.exists() and not overwrite:
            raise InputError(f"{target} is there already", fix="choose another name, or overwrite it with --force")
        document = json.dumps({"schema": SCHEMA, "meta": dict(self.meta)}, default=str)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as scratch:
            pq.write_table(self.events.replace_schema_metadata({"windtunnel": document}), scratch, compression="zstd")
        return target

    @classmethod
    def load(cls, path: str | Path, *, read_limit: int | None = None) -> MemoryProfile:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        path : str or Path
        read_limit : int, optional
            The most bytes of memory that reading may take (`windtunnel.base.reading.ReadLimit`).

        Raises
        ------
        InputError
            The file is not there, is no memory profile, or is damaged: names the column.
        SchemaVersionError
            It was written by a version that this one does not know.
        """
        return cls(*read_events(Path(path), COLUMNS, CATEGORIES, SCHEMA, ReadLimit(Path(path), read_limit)))

    # --- helpers ----------------------------------------------------------------------------------------

    def _numbers(self, name: str) -> Int:
        values: Int = self.events.column(name).to_numpy().astype(np.int64, copy=False)
        return values

    def _codes(self, names: Sequence[str]) -> tuple[Int, list[tuple[str, ...]]]:
        """Number of the combination of texts in every row, and the combinations."""
        columns = [self.events.column(name).combine_chunks() for name in names]
        combined = np.zeros(self.events.num_rows, dtype=np.int64)
        for column in columns:
            combined = combined * (len(column.dictionary) + 1) + column.indices.to_numpy()
        _, first, code = np.unique(combined, return_index=True, return_inverse=True)
        rows = [tuple(column[row].as_py() for column in columns) for row in first.tolist()]
        return code.astype(np.int64), rows

    def _previous(self, values: Int) -> Int:
        """The value of the same storage at its event before, -1 at its first."""
        storage = self._numbers("storage")
        order = np.argsort(storage, kind="stable")
        before = np.full(len(values), -1, dtype=np.int64)
        is_same = storage[order][1:] == storage[order][:-1]
        before[order[1:][is_same]] = values[order[:-1][is_same]]
        return before

    def _changes(self, size: Int) -> Int:
        """What every event adds to every category, int64 [E, categories]."""
        column = self.events.column("category").combine_chunks()
        order = [CATEGORIES.index(text) for text in column.dictionary.to_pylist()]
        code = np.array(order, dtype=np.int64)[column.indices.to_numpy()] if order else np.zeros(0, dtype=np.int64)
        changes = np.zeros((len(size), len(CATEGORIES)), dtype=np.int64)
        rows = np.arange(len(size))
        before, size_before = self._previous(code), self._previous(size)
        is_later = before >= 0
        np.add.at(changes, (rows, code), size)
        np.add.at(changes, (rows[is_later], before[is_later]), -size_before[is_later])
        return changes

    def _group_bytes(self, names: list[str]) -> pa.Table:
        """Bytes of every combination at the peak and at most, those that are never any left out, largest first."""
        code, strings = self._codes(names)
        size = self._numbers("size_bytes")
        before, size_before = self._previous(code), self._previous(size)
        later = np.flatnonzero(before >= 0)
        groups = np.concatenate([before[later], code])
        deltas = np.concatenate([-size_before[later], size])
        rows = np.concatenate([later, np.arange(len(code))])
        order = np.lexsort((deltas, rows, groups))  # within an event what goes, then what comes
        groups, deltas, rows = groups[order], deltas[order], rows[order]
        running = np.cumsum(deltas)
        at_peak = np.zeros(len(strings), dtype=np.int64)
        np.add.at(at_peak, groups[rows <= self.peak_event], deltas[rows <= self.peak_event])
        # every group ends where it began, or holds what is alive at the end: take off what the groups before left
        ends = np.searchsorted(groups, np.arange(len(strings)), side="left")
        offset = np.where(ends > 0, running[ends - 1], 0)
        most = np.zeros(len(strings), dtype=np.int64)
        np.maximum.at(most, groups, running - offset[groups])
        ranked = np.lexsort((-most, -at_peak))
        ranked = ranked[most[ranked] > 0]
        columns = {name: [strings[row][index] for row in ranked] for index, name in enumerate(names)}
        return pa.table({**columns, "peak_bytes": at_peak[ranked], "most_bytes": most[ranked]})


def highest_points(time_ns: Int, size_bytes: Int) -> Int:
    """Indices of the changes to draw: of every short span of time the largest, so that no peak is lost.

    Parameters
    ----------
    time_ns, size_bytes : int64 [N]
        Times, ascending, and what is held from each on.
    """
    count = len(time_ns)
    if count <= _NUM_POINTS:
        return np.arange(count)
    span = max(int(time_ns[-1] - time_ns[0]), 1)
    bins = np.minimum((time_ns - time_ns[0]) * _NUM_POINTS // span, _NUM_POINTS - 1)
    order = np.lexsort((-size_bytes, bins))
    first = np.flatnonzero(np.diff(bins[order], prepend=-1))
    return np.sort(order[first])


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, type=pa.string()).dictionary_encode()
    return pa.array(values, type=kind)
