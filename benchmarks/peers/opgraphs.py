"""Whole models as operator graphs, priced and replayed (room cost): published graphs in, ``windtunnel`` graphs out.

In: graphs whose nodes list the operators of their forward, backward and accumulation, with shapes. A traced graph
holds one layer between prologue and epilogue; it is repeated. Out: ``Graph`` with a stream of kernels and, for data
parallelism, a link whose all-reduces run beside the rest of the backward. Not here: prices of operators (``tile``).

Source: Lee et al., NeuSight, ASPLOS 2025, section on model-level prediction.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.table import OpTable
from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.hardware import Device
from windtunnel.simulate import replay

__all__ = ["Node", "OpGraph", "all_reduce_ns", "end_to_end_ms", "price_op_graph", "read_op_graphs"]

Floats = NDArray[np.float64]
Latency = Callable[[OpTable], Floats]
Work = tuple[str, Sequence[Any]]

_FIRST_LAYER = re.compile(r"(?:^|_)(?:h|layers?)_0_")
_ENDS_LAYER = ("misc", "dropout", "VECadd")  # the residual connection after the last module of a layer
_VIEWS = ("getitem",)  # of a tensor: no bytes move
_PRODUCTS = {"Linear": "linear", "BMM": "bmm"}
_ITEM_BYTES = 4
_LINK_EFFICIENCY = 0.72


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a traced model.

    Parameters
    ----------
    name, op : str
    forward, backward, accumulate : tuple of (kind, arguments)
        Kinds ``Linear (M, N, K)``, ``BMM (B, M, N, K)``, ``VEC<op> (B, H)``, ``MEM (shapes)``, ``ALLREDUCE (n)``,
        ``ALLREDUCE_ASYNC (n)``, ``SENDRECV (n)``: element counts of 4 bytes.
    external_bytes : int
        Of all inputs and outputs of the node.
    """

    name: str
    op: str
    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    accumulate: tuple[Work, ...]
    external_bytes: int


@dataclass(frozen=True, slots=True)
class OpGraph:
    """A traced model in the order of its execution.

    Parameters
    ----------
    name : str
        ``<model>-<mode>-<sequence length>-<batch>[-option]``.
    nodes : tuple of Node
    """

    name: str
    nodes: tuple[Node, ...]

    def layer(self) -> tuple[int, int]:
        """First node of the one traced layer and the one after its last; the whole graph where none is marked."""
        marked = [row for row, node in enumerate(self.nodes) if _FIRST_LAYER.search(node.name)]
        if not marked:
            return 0, len(self.nodes)
        end = marked[-1] + 1
        while end < len(self.nodes) and self.nodes[end].op in _ENDS_LAYER:
            end += 1
        return marked[0], end

    def repeated(self, num_layers: int) -> tuple[Node, ...]:
        """Prologue, so many layers, epilogue."""
        begin, end = self.layer()
        return self.nodes[:begin] + self.nodes[begin:end] * num_layers + self.nodes[end:]


def read_op_graphs(path: str | Path) -> dict[str, OpGraph]:
    """Read published graphs, JSON or gzip of it.

    Raises
    ------
    InputError
        The file is no such JSON; names the graph and the node.
    """
    source = Path(path)
    try:
        data = source.read_bytes()
        document = json.loads(gzip.decompress(data) if source.suffix == ".gz" else data)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=str(source)) from error
    if not isinstance(document, dict):
        raise InputError("these are no operator graphs", where=str(source), fix="an object: name to list of nodes")
    return {name: OpGraph(name, tuple(_nodes(name, rows, source))) for name, rows in document.items()}


def _nodes(name: str, rows: Any, source: Path) -> Iterator[Node]:
    for row, given in enumerate(rows):
        try:
            forward, backward, accumulate = (
                tuple((kind, tuple(arguments)) for kind, arguments in given[key]) for key in ("fw", "bw", "acc")
            )
            external = _ITEM_BYTES * sum(math.prod(shape) for shape in (*given["in"], given["out"]))
            yield Node(given["name"], given["op"], forward, backward, accumulate, external)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"node {row} of {name} cannot be read: {error!r}", where=str(source)) from error


def all_reduce_ns(num_elements: int, num_devices: int, link_bytes_per_s: float) -> float:
    """Time of summing fp32 elements over devices: ``4n / bandwidth * (devices - 1)`` at 0.72 of half the nominal rate.

    Examples
    --------
    >>> round(all_reduce_ns(1_000_000, 4, 300e9))
    111111
    """
    return 1e9 * _ITEM_BYTES * num_elements / (_LINK_EFFICIENCY * link_bytes_per_s / 2) * (num_devices - 1)


@dataclass(frozen=True, slots=True)
class _Pricing:
    """What a kind of work costs on the one device: vector and matrix work priced at once, the rest by its bytes."""

    device: Device
    latency: Mapping[tuple[str, tuple[float, ...]], float]
    num_devices: int
    link_bytes_per_s: float

    def ns(self, work: Work) -> float:
        kind, arguments = work
        if kind == "MEM":
            moved: int = _ITEM_BYTES * sum(math.prod(shape) for shape in arguments)
            return 1e9 * moved / self.device.bandwidth_bytes_per_s
        if kind.startswith("ALLREDUCE"):
            return all_reduce_ns(int(arguments[0]), self.num_devices, self.link_bytes_per_s)
        if kind == "SENDRECV":
            return 1e9 * _ITEM_BYTES * int(arguments[0]) / (_LINK_EFFICIENCY * self.link_bytes_per_s / 2)
        return 1e6 * self.latency[_key(work)]

    def fused_ns(self, node: Node) -> float:
        """A chain is its last operator with the bytes of the tensors outside of it."""
        vectors = [work for work in node.forward if work[0].startswith("VEC")]
        if not vectors:
            return sum(map(self.ns, node.forward))
        op, (rows, width) = _key(vectors[-1])
        own = _ITEM_BYTES * rows * width * (3 if op in ("add", "div", "mul", "pow") else 2)
        return self.ns(vectors[-1]) * node.external_bytes / own


def _key(work: Work) -> tuple[str, tuple[float, ...]]:
    kind, arguments = work
    op = _PRODUCTS.get(kind) or kind.removeprefix("VEC")
    return op, (1, *arguments) if kind == "Linear" else tuple(arguments)


def _is_priced(work: Work) -> bool:
    return work[0] in _PRODUCTS or work[0].startswith("VEC")


def price_op_graph(
    graph: OpGraph,
    device: Device,
    latency: Latency,
    *,
    num_layers: int = 1,
    num_devices: int = 1,
    link_bytes_per_s: float = 300e9,
    cost_source: str = "tile",
) -> Graph:
    """Turn a traced model into a graph that ``replay`` flies.

    Parameters
    ----------
    graph : OpGraph
    device : Device
    latency : callable
        Milliseconds of rows of operators, all on this device; each distinct one is asked for once.
    num_layers : int
        How often the one traced layer repeats.
    num_devices, link_bytes_per_s : int, float
        For all-reduces.

    Raises
    ------
    PriceError
        An operator has no price.
    """
    nodes = graph.repeated(num_layers)
    keys = list(dict.fromkeys(_key(work) for node in graph.nodes for work in _works(node) if _is_priced(work)))
    table = OpTable.of_rows([(device.name, op, sizes) for op, sizes in keys])
    found = dict(zip(keys, latency(table).tolist() if keys else [], strict=True))
    pricing = _Pricing(device, found, num_devices, link_bytes_per_s)
    return _Build(pricing, cost_source).all(nodes).with_meta(source=graph.name, priced_for=device.name)


def _works(node: Node) -> tuple[Work, ...]:
    return (*node.forward, *node.backward, *node.accumulate)


class _Build:
    """Rows of the graph: kernels in order on a stream, asynchronous all-reduces in order on a link."""

    def __init__(self, pricing: _Pricing, cost_source: str) -> None:
        self.pricing, self.cost_source = pricing, cost_source
        self.builder = GraphBuilder()
        self.stream = self.builder.resource("stream", ResourceKind.STREAM)
        self.link = -1
        self.last: dict[int, int] = {}

    def all(self, nodes: Sequence[Node]) -> Graph:
        for node in nodes:
            self._forward(node)
        reduces = self._reduces(nodes)
        for row in range(len(nodes) - 1, -1, -1):
            node = nodes[row]
            if not _is_reduce(node):
                for work in node.backward:
                    self._add(node.name, work, Phase.BACKWARD, self.pricing.ns(work))
                for work in node.accumulate:
                    self._add(node.name, work, Phase.BACKWARD, self.pricing.ns(work))
            for reduce in reduces.get(row, ()):
                self._reduce(reduce)
        return self.builder.build()

    def _forward(self, node: Node) -> None:
        if node.op == "fused" and node.forward:
            self._add(node.name, ("fused", ()), Phase.FORWARD, self.pricing.fused_ns(node))
            return
        for work in node.forward if node.op not in _VIEWS else ():
            self._add(node.name, work, Phase.FORWARD, self.pricing.ns(work))

    def _reduces(self, nodes: Sequence[Node]) -> dict[int, list[Node]]:
        """All-reduces by the node whose gradient they sum: the nearest one of that name before them."""
        found: dict[int, list[Node]] = {}
        places: dict[str, int] = {}
        for row, node in enumerate(nodes):
            if _is_reduce(node):
                found.setdefault(places.get(node.name.removesuffix("_grad"), row), []).append(node)
            else:
                places[node.name] = row
        return found

    def _reduce(self, node: Node) -> None:
        if self.link < 0:
            self.link = self.builder.resource("link", ResourceKind.LINK)
        for work in node.backward:
            task = self._add(node.name, work, Phase.BACKWARD, self.pricing.ns(work), resource=self.link)
            if self.stream in self.last:
                self.builder.edge(self.last[self.stream], task)

    def _add(self, name: str, work: Work, phase: Phase, duration_ns: float, resource: int | None = None) -> int:
        place = self.stream if resource is None else resource
        task = self.builder.task(
            name,
            duration_ns=round(duration_ns),
            kind=Kind.COMM if work[0].startswith(("ALLREDUCE", "SENDRECV")) else Kind.COMPUTE,
            resource=place,
            op=work[0],
            phase=phase,
            cost_source=self.cost_source if _is_priced(work) or work[0] == "fused" else "bandwidth",
        )
        if place in self.last:
            self.builder.edge(self.last[place], task, kind=EdgeKind.ORDER)
        self.last[place] = task
        return task


def _is_reduce(node: Node) -> bool:
    return any(kind == "ALLREDUCE_ASYNC" for kind, _ in node.backward)


def end_to_end_ms(graph: Graph) -> float:
    """Time of the whole run, replayed."""
    return float(replay(graph).makespan_ns / 1e6)
