"""Schedules with several stages per rank, or with backward passes in two parts.

In: numbers of ranks, microbatches, chunks. Out: a ``Schedule``. A rank may hold every R-th stage (interleaved), or one
on the way down and one on the way up (V). What a pass of the weights' gradients fills are slots that would be empty.
Not here: one stage per rank (``schedules``), two directions at once (``bidirectional``).

Sources: Narayanan et al., SC 2021, section 2.2 (interleaved); Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024
(ZB-H1, figure 3); Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024 (V-schedules).
"""

# R ranks, S stages, M microbatches

from __future__ import annotations

from typing import cast

from windtunnel.errors import InputError
from windtunnel.systems.pipelines.schedules import Action, Schedule, ScheduleKind, require_some

__all__ = ["Row", "interleaved", "v_ranks", "zb_h1", "zbv"]


class Row:
    """What one rank does, as it is added: every stage takes its microbatches in order."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._done: dict[tuple[int, str], int] = {}

    def add(self, stage: int, kinds: str, times: int = 1) -> None:
        """Append passes of these kinds for the next microbatches, ``times`` times; B counts as I and W."""
        for _ in range(times):
            for kind in kinds:
                number = self.num_done(stage, "I" if kind == "B" else kind)
                self.actions.append(Action(stage, cast("ScheduleKind", kind), number))
                for part in "IW" if kind == "B" else kind:
                    self._done[stage, part] = self.num_done(stage, part) + 1

    def num_done(self, stage: int, kind: str) -> int:
        """Passes of this kind so far; B is counted as I and W."""
        return self._done.get((stage, kind), 0)

    def weights(self, stage: int) -> None:
        """Gradients of the weights for all microbatches that have gone so far."""
        self.add(stage, "W", self.num_done(stage, "I") - self.num_done(stage, "W"))

    def within(self, num_microbatches: int) -> tuple[Action, ...]:
        """Without microbatches that are too many: a table for more of them holds for fewer."""
        return tuple(action for action in self.actions if action.microbatch < num_microbatches)


def interleaved(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Interleaved 1F1B: a rank holds every R-th stage and takes R microbatches through one after the other.

    Raises
    ------
    InputError
        The microbatches are no multiple of the ranks.
    """
    require_some("interleaved", min(num_ranks, num_chunks), num_microbatches)
    if num_microbatches % num_ranks:
        low = num_microbatches // num_ranks * num_ranks
        raise InputError(
            f"{num_microbatches} microbatches are no multiple of {num_ranks} ranks", where="interleaved",
            fix=f"{low + num_ranks}" + (f", or {low}" if low else ""),
        )  # fmt: skip
    total = num_microbatches * num_chunks
    rows, most = [], []
    for rank in range(num_ranks):
        forward = [_chunk_and_microbatch(i, num_ranks, num_chunks) for i in range(total)]
        ahead = 2 * (num_ranks - 1 - rank) + (num_chunks - 1) * num_ranks
        # with one round only, whatever comes back comes after all has gone
        ahead = total if num_microbatches == num_ranks else min(ahead, total)
        row = [Action(chunk * num_ranks + rank, "F", i) for chunk, i in forward[:ahead]]
        for index, (chunk, position) in enumerate(forward):
            if index + ahead < total:
                next_chunk, next_at = forward[index + ahead]
                row.append(Action(next_chunk * num_ranks + rank, "F", next_at))
            row.append(Action((num_chunks - 1 - chunk) * num_ranks + rank, "B", position))
        rows.append(tuple(row))
        most.append(min(ahead + 1, total))
    ranks = tuple(stage % num_ranks for stage in range(num_ranks * num_chunks))
    return Schedule("interleaved", tuple(rows), ranks, num_microbatches, max_in_flight=tuple(most))


def _chunk_and_microbatch(number: int, num_ranks: int, num_chunks: int) -> tuple[int, int]:
    """Return the chunk and the microbatch of a rank's forward pass ``number``, counted from 0."""
    num_rounds, within = divmod(number, num_ranks * num_chunks)
    chunk, index = divmod(within, num_ranks)
    return chunk, num_rounds * num_ranks + index


def zb_h1(num_ranks: int, num_microbatches: int) -> Schedule:
    """Zero bubble with no more memory than 1F1B: rank r puts off the weights' gradients by r microbatches.

    With passes of equal length it is idle a third of the time that 1F1B is.

    Raises
    ------
    InputError
        There are no ranks or no microbatches.
    """
    require_some("zb-h1", num_ranks, num_microbatches)
    rows = []
    for rank in range(num_ranks):
        row = Row()
        row.add(rank, "F", min(num_ranks - rank, num_microbatches))
        for index in range(num_microbatches):
            row.add(rank, "I")
            if index >= rank:
                row.add(rank, "W")
            if row.num_done(rank, "F") < num_microbatches:
                row.add(rank, "F")
        row.weights(rank)
        rows.append(tuple(row.actions))
    most = (min(num_ranks, num_microbatches),) * num_ranks
    return Schedule("zb-h1", tuple(rows), tuple(range(num_ranks)), num_microbatches, max_in_flight=most)


def zbv(num_ranks: int, num_microbatches: int) -> Schedule:
    """Zero bubble on a V: stage r and stage 2R - 1 - r on rank r, the memory of 1F1B's first rank on every rank.

    Raises
    ------
    InputError
        There are no ranks or no microbatches.
    """
    require_some("zbv", num_ranks, num_microbatches)
    # Planned for enough microbatches that every rank has its steady phase; microbatches beyond the requested ones are
    # cut off at the end.
    full = max(num_microbatches, 2 * num_ranks - 1)
    rows = []
    for rank in range(num_ranks):
        down, up, row = rank, 2 * num_ranks - 1 - rank, Row()
        # Each rank's row, `down` being the stage on the way to the end and `up` the one on the way back:
        #     warm-up       F down ...          as many as fit before the first one comes back
        #                   (F up, F down) x r
        #                   (F I W up) x (R - r)
        #     steady        (F I W down, F I W up), without F where none is left
        #     cool-down     (I down, I up) x r  W is put off, as no rank waits for it
        #                   (I W down) x (R - r), then what is left of W
        row.add(down, "F", 2 * (num_ranks - rank) - 1)
        for _ in range(rank):
            row.add(up, "F")
            row.add(down, "F")
        row.add(up, "FIW", num_ranks - rank)
        while row.num_done(up, "F") < full:
            row.add(down, "FIW" if row.num_done(down, "F") < full else "IW")
            row.add(up, "FIW")
        for _ in range(rank):
            row.add(down, "I")
            row.add(up, "I")
        row.add(down, "IW", num_ranks - rank)
        row.weights(up)
        row.weights(down)
        rows.append(row.within(num_microbatches))
    most = (2 * min(num_ranks, num_microbatches),) * num_ranks
    return Schedule("zbv", tuple(rows), v_ranks(num_ranks), num_microbatches, max_in_flight=most)


def v_ranks(num_ranks: int) -> tuple[int, ...]:
    """Ranks of stages that go down through all of them and up again [S]."""
    return (*range(num_ranks), *reversed(range(num_ranks)))
