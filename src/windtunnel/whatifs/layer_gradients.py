"""Which layer has how many parameters, and when their gradients are there.

In: a graph with phases and layers. Out: small tables that communication what-ifs are written with, in the order in
which the forward pass meets the layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InEffectError, InputError, NotApplicableError
from windtunnel.graph import Graph, Kind, Phase, ResourceKind
from windtunnel.graph.parameters import parameter_bytes_by_layer, parameter_bytes_by_name
from windtunnel.hardware import Link, link

__all__ = [
    "Bucket",
    "Gradient",
    "buckets_of",
    "default_link",
    "gradients_of",
    "iterations_of",
    "last_per_group",
    "link_in_use",
    "link_of",
    "need_one_rank",
    "one_iteration",
    "positions",
    "works",
]

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradients of one layer.

    ``parameters`` holds the bytes of each parameter, in order of registration; ``ready`` is the last backward task of
    the layer; ``forward`` its first forward tasks, one per resource.
    """

    layer: str
    parameters: tuple[int, ...]
    ready: int
    forward: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """All parameters of the layer together."""
        return sum(self.parameters)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that travel together: their bytes, the tasks after which all are there, those that wait for them.

    ``reducer`` numbers the models' backward passes of an iteration: each averages its buckets for itself.
    """

    size_bytes: int
    ready: tuple[int, ...]
    layers: tuple[str, ...]
    updates: tuple[int, ...]
    reducer: int = 0


def link_of(name: str, bandwidth_bytes_per_s: float | None, latency_ns: int | None) -> Link:
    """A link of the catalog, with the rate and the latency replaced where they are given."""
    known = link(name)
    if bandwidth_bytes_per_s is None and latency_ns is None:
        return known
    return Link(
        name=f"{name} (changed)",
        bandwidth_bytes_per_s=bandwidth_bytes_per_s or known.bandwidth_bytes_per_s,
        latency_ns=known.latency_ns if latency_ns is None else latency_ns,
        is_duplex=known.is_duplex,
    )


def link_in_use(graph: Graph) -> Link | None:
    """The link that an earlier what-if priced the collectives with."""
    noted = graph.meta.link
    return None if noted is None else Link(**noted)


def default_link(graph: Graph, name: str) -> str:
    """The name itself, or for ``auto`` what fits where the graph computes."""
    if name != "auto":
        return name
    kinds = graph.resources["kind"]
    return "pcie4-x16" if np.isin(kinds, (ResourceKind.STREAM, ResourceKind.DEVICE)).any() else "loopback"


def need_one_rank(graph: Graph) -> None:
    """Refuse a graph of several workers.

    Raises
    ------
    NotApplicableError
        The graph has more than one rank, or already communicates.
    """
    communicates = int(graph.select(kind=Kind.COMM).sum())
    if graph.num_ranks > 1 or communicates:
        raise InEffectError(
            f"the graph is distributed already: {graph.num_ranks} ranks, {communicates} communication tasks",
            fix="start from a capture of one device; rank-count changes the number of workers of a distributed one",
        )


def positions(graph: Graph) -> Rows:
    """Place of every task in topological order, int64 [T]."""
    index = np.empty(graph.num_tasks, dtype=np.int64)
    index[graph.topological_order()] = np.arange(graph.num_tasks)
    return index


def last_per_group(order_T: Rows, rows: Rows, group: NDArray[Any], *, first: bool = False) -> dict[Any, int]:
    """Of the given rows the last (or first) one of each group in topological order, by group."""
    order = np.argsort(order_T[rows], kind="stable")
    if first:
        order = order[::-1]
    return dict(zip(group[order].tolist(), rows[order].tolist(), strict=True))


def gradients_of(graph: Graph, iteration: int | None = None, rank: int | None = None) -> list[Gradient]:
    """The layers that have parameters and a backward pass, in order of the forward pass, of one iteration.

    Of the first iteration and the first rank where none is given.

    Sizes come from the capture's own list of parameters, else from what the forward tasks read: each distinct operator
    of a layer counts once, however often it runs.

    Raises
    ------
    NotApplicableError
        The graph has no backward pass, no layers, or no parameters.
    """
    if "layer" not in graph.tasks or not graph.select(phase=Phase.BACKWARD).any():
        raise NotApplicableError(
            "no gradients are known: the graph has no layers or no backward pass",
            fix="capture a training iteration with windtunnel, which records modules and phases",
        )
    index = positions(graph)
    layers = graph.tasks.strings("layer").compact()
    mask = one_iteration(graph, iteration, rank)
    backward = np.flatnonzero(mask & graph.select(phase=Phase.BACKWARD) & works(graph))
    # A gradient is there when the last backward task of its layer is over, in topological order.
    ready = last_per_group(index, backward, layers.codes[backward])
    sizes = _parameters(graph, mask)
    forward = _first_forward(graph, mask, index, layers.codes)
    met = {code: min(index[list(rows)]) for code, rows in forward.items()}
    result = [
        Gradient(text, sizes[text], ready[code], tuple(sorted(forward.get(code, ()))))
        for code, text in enumerate(layers.values)
        if code in ready and any(sizes.get(text, ()))
    ]
    if not result:
        raise NotApplicableError("no layer with parameters has a backward pass", where="columns layer and param_bytes")
    # Layers in the order of the forward pass; one without a forward task of its own (a shared parameter) sorts
    # by its gradient, before all others.
    code_of = {text: code for code, text in enumerate(layers.values)}
    return sorted(result, key=lambda gradient: met.get(code_of[gradient.layer], -index[gradient.ready]))


def one_iteration(graph: Graph, iteration: int | None, rank: int | None = None) -> NDArray[np.bool_]:
    """What one rank does in one iteration, bool [T]; the first of each if none is given."""
    mask = graph.all_tasks
    for column, requested in (("rank", rank), ("iteration", iteration)):
        values = graph.tasks.get(column)
        if values is not None:
            mask &= values == (values.min() if requested is None else requested)
    return mask


def iterations_of(graph: Graph) -> list[int]:
    """Labels of the iterations, in order."""
    column = graph.tasks.get("iteration")
    return [0] if column is None else np.unique(column).tolist()


def works(graph: Graph) -> NDArray[np.bool_]:
    """Tasks that compute; on a graph without any, every task."""
    computes = graph.select(kind=Kind.COMPUTE)
    return computes if computes.any() else graph.all_tasks


def _parameters(graph: Graph, mask: NDArray[np.bool_]) -> dict[str, tuple[int, ...]]:
    """Sizes of the parameters of every layer."""
    known = parameter_bytes_by_layer(graph)
    if known:
        return known
    # Without names of parameters, each distinct task that reads some counts as one of them.
    sizes: dict[str, list[int]] = {}
    if "param_bytes" in graph.tasks:
        rows = np.flatnonzero(mask & graph.select(phase=Phase.FORWARD))
        read = graph.tasks["param_bytes"][rows]
        layers, names = graph.tasks.strings("layer"), graph.tasks.strings("name")
        keys = np.stack([layers.codes[rows], names.codes[rows], read], axis=1)[read > 0]
        for layer, _name, size_bytes in np.unique(keys, axis=0).tolist():
            sizes.setdefault(layers.values[layer], []).append(size_bytes)
    return {layer: tuple(size) for layer, size in sizes.items()}


def _first_forward(
    graph: Graph, mask: NDArray[np.bool_], order_T: Rows, layer_codes: NDArray[np.int32]
) -> dict[int, list[int]]:
    """First working forward task of each layer on each resource."""
    rows = np.flatnonzero(mask & graph.select(phase=Phase.FORWARD) & works(graph))
    # One key per (layer, resource).
    group = layer_codes[rows].astype(np.int64) * (graph.num_resources + 1) + graph.tasks["resource"][rows] + 1
    first: dict[int, list[int]] = {}
    for key, row in last_per_group(order_T, rows, group, first=True).items():
        first.setdefault(key // (graph.num_resources + 1), []).append(row)
    return first


def buckets_of(graph: Graph, bucket_bytes: int, first_bucket_bytes: int, iteration: int | None = None) -> list[Bucket]:
    """Gather gradients as DistributedDataParallel does: parameters in reverse order, a new bucket once one is full.

    Each model in each backward pass of the iteration (a critic while the generator is trained) fills buckets of its
    own; the model whose first bucket is there first comes first.

    Raises
    ------
    InputError
        A bucket size is not positive.
    """
    if bucket_bytes < 1 or first_bucket_bytes < 1:
        raise InputError(f"a bucket cannot hold {min(bucket_bytes, first_bucket_bytes)} bytes", fix="give 1 or more")
    index = positions(graph)
    caps = (first_bucket_bytes, bucket_bytes)
    buckets: list[Bucket] = []
    for gradients, updates in _backward_passes(graph, iteration):
        reducers = [_fill_buckets(graph, local, caps, updates) for local in _per_model(graph, gradients)]
        for reducer in sorted(reducers, key=lambda filled: max(index[list(filled[0].ready)])):
            number = buckets[-1].reducer + 1 if buckets else 0
            buckets += [replace(bucket, reducer=number) for bucket in reducer]
    return buckets


def _fill_buckets(
    graph: Graph, gradients: list[Gradient], caps: tuple[int, int], updates: tuple[int, ...]
) -> list[Bucket]:
    """The buckets of one model in one backward pass."""
    buckets: list[Bucket] = []
    size, members = 0, dict[str, int]()
    for gradient, parameter in _parameters_in_reverse(graph, gradients):
        size += parameter
        members[gradient.layer] = gradient.ready
        # DDP closes a bucket once it has reached its limit, hence buckets may exceed it; the first one is small, so
        # that communication starts early.
        if size >= caps[bool(buckets)]:
            buckets.append(Bucket(size, tuple(members.values()), tuple(members), updates))
            size, members = 0, {}
    if size:
        buckets.append(Bucket(size, tuple(members.values()), tuple(members), updates))
    return buckets


def _per_model(graph: Graph, gradients: list[Gradient]) -> list[list[Gradient]]:
    """Gradients by the model that they belong to; all together where the capture names one model or none."""
    titles = graph.meta.models
    if len(titles) < 2:
        return [gradients]
    models: dict[str, list[Gradient]] = {}
    for gradient in gradients:
        models.setdefault(gradient.layer.partition(".")[0], []).append(gradient)
    return list(models.values())


def _parameters_in_reverse(graph: Graph, gradients: list[Gradient]) -> list[tuple[Gradient, int]]:
    registered = _sort_by_registration(graph, gradients)
    return [(gradient, size) for gradient in reversed(registered) for size in reversed(gradient.parameters)]


def _backward_passes(graph: Graph, iteration: int | None) -> list[tuple[list[Gradient], tuple[int, ...]]]:
    """Gradients of each backward pass, and the first update behind it on each resource; updates part the passes.

    Calls that only launch do not wait for gradients, and clearing them before a pass is no update of it.
    """
    gradients, passes = gradients_of(graph, iteration), []
    index, mask = positions(graph), one_iteration(graph, iteration)
    updates = np.flatnonzero(mask & graph.select(phase=Phase.UPDATE) & works(graph))
    updates = updates[np.argsort(index[updates], kind="stable")]
    backward = np.flatnonzero(mask & graph.select(phase=Phase.BACKWARD) & works(graph))
    # Updates part the passes: how many updates lie before each backward task.
    turn = np.searchsorted(index[updates], index[backward])
    layers = graph.tasks.strings("layer")
    names = np.array([layers.decode(row) for row in backward.tolist()], dtype=object)
    for number in np.unique(turn).tolist():
        local = turn == number
        ready = last_per_group(index, backward[local], names[local])
        result = [replace(gradient, ready=ready[gradient.layer]) for gradient in gradients if gradient.layer in ready]
        behind = updates[number:]
        first = last_per_group(index, behind, graph.tasks["resource"][behind], first=True)
        if result:
            passes.append((result, tuple(sorted(first.values()))))
    return passes


def _sort_by_registration(graph: Graph, gradients: list[Gradient]) -> list[Gradient]:
    """In order of registration where the capture knows it."""
    known = parameter_bytes_by_name(graph)
    if not known:
        return gradients
    order = {layer: index for index, layer in enumerate(dict.fromkeys(name.rpartition(".")[0] for name in known))}
    return sorted(gradients, key=lambda gradient: order[gradient.layer])
