"""Send what the next forward pass needs first (what-if family "parameter propagation").

In: one device's training iteration. Out: a few iterations with a parameter server, gradients in small slices, and a
link that chooses by priority instead of by arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.collective import ring_ratio
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, Phase, ResourceKind
from windtunnel.hardware import Link
from windtunnel.simulate.limits import Baseline, Limits, of_phase, other_order
from windtunnel.whatifs.insert_tasks import is_on_host
from windtunnel.whatifs.layer_gradients import (
    Gradient,
    default_link,
    gradients_of,
    link_of,
    need_one_rank,
    one_iteration,
)
from windtunnel.whatifs.shared_cores import host_cores, host_threads

__all__ = ["p3"]

Ints = NDArray[np.int64]


def _limits(baseline: Baseline) -> Limits:
    """Updates move to servers; of several workers each still computes what one did."""
    alone = other_order("the busiest thread or stream keeps its work", without=of_phase(Phase.UPDATE))(baseline)
    return replace(alone, max_speedup=alone.max_speedup * baseline.options["num_ranks"])


@registry.whatif(
    "p3",
    source="Jayarajan et al., Priority-based parameter propagation, MLSys 2019; Daydream, ATC 2020",
    limits=_limits,
)
def p3(
    graph: Graph,
    num_ranks: int = 2,
    link: str = "auto",
    bandwidth_bytes_per_s: float | None = None,
    latency_ns: int | None = None,
    slice_parameters: int = 50_000,
    parameter_bytes: int = 4,
    by_priority: bool = True,
    num_iterations: int = 3,
    num_cores: int | None = None,
) -> Graph:
    """Push and pull gradients in slices, those of the first layers first.

    Every worker is also a server of its share of the parameters, so a slice crosses a worker's link twice, each time
    the ``(n - 1) / n`` of it that lives elsewhere; servers update slice by slice. The next iteration's forward pass of
    a layer waits for the pulls of that layer only.

    Parameters
    ----------
    graph : Graph
        One iteration of one worker.
    num_ranks : int
    link : str
        Of the catalog; ``auto`` is ``loopback`` on a host without devices and ``pcie4-x16`` between devices.
    bandwidth_bytes_per_s, latency_ns : optional
        Replace those of the link.
    slice_parameters, parameter_bytes : int
    by_priority : bool
        False sends slices as they become ready, for comparison.
    num_iterations : int
        Copies in time, at least 2: what is won lies between iterations.
    num_cores : int, optional
        Of the host, if all workers compute on its cores and send over its memory.

    Raises
    ------
    NotApplicableError
        The graph has several ranks or iterations, no layers with gradients, or its host too few cores for all.
    """
    if num_ranks < 2 or num_iterations < 2 or slice_parameters < 1:
        raise InputError(f"p3 needs 2 ranks and 2 iterations at least, not {num_ranks} and {num_iterations}")
    need_one_rank(graph)
    if graph.meta.runs_ahead:  # its iterations are copies, and p3 has dependencies of its own between them
        graph = graph.remove(~one_iteration(graph, None), keep_gaps=False)
    if graph.num_iterations > 1:
        raise NotApplicableError(f"p3 starts from one iteration, not {graph.num_iterations}", fix="slice one out first")
    wire = link_of(default_link(graph, link), bandwidth_bytes_per_s, latency_ns)
    _need_cores(graph, num_ranks, wire, num_cores)
    gradients = gradients_of(graph)
    slices = _slices(gradients, slice_parameters * parameter_bytes)
    # Servers are spread over the workers: one slice of n lies on the worker's own machine.
    remote_ratio = ring_ratio(num_ranks, num_passes=1)
    transfer_ns = np.array([wire.transfer_ns(remote_ratio * size) for size in slices[:, 1].tolist()], dtype=np.int64)
    priority = slices[:, 0] if by_priority else np.zeros_like(slices[:, 0])
    served, pulls = _send(_with_servers(graph, num_ranks), gradients, slices, transfer_ns, priority)
    across = [(pull, row) for pull, part in zip(pulls, slices[:, 0], strict=True) for row in gradients[part].forward]
    # Without the worker's own updates, several times in a row.
    updates = graph.select(phase=Phase.UPDATE)
    # Updates now run on the servers, whose tasks were appended behind the graph's own.
    removed = np.append(updates, np.zeros(served.num_tasks - len(updates), dtype=bool))
    # A pull of one iteration is awaited by the forward pass of the next one: edges across the copies.
    number = np.cumsum(~removed) - 1
    repeated = served.remove(removed, keep_gaps=False).concat(num_iterations, number[np.array(across).reshape(-1, 2)])
    samples = num_ranks * graph.meta.samples_ratio
    steady = (0, num_iterations - 1)
    return repeated.note(
        {"world_size": num_ranks, "link": wire.json(), "samples_ratio": samples, "steady_iterations": steady}
    )


def _need_cores(graph: Graph, num_ranks: int, wire: Link, num_cores: int | None) -> None:
    """Sending and serving is no work of the workers' cores here, so there must be others for it."""
    if not wire.name.startswith("loopback") or not (is_on_host(graph) & graph.select(kind=Kind.COMPUTE)).any():
        return
    needed, cores = num_ranks * (host_threads(graph) + 2), host_cores(graph, num_cores)
    if needed > cores:
        raise NotApplicableError(
            f"{num_ranks} workers, their messages and their servers keep {needed} cores busy, the host has {cores}",
            fix="give a link between hosts, for example link=ethernet-25g",
        )


def _slices(gradients: Sequence[Gradient], slice_bytes: int) -> Ints:
    """(layer, bytes) of every slice, layers in forward order."""
    pairs = [
        (layer, min(slice_bytes, size - begin))
        for layer, gradient in enumerate(gradients)
        for size in gradient.parameters
        for begin in range(0, size, slice_bytes)
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _with_servers(graph: Graph, num_ranks: int) -> Graph:
    """Two more resources, the last of the table: a worker's link and the servers, one per worker."""
    graph, _ = graph.add_resource("link", ResourceKind.LINK, discipline=Discipline.PRIORITY)
    graph, _ = graph.add_resource("servers", ResourceKind.POOL, discipline=Discipline.PRIORITY, slots=num_ranks)
    return graph


def _send(
    graph: Graph, gradients: Sequence[Gradient], slices: Ints, transfer_ns: Ints, priority: Ints
) -> tuple[Graph, Ints]:
    """Add push, update and pull of every slice; returns the rows of the pulls."""
    layer, size_bytes = slices[:, 0], slices[:, 1]
    count = len(slices)
    wire, servers = graph.num_resources - 2, graph.num_resources - 1
    # The worker's update time shared out by bytes, in whole nanoseconds that add up to it.
    update_ns = int(graph.duration_ns[graph.select(phase=Phase.UPDATE)].sum())
    # Cumulative times are rounded, not the parts, so that the parts add up exactly.
    ends = np.rint(np.cumsum(size_bytes) / max(int(size_bytes.sum()), 1) * update_ns).astype(np.int64)
    columns = {
        "name": [f"{verb} {gradients[item].layer}" for verb in ("push", "serve", "pull") for item in layer],
        "op": np.repeat(["push", "serve", "pull"], count),
        "kind": np.repeat([int(Kind.COMM), int(Kind.COMPUTE), int(Kind.COMM)], count),
        "phase": int(Phase.UPDATE),
        "resource": np.repeat([wire, servers, wire], count),
        "priority": np.tile(priority, 3),
        "duration_ns": np.concatenate([transfer_ns, np.diff(ends, prepend=0), transfer_ns]),
        "message_bytes": np.concatenate([size_bytes, np.zeros_like(size_bytes), size_bytes]),
        "cost_source": "link model",
    }
    ready: list[int | None] = [gradients[item].ready for item in layer]
    extended = graph.insert(columns, after=ready + [None] * (2 * count))
    #      push (link) --> serve (servers) --> pull (link)          per slice; rows 0, 1, 2 of ``rows``
    rows = graph.num_tasks + np.arange(3 * count).reshape(3, count)
    return extended.connect(rows[:2].ravel(), rows[1:].ravel(), EdgeKind.MESSAGE), rows[2]
