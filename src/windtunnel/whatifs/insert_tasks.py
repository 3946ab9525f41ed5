"""Put more work into a stream or a thread.

In: a graph and the existing tasks that new ones are inserted next to. Out: the new graph and their rows. A task on a
device brings the call that launches it, on the thread and at the price at which its neighbor was launched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, ResourceKind, Strings, lags, starts
from windtunnel.graph.kernel_classes import does_matrix_work
from windtunnel.hardware import Device, device, recognize

__all__ = [
    "chip_of",
    "computes_on_host",
    "gpu_of_prices",
    "insert_ahead",
    "insert_behind",
    "is_launching",
    "is_on_host",
    "launch_calls",
    "memory_bandwidth",
    "order_predecessors",
    "products_by_type",
    "rescale",
    "runs_in_16_bits",
    "streaming_bandwidth",
    "traffic_ns",
]


Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
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
    """Whether a CPU does the computing, beyond launching it: on a thread, or on cores that workers share.

    Numbers that an optimizer counts with stay on the host of a device: what takes longer, there or here, decides.
    """
    kinds = (ResourceKind.HOST_THREAD, ResourceKind.POOL)
    on_host = graph.select(kind=Kind.COMPUTE, resource_kind=kinds)
    on_device = graph.select(kind=Kind.COMPUTE) & ~on_host
    took_ns = graph.duration_ns
    return bool(on_host.any() and took_ns[on_host].sum() >= took_ns[on_device].sum())


def runs_in_16_bits(graph: Graph) -> Mask:
    """Tasks whose inputs hold 16-bit floating-point numbers, bool [T]; none where the types are not recorded."""
    if "input_dtypes" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    types = graph.tasks.strings("input_dtypes")
    is_low = np.array([bool(_HALVES.search(text)) for text in types.values], dtype=bool)
    return is_low[types.codes]


def rescale(graph: Graph, mask: Mask, factor: ArrayLike, source: str) -> Graph:
    """Scale durations and say who did."""
    requested = np.rint(graph.duration_ns[mask] * np.asarray(factor)).astype(np.int64)
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
    """The GPU whose times a graph has, if the catalog knows it: that it was priced on, else the first of its trace."""
    priced_on = gpu_of_prices(graph)
    if priced_on is not None:
        return priced_on
    for named in graph.meta.hardware.get("devices", ()):
        chip = recognize(named.get("name", ""), named.get("totalGlobalMem", named.get("memory_bytes", 0)))
        if chip is not None:
            return chip
    return None


def gpu_of_prices(graph: Graph) -> Device | None:
    """The GPU that a graph was priced on; None of times that were measured, or of a host."""
    try:
        chip = device(graph.meta.priced_for) if graph.meta.priced_for else None
    except InputError:  # a sheet that is no longer there
        return None
    return chip if chip is not None and chip.kind == "gpu" else None


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
