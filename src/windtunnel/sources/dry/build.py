"""One traced rank -> a graph.

In: a ``Trace``. Out: a ``Graph`` of one iteration: the program's thread launches, streams run what it launched, each
process group's stream carries its messages. Order on a stream, data, launches and what was waited for are edges. Not
here: several ranks (``join_ranks``), prices.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, Phase, ResourceKind, Strings
from windtunnel.sources.dry.recorder import Call
from windtunnel.sources.dry.streams import COMM
from windtunnel.sources.dry.thread_tasks import ThreadTasks, blocks_thread, calls_on_host, tasks_of_thread
from windtunnel.sources.dry.trace import Trace
from windtunnel.sources.memory.storages import BACKWARD, DATA, FORWARD, UPDATE
from windtunnel.sources.torch.dataflow import Flow, follow
from windtunnel.sources.torch.ops import Operator, Role, Span, describe

__all__ = ["NOT_RUN", "graph_of"]

# C calls, K of them are tasks of a stream: row k launches, row K + k runs, and from row 2 K on is what else the
# program's thread does, H tasks
NOT_RUN = "not run"
_PHASES = {DATA: Phase.DATA, FORWARD: Phase.FORWARD, BACKWARD: Phase.BACKWARD, UPDATE: Phase.UPDATE}
# what its schema does not say: it fills its first result, a part of an argument
_FILLS_RESULT = "fsdp::all_gather_copy_in"
Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Work:
    """The calls that a stream runs, and every call's task."""

    calls: list[Call]
    operators: list[Operator]
    place: list[int]  # of every call, the last task of its stream up to it, -1 before the first
    thread: ThreadTasks


def graph_of(trace: Trace) -> Graph:
    """The iteration of one rank."""
    described = [_describe_call(call) for call in trace.calls]
    computes = [operator.role in (Role.COMPUTE, Role.RECIPE) for operator in described]
    on_host = calls_on_host(trace.calls, trace.thread, computes)
    runs = [is_computed and row not in on_host for row, is_computed in enumerate(computes)]
    work = _Work(
        [call for call, is_run in zip(trace.calls, runs, strict=True) if is_run],
        [operator for operator, is_run in zip(described, runs, strict=True) if is_run],
        list(_places(trace.calls, runs)),
        tasks_of_thread(
            trace.calls,
            trace.thread,
            launches=np.flatnonzero(runs).tolist(),
            on_host=on_host,
            phases=_phases(trace.calls),
            num_workers=trace.num_workers,
        ),
    )
    flow = follow(*zip(*_number_operators(described, runs), strict=True)) if described else Flow()
    tasks = _columns(trace, work, flow)
    memory = _memory(trace.calls, runs)
    around = (len(work.calls), len(work.thread.names))
    tasks |= {name: np.pad(column, around) for name, column in memory.items()}
    resources, rows = _resources(trace, work.calls)
    tasks["resource"] = np.pad(rows, around)
    return Graph.from_columns(
        tasks=tasks, edges=_edges(trace.calls, work, flow), resources=resources, meta=_meta(trace)
    )


# --- what a call is -----------------------------------------------------------------------------------


def _describe_call(call: Call) -> Operator:
    operator = describe(call.node)
    if call.message is not None:
        return _describe_collective(call, operator)
    if call.node["schema"].startswith(_FILLS_RESULT):
        filled = _spans(call.node["outputs"], [0])
        return replace(operator, role=Role.COMPUTE, reads=operator.reads[:-1], mutates=filled)
    return operator


def _describe_collective(call: Call, operator: Operator) -> Operator:
    message = call.message
    assert message is not None
    given = _spans(call.node["inputs"], message.inputs)
    filled = _spans(call.node["inputs"], message.outputs)
    fresh = () if message.outputs else operator.writes
    return replace(operator, role=Role.COMPUTE, reads=given, mutates=filled, writes=fresh, flops=0)


def _spans(side: dict[str, Any], places: Iterable[int]) -> tuple[Span, ...]:
    selected = {name: [side[name][index] for index in places] for name in ("values", "shapes", "types", "strides")}
    empty: dict[str, list[Any]] = {name: [] for name in selected}
    return describe({"schema": "spans() -> ()", "inputs": selected, "outputs": empty}).reads


def _places(calls: list[Call], runs: list[bool]) -> Iterator[int]:
    last: dict[int, int] = {}
    count = -1
    for call, is_run in zip(calls, runs, strict=True):
        if is_run:
            count += 1
            last[call.stream] = count
        yield last.get(call.stream, -1)


def _number_operators(operators: list[Operator], runs: list[bool]) -> Iterator[tuple[Operator, int]]:
    count = -1
    for operator, is_run in zip(operators, runs, strict=True):
        count += is_run
        role = Role.COMPUTE if is_run else operator.role
        yield operator if operator.role is role else replace(operator, role=role), max(count, 0)


# --- columns ------------------------------------------------------------------------------------------


def _columns(trace: Trace, work: _Work, flow: Flow) -> dict[str, Any]:
    calls, operators, thread = work.calls, work.operators, work.thread
    count, num_others = len(calls), len(thread.names)
    num_tasks = 2 * count + num_others
    messages = [call.message for call in calls]
    names = [call.node["name"] for call in calls]
    ops = [name if message is None else message.op for name, message in zip(names, messages, strict=True)]
    is_sent = np.array([message is not None for message in messages], dtype=bool)
    kinds = np.where(is_sent, Kind.COMM, Kind.COMPUTE)
    order = np.zeros(num_tasks, np.int64)
    order[thread.rows] = np.arange(len(thread.rows))
    order[count : 2 * count] = order[:count]
    layers = [trace.layers[layer] for layer in [*[call.layer for call in calls] * 2, *thread.layers]]

    def of_kernels(values: Any) -> Any:
        """A column in which only kernels have values."""
        return np.pad(np.array(values, dtype=np.int64), (count, num_others))

    return {
        "name": Strings.of([*names, *names, *thread.names]),
        "op": Strings.of(["launch"] * count + ops + thread.ops),
        "layer": Strings.of(layers),
        "kind": np.array([*[Kind.HOST] * count, *kinds, *thread.kinds], np.int8),
        "phase": np.array([*_phases(calls) * 2, *thread.phases], np.int8),
        "iteration": np.zeros(num_tasks, np.int32),
        "rank": np.full(num_tasks, trace.rank, np.int32),
        "flops": of_kernels([operator.flops for operator in operators]),
        "bytes_read": of_kernels(np.where(is_sent, 0, [flow.bytes_read.get(row, 0) for row in range(count)])),
        "bytes_written": np.concatenate(
            [
                np.zeros(count, np.int64),
                np.where(is_sent, 0, [flow.bytes_written.get(row, 0) for row in range(count)]),
                thread.written_bytes,
            ]
        ).astype(np.int64),
        "param_bytes": of_kernels([_bytes_of(operator, trace.parameters) for operator in operators]),
        "order": order,
        "duration_ns": np.zeros(num_tasks, np.int64),
        "cost_source": Strings.repeat(NOT_RUN, num_tasks),
        **_texts(operators, is_sent, num_others),
        **_message_columns(calls, num_others),
    }


def _texts(operators: list[Operator], is_sent: Any, num_others: int) -> dict[str, Strings]:
    before, behind = [""] * len(operators), [""] * num_others
    fields = {
        "op_schema": "schema",
        "input_shapes": "shapes",
        "input_dtypes": "dtypes",
        "input_strides": "strides",
        "input_args": "arguments",
    }
    kept = [
        replace(operator, arguments="[]") if sent else operator
        for operator, sent in zip(operators, is_sent, strict=True)
    ]
    return {
        column: Strings.of(before + [getattr(item, name) for item in kept] + behind) for column, name in fields.items()
    }


def _message_columns(calls: list[Call], num_others: int) -> dict[str, Any]:
    columns = {
        "message_bytes": ("size_bytes", 0, np.int64),
        "group": ("group", -1, np.int32),
        "sequence": ("sequence", -1, np.int64),
        "peer": ("peer", -1, np.int32),
        "tag": ("tag", -1, np.int64),
    }
    return {
        name: np.pad(
            np.array([absent if call.message is None else getattr(call.message, field) for call in calls], dtype=kind),
            (len(calls), num_others),
            constant_values=absent,
        )
        for name, (field, absent, kind) in columns.items()
    }


def _phases(calls: list[Call]) -> list[Phase]:
    """What runs in no module between the backward pass and the update belongs to the update: clipping, unscaling."""
    result, following, seen = [], -1, {row for row, call in enumerate(calls) if call.phase == BACKWARD}
    first = min(seen, default=len(calls))
    for row in range(len(calls) - 1, -1, -1):
        call = calls[row]
        is_between = call.phase == FORWARD and not call.layer and row > first
        phase = following if is_between and following == UPDATE else call.phase
        following = phase
        result.append(_PHASES.get(phase, Phase.OTHER))
    return result[::-1]


def _bytes_of(operator: Operator, storages: frozenset[int]) -> int:
    spans = {span for span in (*operator.reads, *operator.mutates) if span.storage in storages}
    return sum(span.num_bytes for span in spans)


def _memory(calls: list[Call], runs: list[bool]) -> dict[str, Any]:
    """What is allocated before a task belongs to it, what is freed after it as well."""
    output, freed = [], []
    born = 0
    for call, is_run in zip(calls, runs, strict=True):
        born += max(call.born_bytes, 0)
        missing = call.freed_bytes + max(-call.born_bytes, 0)
        if is_run:
            output.append(born)
            freed.append(missing)
            born = 0
        elif freed:
            freed[-1] += missing
    if output:
        output[-1] += born
    return {"output_bytes": np.array(output, np.int64), "freed_bytes": np.array(freed, np.int64)}


# --- resources and edges ------------------------------------------------------------------------------


def _resources(trace: Trace, calls: list[Call]) -> tuple[dict[str, Any], Any]:
    streams = sorted({call.stream for call in calls})
    row = {stream: index + 1 for index, stream in enumerate(streams)}
    names = [f"rank {trace.rank} thread", *(f"rank {trace.rank} {_stream_name(trace, stream)}" for stream in streams)]
    count = len(names)
    resources = {
        "name": names,
        "kind": [ResourceKind.HOST_THREAD] + [ResourceKind.STREAM] * (count - 1),
        "machine": [0] * count,
        "device": [0] * count,
        "discipline": [Discipline.FIFO] * count,
        "slots": [1] * count,
    }
    return resources, np.array([row[call.stream] for call in calls], np.int32)


def _stream_name(trace: Trace, stream: int) -> str:
    if stream < COMM:
        return f"stream {stream}"
    group, peer, is_out = trace.ways[stream - COMM]
    return f"group {trace.groups[group].name}" + (f" {'to' if is_out else 'from'} {peer}" if peer >= 0 else "")


def _edges(calls: list[Call], work: _Work, flow: Flow) -> dict[str, Any]:
    count = len(work.calls)
    chain = list(itertools.pairwise(work.thread.rows))
    launched = [(row, count + row) for row in range(count)]
    data = [(count + src, count + dst) for src, dst in flow.data]
    control = [(count + src, count + dst) for src, dst in flow.control]
    parts: list[tuple[EdgeKind, list[Any]]] = [
        (EdgeKind.ORDER, chain + _queues(work.calls, count)),
        (EdgeKind.LAUNCH, launched),
        (EdgeKind.DATA, data),
        (EdgeKind.CONTROL, control),
        (EdgeKind.SYNC, sorted(_waits(calls, work, count))),
    ]
    pairs = np.array([pair for _, pairs in parts for pair in pairs], dtype=np.int32).reshape(-1, 2)
    size = np.zeros(len(pairs), np.int64)
    begin = sum(len(result) for _, result in parts[:2])
    size[begin : begin + len(data)] = list(flow.data.values())
    return {
        "src": pairs[:, 0],
        "dst": pairs[:, 1],
        "kind": np.repeat(np.array([kind for kind, _ in parts], np.int8), [len(result) for _, result in parts]),
        "size_bytes": size,
        "lag_ns": np.zeros(len(pairs), np.int64),
    }


def _queues(calls: list[Call], count: int) -> list[Edge]:
    queues: dict[int, list[int]] = defaultdict(list)
    for row, call in enumerate(calls):
        queues[call.stream].append(count + row)
    return [pair for rows in queues.values() for pair in itertools.pairwise(rows)]


def _waits(calls: list[Call], work: _Work, count: int) -> set[Edge]:
    """What streams and the program wait for; a stream's wait before a call that is no task is its successor's."""
    pending: dict[int, set[int]] = defaultdict(set)
    result: set[Edge] = set()
    before: dict[int, int] = {}
    for number, (call, index) in enumerate(zip(calls, work.place, strict=True)):
        pending[call.stream] |= {work.place[wait] for wait in call.waits}
        awaited = {work.place[host_wait] for host_wait in call.host_waits} | ({index} if blocks_thread(call) else set())
        result |= {(count + item, work.thread.row_of_call[number]) for item in awaited if item >= 0}
        if index == before.get(call.stream, -1):
            continue
        before[call.stream] = index
        result |= {(count + item, count + index) for item in pending.pop(call.stream, ()) if 0 <= item != index}
    return result


def _meta(trace: Trace) -> dict[str, Any]:
    return {
        "groups": tuple(trace.groups),
        "models": trace.models,
        "optimizers": trace.optimizers,
        "memory": trace.memory.summary(),
        "memory_base_bytes": trace.base_bytes,
        "shapes": {"inputs": [list(shape) for shape in trace.inputs]},
        **({"loader": {"num_workers": trace.num_workers, "fetch_ns": 0}} if trace.num_workers else {}),
    }
