"""Where captured work would run on another device: a chain of operators becomes launches and kernels.

In: a graph captured on a CPU, where an operator runs when it is called. Out: the same work with the operators on a
queue of the device and a launch for each on the thread that called it; the thread waits only where it reads a result.
Graphs whose work runs on queues already, and devices that are CPUs, are left as they are. More work is put into a
stream or a thread in the same way: a task on a device brings the call that launches it, on the thread and at the price
at which its neighbor was launched. Not here: prices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.host_times import COSTS, HOST_TABLE, HostCosts, host_times_ns, select_reads
from windtunnel.errors import NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase, ResourceKind, Strings, lags, starts
from windtunnel.graph.host_work import NON_BLOCKING
from windtunnel.graph.kernel_classes import does_matrix_work
from windtunnel.graph.schema import EDGE_COLUMNS, TASK_COLUMNS
from windtunnel.graph.table import Table
from windtunnel.hardware import Device, recognize
from windtunnel.whatifs.layer_gradients import positions

__all__ = [
    "LAUNCH_NS",
    "PRICED_ON",
    "chip_in_use",
    "chip_of",
    "computes_on_host",
    "insert_ahead",
    "insert_behind",
    "is_launching",
    "is_on_host",
    "launch_calls",
    "memory_bandwidth",
    "order_predecessors",
    "place_on",
    "products_by_type",
    "rescale",
    "runs_in_16_bits",
    "select_unpriced",
    "streaming_bandwidth",
    "traffic_ns",
]

NOT_RUN = "not run"
PRICED_ON = "priced_on"
"""Among what a graph notes of its hardware: the device that a forecast priced it on."""

LAUNCH_NS = 5_000
"""Default host time of one operator call and its kernel launch: a typical value, not a measured one."""
_SCALAR_BYTES = 16
_WORK = ("flops", "bytes_read", "bytes_written", "message_bytes", "param_bytes", "output_bytes", "freed_bytes")
_EXTRA = ("workspace_bytes",)

Mask = NDArray[np.bool_]


def place_on(graph: Graph, device: Device, launch_ns: int | None = None, host_costs: HostCosts = COSTS) -> Graph:
    """Run what computes on a queue of the device.

    Parameters
    ----------
    graph : Graph
    device : Device
    launch_ns : int, optional
        What a launch takes on the thread that calls the operator. By default ``LAUNCH_NS``; in a graph that was never
        run all that the thread does takes what it took on the host of an H200.
    host_costs : HostCosts
        Of such a graph.

    Returns
    -------
    Graph
        With one resource more, and one launch per moved task. Counters of an optimizer that the host reads stay on the
        host, as they do in PyTorch.
    """
    unlaunched = _select_unpriced_launches(graph)
    if unlaunched.any():
        assumed_ns = LAUNCH_NS if launch_ns is None else launch_ns
        graph = graph.set_duration(unlaunched, 0 if device.kind == "cpu" else assumed_ns, "assumed launch")
    moved = _select_synchronous_kernels(graph)
    if device.kind == "cpu" or not moved.any():
        return graph
    is_timed = launch_ns is None and bool(select_unpriced(graph)[moved].all())
    launches_ns = np.full(int(moved.sum()), LAUNCH_NS if launch_ns is None else launch_ns, dtype=np.int64)
    if is_timed:
        times_ns = np.rint(host_times_ns(graph, host_costs)).astype(np.int64)
        launches_ns = times_ns[moved]
        on_host = select_unpriced(graph) & graph.select(kind=(Kind.HOST, Kind.IO, Kind.COPY))
        graph = graph.set_duration(on_host, times_ns[on_host], HOST_TABLE)
    extended, queue = graph.add_resource(f"{device.name} queue", ResourceKind.STREAM)
    kernels = np.flatnonzero(moved)
    launches = np.arange(graph.num_tasks, graph.num_tasks + len(kernels), dtype=np.int32)
    resource = graph.tasks["resource"].copy()
    resource[kernels] = queue
    tasks = graph.tasks.replace(resource=resource).concat(
        _launches(graph, kernels, launches_ns, is_timed=is_timed), TASK_COLUMNS
    )
    # Program order holds the launches; data still goes from kernel to kernel.
    #      CPU     a --ORDER--> b                 launch a --ORDER--> launch b          on the thread
    #              (each computes in its place)        |LAUNCH            |LAUNCH
    #                                                  v                  v
    #                                              kernel a --ORDER--> kernel b         on the queue
    index = np.arange(graph.num_tasks, dtype=np.int32)
    index[kernels] = launches
    is_order = graph.edges["kind"] == EdgeKind.ORDER
    ends = {end: np.where(is_order, index[graph.edges[end]], graph.edges[end]).astype(np.int32) for end in _ENDS}
    placed = replace(extended, tasks=tasks, edges=Table.from_columns(dict(graph.edges.replace(**ends)), EDGE_COLUMNS))
    placed = placed.connect(launches, kernels, EdgeKind.LAUNCH)
    position = positions(graph)
    queued = kernels[np.argsort(position[kernels], kind="stable")]  # in the order in which a thread calls
    placed = placed.connect(queued[:-1], queued[1:], EdgeKind.ORDER)
    # to read a number, or to copy a batch and wait for it, Python waits for all that was queued before
    waits = np.flatnonzero(_select_waiting(graph))
    before = np.searchsorted(position[queued], position[waits]) - 1
    return placed.connect(queued[before[before >= 0]], waits[before >= 0], EdgeKind.SYNC)


def _select_waiting(graph: Graph) -> Mask:
    """Tasks of a thread that wait until the device has nothing to do."""
    names = graph.tasks.strings("name")
    copies = graph.select(kind=Kind.COPY) & ~names.where({text: text.endswith(NON_BLOCKING) for text in names.values})
    return copies | select_reads(graph)


def select_unpriced(graph: Graph) -> Mask:
    """Tasks of a job that never ran and that nothing has priced yet, bool [T]."""
    if "cost_source" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    source = graph.tasks.strings("cost_source")
    result: Mask = np.array([text == NOT_RUN for text in source.values], dtype=bool)[source.codes]
    return result


def _select_unpriced_launches(graph: Graph) -> Mask:
    """Launches of a job that has queues already."""
    return (
        select_unpriced(graph) & graph.select(kind=Kind.HOST, op="launch")
        if "op" in graph.tasks
        else select_unpriced(graph)
    )


def _select_synchronous_kernels(graph: Graph) -> Mask:
    computes: Mask = graph.select(kind=Kind.COMPUTE)
    kinds = graph.resources["kind"][np.maximum(graph.tasks["resource"], 0)] if graph.num_resources else np.zeros(0)
    if not len(kinds) or np.isin(kinds[computes], (ResourceKind.STREAM, ResourceKind.DEVICE)).any():
        return np.zeros(graph.num_tasks, dtype=bool)
    return computes & ~_counters(graph)


def _counters(graph: Graph) -> Mask:
    """Single numbers that updates count with."""
    if "phase" not in graph.tasks or "bytes_written" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    moved = graph.tasks["bytes_written"] + graph.tasks.get("bytes_read", 0)
    small: Mask = (moved > 0) & (moved <= _SCALAR_BYTES) & graph.select(phase=Phase.UPDATE)
    return small


def _launches(graph: Graph, kernels: NDArray[np.int64], launches_ns: NDArray[np.int64], *, is_timed: bool) -> Table:
    rows = graph.tasks.take(kernels)
    count = len(kernels)
    columns = {name: np.zeros_like(rows[name]) for name in (*_WORK, *_EXTRA) if name in rows}
    if "samples_ns" in rows:
        columns["samples_ns"] = np.broadcast_to(launches_ns[:, None], rows["samples_ns"].shape).astype(np.int64)
    columns |= {name: np.zeros_like(rows[name]) for name in ("duration_std_ns",) if name in rows}
    columns |= {name: np.full_like(rows[name], -1) for name in ("call",) if name in rows}
    return rows.replace(
        **columns,
        kind=np.full(count, int(Kind.HOST), dtype=np.int8),
        op=Strings.repeat("launch", count),
        duration_ns=launches_ns,
        cost_source=Strings.repeat(HOST_TABLE if is_timed else "assumed launch", count),
    )


_ENDS = ("src", "dst")


Rows = NDArray[np.int64]
# share of a data sheet's bandwidth that streaming kernels reach
_REACHED_RATIO = 0.8
_HALVES = re.compile(r"(?i)bfloat16|half|float16")
_TF32 = r"(?i).*(tf32|s1688|s161616).*"
_OTHER_TYPES = (
    r"(?i).*(nvjet_(sm\d+_)?[htq]|bf16|bfloat16|half|_f16|f16f|fp16|hgemm|s16816|h16816|int8|imma|dgemm|f64).*"
)


def is_on_host(graph: Graph) -> Mask:
    """Tasks that run on a CPU thread, bool [T]."""
    return graph.select(resource_kind=ResourceKind.HOST_THREAD)


def computes_on_host(graph: Graph) -> bool:
    """Whether a CPU does any of the computing, beyond launching it: on a thread, or on cores that workers share."""
    kinds = (ResourceKind.HOST_THREAD, ResourceKind.POOL)
    return bool(graph.select(kind=Kind.COMPUTE, resource_kind=kinds).any())


def runs_in_16_bits(graph: Graph) -> Mask:
    """Tasks whose inputs hold 16-bit floating-point numbers, bool [T]; none where the types are not recorded."""
    if "input_dtypes" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    types = graph.tasks.strings("input_dtypes")
    is_low = np.array([bool(_HALVES.search(text)) for text in types.values], dtype=bool)
    return is_low[types.codes]


def rescale(graph: Graph, mask: Mask, factor: float, source: str) -> Graph:
    """Scale durations and say who did."""
    requested = np.rint(graph.duration_ns[mask] * factor).astype(np.int64)
    return graph.set_duration(mask, requested, cost_source=source)


def order_predecessors(graph: Graph) -> Rows:
    """The task before each in program order on its own resource, -1 where there is none."""
    edges, resource = graph.edges, graph.tasks["resource"]
    inner = (edges["kind"] == EdgeKind.ORDER) & (resource[edges["src"]] == resource[edges["dst"]])
    before = np.full(graph.num_tasks, -1, dtype=np.int64)
    before[edges["dst"][inner]] = edges["src"][inner]
    return before


def launch_calls(graph: Graph) -> Rows:
    """The call that launches each task, -1 where there is none."""
    is_launch = graph.edges["kind"] == EdgeKind.LAUNCH
    call = np.full(graph.num_tasks, -1, dtype=np.int64)
    call[graph.edges["dst"][is_launch]] = graph.edges["src"][is_launch]
    return call


def is_launching(graph: Graph, launched: Mask | None = None) -> Mask:
    """Tasks that launch others, or any of those that are given, bool [T]."""
    calls = launch_calls(graph) if launched is None else launch_calls(graph)[launched]
    result = np.zeros(graph.num_tasks, dtype=bool)
    result[calls[calls >= 0]] = True
    return result


def insert_behind(graph: Graph, rows: Rows, columns: Mapping[str, Any]) -> tuple[Graph, Rows]:
    """Put one new task right behind each of the rows, on the same resource, with its launch."""
    extended, new = _insert(graph, rows, columns, beside=rows)
    return _add_launch_calls(extended, new, rows), new


def insert_ahead(graph: Graph, rows: Rows, columns: Mapping[str, Any]) -> tuple[Graph, Rows]:
    """Put one new task right in front of each of the rows, on the same resource, with its launch."""
    before = order_predecessors(graph)[rows]
    # A task that is first on its resource has nothing to be put behind; it gets an edge from the new one.
    first = before < 0
    extended, new = _insert(graph, np.where(first, rows, before), columns, beside=rows, alone=first)
    if first.any():
        extended = extended.connect(new[first], rows[first], EdgeKind.ORDER)
    return _add_launch_calls(extended, new, rows), new


def _insert(
    graph: Graph, behind: Rows, columns: Mapping[str, Any], *, beside: Rows, alone: Mask | None = None
) -> tuple[Graph, Rows]:
    tasks = graph.tasks
    # The new task belongs where its neighbor belongs: to the same layer, phase, rank and iteration.
    inherited = {
        name: _take_rows(tasks[name], beside)
        for name in ("phase", "iteration", "rank", "layer", "resource", "kind")
        if name in tasks
    }
    waits = [None if alone is not None and alone[i] else int(row) for i, row in enumerate(behind)]
    extended = graph.insert({**inherited, **columns}, after=waits, splice=True)
    return extended, np.arange(graph.num_tasks, extended.num_tasks, dtype=np.int64)


def _take_rows(column: Any, rows: Rows) -> Any:
    return column.take(rows) if isinstance(column, Strings) else column[rows]


def _add_launch_calls(graph: Graph, new: Rows, beside: Rows) -> Graph:
    """Give each new task the launch that its neighbor has; tasks of one call share one new call."""
    calls = launch_calls(graph)
    neighbors = calls[beside]
    launched = neighbors >= 0
    if not launched.any():
        return graph
    # A CUDA graph or a fused call launches several kernels: their new neighbors share one new launch, too.
    unique, member = np.unique(neighbors[launched], return_inverse=True)
    price = int(np.median(graph.duration_ns[np.unique(calls[calls >= 0])]))
    extended, added = _insert(
        graph, unique, {"name": "launch", "duration_ns": price, "cost_source": "launch"}, beside=unique
    )
    # Lag and sense of the launch edge into each row.
    is_launch = np.flatnonzero(graph.edges["kind"] == EdgeKind.LAUNCH)
    into = np.zeros(graph.num_tasks, dtype=np.int64)
    into[graph.edges["dst"][is_launch]] = is_launch
    edge = into[beside[launched]]
    lag_ns, from_start = lags(graph.edges)[edge], starts(graph.edges)[edge]
    return extended.connect(added[member], new[launched], EdgeKind.LAUNCH, lag_ns=lag_ns, from_start=from_start)


def chip_of(graph: Graph) -> Device | None:
    """The first GPU that a trace names and the catalog knows."""
    named = graph.meta.hardware.get("devices", ())
    result = (recognize(str(item.get("name", "")), int(item.get("totalGlobalMem", 0))) for item in named)
    return next(filter(None, result), None)


def chip_in_use(graph: Graph) -> Device | None:
    """The GPU that a trace names, or the one that the graph was priced on, if the catalog knows it."""
    return chip_of(graph) or recognize(str(graph.meta.hardware.get(PRICED_ON, "")), 0)


def products_by_type(graph: Graph, kernels: Mask) -> dict[str, Mask]:
    """Kernels that multiply matrices: in ``fp32``, in ``tf32``, in ``other`` types, bool [T] each."""
    products = kernels & does_matrix_work(graph)
    tf32 = products & graph.select(name=_TF32)
    other = products & ~tf32 & graph.select(name=_OTHER_TYPES)
    return {"fp32": products & ~tf32 & ~other, "tf32": tf32, "other": other}


def memory_bandwidth(graph: Graph, given: float | None) -> float:
    """Bytes per second of memory.

    As given, else what the graph's own memory-bound tasks reach (the upper quartile, weighted by time), else most of
    what the data sheet of its device says.

    Raises
    ------
    NotApplicableError
        It is not given, no task says how many bytes it moves, and the device is not known.
    """
    if given is not None:
        return given
    reached = _bandwidth_of_tasks(graph)
    if reached is not None:
        return reached
    known = chip_of(graph)
    if known is not None:
        return streaming_bandwidth(known)
    raise NotApplicableError(
        "no task says how many bytes it moves, so new work on memory has no price",
        where="columns bytes_read and bytes_written",
        fix="pass bandwidth_bytes_per_s=, for example 900GB/s",
    )


def streaming_bandwidth(chip: Device) -> float:
    """Bytes per second of memory that kernels which do nothing else reach."""
    return _REACHED_RATIO * chip.bandwidth_bytes_per_s


def _bandwidth_of_tasks(graph: Graph) -> float | None:
    moved = sum(graph.tasks.get(name, np.zeros(graph.num_tasks)) for name in ("bytes_read", "bytes_written"))
    usable = (moved > 0) & (graph.duration_ns > 0) & graph.select(kind=Kind.COMPUTE)
    if not usable.any():
        return None
    duration = graph.duration_ns[usable].astype(np.float64)
    rate = moved[usable] / duration * 1e9
    # A quantile weighted by time: many tiny kernels must not decide what the memory can do.
    order = np.argsort(rate, kind="stable")
    passed = np.searchsorted(np.cumsum(duration[order]), 0.75 * duration.sum())
    return float(rate[order[min(int(passed), len(order) - 1)]])


def traffic_ns(size_bytes: Any, bandwidth_bytes_per_s: float) -> NDArray[np.int64]:
    """How long it takes to move bytes through memory, int64 like ``size_bytes``."""
    return np.rint(1e9 * np.asarray(size_bytes, dtype=np.float64) / bandwidth_bytes_per_s).astype(np.int64)
