"""Where captured work would run on another device: a chain of operators becomes launches and kernels.

In: a graph captured on a CPU, where an operator runs when it is called. Out: the same work with the operators on a
queue of the device and a launch for each on the thread that called it; the thread waits only where it reads a result.
Graphs whose work runs on queues already, and devices that are CPUs, are left as they are. Not here: prices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.host_times import COSTS, HOST_TABLE, HostCosts, host_times_ns, select_reads
from windtunnel.graph import EdgeKind, Graph, Kind, Phase, ResourceKind, Strings
from windtunnel.graph.host_work import NON_BLOCKING
from windtunnel.graph.rows import ends_and_starts, pair_within_groups
from windtunnel.graph.schema import EDGE_COLUMNS, TASK_COLUMNS
from windtunnel.graph.table import Table
from windtunnel.hardware import Device
from windtunnel.whatifs.host_waits import repeat_to_overlap
from windtunnel.whatifs.layer_gradients import positions

__all__ = ["LAUNCH_NS", "overlap_steps", "place_on", "select_unpriced"]

NOT_RUN = "not run"

LAUNCH_NS = 5_000
"""Default host time of one operator call and its kernel launch: a typical value, not a measured one."""
_SCALAR_BYTES = 16
_WORK = ("flops", "bytes_read", "bytes_written", "message_bytes", "param_bytes", "output_bytes", "freed_bytes")
_EXTRA = ("workspace_bytes",)

Mask = NDArray[np.bool_]
_ENDS = ("src", "dst")


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
        return _time_thread(graph, unlaunched, 0 if device.kind == "cpu" else launch_ns, host_costs)
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
    return placed.connect(queued[before[before >= 0]], waits[before >= 0], EdgeKind.SYNC).note({"runs_ahead": True})


def overlap_steps(graph: Graph) -> Graph:
    """Several iterations of a graph whose threads run ahead of its queues; any other graph as it is.

    A device that is busy when an iteration begins has no gap at its start: what counts is the distance between the ends
    of the last ones.
    """
    if not graph.meta.runs_ahead or graph.meta.steady_iterations:
        return graph
    edges, resource = graph.edges, graph.tasks["resource"]
    kinds = np.append(graph.resources["kind"], -1)  # the last entry is for unplaced tasks
    on_queue = kinds[resource] == ResourceKind.STREAM
    last, first = (mask & on_queue for mask in ends_and_starts(graph))
    # A queue's first task waits for what was queued elsewhere (gradients, updated parameters), and so does a thread
    # that waits for the device with nothing queued before it.
    waits = _select_waiting(graph)
    waits[edges["dst"][edges["kind"] == EdgeKind.SYNC]] = False
    rank = graph.tasks.get("rank", np.zeros(graph.num_tasks, dtype=np.int32))
    pairs = pair_within_groups(np.flatnonzero(last), np.flatnonzero(first | waits), rank)
    is_other = resource[pairs[:, 0]] != resource[pairs[:, 1]]
    return repeat_to_overlap(graph, pairs[is_other]).as_one_edit(graph, "overlap-steps")


def _time_thread(graph: Graph, launches: Mask, launch_ns: int | None, host_costs: HostCosts) -> Graph:
    """Give the thread of a job that has queues already its times."""
    if launch_ns is not None:
        return graph.set_duration(launches, launch_ns, "assumed launch").note({"runs_ahead": True})
    times_ns = np.rint(host_times_ns(graph, host_costs)).astype(np.int64)
    on_thread = select_unpriced(graph) & graph.select(kind=(Kind.HOST, Kind.IO, Kind.COPY))
    return graph.set_duration(on_thread, times_ns[on_thread], HOST_TABLE).note({"runs_ahead": True})


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
    """Single numbers that updates count with; what is computed of work on the device, such as a norm, lies there."""
    if "phase" not in graph.tasks or "bytes_written" not in graph.tasks:
        return np.zeros(graph.num_tasks, dtype=bool)
    moved = graph.tasks["bytes_written"] + graph.tasks.get("bytes_read", 0)
    small: Mask = (moved > 0) & (moved <= _SCALAR_BYTES) & graph.select(phase=Phase.UPDATE)
    is_data, computes = graph.edges["kind"] == EdgeKind.DATA, graph.select(kind=Kind.COMPUTE)
    src, dst = graph.edges["src"][is_data], graph.edges["dst"][is_data]
    while True:
        on_device = small[dst] & (computes & ~small)[src]
        if not on_device.any():
            return small
        small[dst[on_device]] = False


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
