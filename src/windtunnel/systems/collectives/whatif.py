"""Overlap a tensor-parallel layer's products with their own collectives (what-if "async-tensor-parallel").

In: a graph whose messages say who reads what they bring, such as a dry run of a tensor-parallel job. Out: the same work
with each all-gather before products, and each reduce-scatter behind one, cut into the chunks of its ring:

    all-gather  [1][2][3]                 products [0][1][2][3]         chunk 0 is the rank's own
    products    [0][1][2][3]              reduce-scatter  [0][1][2]     chunk 3 is the rank's own

A product starts on a chunk when it has come; a ring starts on a chunk when it is computed. Copies between the two,
such as ``cat``, are cut, too. Chunks travel between buffers that all ranks see, and no kernel adds them up on the way,
which costs two passes over memory on the stream that computes:

    ahead of an all-gather      the rank's own chunk is copied to its buffer, before any peer reads it
    behind a reduce-scatter     the chunks of all ranks, which lie next to each other, are summed

A graph that does not say how fast memory is has neither.

A chunk of a product has fewer tiles than the product, so that its last wave leaves more multiprocessors idle: it takes
that much more than its share, where the device is known. Not here: prices.

References
----------
Jangda et al., CoCoNet, ASPLOS 2022, section 4.4; Wang et al., Overlap Communication with Dependent Computation via
Decomposition, ASPLOS 2023; PyTorch, ``torch.distributed._symmetric_memory`` (async tensor parallelism).
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind
from windtunnel.graph.kernel_classes import class_of
from windtunnel.simulate.limits import other_order
from windtunnel.whatifs.insert_tasks import chip_of, memory_bandwidth, traffic_ns

__all__ = ["async_tensor_parallel"]

# T tasks, E edges
Ints = NDArray[np.int64]
_TILE = (128, 256)
"""Rows and columns of a product that a multiprocessor computes at once, of the fastest kernels in 16 bits."""
_COMPUTE_LIMITS = ("compute", "wave")
_COPIES = r"(aten::)?(cat|clone|contiguous|copy_|stack|narrow_copy)(\..*)?"


@dataclass(frozen=True, slots=True)
class _Ring:
    """A collective with the products that it feeds, or the one that feeds it, and the copies between them."""

    message: int
    copies: tuple[int, ...]
    products: tuple[int, ...]
    is_gather: bool
    num_chunks: int

    @property
    def computed(self) -> tuple[int, ...]:
        """Tasks of the stream, in the order in which a chunk goes through them."""
        return self.copies + self.products if self.is_gather else self.products + self.copies


@registry.whatif(
    "async-tensor-parallel",
    source="Jangda et al., CoCoNet, ASPLOS 2022; Wang et al., ASPLOS 2023; PyTorch async tensor parallelism",
    limits=other_order("each stream still computes, and each group still sends, all that it did"),
)
def async_tensor_parallel(graph: Graph, num_chunks: int = 0, in_situ_ratio: float = 1.0) -> Graph:
    """Overlap products with the all-gather before them and the reduce-scatter behind them, chunk by chunk.

    Parameters
    ----------
    graph : Graph
    num_chunks : int
        Of each collective; 0: one per rank of its group, as rings have.
    in_situ_ratio : float
        Ratio of a message's duration during computation to its isolated duration (Daydream: about 1.34 with NCCL).

    Raises
    ------
    NotApplicableError
        No product reads what an all-gather brings, and none makes what a reduce-scatter sends.
    InputError
        ``num_chunks`` is 1 or negative, or ``in_situ_ratio`` is below 1.
    """
    if in_situ_ratio < 1:
        raise InputError(f"no message is faster during computation: {in_situ_ratio}", fix="give a ratio of 1 or more")
    if num_chunks < 0 or num_chunks == 1:
        raise InputError(f"{num_chunks} chunks overlap nothing", fix="give 2 or more, or 0 for one per rank")
    rings = _Finder(graph, num_chunks).rings()
    if not rings:
        raise NotApplicableError(
            "no product reads what an all-gather brings, or makes what a reduce-scatter sends",
            where="all_gather and reduce_scatter of kind COMM",
            fix="trace a tensor-parallel job with windtunnel capture --dry-run, which notes who reads what",
        )
    graph = _slow_down_chunks(graph, rings)
    if in_situ_ratio > 1:
        graph = graph.scale(_mask(graph, np.array([ring.message for ring in rings])), in_situ_ratio)
    for size in sorted({ring.num_chunks for ring in rings}):
        graph = _cut([ring for ring in rings if ring.num_chunks == size], graph, size)
    return graph


# --- what can overlap -----------------------------------------------------------------------------------------


class _Finder:
    """Rings of a graph, each task in one at most."""

    def __init__(self, graph: Graph, num_chunks: int) -> None:
        self.graph, self.given = graph, num_chunks
        has_ops = "op" in graph.tasks
        self.op = graph.tasks.strings("op").to_numpy().tolist() if has_ops else [""] * graph.num_tasks
        self.is_copy = graph.select(kind=Kind.COMPUTE) & (graph.select(op=_COPIES) if has_ops else False)
        self.sizes = {index: len(group.ranks) for index, group in enumerate(graph.meta.groups)}
        self.position = np.empty(graph.num_tasks, np.int64)
        self.position[graph.topological_order()] = np.arange(graph.num_tasks)
        self.used: set[int] = set()

    def rings(self) -> list[_Ring]:
        result = []
        for row in np.flatnonzero(self.graph.select(kind=Kind.COMM)).tolist():
            if self.op[row] in ("all_gather", "reduce_scatter"):
                ring = self._ring(row, is_gather=self.op[row] == "all_gather")
                if ring is not None and not self.used & set(ring.computed):
                    self.used.update(ring.computed)
                    result.append(ring)
        return result

    def _ring(self, message: int, *, is_gather: bool) -> _Ring | None:
        group = int(self.graph.tasks["group"][message]) if "group" in self.graph.tasks else -1
        num_chunks = self.given or self.sizes.get(group, 0)
        if num_chunks < 2:
            return None
        copies: list[int] = []
        end = message
        while True:
            near = self._neighbors(end, forward=is_gather)
            products = [row for row in near if self._is_product(row, message, is_gather=is_gather)]
            copy = [row for row in near if self.is_copy[row]]
            if products or len(copy) != 1 or len(copies) > 1:
                break
            end = copy[0]
            copies.append(end)
        if not is_gather and len(products) > 1:
            return None
        ordered = sorted(products, key=self.position.__getitem__)
        kept = self._movable(copies + ordered if is_gather else ordered + copies[::-1])
        near_products = tuple(row for row in kept if row in ordered)
        near_copies = tuple(row for row in kept if row not in ordered)
        if not near_products or len(near_copies) < len(copies):
            return None
        return _Ring(message, near_copies, near_products, is_gather, num_chunks)

    def _neighbors(self, row: int, *, forward: bool) -> list[int]:
        """Tasks that read what a task makes, or make what it reads."""
        edges = self.graph.edges
        indptr, rows = self.graph.successors_csr() if forward else self.graph.predecessors_csr()
        incident = rows[indptr[row] : indptr[row + 1]]
        incident = incident[edges["kind"][incident] == EdgeKind.DATA]
        return sorted(set(edges["dst" if forward else "src"][incident].tolist()))

    def _is_product(self, row: int, message: int, *, is_gather: bool) -> bool:
        """Whether a task is a product of which rows are made one after the other, as the ring brings or takes them."""
        if class_of(self.op[row]) != "product":
            return False
        if "input_shapes" not in self.graph.tasks or not is_gather:
            return True
        shapes = json.loads(self.graph.tasks.strings("input_shapes").to_numpy()[row] or "[]")
        if not shapes or "message_bytes" not in self.graph.tasks:
            return True
        # where the gathered tensor is on the right, or lies transposed, the product sums over what is gathered
        left = shapes[1] if self.op[row].endswith("addmm") else shapes[0]
        ratio = self.graph.tasks["message_bytes"][message] / max(float(np.prod(left)), 1.0)
        return ratio in (1, 2, 4, 8) and not self._is_transposed(row)

    def _is_transposed(self, row: int) -> bool:
        if "input_strides" not in self.graph.tasks:
            return False
        strides = json.loads(self.graph.tasks.strings("input_strides").to_numpy()[row] or "[]")
        left = strides[1 if self.op[row].endswith("addmm") else 0] if strides else []
        return bool(left) and left[-1] != 1

    def _movable(self, rows: list[int]) -> list[int]:
        """The first task, and those that can run right behind it: nothing in between makes what they read."""
        edges, resource = self.graph.edges, self.graph.tasks["resource"]
        indptr, incoming = self.graph.predecessors_csr()
        result: list[int] = []
        for row in rows:
            incident = incoming[indptr[row] : indptr[row + 1]]
            needed = edges["src"][incident[edges["kind"][incident] != EdgeKind.ORDER]]
            near = needed[(resource[needed] == resource[row]) & ~np.isin(needed, result)]
            if not result or (
                resource[row] == resource[result[0]] and (self.position[near] < self.position[result[0]]).all()
            ):
                result.append(row)
        return result


# --- the cut --------------------------------------------------------------------------------------------------


def _cut(rings: list[_Ring], graph: Graph, num: int) -> Graph:
    """All rings of one number of chunks: pieces, what waits for what, and a new order of their streams."""
    computed = np.unique([row for ring in rings for row in ring.computed])
    messages = np.unique([ring.message for ring in rings])
    streams = np.unique(graph.tasks["resource"][computed])
    orders = {int(stream): _order_of(graph, int(stream)) for stream in streams}
    before, first_copy = graph, graph.num_tasks
    graph = graph.split(_mask(graph, computed), num)
    pieces = {row: _pieces(row, index, computed, first_copy, num) for index, row in enumerate(computed.tolist())}
    first_copy = graph.num_tasks
    graph = graph.split(_mask(graph, messages), num - 1)  # a rank's own chunk stays where it is
    sent = {row: _pieces(row, index, messages, first_copy, num - 1) for index, row in enumerate(messages.tolist())}
    graph = _chunk_waits(graph, before, rings, pieces, sent)
    graph, passes = _add_passes(graph, before, rings, sent)
    return _reorder(graph, rings, pieces, orders, passes)


def _slow_down_chunks(graph: Graph, rings: list[_Ring]) -> Graph:
    """Let products that computing limits take what their chunks take together: whole waves of tiles each."""
    chip = chip_of(graph)
    if chip is None or "input_shapes" not in graph.tasks or "binding" not in graph.tasks:
        return graph
    shapes, binding = (graph.tasks.strings(name).to_numpy() for name in ("input_shapes", "binding"))
    chunks_of = {row: ring.num_chunks for ring in rings for row in ring.products if binding[row] in _COMPUTE_LIMITS}
    rows = np.array(sorted(chunks_of), np.int64)
    ratios = []
    for row in rows.tolist():
        *_, left, right = (shape for shape in json.loads(shapes[row] or "[]") if len(shape) > 1)
        num_rows, num_chunks = math.prod(left[:-1]), chunks_of[row]
        whole, chunk = (
            math.ceil(math.ceil(size / _TILE[0]) * math.ceil(right[-1] / _TILE[1]) / chip.num_units)
            for size in (num_rows, num_rows / num_chunks)
        )
        ratios.append(max(num_chunks * chunk / whole, 1.0))
    return graph.scale(_mask(graph, rows), np.array(ratios)) if len(rows) else graph


def _mask(graph: Graph, rows: Ints) -> NDArray[np.bool_]:
    mask = np.zeros(graph.num_tasks, dtype=bool)
    mask[rows] = True
    return mask


def _pieces(row: int, index: int, rows: Ints, first_copy: int, num: int) -> list[int]:
    """Rows of the parts of a split task."""
    return [row, *(first_copy + part * len(rows) + index for part in range(num - 1))]


def _chunk_waits(
    graph: Graph, before: Graph, rings: list[_Ring], pieces: dict[int, list[int]], sent: dict[int, list[int]]
) -> Graph:
    """Wait for a chunk where the whole was waited for."""
    dropped: set[tuple[int, int]] = set()
    added: list[tuple[int, int]] = []
    indptr, rows = before.predecessors_csr()
    for ring in rings:
        chunks = sent[ring.message]
        if ring.is_gather:
            head = pieces[ring.computed[0]]
            dropped |= {(chunks[-1], pieces[row][0]) for row in ring.computed}
            added += zip(chunks, head[1:], strict=True)
            incident = rows[indptr[ring.message] : indptr[ring.message + 1]]
            incident = incident[before.edges["kind"][incident] == EdgeKind.DATA]  # the rank's own part has to be there
            sources = [int(row) for row in before.edges["src"][incident]]
            added += [(pieces[row][-1] if row in pieces else row, head[0]) for row in sources]
        else:
            tail = pieces[ring.computed[-1]]
            dropped |= {(pieces[row][-1], chunks[0]) for row in ring.computed}
            added += zip(tail[:-1], chunks, strict=True)
        for first, second in itertools.combinations(ring.computed, 2):
            dropped.add((pieces[first][-1], pieces[second][0]))
            added += zip(pieces[first], pieces[second], strict=True)
    edges = graph.edges
    key = edges["src"].astype(np.int64) * graph.num_tasks + edges["dst"]
    gone = np.array([src * graph.num_tasks + dst for src, dst in dropped], dtype=np.int64)
    graph = graph.disconnect(np.isin(key, gone))
    pairs = np.array(sorted(set(added)), dtype=np.int64).reshape(-1, 2)
    return _join(graph, pairs, EdgeKind.DATA)


def _add_passes(
    graph: Graph, before: Graph, rings: list[_Ring], sent: dict[int, list[int]]
) -> tuple[Graph, dict[int, int]]:
    """Copy own chunks ahead of all-gathers, sum chunks behind reduce-scatters; the row of each ring's pass."""
    tasks, leaders = graph.tasks, np.array([ring.computed[0] for ring in rings], np.int64)
    try:
        bytes_per_s = memory_bandwidth(before, None)
    except NotApplicableError:
        return graph, {}
    if "message_bytes" not in tasks:
        return graph, {}
    size_bytes = before.tasks["message_bytes"][[ring.message for ring in rings]].astype(np.float64)
    share = np.array([1 / ring.num_chunks for ring in rings])
    is_gather = np.array([ring.is_gather for ring in rings])
    moved = size_bytes * np.where(is_gather, 2 * share, 1 + share)
    columns = {
        "name": np.where(is_gather, "copy own chunk", "sum chunks").tolist(),
        "op": np.where(is_gather, "aten::copy_", "aten::sum").tolist(),
        "kind": int(Kind.COMPUTE),
        "duration_ns": traffic_ns(moved, bytes_per_s),
        "cost_source": "memory traffic",
        **{name: tasks[name][leaders] for name in ("phase", "iteration", "rank", "resource") if name in tasks},
    }
    rows = graph.num_tasks + np.arange(len(rings))
    indptr, incoming = before.predecessors_csr()
    pairs: list[tuple[int, int]] = []
    edges = graph.edges
    for row, ring in zip(rows.tolist(), rings, strict=True):
        chunks = sent[ring.message]
        if ring.is_gather:
            incident = incoming[indptr[ring.message] : indptr[ring.message + 1]]
            incident = incident[before.edges["kind"][incident] == EdgeKind.DATA]
            pairs += [(int(source), row) for source in before.edges["src"][incident]] + [(row, chunks[0])]
        else:
            read = (edges["src"] == chunks[-1]) & (edges["kind"] != EdgeKind.ORDER)
            pairs += [(chunks[-1], row), *((row, int(reader)) for reader in edges["dst"][read])]
    extended = graph.insert(columns)
    joined = _join(extended, np.array(pairs, dtype=np.int64).reshape(-1, 2), EdgeKind.DATA)
    return joined, dict(zip(leaders.tolist(), rows.tolist(), strict=True))


def _order_of(graph: Graph, stream: int) -> list[int]:
    """Tasks of a resource as they follow each other."""
    order = graph.topological_order()
    return [int(row) for row in order[graph.tasks["resource"][order] == stream]]


def _reorder(
    graph: Graph, rings: list[_Ring], pieces: dict[int, list[int]], orders: dict[int, list[int]],
    passes: dict[int, int],
) -> Graph:  # fmt: skip
    """On its stream each chunk goes through all tasks of its ring before the next one; passes come first, or last."""
    leader = {ring.computed[0]: ring for ring in rings}
    inside = {row for ring in rings for row in ring.computed}
    edges = graph.edges
    for stream, order in orders.items():
        new: list[int] = []
        for row in order:
            if row in leader:
                ring, extra = leader[row], [passes[row]] if row in passes else []
                chunks = itertools.chain.from_iterable(zip(*(pieces[item] for item in ring.computed), strict=True))
                new += [*extra, *chunks] if ring.is_gather else [*chunks, *extra]
            elif row not in inside:
                new.append(row)
        on_stream = graph.tasks["resource"] == stream
        chain = (edges["kind"] == EdgeKind.ORDER) & on_stream[edges["src"]] & on_stream[edges["dst"]]
        graph = graph.disconnect(chain)
        graph = _join(graph, np.array(list(itertools.pairwise(new)), dtype=np.int64).reshape(-1, 2), EdgeKind.ORDER)
        edges = graph.edges
    return graph


def _join(graph: Graph, pairs: NDArray[np.int64], kind: EdgeKind) -> Graph:
    return graph.connect(pairs[:, 0], pairs[:, 1], kind=kind) if len(pairs) else graph
