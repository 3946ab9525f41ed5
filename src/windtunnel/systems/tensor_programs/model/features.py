"""The 164 entries of a store statement: a nest in, one row per statement out.

Groups: computation (57), the five most touched buffers (90), arithmetic intensity (10), allocation (4), scope (3).
``mode="compat"`` equals the released extractors, also where they are coarse: annotated loops are "mixed", a remainder
is a point. ``mode="full"`` fills the real position and the real interval. Not here: trees and positions (``encoding``).

Source: Ansor (OSDI 2020) and MetaSchedule (NeurIPS 2022), of which CDMPP takes the row per store.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model import statement_features as kernel
from windtunnel.systems.tensor_programs.model.nest import (
    THREADS,
    UNROLL_KEY,
    Allocate,
    Attribute,
    Expression,
    For,
    Nest,
    Node,
    Store,
)

__all__ = ["FEATURE_NAMES", "MAX_DIMENSIONS", "NUM_FEATURES", "Collection", "Mode", "PackedNest"]

Mode = Literal["compat", "full"]
Collection = Literal["store", "buffer"]
NUM_FEATURES = 164
MAX_DIMENSIONS = 8
READ, WRITE, READ_WRITE = 0, 1, 2
ANNOTATIONS = {"serial": 0, "vectorized": 1, "unrolled": 2, "parallel": 3, "thread": 0}
INDEX_CODES = {
    "add": kernel.ADD,
    "sub": kernel.SUBTRACT,
    "mul": kernel.MULTIPLY,
    "floordiv": kernel.FLOORDIV,
    "floormod": kernel.FLOORMOD,
    "min": kernel.MINIMUM,
    "max": kernel.MAXIMUM,
}
# place within the seven counts of a type: mad, add/sub, mul, div/mod, comparison, mathematical, other
COUNT = {"add": 1, "sub": 1, "mul": 2, "div": 3, "floordiv": 3, "floormod": 3, "call": 5}
COUNT |= dict.fromkeys(("min", "max", "lt", "le", "gt", "ge", "eq", "ne"), 4)
BOOL_OPS, SELECTS = 14, 15


def _feature_names() -> tuple[str, ...]:
    counts = ("mad", "addsub", "mul", "divmod", "cmp", "mathfunc", "otherfunc")
    names = [f"{dtype}_{count}" for dtype in ("float", "int") for count in counts] + ["bool_op", "select_op"]
    indices = (
        "None",
        "InnerSpatial",
        "MiddleSpatial",
        "OuterSpatial",
        "InnerReduce",
        "MiddleReduce",
        "OuterReduce",
        "Mixed",
    )
    for kind in ("vec", "unroll", "parallel"):
        names += [f"{kind}_num", f"{kind}_prod", f"{kind}_len"] + [f"{kind}_type.kPos{index}" for index in indices]
    names += (
        ["is_gpu"] + [f"{kind}_{axis}_len" for kind in ("blockIdx", "threadIdx") for axis in "xyz"] + ["vthread_len"]
    )
    sizes = ("bytes", "unique_bytes", "lines", "unique_lines")
    entries = [f"acc_type.k{kind}" for kind in ("Read", "Write", "ReadWrite")] + list(sizes)
    entries += [f"reuse_type.k{kind}" for kind in ("LoopMultipleRead", "SerialMultipleReadWrite", "NoReuse")]
    entries += ["reuse_dis_iter", "reuse_dis_bytes", "reuse_ct"] + [f"{size}_d_reuse_ct" for size in sizes] + ["stride"]
    names += [f"B{buffer}.{entry}" for buffer in range(5) for entry in entries]
    names += [f"arith_intensity_curve_{sample}" for sample in range(10)]
    names += ["alloc_size", "alloc_prod", "alloc_outer_prod", "alloc_inner_prod"]
    return (*names, "outer_prod", "num_loops", "auto_unroll_max_step")


FEATURE_NAMES = _feature_names()


class PackedNest:
    """One walk over a nest that lays out the arrays of the compiled kernels."""

    def __init__(self, nest: Nest, *, skip_constants: bool) -> None:
        self.nest = nest
        self.skip_constants = skip_constants
        self.buffers = {name: index for index, name in enumerate(nest.buffers)}
        self.is_float = {name: "float" in buffer.dtype for name, buffer in nest.buffers.items()}
        self.loops: list[tuple[int, ...]] = []
        self.store_table: list[tuple[int, ...]] = []
        self.ops: list[list[int]] = []
        self.outer: list[float] = []
        self.loop_ids: list[int] = []
        self.accesses: list[tuple[int, int, int, int]] = []
        self.index_rows: list[tuple[int, int]] = []
        self.code: list[tuple[int, int]] = []
        self.allocated: dict[str, float] = {}
        self._walk(nest.body, {}, 1.0, 0)

    def rows(self, mode: Mode) -> np.ndarray:
        """Run the compiled half: float32 [S, 164]."""
        loops, stores, around, accesses, rows, code, buffers = self.arrays()
        ops, outer = np.asarray(self.ops, dtype=np.float64), np.asarray(self.outer, dtype=np.float64)
        result: np.ndarray = kernel.statement_rows(
            loops, stores, ops, outer, around, accesses, rows, code, buffers, self.nest.is_gpu, mode == "compat"
        )
        return result.astype(np.float32)

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Loops, stores, loops around each, accesses, index rows, index code and buffers, int64."""
        widths = (5, 6, 0, 4, 2, 2)
        columns = (self.loops, self.store_table, self.loop_ids, self.accesses, self.index_rows, self.code)
        tables: list[Any] = [np.asarray(column, dtype=np.int64) for column in columns]
        return (
            *(table.reshape(-1, n) if n else table for table, n in zip(tables, widths, strict=True)),
            self._buffer_table(),
        )

    def _buffer_table(self) -> np.ndarray:
        """Bytes of an element, number of dimensions, rank by name, and extents of each buffer."""
        rank = {name: index for index, name in enumerate(sorted(self.buffers))}
        rows = []
        for name, buffer in self.nest.buffers.items():
            if len(buffer.shape) > MAX_DIMENSIONS:
                raise InputError(f"{name} has {len(buffer.shape)} dimensions, at most {MAX_DIMENSIONS} are read")
            padding = (1,) * (MAX_DIMENSIONS - len(buffer.shape))
            rows.append((buffer.element_bytes, len(buffer.shape), rank[name], *buffer.shape, *padding))
        return np.asarray(rows, dtype=np.int64)

    def _walk(self, nodes: tuple[Node, ...], around: dict[str, int], product: float, unroll: int) -> None:
        for node in nodes:
            if isinstance(node, Store):
                self._store(node, around, unroll)
            elif isinstance(node, For):
                thread = THREADS.index(node.thread) if node.thread else -1
                axis = int(node.axis == "reduce")
                self.loops.append((node.minimum, node.extent, ANNOTATIONS[node.kind], axis, thread))
                inner = {**around, node.variable: len(self.loops) - 1}
                self._walk(node.body, inner, product * node.extent, unroll)
            elif isinstance(node, Attribute):
                step = int(node.value) if node.key == UNROLL_KEY else unroll
                self._walk(node.body, around, product, step)
            elif isinstance(node, Allocate):
                self.allocated[node.buffer] = product
                self._walk(node.body, around, product, unroll)
            else:
                self._walk(node.body, around, product, unroll)
                self._walk(node.otherwise, around, product, unroll)

    def _store(self, store: Store, around: dict[str, int], unroll: int) -> None:
        if self.skip_constants and isinstance(store.value, int | float):
            return
        begin, first = len(self.loop_ids), len(self.accesses)
        self.loop_ids.extend(around.values())
        counts = [0] * 16
        sets: dict[str, list[Any]] = {store.buffer: [WRITE, store.indices]}
        self._visit(store.value, counts, sets)
        for name, (kind, *index_sets) in sets.items():
            row = len(self.index_rows)
            for indices in index_sets:
                for index in indices:
                    self._index(index, around)
            self.accesses.append((self.buffers[name], kind, row, len(self.index_rows)))
        stored = self.buffers[store.buffer]
        self.store_table.append((begin, len(self.loop_ids), first, len(self.accesses), unroll, stored))
        self.ops.append(counts)
        self.outer.append(self.allocated.get(store.buffer, 1.0))

    def _visit(self, value: Expression, counts: list[int], sets: dict[str, list[Any]]) -> bool:
        """Count operations and collect reads; returns whether the value is a float."""
        if not isinstance(value, tuple):
            return isinstance(value, float)
        operation = value[0]
        if operation == "load":
            for index in value[2:]:
                if isinstance(index, tuple):
                    self._visit(index, counts, sets)
            self._read(value[1], value[2:], sets)
            return self.is_float[value[1]]
        if operation == "cast":
            self._visit(value[2], counts, sets)
            return "float" in value[1]
        is_float = False
        for operand in value[2 if operation == "call" else 1 :]:
            is_float = self._visit(operand, counts, sets) or is_float
        if operation in ("and", "or", "not"):
            counts[BOOL_OPS] += 1
        elif operation == "select":
            counts[SELECTS] += 1
        else:
            is_float = is_float or operation == "call"
            counts[COUNT[operation] + (0 if is_float else 7)] += 1
        return is_float

    @staticmethod
    def _read(name: str, indices: tuple[Expression, ...], sets: dict[str, list[Any]]) -> None:
        known = sets.setdefault(name, [READ])
        if known[0] == READ:
            known.append(indices)
        else:
            known[0] = READ_WRITE  # an update reads where it writes

    def _index(self, index: Expression, around: dict[str, int]) -> None:
        begin = len(self.code)
        self._postfix(index, around)
        self.index_rows.append((begin, len(self.code)))

    def _postfix(self, index: Expression, around: dict[str, int]) -> None:
        if isinstance(index, str):
            self.code.append((kernel.VARIABLE, around[index]))
        elif isinstance(index, int):
            self.code.append((kernel.CONSTANT, index))
        elif isinstance(index, tuple) and index[0] in INDEX_CODES:
            self._postfix(index[1], around)
            self._postfix(index[2], around)
            self.code.append((INDEX_CODES[index[0]], 0))
        elif isinstance(index, tuple) and index[0] == "select":
            self._postfix(index[2], around)
            self._postfix(index[3], around)
            self.code.append((kernel.UNION, 0))
        elif isinstance(index, tuple) and index[0] == "cast":
            self._postfix(index[2], around)
        else:  # read from memory: anywhere in this dimension
            self.code.append((kernel.UNKNOWN, 0))
