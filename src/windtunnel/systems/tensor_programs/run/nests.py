"""The loop nest of a scheduled program.

In: a scheduled TensorIR module. Out: ``Nest``, with the loops, temporaries, guards and pragmas that code is made from:
blocks are lowered, buffers keep their dimensions, vectors and unrolled loops are still loops. Loops of one step are
left out. Not here: features (``programs/model``), code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.nest import (
    Allocate,
    Attribute,
    Buffer,
    Expression,
    For,
    If,
    LoopKind,
    Nest,
    Node,
    Store,
    stores,
)
from windtunnel.systems.tensor_programs.model.statements import variables_of

__all__ = ["is_sound", "nest_of", "temporary_bytes"]

_PASSES = (
    "CanonicalizeLoop",
    "LowerCrossThreadReduction",
    "LowerInitBlock",
    "PlanAndUpdateBufferAllocationLocation",
    "ConvertBlocksToOpaque",
    "LiftThreadBinding",
    "CompactBufferAllocation",
    "LowerMatchBuffer",
    "StmtSimplify",
    "LowerOpaqueBlock",
)
"""As far as the compiler's own pipeline goes before buffers are flattened."""
_LOOP_KINDS: tuple[LoopKind, ...] = ("serial", "parallel", "vectorized", "unrolled")
_BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "FloorDiv": "floordiv",
    "FloorMod": "floormod",
    "Min": "min",
    "Max": "max",
    "LT": "lt",
    "LE": "le",
    "GT": "gt",
    "GE": "ge",
    "EQ": "eq",
    "NE": "ne",
    "And": "and",
    "Or": "or",
}
_SELECTING = ("if_then_else", "likely")


def nest_of(module: Any, name: str = "") -> Nest:
    """The nest of the one function of a module.

    Raises
    ------
    InputError
        It holds a statement or an expression that a nest cannot have (names it).
    """
    transform = require("tvm.s_tir.transform", extra="tvm")
    for lowering in _PASSES:
        module = getattr(transform, lowering)()(module)
    function = module["main"]
    reader = _Reader(name)
    for parameter in function.params:
        reader.buffer(parameter)
    return Nest(tuple(reader.statements(function.body, {})), reader.buffers, name)


def temporary_bytes(nest: Nest) -> int:
    """Bytes of all temporaries of a nest."""

    def within(nodes: tuple[Node, ...]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, Store):
                continue
            if isinstance(node, Allocate):
                yield node.buffer
            yield from within(node.body)
            if isinstance(node, If):
                yield from within(node.otherwise)

    buffers = [nest.buffers[name] for name in within(nest.body)]
    return sum(math.prod(buffer.shape) * buffer.element_bytes for buffer in buffers)


def is_sound(nest: Nest) -> bool:
    """Whether vectors hold statements only, and no parallel loop another one: the compiler mistranslates others."""

    def within(nodes: tuple[Node, ...], is_vector: bool, is_parallel: bool) -> bool:
        for node in nodes:
            if isinstance(node, Store):
                continue
            if isinstance(node, For | Allocate) and is_vector:
                return False
            kind = node.kind if isinstance(node, For) else ""
            if kind == "parallel" and is_parallel:
                return False
            children = (*node.body, *(node.otherwise if isinstance(node, If) else ()))
            if not within(children, is_vector or kind == "vectorized", is_parallel or kind == "parallel"):
                return False
        return True

    return within(nest.body, is_vector=False, is_parallel=False)


class _Reader:
    """A walk over the statements; ``scope`` maps compiler variables to names."""

    def __init__(self, name: str) -> None:
        self.buffers: dict[str, Buffer] = {}
        self._name = name
        self._num_loops = 0

    def buffer(self, buffer_: Any) -> str:
        """Register a buffer and return its name."""
        name = str(buffer_.name)
        if name not in self.buffers:
            self.buffers[name] = Buffer(name, tuple(int(extent) for extent in buffer_.shape), str(buffer_.dtype))
        return name

    def statements(self, statement: Any, scope: Mapping[Any, Expression]) -> list[Node]:
        """Nodes of a statement; a temporary holds all that follows it."""
        if type(statement).__name__ == "SeqStmt":
            return self._sequence(list(statement.seq), scope)
        read = _STATEMENTS.get(type(statement).__name__)
        if read is None:
            raise InputError(f"a nest cannot hold a statement {type(statement).__name__}", where=self._name)
        return read(self, statement, scope)

    def _sequence(self, parts: list[Any], scope: Mapping[Any, Expression]) -> list[Node]:
        result: list[Node] = []
        for index, part in enumerate(parts):
            if type(part).__name__ == "AllocBuffer":
                name = self.buffer(part.buffer)
                return [*result, Allocate(name, tuple(self._sequence(parts[index + 1 :], scope)))]
            result += self.statements(part, scope)
        return result

    def loop(self, statement: Any, scope: Mapping[Any, Expression]) -> list[Node]:
        """A loop; one of a single step is only its body."""
        if not (hasattr(statement.extent, "value") and hasattr(statement.min, "value")):
            raise InputError("a nest cannot hold a loop whose length changes from step to step", where=self._name)
        extent, minimum = int(statement.extent), int(statement.min)
        if extent == 1:
            return self.statements(statement.body, {**scope, statement.loop_var: minimum})
        variable = f"{statement.loop_var.name}_{self._num_loops}"
        self._num_loops += 1
        body = tuple(self.statements(statement.body, {**scope, statement.loop_var: variable}))
        axis = "spatial" if any(variable in variables_of(store.indices) for store in stores(body)) else "reduce"
        return [For(variable, extent, body, _LOOP_KINDS[int(statement.kind)], axis, minimum)]  # type: ignore[arg-type]

    def store(self, statement: Any, scope: Mapping[Any, Expression]) -> list[Node]:
        """Convert a store into a leaf."""
        indices = tuple(self.expression(index, scope) for index in statement.indices)
        return [Store(self.buffer(statement.buffer), indices, self.expression(statement.value, scope))]

    def guard(self, statement: Any, scope: Mapping[Any, Expression]) -> list[Node]:
        """Convert a condition over statements."""
        body = tuple(self.statements(statement.then_case, scope))
        otherwise = () if statement.else_case is None else tuple(self.statements(statement.else_case, scope))
        return [If(self.expression(statement.condition, scope), body, otherwise)]

    def attribute(self, statement: Any, scope: Mapping[Any, Expression]) -> list[Node]:
        """Convert a pragma."""
        value = self.expression(statement.value, scope)
        body = tuple(self.statements(statement.body, scope))
        return [Attribute(str(statement.attr_key), value if isinstance(value, int) else str(value), body)]

    def expression(self, value: Any, scope: Mapping[Any, Expression]) -> Expression:
        """Return a value as nested tuples."""
        kind = type(value).__name__
        if kind in _BINARY:
            return _fold_constants(_BINARY[kind], self.expression(value.a, scope), self.expression(value.b, scope))
        read = _EXPRESSIONS.get(kind)
        if read is None:
            raise InputError(f"a nest cannot hold an expression {kind}", where=self._name)
        return read(self, value, scope)

    def call(self, value: Any, scope: Mapping[Any, Expression]) -> Expression:
        """A mathematical function, or a choice between two values."""
        name = str(value.op.name).rpartition(".")[2]
        operands = tuple(self.expression(operand, scope) for operand in value.args)
        if name == "likely":
            return operands[0]
        return ("select", *operands) if name in _SELECTING else ("call", name, *operands)

    def load(self, value: Any, scope: Mapping[Any, Expression]) -> Expression:
        """Convert a read of a buffer."""
        return ("load", self.buffer(value.source), *(self.expression(index, scope) for index in value.indices))


def _fold_constants(operation: str, left: Expression, right: Expression) -> Expression:
    """Simplify an index after loops of one step: ``0 * 8 + i`` is ``i``."""
    if isinstance(left, int) and isinstance(right, int) and operation in ("add", "sub", "mul"):
        return {"add": left + right, "sub": left - right, "mul": left * right}[operation]
    if isinstance(left, int) and (operation, left) in (("add", 0), ("mul", 1)):
        return right
    if isinstance(right, int) and (operation, right) in (("add", 0), ("sub", 0), ("mul", 1)):
        return left
    if operation == "mul" and any(isinstance(side, int) and side == 0 for side in (left, right)):
        return 0
    return (operation, left, right)


_STATEMENTS: dict[str, Callable[[_Reader, Any, Mapping[Any, Expression]], list[Node]]] = {
    "For": _Reader.loop,
    "BufferStore": _Reader.store,
    "IfThenElse": _Reader.guard,
    "AttrStmt": _Reader.attribute,
    "AllocBuffer": lambda reader, statement, _: [Allocate(reader.buffer(statement.buffer))],
}
_EXPRESSIONS: dict[str, Callable[[_Reader, Any, Mapping[Any, Expression]], Expression]] = {
    "IntImm": lambda _, value, __: int(value.value),
    "FloatImm": lambda _, value, __: float(value.value),
    "Var": lambda _, value, scope: scope[value],
    "TensorLoad": _Reader.load,
    "Call": _Reader.call,
    "Not": lambda reader, value, scope: ("not", reader.expression(value.a, scope)),
    "Select": lambda reader, value, scope: (
        "select",
        *(reader.expression(part, scope) for part in (value.condition, value.true_value, value.false_value)),
    ),
    "Cast": lambda reader, value, scope: ("cast", str(value.ty.dtype), reader.expression(value.value, scope)),
}
