"""An execution trace as the columns of a graph.

In: a ``Document``. Out: a ``Graph``: per operator with work of its own a task on its
thread, and one on its accelerator if that computes; data edges by storage, order by thread and queue, launches,
hand-offs to the autograd threads, waits for collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, ResourceKind, Strings
from windtunnel.sources.execution_trace.nodes import Document, Node
from windtunnel.sources.execution_trace.order import find_parents, label_nodes, lay_out, phases
from windtunnel.sources.execution_trace.reader import UNMEASURED
from windtunnel.sources.execution_trace.work import (
    HOST,
    Work,
    describe_nodes,
    is_wait,
    process_groups,
    sequence_of,
)
from windtunnel.sources.timeline.host import Labels
from windtunnel.sources.torch.dataflow import Flow, trace_flow
from windtunnel.sources.torch.ops import Operator, Role

__all__ = ["build"]

# N nodes, T tasks
Int = NDArray[np.int64]
_NOTHING = Operator(Role.NONE)


@dataclass
class _Tasks:
    """Tasks [T] in the order in which the operators ended: event, whether it is the part on an accelerator, queue."""

    event: list[int] = field(default_factory=list)
    on_device: list[bool] = field(default_factory=list)
    queue: list[str] = field(default_factory=list)
    host: dict[int, int] = field(default_factory=dict)  # event -> task
    device: dict[int, int] = field(default_factory=dict)

    def add(self, event: int, queue: str, *, on_device: bool) -> None:
        (self.device if on_device else self.host)[event] = len(self.event)
        self.event.append(event)
        self.on_device.append(on_device)
        self.queue.append(queue)

    def doing(self, event: int) -> int:
        """The task that touches the operator's tensors."""
        return self.device.get(event, self.host[event])


def build(document: Document) -> Graph:
    """Build the graph, without durations."""
    nodes = document.nodes
    parent, around = find_parents(nodes)
    points = lay_out(nodes, parent)
    works = describe_nodes(document, parent)
    labels = label_nodes(document, around)
    main = points.leave - 1  # the own work of an operator comes after what it called
    flow = trace_flow(points, [work.operator for work in works], main.tolist())
    tasks = _find_tasks(nodes, works, parent, np.argsort(main, kind="stable"))
    event_of = dict(zip(main.tolist(), range(len(nodes)), strict=True))
    columns = _columns(nodes, works, labels, tasks)
    columns |= _traffic_columns(flow, tasks, main)
    edges = _Edges()
    _add_data(edges, flow, tasks, event_of)
    _add_order(edges, nodes, works, tasks)
    names = list(dict.fromkeys(tasks.queue))
    columns["resource"] = _codes(tasks.queue, names)
    groups = _add_groups(columns, works, tasks)
    meta = _meta(document, tasks)
    if groups:
        meta["groups"] = process_groups(nodes, groups)
    return Graph.from_columns(columns, edges.columns(), _resources(names, tasks), meta)


def _add_groups(columns: dict[str, Any], works: list[Work], tasks: _Tasks) -> list[str]:
    """Names of the process groups; columns of group and sequence number for tasks that communicate."""
    reported = [works[event].collective if on else None for event, on in zip(tasks.event, tasks.on_device, strict=True)]
    groups = list(dict.fromkeys(item.group for item in reported if item is not None))
    if groups:
        columns["group"] = [-1 if item is None else groups.index(item.group) for item in reported]
        columns["sequence"] = [-1 if item is None else item.sequence for item in reported]
        columns["message_bytes"] = [0 if item is None else item.message_bytes for item in reported]
    return groups


def _codes(texts: list[str], values: list[str]) -> Int:
    code = {value: index for index, value in enumerate(values)}
    return np.array([code[text] for text in texts], np.int64)


# --- tasks --------------------------------------------------------------------------------------------


def _find_tasks(nodes: list[Node], works: list[Work], parent: Int, order: Int) -> _Tasks:
    is_leaf = np.ones(len(nodes), bool)
    is_leaf[parent[parent >= 0]] = False
    tasks = _Tasks()
    for event in order.tolist():
        node, work = nodes[event], works[event]
        queue = _queue(work)
        is_operator = is_leaf[event] and not _is_annotation(node)
        if work.computes or work.operator.role is Role.READ or is_operator or queue:
            tasks.add(event, f"thread {node.thread}", on_device=False)
        if queue:
            tasks.add(event, queue, on_device=True)
    return tasks


def _is_annotation(node: Node) -> bool:
    return node.scope == 7 and not node.schema


def _queue(work: Work) -> str:
    """Where the operator runs other than on its thread; empty if nowhere. Streams are not recorded."""
    if work.collective is not None:
        return f"{work.device} communication"
    return f"{work.device} compute" if work.computes and work.device != HOST else ""


def _columns(nodes: list[Node], works: list[Work], labels: Labels, tasks: _Tasks) -> dict[str, Any]:
    events = np.array(tasks.event, np.int64)
    phase = phases(nodes, labels, events[~np.array(tasks.on_device)])
    layers = ("", *labels.layers)
    acting = [
        works[event].operator if works[event].computes and tasks.doing(event) == task else _NOTHING
        for task, event in enumerate(tasks.event)
    ]
    columns: dict[str, Any] = {
        "name": [nodes[event].name for event in tasks.event],
        "op": [_op(nodes[event], works[event], on) for event, on in zip(tasks.event, tasks.on_device, strict=True)],
        "layer": [layers[code] for code in (labels.layer[events] + 1).tolist()],
        "kind": [_kind(works[event], on) for event, on in zip(tasks.event, tasks.on_device, strict=True)],
        "phase": [phase[event] for event in tasks.event],
        "duration_ns": np.zeros(len(events), np.int64),
        "cost_source": Strings.repeat(UNMEASURED, len(events)),
        "order": np.arange(len(events)),
        "node": [nodes[event].id for event in tasks.event],
        "flops": [operator.flops for operator in acting],
        "op_schema": [operator.schema for operator in acting],
        "input_shapes": [operator.shapes for operator in acting],
        "input_dtypes": [operator.dtypes for operator in acting],
        "input_strides": [operator.strides for operator in acting],
        "input_args": [operator.arguments for operator in acting],
    }
    steps = np.cumsum([node.name.startswith("ProfilerStep") for node in nodes])
    if steps[-1]:
        columns["iteration"] = np.maximum(steps[events] - 1, 0)
    return columns


def _op(node: Node, work: Work, on_device: bool) -> str:
    if work.collective is not None and on_device:
        return work.collective.name
    return node.name.removeprefix("autograd::engine::evaluate_function: ")


def _kind(work: Work, on_device: bool) -> int:
    if on_device and work.collective is not None:
        return int(Kind.COMM)
    if on_device and work.is_copy:
        return int(Kind.COPY)
    computes = work.computes and (on_device or (work.device == HOST and work.collective is None))
    return int(Kind.COMPUTE if computes else Kind.HOST)


def _traffic_columns(flow: Flow, tasks: _Tasks, main: Int) -> dict[str, Any]:
    """Build the columns of bytes that each task reads and writes."""
    does = [tasks.doing(event) == task for task, event in enumerate(tasks.event)]
    slices = main[tasks.event].tolist()
    return {
        "bytes_read": [flow.bytes_read.get(s, 0) if doing else 0 for s, doing in zip(slices, does, strict=True)],
        "bytes_written": [flow.bytes_written.get(s, 0) if doing else 0 for s, doing in zip(slices, does, strict=True)],
    }


# --- edges --------------------------------------------------------------------------------------------


@dataclass
class _Edges:
    rows: dict[tuple[int, int, EdgeKind], int] = field(default_factory=dict)  # (src, dst, kind) -> bytes

    def add(self, src: int, dst: int, kind: EdgeKind, size_bytes: int = 0) -> None:
        self.rows[src, dst, kind] = max(self.rows.get((src, dst, kind), 0), size_bytes)

    def columns(self) -> dict[str, Any]:
        rows = np.array([(src, dst, kind) for src, dst, kind in self.rows], np.int64).reshape(-1, 3)
        sizes = np.array(list(self.rows.values()), np.int64)
        return {
            "src": rows[:, 0],
            "dst": rows[:, 1],
            "kind": rows[:, 2],
            "size_bytes": sizes,
            "lag_ns": np.zeros(len(rows), np.int64),
        }


def _add_data(edges: _Edges, flow: Flow, tasks: _Tasks, event_of: dict[int, int]) -> None:
    for (writer, reader), size_bytes in flow.data.items():
        edges.add(tasks.doing(event_of[writer]), tasks.doing(event_of[reader]), EdgeKind.DATA, size_bytes)
    for reader, writer in sorted(flow.control):
        edges.add(tasks.doing(event_of[reader]), tasks.doing(event_of[writer]), EdgeKind.CONTROL)


def _add_order(edges: _Edges, nodes: list[Node], works: list[Work], tasks: _Tasks) -> None:
    """Order by thread and queue, launches, waits."""
    last: dict[str, int] = {}
    waits = _Waits({}, {}, {})
    callers = _callers(nodes)
    for task, (event, queue) in enumerate(zip(tasks.event, tasks.queue, strict=True)):
        node, work = nodes[event], works[event]
        if queue in last:
            edges.add(last[queue], task, EdgeKind.ORDER)
        if tasks.on_device[task]:
            edges.add(tasks.host[event], task, EdgeKind.LAUNCH)
            awaited = waits.begin_device(task, node.thread, work)
        else:
            _hand_off(edges, callers, last, task, node.thread)
            awaited = waits.begin_host(node)
        for earlier in awaited:
            edges.add(earlier, task, EdgeKind.SYNC)
        last[queue] = task


@dataclass
class _Waits:
    """Tasks off the threads that others wait for: by collective, by thread, by thread whose next launch waits."""

    issued: dict[int, tuple[int, str]]
    of_thread: dict[int, list[int]]
    of_launch: dict[int, list[int]]

    def begin_device(self, task: int, thread: int, work: Work) -> list[int]:
        """What a task outside of the thread waits for."""
        if work.blocks:
            self.of_thread.setdefault(thread, []).append(task)
        if work.collective is None:
            return self.of_launch.pop(thread, [])
        if work.collective.sequence >= 0:
            self.issued[work.collective.sequence] = (task, work.device)
        return []

    def begin_host(self, node: Node) -> list[int]:
        """What a task of the thread waits for. On an accelerator a wait holds the stream up, on the host the thread."""
        awaited = self.of_thread.pop(node.thread, [])
        if is_wait(node) and sequence_of(node) in self.issued:
            task, device = self.issued[sequence_of(node)]
            if device == HOST:
                return [*awaited, task]
            self.of_launch.setdefault(node.thread, []).append(task)
        return awaited


def _callers(nodes: list[Node]) -> dict[int, int]:
    """Thread that waits while another runs its backward pass: {autograd thread: caller}."""
    return {
        node.thread: node.forward_thread
        for node in nodes
        if node.forward_thread > 0 and node.forward_thread != node.thread
    }


def _hand_off(edges: _Edges, callers: dict[int, int], last: dict[str, int], task: int, thread: int) -> None:
    """The calling thread and the autograd threads take turns: while one runs the other waits."""
    others = [callers[thread]] if thread in callers else [key for key, caller in callers.items() if caller == thread]
    since = last.get(f"thread {thread}", -1)
    for other in others:
        if last.get(f"thread {other}", -1) > since:
            edges.add(last[f"thread {other}"], task, EdgeKind.CONTROL)


# --- resources and meta -------------------------------------------------------------------------------


def _resources(names: list[str], tasks: _Tasks) -> dict[str, list[Any]]:
    streams = {queue for queue, on_device in zip(tasks.queue, tasks.on_device, strict=True) if on_device}
    numbers = [name.split(" ")[0].partition(":")[2] if name in streams else "" for name in names]
    return {
        "name": names,
        "kind": [ResourceKind.STREAM if name in streams else ResourceKind.HOST_THREAD for name in names],
        "device": [int(number) if number.isdigit() and len(number) < 6 else 0 for number in numbers],
        "discipline": [Discipline.FIFO] * len(names),
        "slots": [1] * len(names),
    }


def _meta(document: Document, tasks: _Tasks) -> dict[str, Any]:
    trace: dict[str, Any] = {"path": str(document.path), "schema": document.schema, "num_nodes": len(document.nodes)}
    trace["nodes without work of their own"] = len(document.nodes) - len(set(tasks.event))
    return {"source": "execution-trace", "trace": trace, "num_unmeasured_tasks": len(tasks.event)}
