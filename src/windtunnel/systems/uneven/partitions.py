"""Partitions of the samples over workers: equal parts, or skewed by label, by size or by group.

In: labels, a number of workers, a seed. Out: indices for each worker, which together contain every sample once.
Sources: Hsieh, Phanishayee, Mutlu, Gibbons, The Non-IID Data Quagmire, ICML 2020; Hsu, Qi, Brown, 2019 (Dirichlet).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError

__all__ = ["PARTITIONERS", "Partition", "label_skew", "partition_counts", "split"]

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """How samples are distributed over workers.

    Parameters
    ----------
    kind : str
        A key of ``PARTITIONERS``.
    parameters : mapping
        Parameters of that kind: ``s`` of ``skew`` (fraction of the samples that are distributed by label, 0 to 1),
        ``alpha`` and ``min_size`` of ``dirichlet``, ``ratio`` of ``quantity`` (the largest part over the smallest).
    seed : int
    """

    kind: str = "iid"
    parameters: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0


def split(labels_N: NDArray[Any], num_workers: int, partition: Partition) -> list[Indices]:
    """Return the indices of each worker's samples.

    Raises
    ------
    InputError
        There is no such partitioner or parameter, or a worker would have no samples.
    """
    maker = PARTITIONERS.get(partition.kind)
    if maker is None:
        known = ", ".join(PARTITIONERS)
        raise InputError(f"no partitioner is called {partition.kind!r}", where="[partition]", fix=f"known: {known}")
    rng = np.random.default_rng(partition.seed)
    try:
        parts = maker(np.asarray(labels_N), num_workers, rng, **partition.parameters)
    except TypeError as error:
        raise InputError(f"{partition.kind} takes other numbers: {error}", where="[partition]") from error
    for rank, part in enumerate(parts):
        if not len(part):
            raise InputError(
                f"partition {rank} has 0 samples",
                where=f"{partition.kind} {dict(partition.parameters)}: {len(labels_N)} samples, {num_workers} workers",
                fix="for dirichlet give min_size=1 or a larger alpha; else fewer workers or another partitioner",
            )
    return [np.sort(part) for part in parts]


def partition_counts(labels_N: NDArray[Any], parts: Sequence[Indices]) -> NDArray[np.int64]:
    """Return the number of samples by worker and class, [workers, classes]."""
    classes = np.unique(labels_N)
    return np.array([[int((labels_N[part] == cls).sum()) for cls in classes] for part in parts], np.int64)


def label_skew(labels_N: NDArray[Any], parts: Sequence[Indices]) -> float:
    """Return the mean total variation distance of the class frequencies of a worker to those of all, 0 to 1.

    Examples
    --------
    >>> label_skew(np.array([0, 0, 1, 1]), [np.array([0, 1]), np.array([2, 3])])
    0.5
    """
    counts = partition_counts(labels_N, parts)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1).mean() / 2)


def _iid(labels: NDArray[Any], num: int, rng: np.random.Generator) -> list[Indices]:
    order = rng.permutation(len(labels))
    return [order[rank::num] for rank in range(num)]


def _by_label(labels: NDArray[Any], num: int, rng: np.random.Generator) -> list[Indices]:
    return [np.flatnonzero(_ranks(labels) % num == rank) for rank in range(num)]


def _skew(labels: NDArray[Any], num: int, rng: np.random.Generator, s: float = 1.0) -> list[Indices]:
    """Distribute a fraction of the samples by label, the rest round robin."""
    _check_share("s", s)
    order = rng.permutation(len(labels))
    by_label = order[: round(s * len(order))]
    rest = order[len(by_label) :]
    owner = np.empty(len(labels), np.int64)
    owner[by_label] = _ranks(labels)[by_label] % num
    owner[rest] = np.arange(len(rest)) % num
    return [np.flatnonzero(owner == rank) for rank in range(num)]


def _skew_in_pairs(labels: NDArray[Any], num: int, rng: np.random.Generator) -> list[Indices]:
    """Distribute eight of ten consecutive samples by label, and two to the partner of that worker."""
    owner = _ranks(labels) % num
    partner = np.where((owner ^ 1) < num, owner ^ 1, owner)
    is_moved = np.arange(len(labels)) % 10 >= 8
    owner = np.where(is_moved, partner, owner)
    return [np.flatnonzero(owner == rank) for rank in range(num)]


def _dirichlet(
    labels: NDArray[Any], num: int, rng: np.random.Generator, alpha: float = 0.5, min_size: int = 0
) -> list[Indices]:
    """Distribute each class by a Dirichlet draw; repeat the draw while a worker has fewer than ``min_size`` samples."""
    if not alpha > 0:
        raise InputError(f"alpha must be above 0, not {alpha}", where="[partition]", fix="0.5 is usual")
    for _ in range(1000):
        owner = np.empty(len(labels), np.int64)
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.round(np.cumsum(rng.dirichlet(np.full(num, alpha)))[:-1] * len(members)).astype(np.int64)
            for rank, part in enumerate(np.split(members, cuts)):
                owner[part] = rank
        # by rank, so that each part keeps the order of the data
        parts = [np.flatnonzero(owner == rank) for rank in range(num)]
        if min(map(len, parts)) >= min_size:
            return parts
    raise InputError(
        f"no draw gave every worker {min_size} samples", where=f"dirichlet alpha={alpha}", fix="take a larger alpha"
    )


def _quantity(labels: NDArray[Any], num: int, rng: np.random.Generator, ratio: float = 4.0) -> list[Indices]:
    """Distribute samples at random into parts whose sizes form a geometric sequence from 1 to ``ratio``."""
    if not ratio >= 1:
        raise InputError(f"ratio is the largest share over the smallest, not {ratio}", where="[partition]", fix="4")
    shares = ratio ** (np.arange(num) / max(num - 1, 1))
    cuts = np.round(np.cumsum(shares / shares.sum())[:-1] * len(labels)).astype(np.int64)
    return list(np.split(rng.permutation(len(labels)), cuts))


def _by_group(labels: NDArray[Any], num: int, rng: np.random.Generator) -> list[Indices]:
    """Give each worker a contiguous part of the data, as locations or times of origin would."""
    return list(np.array_split(np.arange(len(labels)), num))


def _ranks(labels: NDArray[Any]) -> NDArray[np.int64]:
    return np.searchsorted(np.unique(labels), labels).astype(np.int64)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{name} must be between 0 and 1, not {value}", where="[partition]", fix="such as 0.6")


PARTITIONERS: dict[str, Callable[..., list[Indices]]] = {
    "iid": _iid,
    "by_label": _by_label,
    "skew": _skew,
    "paired_skew": _skew_in_pairs,
    "dirichlet": _dirichlet,
    "quantity": _quantity,
    "in_order": _by_group,
}
