"""Store statements of a nest with the loops around them: a nest in, ``Statement`` rows out.

Each knows its operations, what it reads and writes, which loops the program itself unrolls, and how the addresses of
neighboring steps of a loop lie: the same, side by side, apart, or without order. Not here: what code costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from windtunnel.systems.tensor_programs.model.nest import (
    COMPARISONS,
    UNROLL_KEY,
    Attribute,
    Buffer,
    Expression,
    For,
    If,
    LoopKind,
    Nest,
    Node,
    Store,
)

__all__ = ["Access", "Costly", "Loop", "Pattern", "Statement", "statements", "variables_of"]

MAX_UNROLLED_DEPTH = 8
NUM_POINTS = 24
_POINTS = np.random.default_rng(7).random((NUM_POINTS, 64))  # places in the loops where addresses are looked at
_ROOTS = ("sqrt", "rsqrt")
_CHEAP = ("fabs", "abs", "floor", "ceil", "round", "trunc")
_DIVISIONS = ("floordiv", "floormod")
_COMPUTE: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
}


class Pattern(IntEnum):
    """Pattern of the addresses of neighboring lanes."""

    SAME = 0
    NEXT = 1
    APART = 2
    MIXED = 3


@dataclass(slots=True)
class Loop:
    """A loop around a statement; ``is_unrolled`` by the program's own rule, before any compiler's."""

    variable: str
    extent: int
    kind: LoopKind
    is_unrolled: bool = False


@dataclass(frozen=True)
class Access:
    """A place that a statement reads or writes."""

    buffer: Buffer
    indices: tuple[Expression, ...]
    variables: frozenset[str]

    @cached_property
    def num_divisions(self) -> int:
        """Divisions and remainders in the indices."""
        return sum(_num_divisions(index) for index in self.indices)

    def step(self, variable: str) -> int | None:
        """Elements between two steps of a loop; None where they are not the same everywhere."""
        # Row-major: from the last dimension on, a step in an index is worth the product of the extents behind it.
        total, row = 0, 1
        for extent, index in zip(reversed(self.buffer.shape), reversed(self.indices), strict=True):
            factor = _factor(index, variable)
            if factor is None:
                return None
            total += factor * row
            row *= extent
        return total


@dataclass(frozen=True, slots=True)
class Costly:
    """A division, a root, or a function by its name, and the loop variables that its operands depend on."""

    name: str
    variables: frozenset[str]


@dataclass
class Statement:
    """A store; ``accesses[0]`` is where it stores, a sum's own load is not among the others.

    ``costly`` are those of its ``operations`` that take many cycles; ``num_beside`` counts the other statements of its
    innermost loop that is no vector; ``reads_sum`` says whether it reads what another statement has summed up.
    """

    loops: list[Loop]
    accesses: list[Access]
    operations: Counter[str]
    costly: list[Costly]
    conditions: tuple[Expression, ...]
    is_update: bool
    num_beside: int = 0
    reads_sum: bool = False
    _seen: dict[tuple[int, str, int], Pattern] = field(default_factory=dict, repr=False)

    @cached_property
    def variables(self) -> frozenset[str]:
        """Loop variables of any access."""
        return frozenset().union(*(access.variables for access in self.accesses))

    @cached_property
    def divisions(self) -> list[frozenset[str]]:
        """Loop variables of each distinct division or remainder in indices and conditions.

        Those by powers of two are left out: they are shifts.
        """
        result: dict[Expression, None] = {}
        for access in self.accesses:
            _divisions(access.indices, result)
        _divisions(self.conditions, result)
        return [variables_of((value,)) for value in result]

    @cached_property
    def vector(self) -> Loop | None:
        """The loop whose steps the program wants as lanes."""
        return self.loops[-1] if self.loops and self.loops[-1].kind == "vectorized" else None

    @property
    def innermost(self) -> Loop | None:
        """The innermost loop that is no vector."""
        rest = self.loops if self.vector is None else self.loops[:-1]
        return rest[-1] if rest else None

    @cached_property
    def is_scalarized(self) -> bool:
        """Whether lanes decide each for itself, so that the compiler takes them one by one."""
        return self.vector is not None and self.vector.variable in variables_of(self.conditions)

    @cached_property
    def outer_loops(self) -> list[Loop]:
        """Loops around what runs at once."""
        if self.vector is None:
            return self.loops
        if self.is_scalarized:
            return [*self.loops[:-1], Loop(self.vector.variable, self.vector.extent, "serial")]
        return self.loops[:-1]

    def pattern(self, access: Access, variable: str, count: int) -> Pattern:
        """Return the address pattern of ``count`` neighboring steps of a loop."""
        if variable not in access.variables or count < 2:
            return Pattern.SAME
        # Addresses are looked at for several numbers of lanes; each answer is kept, as analysis dominates here.
        key = (id(access), variable, count)
        if key not in self._seen:
            step = access.step(variable)
            self._seen[key] = self._look(access, variable, count) if step is None else _of_step(step)
        return self._seen[key]

    def _look(self, access: Access, variable: str, count: int) -> Pattern:
        # No closed form (a remainder, a condition): addresses of ``count`` neighboring steps are evaluated at 24
        # fixed random places of the other loops. Equal steps everywhere are a stride, else the order is mixed.
        scope: dict[str, Any] = {
            loop.variable: np.floor(_POINTS[:, row : row + 1] * loop.extent).astype(np.int64)
            for row, loop in enumerate(self.loops)
        }
        scope[variable] = np.arange(count)[None, :]
        address: Any = 0
        for extent, index in zip(access.buffer.shape, access.indices, strict=True):
            position = _evaluate(index, scope)
            if position is None:
                return Pattern.MIXED
            address = address * extent + position
        steps = np.diff(np.broadcast_to(address, (NUM_POINTS, count)), axis=1)
        if (steps == steps[0, 0]).all():
            return _of_step(int(steps[0, 0]))
        return Pattern.APART if (steps == steps[:1]).all() else Pattern.MIXED


def statements(nest: Nest) -> list[Statement]:
    """Return every store of a nest in program order."""
    result: list[Statement] = []
    _walk(nest.body, _Around([], 0, ()), nest, result)
    # Buffers that some statement adds up in: a load of one of them has to wait for that sum.
    sums = {entry.accesses[0].buffer.name for entry in result if entry.is_update}
    members = Counter(id(entry.innermost) for entry in result)
    for item in result:
        item.num_beside = members[id(item.innermost)] - 1
        item.reads_sum = any(access.buffer.name in sums for access in item.accesses[1:])
    return result


@dataclass(frozen=True)
class _Around:
    loops: list[Loop]
    max_step: int
    guards: tuple[Expression, ...]


@dataclass
class _Inside:
    """Steps of unrolled code, whether a loop is left in it, how many were unrolled around each other."""

    steps: int = 0
    has_loop: bool = False
    depth: int = 0

    def add(self, other: _Inside) -> None:
        self.steps += other.steps
        self.has_loop |= other.has_loop
        self.depth = max(self.depth, other.depth)


def _walk(nodes: tuple[Node, ...], around: _Around, nest: Nest, statements: list[Statement]) -> _Inside:
    total = _Inside()
    for node in nodes:
        if isinstance(node, Store):
            statements.append(_statement(node, around, nest))
            total.add(_Inside(steps=1))
        elif isinstance(node, For):
            total.add(_loop(node, around, nest, statements))
        # The pragma holds for everything below it, so that it is handed down, not stored in the loop.
        elif isinstance(node, Attribute) and node.key == UNROLL_KEY:
            total.add(_walk(node.body, _Around(around.loops, int(node.value), around.guards), nest, statements))
        elif isinstance(node, If):
            guarded = _Around(around.loops, around.max_step, (*around.guards, node.condition))
            total.add(_walk(node.body, guarded, nest, statements))
            total.add(_walk(node.otherwise, guarded, nest, statements))
        else:
            total.add(_walk(node.body, around, nest, statements))
    return total


def _loop(node: For, around: _Around, nest: Nest, statements: list[Statement]) -> _Inside:
    """TVM unrolls a serial loop whose steps, with those within, are no more than the pragma allows."""
    loop = Loop(node.variable, node.extent, node.kind)
    inside = _walk(node.body, _Around([*around.loops, loop], around.max_step, around.guards), nest, statements)
    if node.kind == "vectorized":
        return inside
    # From inside out: a loop is unrolled only if all loops within it were.
    is_small = not inside.has_loop and inside.depth <= MAX_UNROLLED_DEPTH
    is_wanted = node.kind == "serial" and is_small and node.extent * inside.steps <= around.max_step
    if is_wanted or node.kind == "unrolled":
        loop.is_unrolled = True
        inside.steps *= node.extent
        inside.depth += 1
    else:
        inside.has_loop = True
    return inside


def _statement(store: Store, around: _Around, nest: Nest) -> Statement:
    seen = _Seen(conditions=list(around.guards))
    loads = list(dict.fromkeys(_visit(store.value, seen, is_value=True)))
    own = (store.buffer, store.indices)
    indices_ = [own, *(load for load in loads if load != own)]
    accesses = [Access(nest.buffers[name], indices, variables_of(indices)) for name, indices in indices_]
    return Statement(around.loops, accesses, seen.operations, seen.costly, tuple(seen.conditions), own in loads)


@dataclass
class _Seen:
    """Facts about a value."""

    conditions: list[Expression]
    operations: Counter[str] = field(default_factory=Counter)
    costly: list[Costly] = field(default_factory=list)


def _visit(value: Expression, seen: _Seen, *, is_value: bool) -> Iterator[tuple[str, tuple[Expression, ...]]]:
    """Count the operations of a value; its loads, with those in their indices."""
    if not isinstance(value, tuple):
        return
    operation, *operands = value
    if operation == "load":
        yield value[1], tuple(value[2:])
        for index in operands[1:]:
            yield from _visit(index, seen, is_value=False)
        return
    # The condition is evaluated like an index; both branches are values.
    if operation == "select":
        seen.conditions.append(operands.pop(0))
    if is_value:
        name = _operation(operation, value)
        seen.operations[name] += 1
        if name in ("divide", "root", "call"):
            seen.costly.append(Costly(_function(value) if name == "call" else name, variables_of((value,))))
    for operand in operands[operation in ("call", "cast") :]:
        yield from _visit(operand, seen, is_value=is_value)


def _function(value: tuple[Any, ...]) -> str:
    return str(value[1]).rpartition(".")[2]


def _operation(operation: str, value: tuple[Any, ...]) -> str:
    if operation == "call":
        name = _function(value)
        return "root" if name in _ROOTS else "compare" if name in _CHEAP else "call"
    if operation in COMPARISONS or operation in ("min", "max", "select", "and", "or", "not"):
        return "compare"
    return {"add": "add", "sub": "add", "mul": "multiply", "div": "divide"}.get(operation, "other")


def variables_of(values: Iterable[Expression]) -> frozenset[str]:
    """Loop variables in some expressions."""
    result: set[str] = set()
    for value in values:
        if isinstance(value, str):
            result.add(value)
        elif isinstance(value, tuple):
            result |= variables_of(value[2:] if value[0] in ("load", "call", "cast") else value[1:])
    return frozenset(result)


def _divisions(values: Iterable[Expression], divisions: dict[Expression, None]) -> None:
    for value in values:
        if isinstance(value, tuple):
            if value[0] in _DIVISIONS and not _is_power(value[2]):
                divisions[value] = None
            _divisions(value[1:], divisions)


def _is_power(value: Expression) -> bool:
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0


def _num_divisions(value: Expression) -> int:
    if not isinstance(value, tuple):
        return 0
    return int(value[0] in _DIVISIONS) + sum(_num_divisions(part) for part in value[1:])


def _of_step(step: int) -> Pattern:
    return {0: Pattern.SAME, 1: Pattern.NEXT}.get(step, Pattern.APART)


def _factor(value: Expression, variable: str) -> int | None:
    """The factor of a variable in an index that is linear in it; None in one that may not be."""
    if not isinstance(value, tuple):
        return int(value == variable)
    operation, *operands = value
    if operation not in ("add", "sub", "mul"):
        return None if variable in variables_of((value,)) else 0
    left, right = (_factor(operand, variable) for operand in operands)
    if left is None or right is None:
        return None
    if operation != "mul":
        return left + right if operation == "add" else left - right
    if not left and not right:
        return 0
    # A product is linear in the variable only if the other side is a constant.
    other = operands[1] if left else operands[0]
    return (left or right) * other if isinstance(other, int) else None


def _evaluate(value: Expression, scope: dict[str, Any]) -> Any:
    """An index at some places of the loops; None where it is read from memory."""
    if isinstance(value, str):
        return scope[value]
    if not isinstance(value, tuple):
        return value
    operation, *operands = value
    if operation in ("cast", "select"):
        return _evaluate(operands[1], scope)
    compute = _COMPUTE.get(operation)
    parts = [_evaluate(operand, scope) for operand in operands] if compute else [None]
    return None if compute is None or any(part is None for part in parts) else compute(*parts)
