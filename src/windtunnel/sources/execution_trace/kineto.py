"""Durations for an execution trace from the Kineto trace of the same run.

In: nodes and the path of a Kineto trace. Out: ``Measured``: own time of every operator, kernels that it launched.
Joined by record-function id where the Kineto trace has it, else by the order of the operators on each thread; names
must agree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import TraceError
from windtunnel.graph import EdgeKind, Graph, ResourceKind
from windtunnel.sources.execution_trace.nodes import Document, Node
from windtunnel.sources.kineto.events import to_events
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.kineto.trace import Trace, read_trace
from windtunnel.sources.timeline.events import MISSING, Category, Events
from windtunnel.sources.timeline.host import cut_threads
from windtunnel.sources.timeline.slices import inherit
from windtunnel.sources.torch.timeline_points import match_in_order

__all__ = ["Kernels", "Measured", "measure"]

# N nodes
Int = NDArray[np.int64]
_MIN_JOINED_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Kernels:
    """What one operator ran on a device: the sum of the durations, and the stream where most of it ran."""

    duration_ns: int
    stream: str


@dataclass(frozen=True, slots=True)
class Measured:
    """``own_ns`` [N] without what an operator called, -1 where it is not in the Kineto trace."""

    own_ns: Int
    kernels: dict[int, Kernels]
    how: str
    num_unjoined_tasks: int


def measure(
    document: Document, path: Path, read_limit: int | None = None, progress: Progress | None = None
) -> Measured:
    """Take durations from the Kineto trace at ``path``.

    Raises
    ------
    TraceError
        Fewer than nine of ten operators are in both: they are not of one run.
    """
    trace = read_trace(path, read_limit=read_limit, progress=progress)
    events = to_events(trace)
    rows = np.flatnonzero((events.category == Category.OPERATOR) | (events.category == Category.ANNOTATION))
    rows = rows[np.lexsort((-events.duration_ns[rows], events.start_ns[rows], events.thread[rows]))]
    joins = {"record-function id": _by_id(trace, rows, document.nodes), "order": {}}
    if len(joins["record-function id"]) < _MIN_JOINED_RATIO * len(document.nodes):
        joins["order"] = _by_order(trace, rows, document.nodes)
    how = max(joins, key=lambda name: len(joins[name]))
    event_of = joins[how]  # trace row -> event
    if len(event_of) < _MIN_JOINED_RATIO * len(document.nodes):
        raise TraceError(
            f"only {len(event_of):,} of {len(document.nodes):,} operators are in both traces",
            where=f"{document.path} and {path}",
            fix="record both in one run, over the same steps: profile(..., execution_trace_observer=...)",
        )
    owner = _owners(events, event_of)
    own_ns = np.full(len(document.nodes), -1, np.int64)
    own_ns[list(event_of.values())] = 0
    return _attribute(events, load_kineto(path, read_limit=read_limit, progress=progress), owner, own_ns, how)


def _by_id(trace: Trace, rows: Int, nodes: list[Node]) -> dict[int, int]:
    """Rows and events with one id and one name.

    Kineto keeps the execution trace's own id where that is recorded beside it. Older ones do not; their external id
    counts alike in a process that has recorded nothing before.
    """
    numbers = trace.argument("Record function id")
    if (numbers == MISSING).all():
        numbers = trace.external_id
    event_of = {node.record_id: event for event, node in enumerate(nodes)}
    pairs = {}
    for row, number in zip(rows.tolist(), numbers[rows].tolist(), strict=True):
        event = event_of.get(number, -1)
        if event >= 0 and nodes[event].name == trace.strings[trace.name[row]]:
            pairs[row] = event
    return pairs


def _by_order(trace: Trace, rows: Int, nodes: list[Node]) -> dict[int, int]:
    """Rows and events in the same place of a thread; each thread goes with the one whose names are most like its."""
    theirs = {thread: rows[trace.thread[rows] == thread] for thread in np.unique(trace.thread[rows]).tolist()}
    names = {thread: [trace.strings[code] for code in trace.name[its].tolist()] for thread, its in theirs.items()}
    pairs: dict[int, int] = {}
    for thread, count in Counter(node.thread for node in nodes).most_common():
        local = [event for event, node in enumerate(nodes) if node.thread == thread]
        requested = [nodes[event].name for event in local]
        likeness = {other: (Counter(requested) & Counter(name)).total() for other, name in names.items()}
        best = max(likeness, key=lambda other: (likeness[other], -len(names[other])), default=None)
        matched = None if best is None else match_in_order(requested, names.pop(best))
        if best is None or matched is None or not count:
            continue
        pairs |= {
            int(theirs[best][index]): event for event, index in zip(local, matched.tolist(), strict=True) if index >= 0
        }
    return pairs


def _attribute(events: Events, graph: Graph, owner_of: Int, own_ns: Int, how: str) -> Measured:
    """Sum the tasks of the Kineto graph by the operator that they belong to."""
    row_of = np.full(int(events.index.max(initial=0)) + 1, -1, np.int64)
    row_of[events.index] = np.arange(events.num_rows)
    owner = owner_of[row_of[graph.tasks["event"]]]
    on_device = graph.resources["kind"][graph.tasks["resource"]] == ResourceKind.STREAM
    launches = graph.edges["kind"] == EdgeKind.LAUNCH
    src, dst = graph.edges["src"][launches], graph.edges["dst"][launches]
    known = owner[src] >= 0
    owner[dst[known]] = owner[src[known]]
    host = np.flatnonzero(~on_device & (owner >= 0))
    np.add.at(own_ns, owner[host], graph.duration_ns[host])
    device = np.flatnonzero(on_device & (owner >= 0))
    return Measured(own_ns, _kernels(graph, device, owner[device]), how, int((owner < 0).sum()))


def _owners(events: Events, event_of: dict[int, int]) -> Int:
    """Event of every row [N]: its own, that of the nearest operator around it, that with its external id; or -1."""
    joined, owners = np.array(list(event_of), np.int64), np.array(list(event_of.values()), np.int64)
    owner = np.full(events.num_rows, -1, np.int64)
    owner[joined] = owners
    host = cut_threads(events, np.empty(0, np.int64))
    owner[host.row] = inherit(host.parent, owner[host.row].astype(np.int32))
    numbers = dict(zip(events.external_id[joined].tolist(), owners.tolist(), strict=True))
    numbers.pop(MISSING, None)
    others = np.flatnonzero(owner < 0)
    owner[others] = [numbers.get(number, -1) for number in events.external_id[others].tolist()]
    return owner


def _kernels(graph: Graph, tasks: Int, owner: Int) -> dict[int, Kernels]:
    streams = graph.resources.strings("name")
    times: dict[int, Counter[str]] = {}
    for task, event in zip(tasks.tolist(), owner.tolist(), strict=True):
        stream = streams.decode(int(graph.tasks["resource"][task]))
        times.setdefault(event, Counter())[stream] += int(graph.duration_ns[task])
    return {event: Kernels(time.total(), time.most_common(1)[0][0]) for event, time in times.items()}
