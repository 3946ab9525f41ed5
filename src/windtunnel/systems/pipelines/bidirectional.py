"""Schedules whose microbatches enter at both ends: DualPipe, and half of it folded to a V.

In: numbers of ranks and microbatches. Out: a ``Schedule``. In DualPipe every rank holds a stage of either direction,
that is two copies of the model in all; a rank of DualPipeV does what a rank of one half does, with the second half of
the stages in the place of the other direction. Not here: schedules of one direction (``schedules``, ``chunked``).

Source: DeepSeek-V3 Technical Report (2024), section 3.2.1, and its published DualPipe.
"""

# R ranks, S stages, M microbatches

from __future__ import annotations

from itertools import pairwise

from windtunnel.errors import InputError
from windtunnel.systems.pipelines.chunked import Row, v_ranks
from windtunnel.systems.pipelines.schedules import Action, Schedule, require_some

__all__ = ["dualpipe", "dualpipe_v"]


def dualpipe_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """DualPipe on a V: stage r and stage 2R - 1 - r on rank r, and one copy of the model.

    Raises
    ------
    InputError
        There are no ranks or no microbatches.
    """
    require_some("dualpipev", num_ranks, num_microbatches)
    rows, overlaps = [], set()
    for rank in range(num_ranks):
        row = _TwoWays(rank, 2 * num_ranks - 1 - rank)
        row.fill(rank, num_ranks, max(num_microbatches, 2 * num_ranks))
        rows.append(row.within(num_microbatches))
        overlaps |= row.overlaps
    return Schedule(
        "dualpipev", tuple(rows), v_ranks(num_ranks), num_microbatches,
        max_in_flight=(min(2 * num_ranks + 1, 2 * num_microbatches),) * num_ranks,
        overlaps=_together(rows, overlaps),
    )  # fmt: skip


def dualpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """DualPipe: even microbatches enter at the first rank, odd ones at the last.

    Stage s lies on rank s for even microbatches, and on rank R - 1 - s for odd ones.

    Raises
    ------
    InputError
        There are no microbatches, or no even numbers of both.
    """
    require_some("dualpipe", num_ranks, num_microbatches)
    if num_ranks % 2:
        raise InputError(f"{num_ranks} ranks have no middle", where="dualpipe", fix="an even number, or dualpipev")
    if num_microbatches % 2:
        raise InputError(
            f"{num_microbatches} microbatches are no two halves", where="dualpipe", fix="an even number, or dualpipev"
        )
    half = num_ranks // 2
    rows, overlaps = [], set()
    for rank in range(num_ranks):
        other = num_ranks - 1 - rank
        near, far = (rank, other) if rank < half else (other, rank)  # the stage of the nearer end, and the other one
        row = _TwoWays(near, far)
        row.fill(min(rank, other), half, max(num_microbatches // 2, num_ranks))
        is_even = {rank: 0, other: 1}  # a rank's own stage is that of the first direction
        numbered = {
            action: action._replace(microbatch=2 * action.microbatch + is_even[action.stage]) for action in row.actions
        }
        rows.append(tuple(item for item in numbered.values() if item.microbatch < num_microbatches))
        overlaps |= {numbered[overlap] for overlap in row.overlaps}
    return Schedule(
        "dualpipe", tuple(rows), tuple(range(num_ranks)), num_microbatches,
        replicas=tuple((stage, num_ranks - 1 - stage) for stage in range(num_ranks)),
        max_in_flight=(min(num_ranks + 1, num_microbatches),) * num_ranks,
        overlaps=_together(rows, overlaps),
    )  # fmt: skip


def _together(rows: list[tuple[Action, ...]], overlaps: set[Action]) -> frozenset[Action]:
    """Those whose other one is there as well: it goes backward, or forward, behind them."""
    kept = set()
    for row in rows:
        for item, other in pairwise(row):
            if item in overlaps and other.kind == "B":
                kept.add(item)
    return frozenset(kept)


class _TwoWays(Row):
    """A rank between the stages ``near`` and ``far`` from where microbatches enter."""

    def __init__(self, near: int, far: int) -> None:
        super().__init__()
        self.near, self.far = near, far
        self.overlaps: set[Action] = set()
        self._waiting: list[int] = []

    def fill(self, position: int, num_positions: int, num_each: int) -> None:
        """Run all eight phases of the schedule with ``num_each`` microbatches in each direction."""
        behind = num_positions - position - 1
        self.add(self.near, "F", 2 * behind)
        for _ in range(position + 1):
            self.add(self.near, "F")
            self.add(self.far, "F")
        self.add(self.far, "IWF", behind)
        for turn in range(num_each - 2 * num_positions + position + 1):
            # in the middle nothing has come back yet that the first pass could overlap with
            self._both(self.near, self.far, is_overlapped=turn > 0 or behind > 0)
            self._both(self.far, self.near)
        for _ in range(behind):
            self.add(self.far, "B")
            self._both(self.far, self.near)
        self._empty(position, behind)

    def _both(self, forward: int, backward: int, *, is_overlapped: bool = True) -> None:
        self.add(forward, "F")
        if is_overlapped:
            self.overlaps.add(self.actions[-1])
        self.add(backward, "B")

    def _empty(self, position: int, behind: int) -> None:
        """The last passes backward: from the middle on, the weights' gradients wait."""
        switch = 2 * ((position + 1) // 2) + (position + 1) % 2
        for index in range(2 * (position + 1)):
            self._back(self.near if index % 2 else self.far, is_split=index >= switch)
        for _ in range(behind):
            self._weight()
            self._back(self.near, is_split=True)
        for _ in range(len(self._waiting)):
            self._weight()

    def _back(self, stage: int, *, is_split: bool) -> None:
        self.add(stage, "I" if is_split else "B")
        self._waiting += [stage] * is_split

    def _weight(self) -> None:
        self.add(self._waiting.pop(0), "W")
