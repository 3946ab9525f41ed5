"""How much code a nest becomes.

In: a ``Nest``. Out: an estimate of the operations that stand in its code once loops are unrolled and vectors are cut
into registers. Programs with too many take seconds to compile. Not here: time.
"""

from __future__ import annotations

from windtunnel.systems.tensor_programs.model.nest import UNROLL_KEY, Attribute, Expression, For, If, Nest, Node, Store

__all__ = ["code_operations"]

_FLOATS_PER_REGISTER = 8  # floats of a register; of the middle one of the instruction sets
_MIN_COST = 2


def code_operations(nest: Nest) -> float:
    """Operations in the code of a nest: copies of each statement, times its registers, times its own operations."""
    return sum(_of(node, (), 0) for node in nest.body)


def _of(node: Node, loops: tuple[For, ...], limit: int) -> float:
    if isinstance(node, Store):
        return _copies(loops, limit) * (_MIN_COST + _operations(node.value))
    if isinstance(node, For):
        loops = (*loops, node)
    elif isinstance(node, Attribute) and node.key == UNROLL_KEY:
        limit = int(node.value)
    children = (*node.body, *(node.otherwise if isinstance(node, If) else ()))
    return sum(_of(child, loops, limit) for child in children)


def _copies(loops: tuple[For, ...], limit: int) -> float:
    """Return how often a statement occurs in the code, in registers; a loop that is kept ends the copying."""
    copies, registers = 1, 1.0
    for loop in reversed(loops):
        if loop.kind == "vectorized":
            registers *= max(1.0, loop.extent / _FLOATS_PER_REGISTER)
        elif loop.kind == "unrolled" or (loop.kind == "serial" and copies * loop.extent <= limit):
            copies *= loop.extent
        else:
            break
    return copies * registers


def _operations(value: Expression) -> int:
    if not isinstance(value, tuple):
        return 0
    if value[0] == "load":
        return 1 + sum(_operations(index) for index in value[2:])
    return (8 if value[0] in ("call", "select") else 1) + sum(_operations(operand) for operand in value[1:])
