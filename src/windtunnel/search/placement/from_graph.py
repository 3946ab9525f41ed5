"""A captured or priced graph as a placement problem, and a plan as a graph again.

In: a ``Graph`` of one training step or inference, priced once per type of device. Out: a ``Problem`` whose nodes are
layers, forward and backward apart; and for a plan, the same graph with every task on its device and the transfers
that the plan needs between them. Not here: prices, solvers.
"""

# T tasks, N nodes, D devices, K types

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase, ResourceKind
from windtunnel.graph.parameters import optimizer_state_ratio
from windtunnel.search.placement.model import Problem
from windtunnel.search.placement.throughput import Plan
from windtunnel.search.work import DeviceType

__all__ = ["Layers", "apply_plan", "layers_of", "nodes_of", "step_of", "sum_by_node"]

Ints = NDArray[np.int64]
_PLACED = (int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.UPDATE))


@dataclass(frozen=True, eq=False)
class Layers:
    """A graph by layers.

    Parameters
    ----------
    graph : Graph
        The step that was asked for, priced for the first type.
    node_T : int64 [T]
        Layer and phase of each task, row of ``problem``; -1 for what runs on every device, such as loading.
    problem : Problem
    bandwidth_bytes_per_s : float
        Between an accelerator and the host.
    node_of : dict of str to int
        The forward node that each layer is in; several layers share one where they wait for each other.
    update_ns : float64 [N, K]
        What the optimizer takes for the layers of a node, once per step.
    """

    graph: Graph
    node_T: Ints
    problem: Problem
    bandwidth_bytes_per_s: float
    node_of: Mapping[str, int]
    update_ns: NDArray[np.float64]


def layers_of(
    graphs: Sequence[Graph],
    types: Sequence[DeviceType],
    bandwidth_bytes_per_s: float,
    *,
    iteration: int | None = None,
    num_microbatches: int = 1,
    link_scale: NDArray[np.float64] | None = None,
) -> Layers:
    """Layers as nodes: time, memory and what they send.

    A layer's forward and backward nodes have one color; what the optimizer takes is shared out by parameters. A task
    without a layer belongs to the one before it. Layers that wait for each other are one node.

    Parameters
    ----------
    graphs : sequence of Graph
        The same tasks, priced for each of ``types``.
    types : sequence of DeviceType
    bandwidth_bytes_per_s : float
        Between an accelerator and the host.
    iteration : int, optional
        Which step; the last unless given.
    num_microbatches : int
        How many samples such as the graph's come before an update: each carries its part of the optimizer's time.
    link_scale : float64 [K, K], optional
        Factor on a transfer from one type to another; see ``Problem``.

    Raises
    ------
    InputError
        The graphs differ in their tasks, or numbers of graphs and types differ.
    NotApplicableError
        No task has a layer.
    """
    if len(graphs) != len(types) or len({item.num_tasks for item in graphs}) != 1:
        raise InputError(
            f"{len(graphs)} graphs of {sorted({item.num_tasks for item in graphs})} tasks for {len(types)} types",
            where="graphs",
            fix="price one graph for every type",
        )
    if bandwidth_bytes_per_s <= 0:
        raise InputError(f"a bandwidth of {bandwidth_bytes_per_s:g}", where="bandwidth")
    # Only one step is placed; each further step repeats it.
    mask = step_of(graphs[0], iteration)
    steps = [item.remove(~mask, keep_gaps=False) for item in graphs]
    graph = steps[0]
    known, node_T = nodes_of(graph)
    # Layers that wait for each other (a loop over the same module) would make a cycle: they become one node.
    into = _merge_nodes(graph, node_T, np.array([back for _, back in known], bool))
    kept, index = np.unique(into, return_inverse=True)
    node_T = np.where(node_T >= 0, index[node_T], -1)
    is_backward = np.array([known[node][1] for node in kept.tolist()], bool)
    num = len(kept)
    src, dst = _links(graph, node_T)
    # Forward and backward of a layer use the same weights, so that they have to lie on one device.
    color = _colors(known, index, is_backward, src, dst)
    sent = _transfer_bytes(graph, node_T, color)
    times = np.stack([sum_by_node(step.duration_ns, node_T, num) for step in steps], axis=1)
    updates = _updates(graph, steps, node_T, color, is_backward)
    copies = 2.0 + optimizer_state_ratio(graph)  # a parameter and its gradient
    weights = _weights(graph, node_T, num)
    problem = Problem(
        tuple(f"{known[node][0] or 'model'}{' (backward)' if known[node][1] else ''}" for node in kept.tolist()),
        tuple(types),
        times + updates / num_microbatches,
        (copies if is_backward.any() else 1.0) * weights + _activation_bytes(graph, node_T, num),
        np.zeros((num, len(types)), bool),
        is_backward,
        color,
        src,
        dst,
        sent / bandwidth_bytes_per_s * 1e9,
        weight_bytes=weights,
        link_scale=link_scale,
    )
    node_of = {name: int(index[position]) for position, (name, back) in enumerate(known) if not back}
    return Layers(graph, node_T, problem, bandwidth_bytes_per_s, node_of, updates)


def step_of(graph: Graph, iteration: int | None) -> NDArray[np.bool_]:
    """The tasks of one iteration [T], the last unless one is given.

    Raises
    ------
    InputError
        There is no such iteration.
    """
    numbers = graph.tasks.get("iteration")
    if numbers is None:
        return graph.all_tasks
    requested = int(numbers.max()) if iteration is None else iteration
    mask: NDArray[np.bool_] = numbers == requested
    if not mask.any():
        raise InputError(f"there is no iteration {requested}", where="iteration", fix=f"0 to {int(numbers.max())}")
    return mask


def nodes_of(graph: Graph) -> tuple[list[tuple[str, bool]], Ints]:
    """Layers, and whether it is their backward pass, in the order in which they first run; the node of each task [T].

    Raises
    ------
    NotApplicableError
        No task has a layer.
    """
    layers = graph.tasks["layer"].to_numpy()
    phases = np.asarray(graph.tasks["phase"])
    order = graph.topological_order()
    known: dict[tuple[str, bool], int] = {}
    node_T = np.full(graph.num_tasks, -1)
    current = {False: "", True: ""}
    for task in order.tolist():
        if phases[task] not in _PLACED[:2]:
            continue
        is_backward = bool(phases[task] == int(Phase.BACKWARD))
        current[is_backward] = layers[task] or current[is_backward]
        node_T[task] = known.setdefault((current[is_backward], is_backward), len(known))
    if not any(name for name, _ in known):
        raise NotApplicableError("no task of this graph says which layer it belongs to", fix="capture it with modules")
    return list(known), node_T


def _merge_nodes(graph: Graph, node_T: Ints, is_backward: NDArray[np.bool_]) -> Ints:
    """For every node the first of those that it is one with: they wait for each other, or it exchanges no data.

    Of what exchanges none (a dropout of nothing, a change of shape) only the order of the program says where it is:
    behind the node before it.
    """
    rustworkx = require("rustworkx", extra="plan")
    num = len(is_backward)
    ends = np.stack(_links(graph, node_T))
    waits = rustworkx.PyDiGraph(multigraph=False)
    waits.add_nodes_from(range(num))
    waits.add_edges_from_no_data(list(map(tuple, ends.T.tolist())))
    into = np.arange(num)
    for component in rustworkx.strongly_connected_components(waits):
        into[component] = min(component)
    is_linked = np.zeros(num, bool)
    is_linked[ends[:, is_backward[ends[0]] == is_backward[ends[1]]].ravel()] = True
    for back in (False, True):
        same = np.flatnonzero(is_backward == back)
        linked = same[is_linked[same]]
        for node in same[~is_linked[same]].tolist() if linked.size else []:
            into[node] = into[linked[max(0, int(np.searchsorted(linked, node)) - 1)]]
    return into


def _colors(
    known: Sequence[tuple[str, bool]], node_of: Ints, is_backward: NDArray[np.bool_], src: Ints, dst: Ints
) -> Ints:
    """One color for all nodes that have a layer in common, directly or by others.

    A backward node of no forward layer (the seed of the gradients) goes with a backward one that it is linked to.
    """
    rustworkx = require("rustworkx", extra="plan")
    num = len(is_backward)
    shared = rustworkx.PyGraph(multigraph=False)
    shared.add_nodes_from(range(num))
    forward = {name: int(node_of[index]) for index, (name, back) in enumerate(known) if not back}
    backward = [(name, int(node_of[index])) for index, (name, back) in enumerate(known) if back]
    shared.add_edges_from_no_data([(forward[name], node) for name, node in backward if name in forward])
    paired = {node for name, node in backward if name in forward}
    for _, node in backward:
        linked = np.concatenate([dst[src == node], src[dst == node]])
        linked = linked[is_backward[linked]]
        if node not in paired and linked.size:
            shared.add_edge(node, int(linked[0]), None)
    color = np.zeros(num, np.int64)
    for number, component in enumerate(rustworkx.connected_components(shared)):
        color[list(component)] = number
    return color


def sum_by_node(values: NDArray[np.int64], node_T: Ints, num: int) -> NDArray[np.float64]:
    """A value of tasks by their nodes [N]; tasks at -1 are left out."""
    rows = node_T >= 0
    total = np.zeros(num)
    np.add.at(total, node_T[rows], values[rows])
    return total


def _updates(
    graph: Graph, steps: Sequence[Graph], node_T: Ints, color: Ints, is_backward: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Optimizer time [N, K] on the backward nodes, by the parameters of their colors."""
    num = len(color)
    updates = np.zeros((num, len(steps)))
    is_update = np.asarray(graph.tasks["phase"]) == int(Phase.UPDATE)
    if not is_update.any() or not is_backward.any():
        return updates
    share = np.zeros(num)
    if "param_bytes" in graph.tasks:
        of_color = np.bincount(color, sum_by_node(np.asarray(graph.tasks["param_bytes"]), node_T, num))
        share = is_backward * of_color[color] / np.maximum(np.bincount(color, is_backward), 1)[color]
    if not share.sum():
        share = is_backward.astype(float)
    total = np.array([step.duration_ns[is_update].sum() for step in steps], float)
    updates += (share / share.sum())[:, None] * total
    return updates


def _weights(graph: Graph, node_T: Ints, num: int) -> NDArray[np.float64]:
    """Bytes of parameters, as large as their gradients."""
    if "param_bytes" not in graph.tasks:
        return np.zeros(num)
    return sum_by_node(np.asarray(graph.tasks["param_bytes"]), node_T, num)


def _activation_bytes(graph: Graph, node_T: Ints, num: int) -> NDArray[np.float64]:
    """Bytes that the forward pass keeps for the backward one."""
    phases = np.asarray(graph.tasks["phase"])
    src, dst = np.asarray(graph.edges["src"]), np.asarray(graph.edges["dst"])
    is_kept = (phases[src] == int(Phase.FORWARD)) & (phases[dst] == int(Phase.BACKWARD)) & (node_T[src] >= 0)
    is_kept &= np.asarray(graph.edges["kind"]) == int(EdgeKind.DATA)
    largest = np.zeros(graph.num_tasks)
    np.maximum.at(largest, src[is_kept], np.asarray(graph.edges["size_bytes"])[is_kept])
    return sum_by_node(largest.astype(np.int64), node_T, num)


def _links(graph: Graph, node_T: Ints) -> tuple[Ints, Ints]:
    """Edges between nodes: the second reads what the first writes."""
    src, dst = node_T[graph.edges["src"]], node_T[graph.edges["dst"]]
    rows = (np.asarray(graph.edges["kind"]) == int(EdgeKind.DATA)) & (src >= 0) & (dst >= 0) & (src != dst)
    ends = np.unique(np.stack([src[rows], dst[rows]]), axis=1)
    return ends[0], ends[1]


def _transfer_bytes(graph: Graph, node_T: Ints, color: Ints) -> NDArray[np.float64]:
    """Bytes of each node that can be read elsewhere, every tensor once [N]: what its own backward keeps stays."""
    src_T = np.asarray(graph.edges["src"])
    src, dst = node_T[src_T], node_T[graph.edges["dst"]]
    rows = (np.asarray(graph.edges["kind"]) == int(EdgeKind.DATA)) & (src >= 0) & (dst >= 0)
    rows &= color[src] != color[dst]
    largest = np.zeros(graph.num_tasks)
    np.maximum.at(largest, src_T[rows], np.asarray(graph.edges["size_bytes"])[rows])
    return sum_by_node(largest.astype(np.int64), node_T, len(color))


def apply_plan(layers: Layers, plan: Plan, graphs: Sequence[Graph] = ()) -> Graph:
    """The step with every task on its device, and a transfer wherever a device reads what another one made.

    Parameters
    ----------
    layers : Layers
    plan : Plan
        Of ``layers.problem``.
    graphs : sequence of Graph
        The step priced for each type, where types differ in speed; the first one's durations unless given.

    Returns
    -------
    Graph
        For one sample: devices wait for each other. What belongs to no layer stays where it was.
    """
    graph, problem = layers.graph, layers.problem
    device_T = np.where(layers.node_T >= 0, plan.device[layers.node_T], -1)
    for kind, priced in enumerate(graphs):
        rows = (device_T >= 0) & (plan.kind[device_T] == kind)
        graph = graph.set_duration(rows, priced.duration_ns[rows])
    rows_of: list[int] = []
    for index, kind in enumerate(plan.kind.tolist()):
        graph, row = graph.add_resource(f"{problem.types[kind].name} {index}", ResourceKind.DEVICE)
        rows_of.append(row)
    for index, row in enumerate(rows_of):
        graph = graph.move(device_T == index, row)
    return _with_transfers(layers, graph, device_T, plan, rows_of)


def _with_transfers(layers: Layers, graph: Graph, device_T: Ints, plan: Plan, rows_of: Sequence[int]) -> Graph:
    """One task per tensor and device that reads it, on the reading device, and one per tensor on the sending one."""
    src, dst = np.asarray(graph.edges["src"]), np.asarray(graph.edges["dst"])
    crosses = (np.asarray(graph.edges["kind"]) == int(EdgeKind.DATA)) & (device_T[src] >= 0) & (device_T[dst] >= 0)
    crosses &= device_T[src] != device_T[dst]
    sizes = np.asarray(graph.edges["size_bytes"])
    readers: dict[tuple[int, int], list[int]] = {}
    size_of: dict[int, int] = {}
    for edge in np.flatnonzero(crosses).tolist():
        task = int(src[edge])
        readers.setdefault((task, int(device_T[dst[edge]])), []).append(int(dst[edge]))
        size_of[task] = max(size_of.get(task, 0), int(sizes[edge]))
    if not readers:
        return graph
    # A tensor leaves its device once and arrives at each reading device once:
    #      task --> send (on its device) --> receive (device 1) --> readers there
    #                                    \-> receive (device 2) --> readers there
    senders = list(dict.fromkeys(task for task, _ in readers))
    first = graph.num_tasks
    index = {task: first + row for row, task in enumerate(senders)}
    after: list[int] = list(senders) + [index[task] for task, _ in readers]
    before: list[list[int] | None] = [None] * len(senders) + list(readers.values())
    own = [int(device_T[task]) for task in senders] + [device for _, device in readers]
    tasks, devices = (np.array(ends) for ends in zip(*readers, strict=True))
    links = layers.problem.link(plan.kind[device_T[tasks]], plan.kind[devices]).tolist()
    # The sending side is busy as long as its slowest link takes.
    slowest = dict.fromkeys(senders, 0.0)
    for (task, _), link in zip(readers, links, strict=True):
        slowest[task] = max(slowest[task], link)
    scale = [
        layers.problem.types[int(plan.kind[device])].comm_scale * link
        for device, link in zip(own, [*slowest.values(), *links], strict=True)
    ]
    bytes_ = [size_of[task] for task in senders] + [size_of[task] for task, _ in readers]
    columns = {
        "name": ["send"] * len(senders) + ["receive"] * len(readers),
        "kind": int(Kind.COMM),
        "resource": [rows_of[device] for device in own],
        "duration_ns": [
            math.ceil(size * item * 1e9 / layers.bandwidth_bytes_per_s)
            for size, item in zip(bytes_, scale, strict=True)
        ],
    }
    return graph.insert(columns, after=after, before=before)
