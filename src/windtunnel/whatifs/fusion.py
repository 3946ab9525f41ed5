"""Fuse small tasks that one kernel could do (what-if family "fusion").

In: a graph whose tasks say how many bytes they move. Out: chains of pointwise work in one trip through memory.
Not here: deciding whether fusion pays (planning).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind
from windtunnel.simulate.limits import Baseline, less_work
from windtunnel.whatifs.insert_tasks import is_launching, launch_calls
from windtunnel.whatifs.layer_gradients import positions

__all__ = ["POINTWISE", "fuse_chains", "fuse_kernels"]

Mask = NDArray[np.bool_]
POINTWISE = (
    r"(?i).*\b(add|sub|mul|div|relu|gelu|silu|sigmoid|tanh|exp|neg|abs|clamp\w*|where|dropout|threshold\w*|leaky_relu|elu|"
    r"masked_fill|bernoulli|sqrt|rsqrt|pow|native_dropout|elementwise\w*|vectorized\w*)(_backward)?_?\b.*"
)  # fmt: skip


def _kernels_and_launches(baseline: Baseline) -> np.ndarray:
    graph = baseline.graph
    result: np.ndarray = graph.select(kind=Kind.COMPUTE)
    return result | is_launching(graph, result)


@registry.whatif(
    "fuse-kernels",
    source="Chen et al., TVM, OSDI 2018; PyTorch 2, ASPLOS 2024",
    limits=less_work(_kernels_and_launches, "fusing saves trips through memory and launches", max_added_bytes=0),
)
def fuse_kernels(graph: Graph, op: str = "", layer: str = "") -> Graph:
    """Run pointwise operators that feed each other in one trip through memory.

    What one writes and the next reads stays in registers: the fused task takes the share of the old time that its
    bytes are of the old bytes. Tasks without known bytes keep their time. As the fused task holds its inputs until
    its end, operators between which more memory would be held than now are left as they are.

    Parameters
    ----------
    graph : Graph
    op : str
        Regular expression over names of operators; empty: the pointwise ones.
    layer : str
        Regular expression over layers; empty: all.

    Raises
    ------
    NotApplicableError
        No two such operators feed each other.
    """
    return fuse_chains(graph, graph.select(op=op or POINTWISE) & (graph.select(layer=layer) if layer else True))


def fuse_chains(graph: Graph, mask: Mask | None = None) -> Graph:
    """Fuse chains of masked tasks that compute; without a mask, the pointwise ones.

    Raises
    ------
    NotApplicableError
        No two of them feed each other.
    """
    selected = graph.select(kind=Kind.COMPUTE) & (graph.select(op=POINTWISE) if mask is None else mask)
    inner = _inner_edges(graph, selected)
    if not inner.any():
        raise NotApplicableError("no two such operators feed each other", where=f"{int(selected.sum())} tasks match")
    inner = _without_rises(graph, inner)
    if not inner.any():
        raise NotApplicableError(
            "fusing any two such operators would hold their inputs for longer, and need more memory"
        )
    return _merge_chains(graph, selected, inner)


def _inner_edges(graph: Graph, selected: Mask) -> Mask:
    """Data edges between chosen tasks that are the only reader and the only chosen neighbor of each other."""
    edges = graph.edges
    inner: Mask = (edges["kind"] == EdgeKind.DATA) & selected[edges["src"]] & selected[edges["dst"]]
    same = graph.tasks["resource"][edges["src"]] == graph.tasks["resource"][edges["dst"]]
    if "phase" in graph.tasks:
        same &= graph.tasks["phase"][edges["src"]] == graph.tasks["phase"][edges["dst"]]
    # With a second reader the result has to be written anyway, so that fusing would save nothing.
    readers = np.bincount(edges["src"][edges["kind"] == EdgeKind.DATA], minlength=graph.num_tasks)
    only: Mask = inner & same & (readers[edges["src"]] == 1)
    return only


def _without_rises(graph: Graph, inner: Mask) -> Mask:
    """Those of the inner edges along which fusing holds no more memory than now.

    A fused task runs in the place of its last part and holds the inputs of all parts. That is no more than now where
    the inputs that are read for the last time before are no larger than the result of the part, which goes; or where
    nothing is allocated before the next part runs, whose result is no larger.
    """
    if "output_bytes" not in graph.tasks:
        return inner
    output_bytes, index = graph.tasks["output_bytes"], positions(graph)
    # How many tasks before each one on its resource allocate memory, int64 [T]; only differences have a
    # meaning.
    order = np.lexsort((index, graph.tasks["resource"]))
    allocates = sum(graph.tasks[name] for name in ("output_bytes", "workspace_bytes") if name in graph.tasks) > 0
    num_allocations = np.empty(graph.num_tasks, dtype=np.int64)
    num_allocations[order] = np.cumsum(allocates[order]) - allocates[order]
    # Edges are visited in program order, since each that is fused lets inputs of its part live longer, which
    # the following decisions have to take into account.
    inputs, last_read = _inputs(graph, index)
    is_kept = np.zeros(graph.num_edges, dtype=bool)
    rows = np.flatnonzero(inner)
    for edge in rows[np.argsort(index[graph.edges["dst"][rows]], kind="stable")].tolist():
        part, following = int(graph.edges["src"][edge]), int(graph.edges["dst"][edge])
        longer = [source for source in inputs[part] if last_read[source] < index[following]]
        is_next = num_allocations[following] - num_allocations[part] <= (output_bytes[part] > 0)
        if output_bytes[longer].sum() <= output_bytes[part] or (
            is_next and output_bytes[following] <= output_bytes[part]
        ):
            is_kept[edge] = True
            last_read[longer] = index[following]
            inputs[following] = (inputs[following] | inputs[part]) - {part}
    return is_kept


def _inputs(graph: Graph, order_T: NDArray[np.int64]) -> tuple[dict[int, set[int]], NDArray[np.int64]]:
    """The tasks whose results each task reads, where they hold memory, and the place of the last reader of each one."""
    edges = graph.edges
    rows = np.flatnonzero((edges["kind"] == EdgeKind.DATA) & (graph.tasks["output_bytes"][edges["src"]] > 0))
    inputs = defaultdict[int, set[int]](set)
    for source, reader in zip(edges["src"][rows].tolist(), edges["dst"][rows].tolist(), strict=True):
        inputs[reader].add(source)
    last_read = order_T.copy()
    np.maximum.at(last_read, edges["src"][rows], order_T[edges["dst"][rows]])
    return inputs, last_read


def _merge_chains(graph: Graph, selected: Mask, inner: Mask) -> Graph:
    """Move the work of every task to the last one of its chain; what is removed leaves its dependencies there."""
    # The last task of the chain of each task, itself where it is in none.
    # Pointer jumping: chains of length n are resolved in log2(n) rounds.
    heir = np.arange(graph.num_tasks)
    heir[graph.edges["src"][inner]] = graph.edges["dst"][inner]
    while not np.array_equal(heir, heir[heir]):
        heir = heir[heir]
    followers = heir != np.arange(graph.num_tasks)
    left = np.rint(graph.duration_ns * (1.0 - _fusion_byte_ratio(graph, inner))).astype(np.int64)
    total = np.where(followers, 0, left)
    np.add.at(total, heir[followers], left[followers])
    touched = np.zeros(graph.num_tasks, dtype=bool)
    touched[heir[followers]] = True
    merged = graph.set_duration(touched & selected, total[touched & selected], cost_source="memory traffic")
    # Calls all of whose kernels are among the given tasks.
    call = launch_calls(graph)
    launches = np.zeros(graph.num_tasks, dtype=bool)
    launches[call[followers & (call >= 0)]] = True
    launches[call[~followers & (call >= 0)]] = False
    return _with_memory(merged, heir, followers).remove(followers | launches)


def _with_memory(graph: Graph, heir: NDArray[np.int64], followers: Mask) -> Graph:
    """What a chain passes on is never allocated: the last task frees what the others freed, without that."""
    if not ("output_bytes" in graph.tasks and "freed_bytes" in graph.tasks):
        return graph
    freed_bytes = graph.tasks["freed_bytes"].copy()
    change_bytes = (graph.tasks["freed_bytes"] - graph.tasks["output_bytes"])[followers]
    np.add.at(freed_bytes, heir[followers], change_bytes)
    return graph.with_columns(freed_bytes=np.maximum(freed_bytes, 0))


def _fusion_byte_ratio(graph: Graph, inner: Mask) -> NDArray[np.float64]:
    """Share of the bytes of each task that stay in registers, float [T]."""
    edges, tasks = graph.edges, graph.tasks
    passed = edges["size_bytes"][inner] if "size_bytes" in edges else np.zeros(int(inner.sum()), dtype=np.int64)
    saved = np.zeros(graph.num_tasks)
    # What passes along an inner edge is neither written by its source nor read by its target.
    np.add.at(saved, edges["src"][inner], passed)
    np.add.at(saved, edges["dst"][inner], passed)
    moved = sum(tasks.get(name, np.zeros(graph.num_tasks)) for name in ("bytes_read", "bytes_written"))
    share: NDArray[np.float64] = np.divide(saved, moved, out=np.zeros(graph.num_tasks), where=moved > 0)
    return np.minimum(share, 1.0)
