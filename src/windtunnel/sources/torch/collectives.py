"""When the messages of a captured iteration went, and which slice waited for each.

In: points of the main thread in every profiled iteration, the profiles with the threads that carry messages, and what
each message is. Out: ``Transfers``: times per iteration, and the waiting that is taken out of the main thread's slices,
as a wait is an edge and no cost. A rank's messages go one after the other over its network, in order of issue: what a
message took is counted from its issue or the end of the one before, whichever is later. Waiting for a peer is still in
it; joining the ranks takes that out. Messages between two ranks overtake each other; one is as long as its receiver
waits from when it asked for it. Not here: other ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, ResourceKind, Table
from windtunnel.graph.meta import ProcessGroup
from windtunnel.graph.schema import EDGE_COLUMNS, RESOURCE_COLUMNS, TASK_COLUMNS
from windtunnel.sources.torch.messages import OPS, PEER_TO_PEER, WAIT, Message
from windtunnel.sources.torch.profile import Events
from windtunnel.sources.torch.timeline_points import Points

__all__ = ["Transfers", "transfers", "with_transfers"]

# I iterations, P points, C messages
Int = NDArray[np.int64]
NETWORK, BETWEEN_TWO = "network", "messages between two"
_ISSUE, _CARRIER = "c10d::", "gloo:"
_UNKNOWN_NS = -1
_VOTES = 0.4  # of the iterations in which a message ended within a slice that waits for it
_RESIDUE_NS, _RESIDUE_RATIO = 300_000, 0.25  # a slice that waited goes on at once
_LOOK_BACK, _LATE_RATIO = 40, 3  # slices before the end of a carrier that may have waited, and how much longer
# where a program waits that was never seen to: the reducer's first copy, the update
_FUNCTIONAL, _WAIT_TENSOR = "_c10d_functional::", "_c10d_functional::wait_tensor"
_LATEST = ("torch.distributed.ddp.reducer::copy_bucket_to_grad", "Optimizer.step")


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """C messages in order of issue.

    ``issue`` [C] is the slice in which each is issued, ``wait`` [C] the slice that waits for it. ``own_ns`` [I, C] is
    what it took on the rank's network in every iteration, ``begin_ns`` [I, C] since when; ``times_ns`` [I, P] is when
    the main thread's points happened, ``waits_ns`` [I, P - 1] what its slices waited.
    """

    messages: tuple[Message, ...]
    issue: Int
    wait: Int
    own_ns: Int
    begin_ns: Int
    times_ns: Int
    waits_ns: Int


def transfers(
    names: Sequence[str],
    points: Points,
    times_IP: Int,
    profiles: Sequence[tuple[Events, int]],
    messages: Sequence[Message],
    works: NDArray[np.bool_],
) -> Transfers | None:
    """Find the messages of an iteration; None where it sends none.

    Parameters
    ----------
    names : sequence of str [E]
        The main thread's events.
    points : Points
    times_IP : int64 [I, P]
        When each point happened in every profiled iteration.
    profiles : sequence [I]
        The profile of each, and the row of its mark.
    messages : sequence of Message
        What one iteration sends, in order of issue.
    works : bool [P - 1]
        Slices that compute: none of them waits.

    Raises
    ------
    InputError
        The iteration that was profiled sent other messages than the one in which they were noted.
    """
    events = [row for row, name in enumerate(names) if _message_of_event(name)]
    if not events:
        return None
    _require_same([_message_of_event(names[row]) for row in events], [message.op for message in messages])
    issue, leave = points.enter[events], points.leave[events]
    known = _find_marked_waits(names, points, events, messages)
    end_IC = np.stack([_ends(*profile, messages) for profile in profiles])
    told_IC = np.where(known >= 0, times_IP[:, np.maximum(known, 0) + 1], times_IP[:, leave])
    end_IC = np.where(end_IC == _UNKNOWN_NS, told_IC, end_IC)
    wait = np.where(known >= 0, known, _waiting_slices(times_IP, end_IC, leave, works))
    wait = _unseen(names, points, wait, leave)
    # a carrier's thread may go on after the waiter has: the message had arrived by then
    resumed_IC = times_IP[:, np.minimum(wait + 1, times_IP.shape[1] - 1)]
    end_IC = np.maximum(np.minimum(end_IC, resumed_IC), times_IP[:, issue])
    begin_IC = _begins(times_IP[:, issue], end_IC, is_alone(messages))
    own_IC = np.maximum(end_IC - begin_IC, 0)
    return Transfers(tuple(messages), issue, wait, own_IC, begin_IC, times_IP, _waits(times_IP, end_IC, wait))


def _message_of_event(name: str) -> str:
    """The message that an event issues; empty if none."""
    return OPS.get(name.removeprefix(_ISSUE), "") if name.startswith(_ISSUE) else ""


def _require_same(profiled: list[str], noted: list[str]) -> None:
    if profiled == noted:
        return
    index = next(
        (row for row, (item, other) in enumerate(zip(profiled, noted, strict=False)) if item != other),
        min(len(profiled), len(noted)),
    )
    raise InputError(
        f"iterations send different messages: {len(noted)} in one, {len(profiled)} in another",
        where=f"message {index}: {noted[index : index + 1] or 'none'} and {profiled[index : index + 1] or 'none'}",
        fix="let warm-up last longer (--warmup 10), or capture a part of the run in which all iterations are alike",
    )


def _ends(events: Events, marker: int, messages: Sequence[Message]) -> Int:
    """When each message of one iteration had arrived [C]: the n-th of its kind was carried as the n-th."""
    low, high = events.start_ns[marker], events.end_ns[marker]
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero((events.start_ns >= low) & (events.start_ns < high)).tolist():
        if events.names[row].startswith(_CARRIER):
            rows.setdefault(_plain(events.names[row].removeprefix(_CARRIER)), []).append(row)
    ends = np.full(len(messages), _UNKNOWN_NS, dtype=np.int64)
    for op in dict.fromkeys(message.op for message in messages):
        indices = [index for index, message in enumerate(messages) if message.op == op]
        carried = rows.get(_plain(op), [])
        if len(carried) == len(indices):
            ends[indices] = events.end_ns[carried]
    return ends


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.removesuffix("_base").lower())


def is_alone(messages: Sequence[Message]) -> NDArray[np.bool_]:
    """Mask of the messages between two ranks, as opposed to collectives [C]."""
    return np.array([message.op in PEER_TO_PEER for message in messages], dtype=bool)


def _begins(issued_IC: Int, end_IC: Int, alone: NDArray[np.bool_]) -> Int:
    """When each message had the network: collectives of a rank take turns."""
    begin = issued_IC.copy()
    taking = np.flatnonzero(~alone)
    if len(taking):
        ends = np.concatenate([issued_IC[:, taking[:1]], end_IC[:, taking[:-1]]], axis=1)
        begin[:, taking] = np.maximum(issued_IC[:, taking], np.maximum.accumulate(ends, axis=1))
    return begin


def _find_marked_waits(names: Sequence[str], points: Points, events: Sequence[int], messages: Sequence[Message]) -> Int:
    """The slice that waits for each message [C] where the program shows it, else -1.

    A message between two ranks: the n-th wait of its kind. A functional collective: the next ``wait_tensor`` that none
    before it has.
    """
    marks: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if name.startswith(WAIT) or name == _WAIT_TENSOR:
            marks.setdefault(name.removeprefix(WAIT), []).append(int(points.enter[row]))
    waits, used = np.full(len(messages), -1, dtype=np.int64), dict.fromkeys(marks, 0)
    for index, (event, message) in enumerate(zip(events, messages, strict=True)):
        parent = int(points.parent[event])
        is_functional = parent >= 0 and names[parent].startswith(_FUNCTIONAL)
        kind = _WAIT_TENSOR if is_functional else message.op if message.op in PEER_TO_PEER else ""
        following = [point for point in marks.get(kind, [])[used.get(kind, 0) :] if point > points.leave[event]]
        if following:
            waits[index] = following[0]
            used[kind] = marks[kind].index(following[0]) + 1
    return waits


def _waiting_slices(times_IP: Int, end_IC: Int, leave: Int, works: NDArray[np.bool_]) -> Int:
    """The slice that waits for each message [C]: the one in which it arrives, again and again; -1 if there is none."""
    wait = np.full(end_IC.shape[1], -1, dtype=np.int64)
    last = times_IP.shape[1] - 2
    idle = np.flatnonzero(~works)
    for index, first in enumerate(leave.tolist()):
        own = idle[idle >= min(first, last)]
        if not len(own):
            continue
        held = np.array([_find_end_slice(row, own, end) for row, end in zip(times_IP, end_IC[:, index], strict=True)])
        result, votes = np.unique(held[held >= 0], return_counts=True)
        if not len(result) or votes.max() < _VOTES * len(held):
            continue
        best = int(result[votes.argmax()])
        left = times_IP[:, best + 1] - np.maximum(end_IC[:, index], times_IP[:, best])
        length = np.median(times_IP[:, best + 1] - times_IP[:, best])
        if np.median(left) <= max(_RESIDUE_NS, _RESIDUE_RATIO * length):
            wait[index] = best
    return wait


def _find_end_slice(times: Int, idle: Int, end: int) -> int:
    """The slice that a message ends in, or just after it: its carrier goes on after the waiter; -1 where that works."""
    place = int(np.searchsorted(times[idle], end, "right")) - 1
    if place < 0:
        return -1
    slices = idle[max(0, place - _LOOK_BACK) : place + 1]
    over, length = np.maximum(end - times[slices + 1], 0), times[slices + 1] - times[slices]
    fits = _LATE_RATIO * over <= length
    if not fits.any():
        return -1
    # the longest of those: what waits is longer than what goes on
    return int(slices[fits][length[fits].argmax()])


def _unseen(names: Sequence[str], points: Points, wait: Int, leave: Int) -> Int:
    """What never waited for a message: it would with the next message's waiter, or where its kind of program does."""
    marks = [[int(points.enter[row]) for row, name in enumerate(names) if name.startswith(mark)] for mark in _LATEST]
    filled, following, last = wait.copy(), -1, points.num_slices - 1
    for index in reversed(range(len(wait))):
        if wait[index] < 0:
            later = [point for mark in marks for point in mark[:1] if point > leave[index]]
            filled[index] = following if following >= leave[index] else min([*later, last])
        following = filled[index]
    return filled


def _waits(times_IP: Int, end_IC: Int, wait: Int) -> Int:
    """What each slice waited in every iteration [I, P - 1]."""
    waits = np.zeros((len(times_IP), times_IP.shape[1] - 1), dtype=np.int64)
    for index, waiter in enumerate(wait.tolist()):
        begin, end = times_IP[:, waiter], times_IP[:, waiter + 1]
        waited = np.clip(np.minimum(end_IC[:, index], end) - begin, 0, None)
        waits[:, waiter] = np.maximum(waits[:, waiter], waited)
    return waits


def with_transfers(graph: Graph, found: Transfers, kept: NDArray[np.bool_], chosen: NDArray[np.intp]) -> Graph:
    """Add the messages of one rank to its captured iteration.

    Parameters
    ----------
    graph : Graph
        Slices of the main thread.
    found : Transfers
    kept : bool [P - 1]
        Slices that are tasks.
    chosen : int
        Iterations whose mean is the duration.
    """
    rows = np.flatnonzero(kept)
    issue = np.clip(np.searchsorted(rows, found.issue, "right") - 1, 0, None)
    wait = np.searchsorted(rows, found.wait)
    message = graph.num_tasks + np.arange(len(found.messages))
    groups = tuple(dict.fromkeys(item.group for item in found.messages))
    is_waited = wait < len(rows)
    alone = is_alone(found.messages)
    turn = message[~alone]
    ends = [(issue, message), (turn[:-1], turn[1:]), (message[is_waited], wait[is_waited])]
    kinds = (EdgeKind.LAUNCH, EdgeKind.ORDER, EdgeKind.SYNC)
    edges = {
        "src": np.concatenate([src for src, _ in ends]).astype(np.int32),
        "dst": np.concatenate([dst for _, dst in ends]).astype(np.int32),
        "kind": np.repeat(np.array(kinds, np.int8), [len(src) for src, _ in ends]),
        "from_start": np.arange(sum(len(src) for src, _ in ends)) < len(issue),
    }
    network = {
        "name": [NETWORK, BETWEEN_TWO],
        "kind": [ResourceKind.LINK, ResourceKind.POOL],
        "discipline": [Discipline.FIFO] * 2,
        "slots": [1, max(1, int(alone.sum()))],
    }
    origin_ns = int(found.times_ns[:, 0].mean())
    begun_ns = _mean(found.times_ns[chosen] - found.times_ns[chosen][:, :1])
    measured = graph.tasks.replace(start_ns=np.append(begun_ns[:-1][kept], graph.tasks["start_ns"][kept.sum() :]))
    return Graph.from_columns(
        tasks=measured.concat(
            Table.from_columns(_columns(graph, found, issue, groups, chosen), TASK_COLUMNS), TASK_COLUMNS
        ),
        edges=graph.edges.concat(Table.from_columns(edges, EDGE_COLUMNS), EDGE_COLUMNS),
        resources=graph.resources.concat(Table.from_columns(network, RESOURCE_COLUMNS), RESOURCE_COLUMNS),
        meta=graph.meta.with_entries({"groups": groups, "origin_ns": origin_ns}),
    )


def _columns(
    graph: Graph, found: Transfers, issue: Int, groups: tuple[ProcessGroup, ...], chosen: NDArray[np.intp]
) -> dict[str, Any]:
    messages = found.messages
    number = [groups.index(message.group) for message in messages]
    sequence = [number[:index].count(group) for index, group in enumerate(number)]
    return {
        "name": [f"{message.op} {index}" for index, message in enumerate(messages)],
        "op": [message.op for message in messages],
        "layer": graph.tasks.strings("layer").to_numpy()[issue].tolist(),
        "kind": np.full(len(messages), Kind.COMM),
        "phase": graph.tasks["phase"][issue],
        "message_bytes": [message.size_bytes for message in messages],
        "group": number,
        "sequence": sequence,
        "peer": [message.peer for message in messages],
        "tag": [message.tag for message in messages],
        "resource": graph.num_resources + is_alone(messages),
        "order": graph.num_tasks + np.arange(len(messages)),
        "duration_ns": _mean(found.own_ns[chosen]),
        "duration_std_ns": found.own_ns.std(axis=0).round().astype(np.int64),
        "samples_ns": np.ascontiguousarray(found.own_ns.T),
        "start_ns": _mean((found.begin_ns - found.times_ns[:, :1])[chosen]),
        "cost_source": ["measured"] * len(messages),
        "op_schema": [""] * len(messages),
    }


def _mean(values: Int) -> Int:
    mean: Int = values.mean(axis=0).round().astype(np.int64)
    return mean
