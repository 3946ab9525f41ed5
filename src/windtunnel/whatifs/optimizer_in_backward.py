"""Update each layer as soon as its gradient is there (what-if family "update order").

In: a graph whose updates are tasks of their layers, behind the backward pass. Out: the same tasks, each layer's
right behind its last backward task; gradients then live for moments only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import GraphError, InEffectError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase, Strings, lags
from windtunnel.simulate.limits import Baseline, other_order
from windtunnel.whatifs.insert_tasks import launch_calls
from windtunnel.whatifs.layer_gradients import last_per_group, positions

__all__ = ["optimizer_in_backward"]

Rows = NDArray[np.int64]
# work between backward pass and update that reads every gradient
_NEEDS_ALL = r"(?is).*(vector_norm|foreach_norm|clip_grad|non_finite_check|unscale).*"


def _gradients(baseline: Baseline) -> float:
    return _resident_gradient_bytes(baseline.graph)


def _resident_gradient_bytes(graph: Graph) -> float:
    """Gradients that are held at the peaks of the passes and of the update; what else is held there stays."""
    memory = graph.meta.memory
    if not memory:
        return math.inf
    # The peak may lie in the passes or in the update. Without gradients it could fall to the larger of what
    # else is held in either; no more than that difference can go.
    passes, peak = memory["passes"], memory["peak_bytes"]
    gradients = max(known["by_category"]["gradient"] for known in (memory, passes))
    others = max(passes["peak_bytes"] - passes["by_category"]["gradient"], memory["update"]["peak_bytes"] - gradients)
    return float(max(0, peak - others))


def _results_of_updates(baseline: Baseline) -> float:
    """Temporary memory of the updates in bytes, which now coincides with activations."""
    graph = baseline.graph
    held = [graph.tasks[name] for name in ("output_bytes", "workspace_bytes") if name in graph.tasks]
    return float(sum(column[graph.select(phase=Phase.UPDATE)].sum() for column in held))


@registry.whatif(
    "optimizer-in-backward",
    source="Lv et al., LOMO, 2023; PyTorch tutorial: optimizer step in backward",
    limits=other_order(
        "work and activations stay the same", max_saved_bytes=_gradients, max_added_bytes=_results_of_updates
    ),
)
def optimizer_in_backward(graph: Graph) -> Graph:
    """Move each layer's update behind its last backward task, on every thread and stream.

    The work stays the same; what changes is which memory is in use at once, and what can overlap.

    Raises
    ------
    NotApplicableError
        Updates are no tasks of single layers, gradients are all-reduced first, or an update needs all gradients
        (clipping, a gradient scaler).
    InEffectError
        Most updates run within the backward pass.
    """
    if graph.select(kind=Kind.COMM).any():
        raise NotApplicableError("gradients travel before the update, and no hook order is known for them")
    if (graph.select(phase=Phase.UPDATE) & graph.select(name=_NEEDS_ALL)).any():
        raise NotApplicableError(
            "gradients are clipped by their norm or unscaled together, so updates need all of them"
        )
    index = positions(graph)
    layer = _with_preparations(graph, _layers(graph), index)
    resource = graph.tasks["resource"].astype(np.int64)
    iteration = graph.tasks.get("iteration", np.zeros(graph.num_tasks, dtype=np.int64)).astype(np.int64)
    # One number per (iteration, resource, layer), so that the last backward task of each is found in one sort.
    key = (iteration * (graph.num_resources + 1) + resource + 1) * (int(layer.max(initial=0)) + 2) + layer + 1
    backward = np.flatnonzero(graph.select(phase=Phase.BACKWARD) & (layer >= 0) & (resource >= 0))
    anchor = last_per_group(index, backward, key[backward])
    updates = np.flatnonzero(graph.select(phase=Phase.UPDATE) & (layer >= 0) & (resource >= 0))
    anchors = np.array([anchor.get(int(key[row]), -1) for row in updates], dtype=np.int64)
    # clearing gradients before the forward pass stays there
    behind = (anchors >= 0) & (index[updates] > index[anchors])
    _check_not_yet(graph, index, updates, backward, iteration)
    moved, anchors = updates[behind], anchors[behind]
    if len(np.unique(anchors)) < 2:
        raise NotApplicableError(
            "updates are no tasks of single layers: one task updates all, or layers are not known",
            where=f"{len(updates)} update tasks with a layer",
            fix="capture with an optimizer that loops over parameters (foreach=False)",
        )
    target = np.full(graph.num_tasks, -1, dtype=np.int64)
    target[moved] = index[anchors]
    apart = _with_gradients_apart(graph, index, target)
    # Drop what ties an update to work on other layers that now comes later.
    edges, now = apart.edges, np.where(target >= 0, target, index)
    other = np.isin(edges["kind"], (EdgeKind.DATA, EdgeKind.CONTROL))
    backwards = other & (target[edges["dst"]] >= 0) & (now[edges["src"]] > now[edges["dst"]])
    return _reorder_tasks(apart.disconnect(backwards) if backwards.any() else apart, index, target)


def _check_not_yet(graph: Graph, order_T: Rows, updates: Rows, backward: Rows, iteration: Rows) -> None:
    """Refuse where most updates already run between backward tasks of their iteration."""
    computes = updates[(graph.duration_ns[updates] > 0) & graph.select(kind=Kind.COMPUTE)[updates]]
    first = np.full(int(iteration.max(initial=0)) + 1, graph.num_tasks, dtype=np.int64)
    last = np.full_like(first, -1)
    np.minimum.at(first, iteration[backward], order_T[backward])
    np.maximum.at(last, iteration[backward], order_T[backward])
    own = iteration[computes]
    between = (order_T[computes] < last[own]) & (order_T[computes] > first[own])
    if len(computes) and 2 * int(between.sum()) >= len(computes):
        raise InEffectError(
            f"{int(between.sum())} of {len(computes)} updates run within the backward pass", where="phase UPDATE"
        )


def _layers(graph: Graph) -> Rows:
    """Number of each task's layer, -1 for none; a call has the layer of what it launches."""
    strings = graph.tasks.get("layer")
    if not isinstance(strings, Strings):
        raise NotApplicableError("the graph knows no layers", where="column layer")
    compact = strings.compact()
    layer = compact.codes.astype(np.int64)
    if "" in compact.values:
        layer[layer == compact.values.index("")] = -1
    calls = launch_calls(graph)
    launched = np.flatnonzero((calls >= 0) & (layer >= 0))
    of_call = calls[launched]
    bare = layer[of_call] < 0
    layer[of_call[bare]] = layer[launched[bare]]
    return layer


def _with_preparations(graph: Graph, layer: Rows, order_T: Rows) -> Rows:
    """Update tasks without a layer (Python, scalars) belong to the next one on their resource that has one."""
    rows = np.flatnonzero(graph.select(phase=Phase.UPDATE))
    rows = rows[np.lexsort((order_T[rows], graph.tasks["resource"][rows]))]
    labeled = np.flatnonzero(layer[rows] >= 0)
    following = np.searchsorted(labeled, np.arange(len(rows)))
    known = following < len(labeled)
    heir = rows[labeled[following[known]]]
    same = graph.tasks["resource"][heir] == graph.tasks["resource"][rows[known]]
    filled = layer.copy()
    filled[rows[known][same]] = layer[heir[same]]
    return filled


def _with_gradients_apart(graph: Graph, order_T: Rows, target: Rows) -> Graph:
    """Release gradients alone where an operator makes them together with other results.

    Such a gradient is counted while its operator and its updates run; the other results are held for as long as now.
    Where fewer gradients were held at the recorded peak than there are, a part of each is released: the replay may
    have its peak at another time, and no more than these can go.
    """
    edges, tasks, moved = graph.edges, graph.tasks, target >= 0
    if "output_bytes" not in tasks or "size_bytes" not in edges:
        return graph
    rows = np.flatnonzero((edges["kind"] == EdgeKind.DATA) & ~moved[edges["src"]] & moved[edges["dst"]])
    read_bytes = np.minimum(_read_bytes(graph, rows), tasks["output_bytes"])
    held_bytes = _resident_gradient_bytes(graph) * max(graph.num_iterations, 1)
    share = min(1.0, held_bytes / max(int(read_bytes.sum()), 1))
    released_bytes = np.floor(read_bytes * share).astype(np.int64)
    is_part = (read_bytes > 0) & (released_bytes < tasks["output_bytes"])
    rows = rows[is_part[edges["src"][rows]]]
    if not len(rows):
        return graph
    part_bytes = np.where(is_part, released_bytes, 0)
    workspace_bytes = tasks.get("workspace_bytes", np.zeros(graph.num_tasks, dtype=np.int64)) + part_bytes
    np.add.at(workspace_bytes, edges["dst"][rows], np.floor(edges["size_bytes"][rows] * share).astype(np.int64))
    apart = graph.with_columns(output_bytes=tasks["output_bytes"] - part_bytes, workspace_bytes=workspace_bytes)
    return apart.connect(edges["src"][rows], _next_staying_task(graph, order_T, target)[edges["dst"][rows]])


def _read_bytes(graph: Graph, rows: Rows) -> Rows:
    """Bytes of the result of each task that pass along some edges, int64 [T]; several operators may read the same."""
    src, dst = graph.edges["src"][rows], graph.edges["dst"][rows]
    operators = graph.tasks.strings("name").codes[dst]
    pairs, number = np.unique(np.stack([src, operators], axis=1), axis=0, return_inverse=True)
    passed = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(passed, number.reshape(-1), graph.edges["size_bytes"][rows])
    most = np.zeros(graph.num_tasks, dtype=np.int64)
    np.maximum.at(most, pairs[:, 0], passed)
    return most


def _next_staying_task(graph: Graph, order_T: Rows, target: Rows) -> Rows:
    """The next task on the resource of each one that keeps its place; where there is none, the one that is last now."""
    resource, moved = graph.tasks["resource"], target >= 0
    # A running minimum from the back: the next position on the same resource that is not moved.
    order = np.lexsort((order_T, resource))
    turns = np.where(moved[order], graph.num_tasks, np.arange(graph.num_tasks))
    following = np.minimum.accumulate(turns[::-1])[::-1]
    behind = order[np.minimum(following, graph.num_tasks - 1)]
    is_known = (following < graph.num_tasks) & (resource[behind] == resource[order])
    later = np.lexsort((order_T, np.where(moved, target + 0.5, order_T), resource))
    last = later[np.searchsorted(resource[later], resource[order], side="right") - 1]
    result = np.empty(graph.num_tasks, dtype=np.int64)
    result[order] = np.where(is_known, behind, last)
    return result


def _reorder_tasks(graph: Graph, order_T: Rows, target: Rows) -> Graph:
    """Take the tasks that have a target out of their chains and put them behind what has that place."""
    edges, resource = graph.edges, graph.tasks["resource"]
    moved = target >= 0
    touched = np.isin(resource, np.unique(resource[moved]))
    #      before    b3 -> b2 -> b1 -> u1 -> u2 -> u3          b: backward of a layer, u: its update
    #      after     b3 -> u3 -> b2 -> u2 -> b1 -> u1          (a backward pass begins with the last layer)
    # Chains are taken apart and tied anew in the new order; gaps before tasks go with them.
    inner = (edges["kind"] == EdgeKind.ORDER) & (resource[edges["src"]] == resource[edges["dst"]])
    inner &= touched[edges["src"]]
    gap_ns = np.zeros(graph.num_tasks, dtype=np.int64)
    gap_ns[edges["dst"][inner]] = lags(edges)[inner]
    # a moved task takes the place of its anchor, behind it, in its old turn
    where = order_T.astype(np.float64)
    where[moved] = target[moved] + 0.5
    rows = np.flatnonzero(touched)
    rows = rows[np.lexsort((order_T[rows], where[rows], resource[rows]))]
    together = resource[rows[:-1]] == resource[rows[1:]]
    src, dst = rows[:-1][together], rows[1:][together]
    if int(inner.sum()) < len(src):
        raise NotApplicableError("the order on some thread or stream is not fixed by the graph")
    try:
        return graph.disconnect(inner).connect(src, dst, EdgeKind.ORDER, lag_ns=gap_ns[dst])
    except GraphError as error:
        raise NotApplicableError(
            "an update waits for work that comes after its own gradient",
            where=error.where,
        ) from error
