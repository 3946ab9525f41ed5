"""Messages between the ranks of a pipeline: no rank waits for a send.

In: a table of actions and a position in it. Out: values from one pass to the next, over gloo or within the rank. Each
rank asks for what its next passes need before it computes, so that messages travel meanwhile; a send is done when the
table says that its receiver has gone on from there. Not here: passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from windtunnel.errors import FlightError
from windtunnel.systems.pipelines.schedules import Action, Schedule

__all__ = ["Edge", "P2PChannel"]

_AHEAD = 2  # one forward, one backward
_TAGS = 1 << 16  # microbatches that tags can distinguish


class Edge(NamedTuple):
    """An edge between passes: activations of a stage or, backward, their gradients."""

    source: int
    target: int
    microbatch: int

    @classmethod
    def into(cls, action: Action, num_stages: int) -> Edge | None:
        """Return the edge that an action waits for; None where it needs no other stage."""
        other = action.reads(num_stages)
        return None if other is None else cls(other, action.stage, action.microbatch)

    @classmethod
    def out_of(cls, action: Action, num_stages: int) -> Edge | None:
        """Return the edge over which an action sends its output; None if it sends none."""
        other = action.feeds(num_stages)
        return None if other is None else cls(action.stage, other, action.microbatch)


@dataclass
class _Sent:
    """A message that is kept until its receiver has it."""

    works: list[Any]
    consumed_at: int  # index in the receiver's row


class P2PChannel:
    """The line of one rank to all others, for one run of a table.

    Parameters
    ----------
    schedule : Schedule
    position : int
        Whose row this is.
    rank_of_position : callable
        Rank of each position.
    shapes : mapping of int to sequence of (shape, dtype)
        What each stage hands on.
    """

    def __init__(
        self,
        schedule: Schedule,
        position: int,
        rank_of_position: Callable[[int], int],
        shapes: Mapping[int, Sequence[tuple[torch.Size, torch.dtype]]],
    ) -> None:
        self._schedule, self._position, self._rank_of_position, self._shapes = (
            schedule,
            position,
            rank_of_position,
            shapes,
        )
        self._made, self._used = _positions(schedule)
        self._own: dict[Edge, list[torch.Tensor]] = {}
        self._asked: dict[Edge, tuple[list[Any], list[torch.Tensor]]] = {}
        self._sent: dict[int, list[_Sent]] = {}
        ways = (Edge.into(action, schedule.num_stages) for action in schedule.actions[position] if action is not None)
        self._coming = [item for item in ways if item is not None and self._from(item) != position]
        self._next = 0

    def take(self, way: Edge) -> list[torch.Tensor]:
        """Wait for values.

        Raises
        ------
        FlightError
            Who sends them is gone.
        """
        if way in self._own:
            return self._own.pop(way)
        self._ask(1 + _AHEAD)
        works, values = self._asked.pop(way)
        source = self._from(way)
        for work in works:
            self._wait_for(work, source, "sends nothing")
        self._ask(_AHEAD)
        self._forget(source, self._made[way])
        return values

    def give(self, way: Edge, values: list[torch.Tensor]) -> None:
        """Hand values on; they must not change from now on."""
        target = self._schedule.rank(way.target, way.microbatch)
        if target == self._position:
            self._own[way] = values
            return
        rank = self._rank_of_position(target)
        works = [dist.isend(value, rank, tag=_tag(way, index)) for index, value in enumerate(values)]
        self._sent.setdefault(target, []).append(_Sent(works, self._used[way]))

    def end(self) -> None:
        """Wait until all messages have arrived."""
        for index in list(self._sent):
            self._forget(index, len(self._schedule.actions[index]))

    def _from(self, way: Edge) -> int:
        return self._schedule.rank(way.source, way.microbatch)

    def _ask(self, number: int) -> None:
        """Post receives of the next ``number`` messages, in the order in which they are needed."""
        while len(self._asked) < number and self._next < len(self._coming):
            way = self._coming[self._next]
            rank = self._rank_of_position(self._from(way))
            values = [torch.empty(shape, dtype=kind) for shape, kind in self._shapes[min(way.source, way.target)]]
            works = [dist.irecv(value, rank, tag=_tag(way, index)) for index, value in enumerate(values)]
            self._asked[way] = (works, values)
            self._next += 1

    def _forget(self, position: int, row: int) -> None:
        """A position has reached that row: it has received everything that earlier rows used."""
        kept = []
        for item in self._sent.get(position, ()):
            if item.consumed_at < row:
                for work in item.works:
                    self._wait_for(work, position, "takes nothing")
            else:
                kept.append(item)
        self._sent[position] = kept

    def _wait_for(self, work: Any, position: int, what: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            rank = self._rank_of_position(position)
            raise FlightError(
                f"rank {rank} was lost: it {what}",
                where=f"rank {self._rank_of_position(self._position)} of the pipeline",
                fix="look for what ended it; --resume goes on from the last checkpoint",
            ) from error  # fmt: skip


def _tag(way: Edge, position: int) -> int:
    """Tells apart what may be on its way between two processes at one time."""
    return ((2 * way.source + (way.source > way.target)) * 64 + position) * _TAGS + way.microbatch % _TAGS


def _positions(schedule: Schedule) -> tuple[dict[Edge, int], dict[Edge, int]]:
    """Return the slots of a rank's row in which each value is made and used."""
    created: dict[Edge, int] = {}
    used: dict[Edge, int] = {}
    for row in schedule.actions:
        for slot, action in enumerate(row):
            if action is None:
                continue
            for slots, way in (
                (created, Edge.out_of(action, schedule.num_stages)),
                (used, Edge.into(action, schedule.num_stages)),
            ):
                if way is not None:
                    slots[way] = slot
    return created, used
