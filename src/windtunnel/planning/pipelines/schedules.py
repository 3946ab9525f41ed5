"""Who does what in which order in a pipeline (room planning): schedules as tables of actions.

In: numbers of ranks, chunks of the model per rank and microbatches. Out: a ``Schedule``: for each rank its actions in
order, as ``0F3``: stage 0, forward, microbatch 3. Not here: how long an action takes (``model``), whether a table can
run (the verifier), running one (``training``).

Sources: GPipe (Huang et al., 2019), PipeDream (Narayanan et al., SOSP 2019) and PipeDream-2BW (ICML 2021).
"""

# R ranks, S stages, M microbatches

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from windtunnel.errors import InputError

__all__ = ["Action", "Schedule", "ScheduleKind", "gpipe", "one_forward_one_backward"]

ScheduleKind = Literal["F", "B", "I", "W"]
"""Forward, backward; or its two parts: for the input's gradient, and for the weights'."""


class Action(NamedTuple):
    """One pass of one microbatch through one stage."""

    stage: int
    kind: ScheduleKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """A table of actions.

    Parameters
    ----------
    name : str
        Such as ``1f1b``.
    actions : tuple [R] of tuples of Action or None
        What each rank does, in order; None is a slot in which it waits by choice, which only a picture needs.
    rank_of : tuple of int [S]
        On which rank each stage lies.
    num_microbatches : int
        Per batch.
    num_batches : int
        Microbatches count on through all batches: batch b has those from ``b * num_microbatches`` on.
    versions : str
        Which weights a pass sees: ``flush`` (those after all earlier batches), ``2bw`` (those of one batch before), or
        ``stash`` (the newest of its own rank, and the same ones backward).
    """

    name: str
    actions: tuple[tuple[Action | None, ...], ...]
    rank_of: tuple[int, ...]
    num_microbatches: int
    num_batches: int = 1
    versions: Literal["flush", "2bw", "stash"] = "flush"

    @property
    def num_ranks(self) -> int:
        """R."""
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        """S."""
        return len(self.rank_of)


def gpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """All forward, then all backward.

    Raises
    ------
    InputError
        There are no ranks or no microbatches.
    """
    return _linear("gpipe", num_ranks, num_microbatches, lambda _: num_microbatches)


def one_forward_one_backward(num_ranks: int, num_microbatches: int) -> Schedule:
    """PipeDream-Flush: as many forward as there are ranks from here on, then one backward and one forward in turns.

    Raises
    ------
    InputError
        There are no ranks or no microbatches.
    """
    return _linear("1f1b", num_ranks, num_microbatches, lambda rank: num_ranks - rank)


def _linear(name: str, num_ranks: int, num_microbatches: int, num_ahead: Callable[[int], int]) -> Schedule:
    if num_ranks < 1 or num_microbatches < 1:
        raise InputError(f"{num_microbatches} microbatches on {num_ranks} ranks", where=name, fix="one or more of both")
    rows = []
    for rank in range(num_ranks):
        first = min(num_ahead(rank), num_microbatches)
        row = [Action(rank, "F", at) for at in range(first)]
        for at in range(num_microbatches):
            row.append(Action(rank, "B", at))
            row += [Action(rank, "F", at + first)] * (at + first < num_microbatches)
        rows.append(tuple(row))
    return Schedule(name, tuple(rows), tuple(range(num_ranks)), num_microbatches)
