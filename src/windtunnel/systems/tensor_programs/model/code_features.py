"""Machine code of a store statement: a nest in, cycles by functional unit out.

The 164 entries describe a nest before it is compiled; what the compiler then does to it changes its time tenfold.
Loops of known length are unrolled until the code is long; a sum stays in registers while a loop runs over it; loads
that do not change leave the loop; lanes whose addresses are no row are gathered one by one; a vector of an odd length
falls apart where it outlives a block; registers spill. Here the same decisions are taken on the nest, for vectors of
128, 256 and 512 bits, and the cycles of each unit are counted, with those of the bytes that pass a cache (``traffic``).
They are inputs of a model, not prices. Not here: learning, the statements themselves (``statements``).

Source: ours; the rules are those of TVM's UnrollLoop and VectorizeLoop and of LLVM's LoopUnroll, LICM and x86 type
legalization; costs of instructions are rounded from Fog's tables, those of functions, of divided places and of bytes
past a cache were read off programs of the shipped set.
"""

# S statements, W widths of vectors, E entries

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from windtunnel.systems.tensor_programs.model.features import PackedNest
from windtunnel.systems.tensor_programs.model.nest import Nest
from windtunnel.systems.tensor_programs.model.statements import (
    Access,
    Loop,
    Pattern,
    Statement,
    statements,
    variables_of,
)
from windtunnel.systems.tensor_programs.model.traffic import traffic_bytes

__all__ = ["CODE_NAMES", "VECTOR_BITS", "code_features"]

VECTOR_BITS = (128, 256, 512)
FORM = (
    *("num_conditions", "num_divisions", "log_parallel", "uneven_halves"),
    *("is_scalarized", "is_vector", "is_odd_length", "num_pieces", "log_length"),
)
LOADS = tuple(f"loads_{pattern.name.lower()}" for pattern in Pattern)
CACHES = ("past_first_cache", "past_second_cache")
UNITS = (
    *("arithmetic", "load", "store", "shuffle", "index", "call", "divide", "odd_sum", "odd_row", "odd_gather"),
    *("spill", "chain", "memory_chain", "iterations", "entries"),
)
SHAPE = ("log_copies", "log_live", "is_auto_vectorized", "stays_in_registers", "index_divides")
AROUND = ("num_beside", "reads_sum")
_NAMES = (*FORM, *LOADS, "store_pattern", *UNITS, *CACHES, "total", *SHAPE, *AROUND)
CODE_NAMES = tuple(f"code.{name}" for name in _NAMES)
_LOGARITHMIC = [index for index, name in enumerate(_NAMES) if name in (*UNITS, *CACHES, "total", "log_live")]

MAX_UNROLLED_SIZE = 300  # instructions; LLVM at -O3
REGISTERS = {512: 32}  # 16 at other widths
FUSED_FROM_BITS = 256  # multiplies and adds are one
DIVIDE_CYCLES = {128: 4, 256: 5, 512: 10}
ROOT_OVER_DIVIDE = 1.3
CALL_CYCLES = {"exp": 7, "erf": 13, "tanh": 17}  # of the mathematical library, per element
CALL_CYCLES_OF_SUM = {"exp": 7, "erf": 62, "tanh": 26}  # sums are large, and away from zero the library takes longer
OTHER_CALL_CYCLES = 12
ADD_LATENCY, MEMORY_LATENCY = 4, 13  # cycles until a sum can be added to: in a register, through memory
INDEX_CYCLES = 1.5  # per lane whose address must be computed
INDEX_DIVISION_CYCLES = 1  # by a constant: a product, shifts and a difference, overlapped with other work
BRANCHED_DIVISION_CYCLES = 3  # where a branch waits for it
ENTRY_CYCLES = 8  # a loop begins and ends, and its end is mispredicted
CACHE_BYTES_PER_CYCLE = np.array([48.0, 12.0])  # that pass the first and the second level
PORTS = 5  # instructions per cycle
WINDOW = 400  # instructions in flight: a sum begins before the one before it ends


def code_features(nest: Nest, packed: PackedNest | None = None) -> np.ndarray:
    """Rows of a nest, one per store in program order, for each width of ``VECTOR_BITS``.

    Parameters
    ----------
    packed
        The same nest with all its stores, where it is at hand.

    Returns
    -------
    float32 [S, W, E] in the order of ``CODE_NAMES``; cycles and counts are ``log2(1 + x)``.
    """
    packed = PackedNest(nest, skip_constants=False) if packed is None else packed
    moved = (traffic_bytes(packed) / CACHE_BYTES_PER_CYCLE).tolist()
    rows = [_rows(statement, cycles) for statement, cycles in zip(statements(nest), moved, strict=True)]
    table = np.asarray(rows, dtype=np.float32).reshape(-1, len(VECTOR_BITS), len(CODE_NAMES))
    table[:, :, _LOGARITHMIC] = np.log2(1 + table[:, :, _LOGARITHMIC])
    return table


@dataclass
class _Body:
    """A statement in one width of vectors: ``loops[: first]`` stay loops, the others are copied out.

    ``length`` are the elements of a vector, ``patterns`` how their addresses lie for each access.
    """

    statement: Statement
    num_lanes: int
    loops: list[Loop]
    extents: list[int]
    first: int
    length: int
    patterns: list[Pattern]
    automatic: int = -1
    cycles: dict[str, float] = field(default_factory=lambda: dict.fromkeys(UNITS, 0.0))
    live: int = 0

    @cached_property
    def num_runs(self) -> int:
        """Number of runs of the copied code."""
        return math.prod(self.extents[: self.first])

    @cached_property
    def num_copies(self) -> int:
        """Steps of all loops that are copied out."""
        return math.prod(self.extents[self.first :])

    @property
    def trip(self) -> int:
        """Steps of the innermost loop that stays one."""
        return self.extents[self.first - 1] if self.first else 1

    @cached_property
    def registers(self) -> int:
        """Registers of one vector."""
        return _registers(self.length, self.num_lanes)

    @property
    def is_automatic(self) -> bool:
        """Whether the compiler vectorized a loop (``automatic``) without being asked."""
        return self.automatic >= 0

    @property
    def lane(self) -> str:
        """The loop variable whose steps are lanes; empty where there is no vector."""
        if self.is_automatic:
            return self.loops[self.automatic].variable
        vector = self.statement.vector
        return vector.variable if vector is not None and self.length > 1 else ""

    @property
    def is_odd(self) -> bool:
        """Whether the vector becomes scalars where it outlives a block, because it has no registers of its own."""
        padded = _next_power(self.length)
        return padded != self.length and padded > self.num_lanes

    def copies(self, variables: frozenset[str]) -> int:
        """Return how many distinct values of some variables the copied code has."""
        steps = 1
        for index in range(self.first, len(self.loops)):
            if self.loops[index].variable in variables:
                steps *= self.extents[index]
        return steps

    def times(self, variables: frozenset[str]) -> float:
        """Return the number of executions after invariant code has left its loops."""
        return self.num_runs * self.copies(variables) / self.num_invariant_runs(variables)

    def num_invariant_runs(self, variables: frozenset[str]) -> int:
        """Over how many runs of the copied code what depends on some variables does not change: loops it leaves."""
        steps = 1
        for index in range(self.first - 1, -1, -1):
            loop = self.loops[index]
            if loop.variable in variables or loop.kind == "parallel":
                break
            steps *= self.extents[index]
        return steps


def _rows(statement: Statement, moved: list[float]) -> list[list[float]]:
    vector = statement.vector
    length = vector.extent if vector is not None and not statement.is_scalarized else 1
    patterns = _patterns(statement, vector.variable, length) if vector is not None else []
    num_parallel = math.prod(loop.extent for loop in statement.loops if loop.kind == "parallel")
    shape = [float(len(statement.conditions)), float(sum(access.num_divisions for access in statement.accesses))]
    shape += [math.log2(num_parallel), 2 * math.ceil(num_parallel / 2) / num_parallel - 1]
    shape += [float(statement.is_scalarized), float(vector is not None), float(_next_power(length) != length)]
    shape += [float(length.bit_count()), math.log2(length), *(float(patterns[1:].count(kind)) for kind in Pattern)]
    shape.append(float(patterns[0]) if patterns else 0.0)
    return [shape + _row(statement, bits, moved) for bits in VECTOR_BITS]


def _row(statement: Statement, bits: int, moved: list[float]) -> list[float]:
    body = _body(statement, max(1, bits // (8 * statement.accesses[0].buffer.element_bytes)))
    _count_arithmetic(body, bits)
    _count_costly(body, bits)
    _count_places(body)
    _count_store(body)
    for access, pattern in zip(body.statement.accesses[1:], body.patterns[1:], strict=True):
        _count_load(body, access, pattern)
    spilled = max(0, body.live + 3 - REGISTERS.get(bits, 16))
    body.cycles["spill"] = float(spilled * body.num_runs)
    total = _total(body) + sum(moved)
    target = statement.accesses[0]
    divides = target.num_divisions > 0 and body.copies(target.variables) > 1
    flags = (
        body.is_automatic,
        body.num_invariant_runs(target.variables) > 1,
        divides,
        statement.num_beside,
        statement.reads_sum,
    )
    return [*body.cycles.values(), *moved, total, math.log2(body.num_copies), float(body.live), *map(float, flags)]


def _body(statement: Statement, num_lanes: int) -> _Body:
    """Decide what is copied out and what is a vector."""
    vector, loops, length = statement.vector, statement.outer_loops, 1
    patterns = [Pattern.SAME] * len(statement.accesses)
    if vector is not None and not statement.is_scalarized:
        length, patterns = vector.extent, _patterns(statement, vector.variable, vector.extent)
    first = _first_unrolled_loop(statement, patterns, length, num_lanes)
    body = _Body(statement, num_lanes, loops, [loop.extent for loop in loops], first, length, patterns)
    if length == 1 and not statement.operations["call"]:
        _vectorize(body)
    return body


def _vectorize(body: _Body) -> None:
    """Find what the compiler vectorizes automatically: the innermost loop, or neighboring unrolled steps."""
    statement, index = body.statement, body.first - 1
    if index >= 0:
        loop = body.loops[index]
        if loop.variable in statement.accesses[0].variables:
            if loop.extent >= body.num_lanes and loop.variable not in variables_of(statement.conditions):
                _try_vector(body, index, body.num_lanes, min(loop.extent, 16))
            return
    for index in range(len(body.loops) - 1, body.first - 1, -1):
        extent = body.loops[index].extent
        if body.loops[index].variable in statement.accesses[0].variables:
            if not statement.conditions and _next_power(extent) == extent:
                _try_vector(body, index, min(body.num_lanes, extent), extent)
            return


def _try_vector(body: _Body, index: int, length: int, count: int) -> None:
    """Steps of a loop become lanes where stores lie side by side and loads do so or are the same."""
    patterns = _patterns(body.statement, body.loops[index].variable, count)
    if patterns[0] is Pattern.NEXT and all(pattern <= Pattern.NEXT for pattern in patterns):
        body.automatic, body.length, body.patterns = index, length, patterns
        body.extents[index] = math.ceil(body.extents[index] / length)


def _count_arithmetic(body: _Body, bits: int) -> None:
    operations, cycles = body.statement.operations, body.cycles
    adds, products = operations["add"], operations["multiply"]
    fused = max(adds, products) if bits >= FUSED_FROM_BITS else adds + products
    runs = body.num_runs * body.num_copies
    if body.num_invariant_runs(body.statement.accesses[0].variables) == 1:
        runs //= body.num_invariant_runs(body.statement.variables)
    cycles["arithmetic"] = (fused + operations["compare"]) * body.registers * runs / 2
    cycles["iterations"] = float(body.num_runs)
    cycles["entries"] = ENTRY_CYCLES * body.num_runs / body.trip


def _count_costly(body: _Body, bits: int) -> None:
    """Divisions, roots and functions, each as often as its own operands change."""
    cycles, lane = body.cycles, body.lane
    of_call = CALL_CYCLES_OF_SUM if body.statement.reads_sum else CALL_CYCLES
    for item in body.statement.costly:
        is_vector, times = lane in item.variables, body.times(item.variables)
        if item.name in ("divide", "root"):
            op_cycles = DIVIDE_CYCLES[bits] * (ROOT_OVER_DIVIDE if item.name == "root" else 1)
            cycles["divide"] += op_cycles * times * (body.registers if is_vector else 1)
        else:
            cycles["call"] += of_call.get(item.name, OTHER_CALL_CYCLES) * times * (body.length if is_vector else 1)


def _count_places(body: _Body) -> None:
    """Divisions in indices and conditions that are left when loops are copied out."""
    of_division = BRANCHED_DIVISION_CYCLES if body.statement.conditions else INDEX_DIVISION_CYCLES
    left = {loop.variable for loop in body.loops[: body.first]}
    for variables in body.statement.divisions:
        if not variables & left:  # a constant in each copy
            continue
        # the divisions of a row are those of its first element
        num_lanes = body.length if body.lane in variables and max(body.patterns) > Pattern.NEXT else 1
        body.cycles["index"] += of_division * num_lanes * body.times(variables)


def _count_store(body: _Body) -> None:
    """The store and, of a sum, the load before it and the chain through it."""
    target, pattern, cycles = body.statement.accesses[0], body.patterns[0], body.cycles
    kept, copies, times = (
        body.num_invariant_runs(target.variables),
        body.copies(target.variables),
        body.times(target.variables),
    )
    if body.statement.is_update:
        if kept > 1:
            body.live += copies * body.registers
            # A sum that stays in registers: each addition waits for the one before, unless the reorder window reaches
            # over to additions of other sums.
            issued = 2 * kept * body.num_copies * body.registers
            num_sums = body.num_runs * body.num_copies // copies
            cycles["chain"] = ADD_LATENCY * num_sums / max(1.0, WINDOW / issued)
            if body.is_odd:
                cycles["odd_sum"] += 2.0 * body.length * copies * body.num_runs
        # not in registers, and the next loop outward adds to the same element: it loads what was stored just before
        if kept == 1 and body.first > 1 and body.loops[body.first - 2].variable not in target.variables:
            cycles["memory_chain"] = (MEMORY_LATENCY + 1) * body.num_runs / body.trip
    lanes_at_once = _pieces(body.length, body.num_lanes) if pattern is Pattern.NEXT else 1
    if pattern <= Pattern.NEXT:
        cycles["store"] += times * lanes_at_once
        cycles["load"] += times * lanes_at_once / 2 if body.statement.is_update else 0.0
        return
    elements = times * body.length
    cycles["store"] += elements
    if pattern is Pattern.APART:
        cycles["shuffle"] += elements
    else:
        cycles["index"] += INDEX_CYCLES * elements
    cycles["shuffle"] += elements if body.statement.is_update else 0.0


def _count_load(body: _Body, access: Access, pattern: Pattern) -> None:
    cycles, times = body.cycles, body.times(access.variables)
    if body.num_invariant_runs(access.variables) > 1:
        body.live += body.copies(access.variables) * (1 if pattern is Pattern.SAME else body.registers)
        if body.is_odd and pattern is Pattern.NEXT:
            cycles["odd_row"] += body.length * times
        elif body.is_odd and pattern > Pattern.NEXT:
            cycles["odd_gather"] += 2.0 * body.length * times
    if pattern <= Pattern.NEXT:
        cycles["load"] += times * (_pieces(body.length, body.num_lanes) if pattern is Pattern.NEXT else 1) / 2
        return
    elements = times * body.length
    cycles["shuffle"] += elements
    if pattern is Pattern.APART:
        cycles["load"] += elements / 2
    else:
        cycles["index"] += INDEX_CYCLES * elements


def _total(body: _Body) -> float:
    """Cycles where the busiest unit decides, and what nothing hides comes on top."""
    cycles = body.cycles
    issued = 2 * cycles["arithmetic"] + 2 * cycles["load"] + cycles["store"] + cycles["shuffle"]
    busiest = max(
        cycles["arithmetic"],
        cycles["load"] + cycles["spill"],
        cycles["store"] + cycles["spill"],
        cycles["shuffle"],
        cycles["chain"],
        cycles["divide"],
        (issued + 2 * cycles["iterations"]) / PORTS,
    )
    odd = cycles["odd_sum"] + cycles["odd_row"] + cycles["odd_gather"]
    alone = cycles["index"] + cycles["call"] + odd
    return busiest + alone + 0.3 * (cycles["memory_chain"] + cycles["iterations"] + cycles["entries"])


def _first_unrolled_loop(statement: Statement, patterns: list[Pattern], length: int, num_lanes: int) -> int:
    """From which loop on steps are copied out, innermost first.

    What does not change has left the loop by then, so only what varies with it counts as its body.
    """
    registers = _registers(length, num_lanes)
    of_pattern = {Pattern.SAME: 3 if length > 1 else 1, Pattern.NEXT: registers}
    of_pattern |= {Pattern.APART: 2 * length, Pattern.MIXED: 4 * length}
    sizes = [of_pattern[pattern] for pattern in patterns]
    sizes[0] += registers if statement.is_update else 0
    operations, loops = statement.operations, statement.outer_loops
    simple = sum(operations[name] for name in ("add", "multiply", "divide", "compare", "root"))
    arithmetic, first = registers * simple + 4 * length * operations["call"] + 1, len(loops)
    while first and loops[first - 1].kind != "parallel":
        loop = loops[first - 1]
        varies = [loop.variable in access.variables for access in statement.accesses]
        size = arithmetic + sum(size for size, is_here in zip(sizes, varies, strict=True) if is_here)
        if not loop.is_unrolled and loop.extent * size > MAX_UNROLLED_SIZE:
            break
        arithmetic *= loop.extent
        sizes = [size * (loop.extent if is_here else 1) for size, is_here in zip(sizes, varies, strict=True)]
        first -= 1
    return first


def _patterns(statement: Statement, variable: str, count: int) -> list[Pattern]:
    return [statement.pattern(access, variable, count) for access in statement.accesses]


def _registers(length: int, num_lanes: int) -> int:
    """Registers that a vector takes, padded to a power of two."""
    return max(1, _next_power(length) // num_lanes)


def _next_power(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _pieces(length: int, num_lanes: int) -> int:
    """Moves of memory that a row of ``length`` elements takes: whole registers, then powers of two."""
    return length // num_lanes + (length % num_lanes).bit_count()
