"""One launch for a whole iteration (what-if family "launching").

In: a graph whose device tasks are launched one by one. Out: the same device tasks, launched by one call; the Python and
framework time between launches disappears.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel import registry
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.simulate.limits import Baseline, other_order
from windtunnel.whatifs.device_tasks import lies_on_device
from windtunnel.whatifs.host_waits import find_waiting_tasks
from windtunnel.whatifs.insert_tasks import is_launching, is_on_host
from windtunnel.whatifs.layer_gradients import last_per_group, positions

__all__ = ["cuda_graphs", "launch_in_graphs"]


def _on_threads(baseline: Baseline) -> np.ndarray:
    return is_on_host(baseline.graph)


@registry.whatif(
    "cuda-graphs",
    source="CUDA graphs, PyTorch 1.10; Daydream, ATC 2020 (remove launch cost and gaps)",
    limits=other_order("the device keeps its work", without=_on_threads),
)
def cuda_graphs(graph: Graph, launch_ns: int = 10_000, with_update: bool = True) -> Graph:
    """Capture forward, backward and update in one CUDA graph and launch that.

    Host tasks of these phases go with the gaps before them, except those that wait for the device, which no graph
    can hold: they stay and cut the iteration where they are. The first launching call of each iteration becomes the
    launch of the graph. Kernels keep their order and their durations.

    Parameters
    ----------
    graph : Graph
    launch_ns : int
        What launching the graph costs the host.
    with_update : bool
        False leaves the optimizer outside.

    Raises
    ------
    NotApplicableError
        Nothing is launched on a device, or one call already launches everything.
    """
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE) if with_update else (Phase.FORWARD, Phase.BACKWARD)
    return launch_in_graphs(graph, phases, launch_ns)


def launch_in_graphs(graph: Graph, phases: tuple[Phase, ...], launch_ns: int, *, is_per_phase: bool = False) -> Graph:
    """Launch the device tasks of some phases by one call for each iteration, or for each phase of it.

    Parameters
    ----------
    graph : Graph
    phases : tuple of Phase
    launch_ns : int
        What launching a graph costs the host.
    is_per_phase : bool
        Whether each phase is a graph of its own.

    Raises
    ------
    NotApplicableError
        Nothing is launched on a device, or so few calls launch everything already.
    """
    inside = graph.select(phase=phases) & is_on_host(graph) & ~find_waiting_tasks(graph)
    launching = is_launching(graph, lies_on_device(graph))  # a message of a CPU is begun by a call, too
    #      host    launch launch launch ...      ->     host    launch graph
    #      device  kernel kernel kernel                 device  kernel kernel kernel
    # The first launching call of each iteration stands for all; the others go, with the time between them.
    rows = np.flatnonzero(inside & launching)
    kept = _first_of_each_graph(graph, rows, is_per_phase=is_per_phase)
    if len(rows) <= len(kept):
        raise NotApplicableError(
            f"calls that launch work on a device: {len(rows)}; iterations: {graph.num_iterations}",
            fix="a graph saves launches; there are none to save, as on a CPU, where operators run when they are called",
        )
    first = np.zeros(graph.num_tasks, dtype=bool)
    first[kept] = True
    launched = graph.set_duration(first, launch_ns, cost_source="assumed launch of a graph")
    columns: dict[str, Any] = {"name": launched.tasks.strings("name").assign(kept, "launch graph")}
    if "earliest_ns" in graph.tasks:
        columns["earliest_ns"] = _not_before(graph, inside, kept)
    return launched.with_columns(**columns).remove(inside & ~first, keep_gaps=False)


def _not_before(graph: Graph, inside: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Moments before which no task [T] begins; a graph is launched no sooner than its rank began."""
    earliest: np.ndarray = graph.tasks["earliest_ns"].copy()
    rank = graph.tasks.get("rank", np.zeros(graph.num_tasks, dtype=np.int64))
    has_cause = np.zeros(graph.num_tasks, dtype=bool)
    has_cause[graph.edges["dst"]] = True
    for item in np.unique(rank[kept]).tolist():
        begins = earliest[inside & ~has_cause & (rank == item)]
        own = kept[rank[kept] == item]
        earliest[own] = np.maximum(earliest[own], begins.min() if len(begins) else 0)
    return earliest


def _first_of_each_graph(graph: Graph, rows: np.ndarray, *, is_per_phase: bool) -> np.ndarray:
    columns = [graph.tasks.get(name, np.zeros(graph.num_tasks, dtype=np.int64)) for name in ("iteration", "rank")]
    group = columns[0][rows].astype(np.int64) * graph.num_ranks + columns[1][rows]
    if is_per_phase:
        group = group * len(Phase) + graph.tasks["phase"][rows]
    first = last_per_group(positions(graph), rows, group, first=True)
    return np.array(sorted(first.values()), dtype=np.int64)
