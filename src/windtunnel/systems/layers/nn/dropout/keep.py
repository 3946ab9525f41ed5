"""Which units are kept: the same ones for a whole batch, drawn anew every step or every few.

In: units, a share to drop, a seed and what sets are for. Out: ``Keep`` per set, and ``Span``, which says the rows of
a packed sequence that each set is for. Sets depend on (seed, layer, place, step) alone, so that any one of them can
be drawn again without the others. Not here: products with what is kept (``products``).

Source: Sarma et al., Structured in Space, Randomized in Time, NeurIPS 2021; the mixing function is that of Steele,
Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from windtunnel.errors import InputError

__all__ = ["Keep", "Span", "check_dropout", "count_groups", "draw", "factors_of", "spans"]

_WORD = (1 << 64) - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, eq=False)
class Keep:
    """One set of kept units.

    Parameters
    ----------
    index : int64 [k]
        Kept units, ascending.
    num_units : int
        Kept and dropped ones.
    scale : float
        What a kept unit is multiplied with, so that the expectation stays.
    """

    index: torch.Tensor
    num_units: int
    scale: float

    @property
    def num_kept(self) -> int:
        """Number of units that are kept."""
        return len(self.index)

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Stretches [first, last) of neighbors that are all kept."""
        units = self.index.numpy(force=True)
        if not len(units):
            return ()
        breaks = np.flatnonzero(np.diff(units) != 1) + 1
        parts = np.split(units, breaks)
        return tuple((int(part[0]), int(part[-1]) + 1) for part in parts)

    def factors(self, dtype: torch.dtype) -> torch.Tensor:
        """``scale`` where a unit is kept and 0 elsewhere, [num_units]."""
        return torch.zeros(self.num_units, dtype=dtype, device=self.index.device).index_fill_(0, self.index, self.scale)


@dataclass(frozen=True, eq=False)
class Span:
    """Rows [first, last) of a packed sequence that share a set."""

    first: int
    last: int
    keep: Keep


def check_dropout(dropout: float, *, what: str = "dropout") -> float:
    """The share to drop.

    Raises
    ------
    InputError
        It is no share.
    """
    if not 0.0 <= dropout <= 1.0:
        raise InputError(f"{what} is a share of units, and {dropout} is not from 0 to 1", where=f"{what}={dropout}")
    return float(dropout)


def count_groups(num_units: int, dropout: float, group: int = 1) -> tuple[int, int]:
    """Groups in all and groups kept: round((1 - p) groups), at least one unless all are dropped.

    Raises
    ------
    InputError
        A group is larger than all units.

    Examples
    --------
    >>> count_groups(650, 0.5), count_groups(1500, 0.65, group=32)
    ((650, 325), (47, 16))
    """
    if group < 1 or group > num_units:
        raise InputError(
            f"units cannot be dropped in groups of {group} where there are {num_units}",
            where=f"group={group}",
            fix=f"take a group from 1 to {num_units}",
        )
    num_groups = -(-num_units // group)
    kept = round((1.0 - check_dropout(dropout)) * num_groups)
    return num_groups, kept if dropout >= 1.0 else max(kept, 1)


def draw(
    num_units: int,
    dropout: float,
    steps: Sequence[int],
    *,
    seed: int,
    layer: int = 0,
    site: int = 0,
    group: int = 1,
    device: torch.device | None = None,
) -> list[Keep]:
    """One set for each step.

    Parameters
    ----------
    num_units : int
    dropout : float
        Share of units that are dropped. Sets have exactly the size that this gives: products keep one shape.
    steps : sequence of int
        Numbers of the steps for which a set is drawn.
    seed, layer, site : int
        Together with the step they decide the set.
    group : int
        Number of neighboring units that are dropped together; the last group may be smaller.
    device : torch.device, optional
        Where the sets lie.

    Examples
    --------
    >>> [keep.index.tolist() for keep in draw(6, 0.5, range(2), seed=1)] == [
    ...     keep.index.tolist() for step in range(2) for keep in draw(6, 0.5, [step], seed=1)
    ... ]
    True
    """
    num_groups, num_kept = count_groups(num_units, dropout, group)
    scale = num_groups / num_kept if num_kept else 0.0
    # A number for every unit at every step, uint64 [S, count].
    key = seed & _WORD
    for part in (layer, site):
        key = int(_mix_bits(np.array([(key + _STEP * (part + 1)) & _WORD], dtype=np.uint64))[0])
    step = _mix_bits(np.array([(key + _STEP * (item + 1)) & _WORD for item in steps], dtype=np.uint64))
    # Every unit gets a pseudorandom number; the ones with the smallest numbers are kept. So exactly as many
    # are kept at each step, and no order of draws matters.
    selected = _smallest(
        _mix_bits(step[:, None] + np.arange(1, num_groups + 1, dtype=np.uint64) * np.uint64(_STEP)), num_kept
    )  # [S, kept] ascending
    units = selected if group == 1 else (selected[:, :, None] * group + np.arange(group)).reshape(len(selected), -1)
    rows = [row[row < num_units] for row in units]
    return [Keep(torch.from_numpy(row).to(device or "cpu"), num_units, scale) for row in rows]


def _smallest(numbers: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    if count == numbers.shape[1]:
        return np.broadcast_to(np.arange(count), numbers.shape).copy()
    selected = np.argpartition(numbers, count, axis=1)[:, :count] if count else np.empty((len(numbers), 0), np.int64)
    return np.sort(selected.astype(np.int64), axis=1)


def _mix_bits(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_FIRST)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_SECOND)
    return word ^ (word >> np.uint64(31))


def spans(batch_sizes: Sequence[int], keeps: Sequence[Keep], period: int) -> tuple[Span, ...]:
    """The rows of each set, where a set is for ``period`` steps of a packed sequence."""
    ends = np.concatenate([[0], np.cumsum(batch_sizes)]).tolist()
    starts = range(0, len(batch_sizes), period)
    return tuple(
        Span(ends[step], ends[min(step + period, len(batch_sizes))], keep)
        for step, keep in zip(starts, keeps, strict=True)
    )


def factors_of(spans: Sequence[Span], like: torch.Tensor) -> torch.Tensor:
    """Scale of every row and unit, [N, D]; [D] where one set is for all rows."""
    if len(spans) == 1:
        return spans[0].keep.factors(like.dtype)
    sizes = torch.tensor([span.last - span.first for span in spans], device=like.device)
    return torch.stack([span.keep.factors(like.dtype) for span in spans]).repeat_interleave(sizes, dim=0)
