"""A cluster run as a graph of segments of jobs on GPUs.

In: a ``ClusterRun``. Out: a graph with a task per segment and GPU, whose replay starts every task when it started. Not
here: pages.

Edges connect consecutive tasks of a GPU and consecutive segments of a job. The time between them is the lag of the
edge, so that a changed duration moves later tasks. The first segment of a job stores its start as ``earliest_ns``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, ResourceKind, Strings
from windtunnel.systems.cluster.layout import TIERS
from windtunnel.systems.cluster.model import ClusterRun
from windtunnel.systems.cluster.state import entry

__all__ = ["segments_graph"]


def segments_graph(run: ClusterRun) -> Graph:
    """Build the graph: tasks are segments, one per held GPU; resources are GPUs; ranks are machines."""
    segments, indices, per_machine = run.segments, run.placements, run.cluster.gpus_per_machine
    rows, index = run.segment_placements
    count = indices["gpus"][index]
    segment = np.repeat(rows, count)  # [T], in order of starts
    machine = np.repeat(indices["machine"][index], count)
    zero_ns = int(run.jobs.arrival_ns.min())
    start, end = segments["start"][segment] - zero_ns, segments["end"][segment] - zero_ns
    gpu = _gpus(start, segments["back"][segment] - zero_ns, machine, run.cluster.num_machines, per_machine)
    job = segments["job"][segment]
    num = len(segment)
    order_edges = _following(gpu, start)
    # the first task of each segment represents it: all tasks of the next segment wait for it
    first_task = np.searchsorted(segment, np.arange(len(segments)))
    previous = _previous(segments["job"])
    is_later = previous[segment] >= 0
    src = np.concatenate([order_edges[0], first_task[previous[segment[is_later]]]])
    dst = np.concatenate([order_edges[1], np.flatnonzero(is_later)])
    kinds = np.concatenate(
        [np.full(len(order_edges[0]), EdgeKind.ORDER), np.full(int(is_later.sum()), EdgeKind.CONTROL)]
    )
    # the lag between tasks of a GPU is only the checkpoint: an idle GPU could have started the job sooner
    free_ns = segments["back"][segment] - segments["end"][segment]
    lag = np.concatenate([free_ns[order_edges[0]], start[dst[len(order_edges[0]) :]] - end[src[len(order_edges[0]) :]]])
    names = [f"{run.cluster.machine_name(position // per_machine)} gpu {position % per_machine}"
             for position in range(run.cluster.num_gpus)]  # fmt: skip
    return Graph.from_columns(
        tasks={
            "name": Strings.of(run.jobs.job_id[job].tolist()),
            "op": Strings.of(run.jobs.model[job].tolist()),
            "layer": Strings.of([TIERS[item] for item in segments["tier"][segment].tolist()]),
            "kind": np.full(num, Kind.COMPUTE, np.int8),
            "rank": machine.astype(np.int32),
            "resource": gpu.astype(np.int32),
            "duration_ns": end - start,
            "earliest_ns": np.where(is_later, 0, start),
        },
        edges={
            "src": src.astype(np.int32),
            "dst": dst.astype(np.int32),
            "kind": kinds.astype(np.int8),
            "lag_ns": lag.astype(np.int64),
        },
        resources={
            "name": Strings.of(names),
            "kind": np.full(len(names), ResourceKind.DEVICE, np.int8),
            "machine": (np.arange(len(names)) // per_machine).astype(np.int32),
            "discipline": np.full(len(names), Discipline.FIFO, np.int8),
            "slots": np.ones(len(names), np.int32),
        },
        meta={"source": "windtunnel cluster"},
    )


@entry
def _gpus(start: Any, back: Any, machine: Any, num_machines: int, per_machine: int) -> Any:
    """Assign each task, in order of starts, to the first free GPU of its machine."""
    # The simulation counts GPUs per machine and does not number them; a graph needs one resource each.
    free_at = np.zeros(num_machines * per_machine, np.int64)
    gpu = np.empty(len(start), np.int64)
    for task in range(len(start)):
        for index in range(machine[task] * per_machine, (machine[task] + 1) * per_machine):
            if free_at[index] <= start[task]:
                free_at[index], gpu[task] = back[task], index
                break
    return gpu


def _following(gpu: NDArray[Any], start: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return pairs of consecutive tasks on a GPU."""
    order = np.lexsort((np.arange(len(gpu)), start, gpu))
    same = gpu[order][1:] == gpu[order][:-1]
    return order[:-1][same], order[1:][same]


def _previous(job: NDArray[Any]) -> NDArray[np.int64]:
    """Return the previous segment of the same job, or -1, int64 [N]."""
    order = np.argsort(job, kind="stable")
    before = np.full(len(job), -1, np.int64)
    same = job[order][1:] == job[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before
