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
    Call,
    Copy,
    Instruction,
    MatMul,
    Plan,
    RankPlan,
    Receive,
    ReceiveReduce,
    Send,
    Signal,
    View,
    Wait,
)

__all__ = [
    "Layout",
    "Messages",
    "Position",
    "describe",
    "describe_waits",
    "end_of",
    "validate",
    "view_bytes",
    "views_of",
]

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
        How many instructions of each thread are known to be done when an instruction begins, or a receive is done.
    """

    sends: dict[Edge, list[Position]] = field(default_factory=dict)
    receives: dict[Edge, list[Position]] = field(default_factory=dict)
    clocks: dict[Position, NDArray[np.int64]] = field(default_factory=dict)

    def numbers(self) -> dict[Position, int]:
        """The number of each send and receive on its edge."""
        rows = [*self.sends.values(), *self.receives.values()]
        return {position: number for row in rows for number, position in enumerate(row)}

    def find_direct(self, plan: Plan) -> set[Position]:
        """Sends whose data stay as they are until they have been received for sure, so that they need no copy."""
        writes: dict[tuple[int, str], list[tuple[int, int, int, Position]]] = {}
        threads = [(rank.rank, thread) for rank in plan.ranks for thread in rank.threads]
        for number, (rank, thread) in enumerate(threads):
            for index, item in enumerate(plan.ranks[rank].threads[thread]):
                for view in _views_to_write(item):
                    row = writes.setdefault((rank, view.buffer), [])
                    row.append((view.start, end_of(view), number, (rank, thread, index)))
        result = set()
        for edge, sends in self.sends.items():
            for send, receive in zip(sends, self.receives[edge], strict=True):
                view, before, done = _view_of_send(plan, send), self.clocks[send], self.clocks[receive]
                if view.strides == () and all(
                    stop <= view.start
                    or start >= end_of(view)
                    or position[2] < before[number]
                    or (done <= self.clocks[position]).all()
                    for start, stop, number, position in writes.get((send[0], view.buffer), ())
                ):
                    result.add(send)
        return result

    def layout(self, plan: Plan) -> Layout:
        """Where messages lie in the memory that all ranks share.

        A direct message lies in its sender's buffer. Another one takes the memory of an earlier one of its edge if that
        has been received for sure when it is sent: memory is little, and no sender waits for its receiver.
        """
        direct = self.find_direct(plan)
        result = Layout()
        for edge, sends in self.sends.items():
            users: list[tuple[int, int, NDArray[np.int64]]] = []  # first byte, bytes, clock of the last receive
            for send, receive in zip(sends, self.receives[edge], strict=True):
                rank, view = plan.ranks[send[0]], _view_of_send(plan, send)
                size, before = view_bytes(rank, view), self.clocks[send]
                if send in direct:
                    region = result.regions.get((rank.rank, view.buffer))
                    if region is None:
                        region = result.regions[rank.rank, view.buffer] = result.extend(
                            rank.buffers[view.buffer].size_bytes
                        )
                    start = region + view.start * rank.buffers[view.buffer].item_bytes
                else:
                    fits = (i for i, (_, room, last) in enumerate(users) if room >= size and (last <= before).all())
                    free = next(fits, -1)
                    start, room = users.pop(free)[:2] if free >= 0 else (result.extend(size), size)
                    users.append((start, room, self.clocks[receive]))
                result.slots.setdefault(edge, []).append((start, size))
        return result


@dataclass
class Layout:
    """Memory that ranks share.

    Attributes
    ----------
    slots : mapping of (source, target) to list of (int, int)
        First byte and bytes of each message.
    regions : mapping of (rank, buffer) to int
        First byte of buffers that lie there, too.
    num_bytes : int
    """

    slots: dict[Edge, list[tuple[int, int]]] = field(default_factory=dict)
    regions: dict[tuple[int, str], int] = field(default_factory=dict)
    num_bytes: int = 0

    def extend(self, size: int) -> int:
        """Add memory; its first byte."""
        start = self.num_bytes
        self.num_bytes += -(-size // 64) * 64
        return start


def _views_to_write(item: Instruction) -> list[View]:
    """What an instruction writes, of a call all that it may write."""
    if isinstance(item, Call):
        return list(item.arguments)
    return [item.target] if isinstance(item, MatMul | Copy | Receive | ReceiveReduce) else []


def _view_of_send(plan: Plan, position: Position) -> View:
    rank, thread, index = position
    item = plan.ranks[rank].threads[thread][index]
    assert isinstance(item, Send)
    return item.source


def end_of(view: View) -> int:
    """Behind the last element of a view, in its buffer."""
    if not view.strides or not view.size:
        return view.start + view.size
    return view.start + 1 + sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))


def views_of(item: Instruction) -> list[View]:
    """The views that an instruction reads or writes."""
    values = [getattr(item, column.name) for column in fields(item)]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return [part for part in flat if isinstance(part, View)]


def view_bytes(rank: RankPlan, view: View) -> int:
    """Bytes of a view of a rank."""
    return view.size * rank.buffers[view.buffer].item_bytes


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
    end, size = end_of(view), rank.buffers[view.buffer].size
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
                if not isinstance(item, Receive | ReceiveReduce):
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
