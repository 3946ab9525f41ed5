"""More processes than cores.

In: a graph of several workers on one host. Out: the same graph with their tasks on a shared pool of cores, where n
tasks on fewer cores slow each other. Program order stays, as explicit edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, ResourceKind, lags, starts

__all__ = ["host_cores", "host_threads", "parallel_tasks", "share_cores"]

Mask = NDArray[np.bool_]
# below these an operator runs on one thread: PyTorch gives each thread at least 32,768 elements
_PARALLEL_BYTES = 4 * 32_768
_PARALLEL_FLOPS = 1_000_000


def host_cores(graph: Graph, given: int | None) -> int:
    """Cores that the workers share: as given, else as the capture knows.

    Raises
    ------
    NotApplicableError
        The graph does not record it.
    """
    known = given or graph.meta.hardware.get("num_cores")
    if not known:
        raise NotApplicableError("how many cores the host has is not recorded", fix="pass num_cores=")
    return int(known)


def host_threads(graph: Graph) -> int:
    """Threads with which one worker computes, as the capture says (1 if it does not)."""
    return int(graph.meta.hardware.get("num_threads", 1))


def parallel_tasks(graph: Graph) -> Mask:
    """Tasks that are large enough to run on all threads of their worker, bool [T]."""
    computes = graph.select(kind=Kind.COMPUTE)
    columns = [graph.tasks.get(name) for name in ("bytes_read", "bytes_written")]
    known = [column for column in columns if column is not None]
    if not known:
        return computes
    flops = graph.tasks.get("flops", np.zeros(graph.num_tasks))
    large: Mask = computes & ((sum(known) >= _PARALLEL_BYTES) | (flops >= _PARALLEL_FLOPS))
    return large


def share_cores(
    graph: Graph,
    mask: Mask,
    num_cores: int,
    *,
    threads_per_task: int = 1,
    slowdown: Sequence[float] = (),
    name: str = "cores",
) -> Graph:
    """Run the masked tasks on one pool of ``num_cores`` cores, each on ``threads_per_task`` of them.

    They leave their threads as resources but keep the order that they had there. ``slowdown`` says how many times
    longer each of 1, 2, ... tasks takes, where that is not their number over the cores.
    """
    if not mask.any():
        return graph
    # A pool with processor sharing: n tasks on fewer slots slow each other down, instead of waiting in turn.
    slots = max(1, num_cores // max(1, threads_per_task))
    curve = _curve(graph, slowdown)
    pooled, pool = graph.add_resource(name, ResourceKind.POOL, discipline=Discipline.SHARED, slots=slots, **curve)
    edges = graph.edges
    # Moving a task off its thread would lose the order on that thread: explicit edges keep it.
    ordered = (edges["kind"] == EdgeKind.ORDER) & (mask[edges["src"]] | mask[edges["dst"]])
    if ordered.any():
        pooled = pooled.connect(
            edges["src"][ordered],
            edges["dst"][ordered],
            EdgeKind.CONTROL,
            lag_ns=lags(edges)[ordered],
            from_start=starts(edges)[ordered],
        )
    return pooled.move(mask, pool)


def _curve(graph: Graph, slowdown: Sequence[float]) -> dict[str, list[float]]:
    """The curve as a resource column; none where another shared resource goes without one."""
    known = graph.resources.get("slowdown")
    if not slowdown or (known is None and (graph.resources["discipline"] == Discipline.SHARED).any()):
        return {}
    width = len(slowdown) if known is None else known.shape[1]
    longer = [*slowdown, *(slowdown[-1] * n / len(slowdown) for n in range(len(slowdown) + 1, width + 1))]
    return {"slowdown": longer[:width]}
