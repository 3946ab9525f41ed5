"""Training, validation and test programs: a program set in, one ``Split`` out.

A sample is a pair (program, column of a device). One object owns every way in which an answer could leak: the rows
that fit weights and normalizers (``train``), that stop training and choose hyper-parameters (``validation``), that
show a new domain without its times (``target``, for CMD and for choosing what to measure) and that give the verdict
(``test``). Tasks never lie on both sides, and neither do tasks of equal work under another number. Not here: training.

Source: CDMPP (EuroSys 2024), section 6. The released split by sorted time leaks tasks, and is not here.
"""

# P programs, D devices, M samples

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.program_set import ALL_DEVICES, ProgramSet, parts_of, work_of

__all__ = [
    "ALL_DEVICES",
    "Split",
    "keep",
    "samples_of",
    "sources_of",
    "split_by_device",
    "split_by_network",
    "split_by_task",
]

MAX_SPREAD = 0.05
VALIDATION_SHARE = 0.1
HELD_OUT_NETWORKS = ("resnet-50", "mobilenet-v2", "resnext-50", "bert-base", "bert-tiny")


@dataclass(frozen=True)
class Split:
    """Samples int64 [M, 2] (program, device column) by use; see the module."""

    kind: str
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    target: np.ndarray

    def __post_init__(self) -> None:
        verdict = _pairs(self.test)
        for use in ("train", "validation"):
            if verdict & _pairs(getattr(self, use)):
                raise InputError(f"{self.kind}: samples of the verdict are also in {use}", fix="make the split again")
        if verdict & _pairs(self.target):
            raise InputError(f"{self.kind}: the verdict's programs shape the model by CMD", fix="make the split again")

    def digest(self) -> str:
        """Short hash of the rows of each use; a checkpoint keeps it."""
        digest = hashlib.sha256(self.kind.encode())
        for use in (self.train, self.validation, self.test, self.target):
            digest.update(np.ascontiguousarray(use, dtype=np.int64).tobytes() + b"|")
        return digest.hexdigest()[:16]


def _pairs(samples: np.ndarray) -> set[tuple[int, int]]:
    return {(int(program), int(device)) for program, device in samples}


def keep(programs: ProgramSet) -> np.ndarray:
    """Which measurements [P, D] count: measured, and of a small standard deviation over mean."""
    mean_s = programs.mean_s.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray((mean_s > 0) & (programs.std_s / mean_s <= MAX_SPREAD))


def samples_of(rows: np.ndarray, columns: Iterable[int], passes: np.ndarray) -> np.ndarray:
    """Samples [M, 2] of some programs on some devices that pass the filters."""
    result = [np.column_stack([rows[passes[rows, d]], np.full(passes[rows, d].sum(), d)]) for d in columns]
    return np.concatenate(result).astype(np.int64) if result else np.zeros((0, 2), dtype=np.int64)


def split_by_task(programs: ProgramSet, device: str, *, test_share: float = 0.2, seed: int = 0) -> Split:
    """Whole tasks by use, drawn at random; on one device, on those of a host (``@HOST``), or on ``all``."""
    groups = _signatures(programs)
    names = np.unique(groups)
    np.random.default_rng(seed).shuffle(names)
    num_test, num_validation = (max(1, round(share * names.size)) for share in (test_share, VALIDATION_SHARE))
    uses = {"test": names[:num_test], "validation": names[num_test : num_test + num_validation]}
    return _by_group("by-task", programs, groups, uses, device)


def split_by_network(
    programs: ProgramSet,
    device: str,
    held_out: Collection[str] = HELD_OUT_NETWORKS,
    *,
    seed: int = 0,
) -> Split:
    """Hold out every task of the held-out networks, even if other networks contain it too."""
    known = programs.networks()
    requested = sorted({match for name in held_out for match in known if _same_network(name, match)})
    if not requested:
        raise InputError(f"none of {', '.join(held_out)} is in this set", where="networks", fix=", ".join(known))
    groups = _signatures(programs)
    is_out = np.array([any(name in task["networks"] for name in requested) for task in programs.tasks])
    test = np.unique(groups[is_out[programs.task]])
    rest = np.setdiff1d(np.unique(groups), test)
    if rest.size < 2:
        raise InputError(
            "the held-out networks contain every task, so nothing is left to learn from", fix="hold out fewer"
        )
    np.random.default_rng(seed).shuffle(rest)
    num_validation = max(1, round(VALIDATION_SHARE * rest.size))
    uses = {"test": test, "validation": rest[:num_validation]}
    return _by_group(f"by-network({', '.join(requested)})", programs, groups, uses, device)


def split_by_device(
    programs: ProgramSet,
    held_out: str,
    *,
    test_share: float = 0.3,
    seed: int = 0,
    of_other_hosts: bool = False,
) -> Split:
    """All other devices teach, or those of other hosts alone.

    Of the held-out one, the test tasks give the verdict and the others may be profiled.

    ``target`` are the samples of the held-out device whose programs are known but whose times are not to be looked
    at, except for the tasks that a sampler pays for.
    """
    passes = keep(programs)
    column = programs.column(held_out)
    sources = sources_of(programs, held_out, of_other_hosts=of_other_hosts)
    groups = _signatures(programs)
    names = np.unique(groups)
    np.random.default_rng(seed).shuffle(names)
    num_test = max(1, round(test_share * names.size))
    num_validation = max(1, round(VALIDATION_SHARE * names.size))
    is_test = np.isin(groups, names[:num_test])
    is_validation = np.isin(groups, names[num_test : num_test + num_validation])
    target = samples_of(np.flatnonzero(~is_test), [column], passes)
    return Split(
        f"by-device({held_out})",
        train=samples_of(np.flatnonzero(~is_validation), sources, passes),
        validation=samples_of(np.flatnonzero(is_validation), sources, passes),
        test=samples_of(np.flatnonzero(is_test), [column], passes),
        target=target,
    )


def sources_of(programs: ProgramSet, held_out: str, *, of_other_hosts: bool = False) -> list[int]:
    """Columns of the devices that may teach what a held-out one takes."""
    host = parts_of(held_out)[1]
    result = [
        column
        for column, name in enumerate(programs.device_names)
        if (parts_of(name)[1] != host if of_other_hosts else name != held_out)
    ]
    if not result:
        reason = "no device of another host is in this set" if of_other_hosts else "there is no other device"
        raise InputError(reason, where=held_out, fix="windtunnel models sample --of adds a host's devices to a set")
    return result


def _same_network(requested: str, known: str) -> bool:
    """Collections differ by separators and by what they append: ``mobilenet-v2`` is also ``mobilenetv2_w1``."""
    requested, known = ("".join(filter(str.isalnum, name.lower())) for name in (requested, known))
    return known.startswith(requested)


def _signatures(programs: ProgramSet) -> np.ndarray:
    """Equal work has an equal number, whatever task it is listed as [P]."""
    _, number = np.unique([work_of(task) for task in programs.tasks], return_inverse=True)
    return np.asarray(number)[programs.task]


def _by_group(
    kind: str,
    programs: ProgramSet,
    groups: np.ndarray,
    uses: Mapping[str, np.ndarray],
    device: str,
) -> Split:
    passes = keep(programs)
    columns = programs.columns(device)
    is_used = {use: np.isin(groups, names) for use, names in uses.items()}
    is_train = ~np.any(list(is_used.values()), axis=0)
    parts = {use: samples_of(np.flatnonzero(rows), columns, passes) for use, rows in is_used.items()}
    train = samples_of(np.flatnonzero(is_train), columns, passes)
    if not (train.size and parts["test"].size):
        raise InputError(
            f"{kind}: {len(train)} samples to learn from, {len(parts['test'])} for the verdict", where=device
        )
    return Split(kind, train, parts["validation"], parts["test"], target=train[:0])
