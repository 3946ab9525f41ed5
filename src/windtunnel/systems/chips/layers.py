"""The graph of a dry run as layers: operators for tensor and vector cores, messages, memory.

In: the graph of one rank's iteration. Out: ``Layer``s in the order in which they run: operators of the forward and the
backward pass with their sizes, what all tensor ranks sum, parameters, what is kept for the backward pass, and what
layers send each other. Views, copies and look-ups are free, as published; an element-wise operator that alone reads a
product's result is fused with it. Not here: cycles (``model``), schedules of operators (``operations``).

Source: PHAZE (Wang et al., ICML 2024), section 4.1.
"""

# N operators, L layers

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.work import sides_of
from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.graph.kernel_classes import class_of
from windtunnel.systems.chips.accelerators.vectors import cycles_per_element, short_name
from windtunnel.systems.chips.operations import FUSED, TENSOR, VECTOR, Operations

__all__ = ["Layer", "Layers", "PhaseWork", "layers_of"]

Ints = NDArray[np.int64]

_FREE = frozenset(
    {"embedding", "embedding_dense_backward", "index_select", "clone", "cat", "_to_copy", "copy", "fill", "zero",
     "ones_like", "zeros_like", "new_zeros", "zeros", "ones", "empty", "full", "arange", "randint", "slice_backward",
     "stack"}
)  # fmt: skip
"""Look-ups and what only moves data, besides views."""
_ACROSS = frozenset({"softmax", "mean", "log_softmax", "sum", "layer_norm", "nll_loss_forward"})
"""Operators that are not elementwise."""


@dataclass(frozen=True, eq=False)
class PhaseWork:
    """Work of a layer in one pass.

    Parameters
    ----------
    operations : Operations
    product_N4 : int64 [N, 4]
        Batch, M, N, K of an (M x K) by (K x N) product; 0 of a vector operator.
    vector_N2 : int64 [N, 2]
        Elements, and cycles that a lane takes for each.
    sum_bytes : int
        What all tensor ranks sum up, one message after the other.
    moved_bytes_N : int64 [N]
        Read and written by vector parts; what a product hands to one that is fused with it stays on the chip.
    """

    operations: Operations
    product_N4: Ints
    vector_N2: Ints
    sum_bytes: int
    moved_bytes_N: Ints

    @property
    def num_macs(self) -> int:
        """Multiplications with additions of all products."""
        return int(self.product_N4.prod(axis=1).sum())


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer on one tensor rank.

    Parameters
    ----------
    name : str
    forward, backward : PhaseWork
    param_bytes : int
    written_bytes : int
        Outputs of all operators of the forward pass together.
    kept_bytes : int
        What the forward pass leaves for the backward pass.
    extra_bytes : int
        By how much memory rises for a while above what is kept, in either pass.
    """

    name: str
    forward: PhaseWork
    backward: PhaseWork
    param_bytes: int
    written_bytes: int
    kept_bytes: int
    extra_bytes: int


@dataclass(frozen=True, eq=False)
class Layers:
    """A network on one tensor rank.

    Parameters
    ----------
    layers : tuple of Layer
    src, dst, sent_bytes : int64 [E]
        Which layer reads what another one computes, and how many bytes; each output once per reader.
    num_tensor : int
        Ranks that every layer is split over.
    """

    layers: tuple[Layer, ...]
    src: Ints
    dst: Ints
    sent_bytes: Ints
    num_tensor: int


def layers_of(graph: Graph, num_tensor: int = 1, *, names: Sequence[str] = ()) -> Layers:
    """Split a traced iteration into layers: the modules of the model, by the first part of their path.

    Parameters
    ----------
    graph : Graph
        Of one rank, with shapes, as a dry run has it.
    num_tensor : int
        Ranks that the layers are split over.
    names : sequence of str, optional
        Of the layers, in their order; one that does nothing may be among them.

    Raises
    ------
    InputError
        The graph has several ranks, no shapes, or no forward and backward pass.
    """
    tasks = _Tasks.of(graph)
    names = names or list(dict.fromkeys(name for name, phase in zip(tasks.layer, tasks.phase, strict=True)
                                        if name and phase == Phase.FORWARD))  # fmt: skip
    if not names or Phase.BACKWARD not in tasks.phase:
        raise InputError("there is no forward and backward pass of a model", where="graph", fix="trace a training step")
    created = tuple(_layer(tasks, name) for name in names)
    ends: dict[tuple[int, int, int], int] = {}
    number = {name: index for index, name in enumerate(names)}
    for a, b, size in tasks.edges:
        source, target = number.get(tasks.layer[a], -1), number.get(tasks.layer[b], -1)
        is_forward = tasks.phase[a] == tasks.phase[b] == Phase.FORWARD
        if is_forward and 0 <= source < target:
            ends[source, target, a] = max(size, ends.get((source, target, a), 0))
    table = np.array([(a, b, size) for (a, b, _), size in sorted(ends.items())], np.int64).reshape(-1, 3)
    return Layers(created, table[:, 0], table[:, 1], table[:, 2], num_tensor)


@dataclass(frozen=True)
class _Tasks:
    """Columns of the tasks of a stream."""

    op: list[str]
    layer: list[str]
    phase: list[int]
    shapes: list[str]
    cycles: list[int]
    is_message: list[bool]
    columns: dict[str, list[int]]
    edges: list[tuple[int, int, int]]
    read: set[int]

    @classmethod
    def of(cls, graph: Graph) -> _Tasks:
        if "input_shapes" not in graph.tasks or "layer" not in graph.tasks:
            raise InputError(
                "the graph has no shapes or layers", where="graph", fix="make it by windtunnel capture --dry-run"
            )
        if len(set(graph.tasks["rank"].tolist())) > 1:
            raise InputError("the graph has several ranks", where="graph", fix="trace one: --ranks-to-trace 0")
        rows = np.flatnonzero(graph.select(kind=Kind.COMPUTE) | graph.select(kind=Kind.COMM))
        index = np.full(graph.num_tasks, -1, np.int64)
        index[rows] = np.arange(len(rows))
        is_data = graph.edges["kind"] == EdgeKind.DATA
        ends = [index[graph.edges[item][is_data]] for item in ("src", "dst")]
        sizes = graph.edges["size_bytes"][is_data]
        edges = [(int(a), int(b), int(size)) for a, b, size in zip(*ends, sizes, strict=True) if a >= 0 and b >= 0]
        phase = graph.tasks["phase"][rows].tolist()
        strings = {name: graph.tasks.strings(name).take(rows).to_numpy().tolist()
                 for name in ("op", "layer", "input_shapes")}  # fmt: skip
        names = ("flops", "bytes_read", "bytes_written", "output_bytes", "freed_bytes", "param_bytes", "message_bytes")
        columns = {name: graph.tasks[name][rows].tolist() for name in names}
        read = {a for a, b, _ in edges if phase[b] != Phase.UPDATE}
        cycles = cycles_per_element(strings["op"]).astype(np.int64).tolist()
        return cls([_family(text) for text in strings["op"]],
            [text.partition(".")[0] for text in strings["layer"]], phase,
                   strings["input_shapes"], cycles, (graph.tasks["kind"][rows] == Kind.COMM).tolist(), columns, edges,
                   read)  # fmt: skip

    def of_phase(self, layer: str, phase: Phase) -> list[int]:
        return [row for row, name in enumerate(self.layer) if name == layer and self.phase[row] == phase]

    def born(self, row: int) -> int:
        """Bytes allocated for what it computes, not for what was there before the iteration."""
        return min(self.columns["output_bytes"][row], self.columns["bytes_written"][row])


def _family(op: str) -> str:
    """``aten::add_.Tensor`` is an ``add``."""
    return op.removeprefix("aten::").partition(".")[0].removesuffix("_")


def _layer(tasks: _Tasks, name: str) -> Layer:
    forward, backward = tasks.of_phase(name, Phase.FORWARD), tasks.of_phase(name, Phase.BACKWARD)
    kept, risen = _memory(tasks, forward, is_backward=False)
    extra = _memory(tasks, backward, is_backward=True)[1]
    written = sum(tasks.columns["bytes_written"][row] for row in forward)
    params = sum(tasks.columns["param_bytes"][row] for row in forward)
    return Layer(name, _phase(tasks, forward), _phase(tasks, backward), params, written, max(kept, 0),
                 max(risen - max(kept, 0), extra, 0))  # fmt: skip


def _memory(tasks: _Tasks, rows: Iterable[int], *, is_backward: bool) -> tuple[int, int]:
    """Return live bytes at the end and their peak; gradients of parameters, which nothing reads, do not count."""
    now = highest = 0
    for row in rows:
        if not is_backward or row in tasks.read:
            now += tasks.born(row)
        highest = max(highest, now)
        now -= tasks.columns["freed_bytes"][row]
    return now, highest


def _phase(tasks: _Tasks, rows: list[int]) -> PhaseWork:
    works = [row for row in rows if not tasks.is_message[row] and tasks.cycles[row] and tasks.op[row] not in _FREE]
    pairs = _without_free(tasks, rows, set(works))
    product = {row: _product(tasks, row) for row in works}
    group = _fusion_groups(tasks, works, pairs, product)
    leaders = sorted(set(group.values()))
    number = {row: position for position, row in enumerate(leaders)}
    product_N4, vector_N2 = np.zeros((len(leaders), 4), np.int64), np.zeros((len(leaders), 2), np.int64)
    moved_N = np.zeros(len(leaders), np.int64)
    for row in works:
        index = number[group[row]]
        sizes = product[row]
        if sizes is not None:
            product_N4[index] = sizes
            continue
        moved = tasks.columns["bytes_read"][row] + tasks.columns["bytes_written"][row]
        stays = 2 * tasks.columns["bytes_written"][row] if group[row] != row else 0
        moved_N[index] += max(moved - stays, 0)
        vector_N2[index] = tasks.columns["flops"][row], vector_N2[index, 1] + tasks.cycles[row]
    kinds = np.where(product_N4[:, 0] == 0, VECTOR, np.where(vector_N2[:, 1] == 0, TENSOR, FUSED))
    ends = {(number[group[a]], number[group[b]]) for a, b in pairs if group[a] != group[b]}
    names = [tasks.op[row] for row in leaders]
    summed = sum(tasks.columns["message_bytes"][row] for row in rows if tasks.is_message[row])
    return PhaseWork(*_sort_operators(kinds, ends, names, product_N4, vector_N2, summed, moved_N))


def _sort_operators(
    kinds: Ints,
    ends: set[tuple[int, int]],
    names: list[str],
    product_N4: Ints,
    vector_N2: Ints,
    summed: int,
    moved_N: Ints,
) -> tuple[Operations, Ints, Ints, int, Ints]:
    """Sort operators topologically: a fused one also waits for what its last part reads."""
    waiting = {position: {a for a, b in ends if b == position} for position in range(len(kinds))}
    order: list[int] = []
    while waiting:
        ready = min(key for key, others in waiting.items() if not others & waiting.keys())
        order.append(ready)
        del waiting[ready]
    index = np.argsort(order)
    operations = Operations.of(kinds[order], [(int(index[a]), int(index[b])) for a, b in ends],
                               [names[position] for position in order])  # fmt: skip
    return operations, product_N4[order], vector_N2[order], summed, moved_N[order]


def _product(tasks: _Tasks, row: int) -> tuple[int, int, int, int] | None:
    """Batch, M, N, K; a convolution is one product, attention in one kernel as many as it multiplies."""
    kind = class_of(tasks.op[row])
    if not kind.startswith(("product", "convolution", "attention")):
        return None
    sides = sides_of(tasks.op[row], tasks.shapes[row])
    if kind == "product":
        rows, inner, columns, batch = sides
        return batch, rows, columns, inner
    num_macs = tasks.columns["flops"][row] // 2
    if kind.startswith("convolution"):
        channels, filters, window, _ = sides
        return 1, max(num_macs // (channels * window * filters), 1), filters, channels * window
    heads, rows, inner = sides
    return max(num_macs // (rows * rows * inner), heads), rows, rows, inner


def _without_free(tasks: _Tasks, rows: list[int], works: set[int]) -> set[tuple[int, int]]:
    """Return dependencies among operators that take time, through those that are free; rows are in execution order."""
    inside = set(rows)
    sources: dict[int, set[int]] = {row: set() for row in rows}
    for a, b, _ in tasks.edges:
        if a in inside and b in inside:
            sources[b].add(a)
    behind: dict[int, set[int]] = {}
    for row in rows:
        behind[row] = {item for a in sources[row] for item in ({a} if a in works else behind.get(a, set()))}
    return {(a, row) for row in works for a in behind[row]}


def _fusion_groups(
    tasks: _Tasks,
    works: list[int],
    pairs: set[tuple[int, int]],
    product: Mapping[int, tuple[int, int, int, int] | None],
) -> dict[int, int]:
    """The operator that each becomes a part of: a product takes up what alone reads its result, element by element."""
    readers: dict[int, set[int]] = {row: set() for row in works}
    for a, b in pairs:
        readers[a].add(b)
    group = {row: row for row in works}
    for row in works:
        sizes, last = product[row], row
        while sizes is not None and len(readers[last]) == 1:
            (reader,) = readers[last]
            elements = sizes[0] * sizes[1] * sizes[2]
            is_one = short_name(tasks.op[reader])[0] not in _ACROSS and tasks.columns["flops"][reader] == elements
            if not is_one or product[reader] or group[reader] != reader:
                break
            group[reader] = group[row]
            last = reader
    return group
