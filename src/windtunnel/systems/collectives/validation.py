"""Whether a plan can be run to its end, and which send belongs to which receive.

In: a plan. Out: its messages, or an error that names the instructions. Waiting is checked by running the plan without
data: a thread goes on until it waits for what is not there yet; threads that are left over wait for each other. Not
here: results (``interpret``), the watchdog of a real run (``executor``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.systems.collectives.plan import (
    Instruction,
    Plan,
    RankPlan,
    Receive,
    ReceiveReduce,
    Send,
    Signal,
    View,
    Wait,
)

__all__ = ["Messages", "describe", "describe_waits", "validate", "view_bytes", "views_of"]

Edge = tuple[int, int]  # source and target of messages
Position = tuple[int, str, int]  # rank, thread, index of an instruction


@dataclass
class Messages:
    """What ranks send to each other.

    Attributes
    ----------
    sends, receives : mapping of (source, target) to list of (rank, thread, index)
        The n-th send of an edge is received by the n-th receive.
    clocks : mapping of (rank, thread, index) to int [threads]
        How many instructions of each thread are known to be done when a send begins, or a receive is done.
    """

    sends: dict[Edge, list[Position]] = field(default_factory=dict)
    receives: dict[Edge, list[Position]] = field(default_factory=dict)
    clocks: dict[Position, NDArray[np.int64]] = field(default_factory=dict)

    def numbers(self) -> dict[Position, int]:
        """The number of each send and receive on its edge."""
        rows = [*self.sends.values(), *self.receives.values()]
        return {position: number for row in rows for number, position in enumerate(row)}

    def slots(self, plan: Plan) -> dict[Edge, list[tuple[int, int]]]:
        """First byte and bytes of memory for each message.

        A message takes the memory of an earlier one of its edge if that has been received for sure when it is sent,
        so that memory is little, and no sender waits for its receiver.
        """
        end = 0
        result: dict[Edge, list[tuple[int, int]]] = {}
        for edge, sends in self.sends.items():
            users: list[tuple[int, int, NDArray[np.int64]]] = []  # first byte, bytes, clock of the last receive
            for send, receive in zip(sends, self.receives[edge], strict=True):
                rank, thread, index = send
                item = plan.ranks[rank].threads[thread][index]
                assert isinstance(item, Send)
                size = view_bytes(plan.ranks[rank], item.source)
                before, done = self.clocks[send], self.clocks[receive]
                free = next(
                    (i for i, (_, room, last) in enumerate(users) if room >= size and (last <= before).all()), -1
                )
                start, room = users.pop(free)[:2] if free >= 0 else (end, -(-size // 64) * 64)
                end = max(end, start + room)
                users.append((start, room, done))
                result.setdefault(edge, []).append((start, size))
        return result


def views_of(item: Instruction) -> list[View]:
    """The views that an instruction reads or writes."""
    values = [getattr(item, column.name) for column in fields(item)]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return [part for part in flat if isinstance(part, View)]


def view_bytes(rank: RankPlan, view: View) -> int:
    """Bytes of a view of a rank."""
    return view.size * np.dtype(rank.buffers[view.buffer].dtype).itemsize


def describe(plan: Plan, position: Position) -> str:
    """An instruction and where it stands."""
    rank, thread, index = position
    return f"rank {rank}, {thread} {index}: {plan.ranks[rank].threads[thread][index]}"


def describe_waits(plan: Plan, positions: Mapping[tuple[int, str], int]) -> str:
    """Where each (rank, thread) is whose position is not behind its last instruction; "" if all are."""
    return "; ".join(
        describe(plan, (rank, thread, index))
        for (rank, thread), index in sorted(positions.items())
        if index < len(plan.ranks[rank].threads[thread])
    )


def validate(plan: Plan) -> Messages:
    """Check that a plan can be run to its end, and pair its messages.

    Raises
    ------
    InputError
        A view leaves its buffer, a message meets a receive of another tag or size or none at all, an event is not
        signaled exactly once, or threads wait for each other.
    """
    for rank in plan.ranks:
        for thread, items in rank.threads.items():
            for index, item in enumerate(items):
                for view in views_of(item):
                    _check_view(view, rank, f"{plan.name}: {describe(plan, (rank.rank, thread, index))}")
                if isinstance(item, Send | Receive | ReceiveReduce) and not _is_peer(plan, rank.rank, item.peer):
                    where = f"{plan.name}: {describe(plan, (rank.rank, thread, index))}"
                    raise InputError(f"rank {rank.rank} has no peer {item.peer}", where=where, fix="name another rank")
        _check_events(rank, plan.name)
    result, positions = _run_without_data(plan)
    _check_pairs(plan, result)
    waiting = describe_waits(plan, positions)
    if waiting:
        fix = "let each send come before what its receiver sends in return, and each signal before its wait"
        raise InputError(f"threads of {plan.name} wait for each other", where=waiting, fix=fix)
    return result


def _is_peer(plan: Plan, rank: int, peer: int) -> bool:
    return peer != rank and 0 <= peer < len(plan.ranks)


def _check_view(view: View, rank: RankPlan, where: str) -> None:
    if view.buffer not in rank.buffers:
        raise InputError(f"there is no buffer {view.buffer!r}", where=where, fix=f"there are {', '.join(rank.buffers)}")
    reach = sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True)) if view.strides else 0
    end = view.start + (reach + 1 if view.strides and view.size else view.size)
    size = rank.buffers[view.buffer].size
    if min((view.start, *view.shape, *view.strides)) < 0 or end > size:
        message = f"elements {view.start} to {end} of {view.buffer} are not there"
        raise InputError(message, where=where, fix=f"it has {size} elements")


def _check_events(rank: RankPlan, name: str) -> None:
    items = [item for thread in rank.threads.values() for item in thread]
    signals = Counter(item.event for item in items if isinstance(item, Signal))
    for event in sorted({item.event for item in items if isinstance(item, Signal | Wait)}):
        if signals[event] != 1:
            where = f"{name}: rank {rank.rank}"
            fix = "signal each event once, on the rank that waits for it"
            raise InputError(f"event {event} is signaled {signals[event]} times", where=where, fix=fix)


def _check_pairs(plan: Plan, messages: Messages) -> None:
    def form(position: Position) -> tuple[int, int]:
        rank, thread, index = position
        item = plan.ranks[rank].threads[thread][index]
        assert isinstance(item, Send | Receive | ReceiveReduce)
        return item.tag, view_bytes(plan.ranks[rank], item.source if isinstance(item, Send) else item.target)

    for edge, sends in messages.sends.items():
        receives = messages.receives.get(edge, [])
        for send, receive in zip(sends, receives, strict=False):
            if form(send) != form(receive):
                (tag, size), (other_tag, other_size) = form(send), form(receive)
                raise InputError(
                    f"a message of tag {tag}, {size} bytes, meets a receive of tag {other_tag}, {other_size} bytes",
                    where=f"{plan.name}: {describe(plan, send)}; {describe(plan, receive)}",
                    fix="send and receive in the same order on both ranks",
                )
        if len(sends) > len(receives):
            where = f"{plan.name}: {describe(plan, sends[len(receives)])}"
            raise InputError("a message is never received", where=where, fix="let its target receive it")


def _run_without_data(plan: Plan) -> tuple[Messages, dict[tuple[int, str], int]]:
    """Messages in the order in which they pass, and how far each (rank, thread) comes."""
    positions = {(rank.rank, thread): 0 for rank in plan.ranks for thread in rank.threads}
    clocks = {key: np.zeros(len(positions), dtype=np.int64) for key in positions}  # vector clocks of threads
    events: dict[tuple[int, int], NDArray[np.int64]] = {}
    result = Messages()
    has_moved = True
    while has_moved:
        has_moved = False
        for number, ((rank, thread), index) in enumerate(positions.items()):
            items, start, clock = plan.ranks[rank].threads[thread], index, clocks[rank, thread]
            while index < len(items):
                item, position = items[index], (rank, thread, index)
                if isinstance(item, Wait):
                    if (rank, item.event) not in events:
                        break
                    np.maximum(clock, events[rank, item.event], out=clock)
                elif isinstance(item, Receive | ReceiveReduce):
                    receives = result.receives.setdefault((item.peer, rank), [])
                    sends = result.sends.get((item.peer, rank), [])
                    if len(receives) >= len(sends):
                        break
                    np.maximum(clock, result.clocks[sends[len(receives)]], out=clock)
                    receives.append(position)
                elif isinstance(item, Send):
                    result.sends.setdefault((rank, item.peer), []).append(position)
                    result.clocks[position] = clock.copy()
                index += 1
                clock[number] = index
                if isinstance(item, Receive | ReceiveReduce):
                    result.clocks[position] = clock.copy()
                elif isinstance(item, Signal):
                    events[rank, item.event] = clock.copy()
            positions[rank, thread] = index
            has_moved |= index > start
    return result, positions
