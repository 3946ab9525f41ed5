"""Which value may stand where: control flow, dominators, loops, classes of pointers.

In: a function. Out: ``Flow``, which edits never invalidate, as they leave branches alone; kinds of values, where a
pointer's kind says what is loaded and stored through it. Not here: choosing among the values (``operators``).
Source: Cooper, Harvey and Kennedy, A simple, fast dominance algorithm, 2001.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.systems.kernels.ir import Function, Instruction

__all__ = ["Flow", "Position", "is_target", "kinds_of", "one_of"]

Position = tuple[int, int]
"""Number of a block, number of an instruction in it: before which something stands."""


@dataclass(frozen=True)
class Flow:
    """Control flow of a function.

    Attributes
    ----------
    successors, predecessors : tuple of int tuples
        Neighbors of each block.
    dominators : tuple of int frozensets
        Blocks without which one is never reached, itself included.
    """

    labels: tuple[str, ...]
    successors: tuple[tuple[int, ...], ...]
    predecessors: tuple[tuple[int, ...], ...]
    dominators: tuple[frozenset[int], ...]

    @classmethod
    def of(cls, function: Function) -> Flow:
        """Build the control-flow graph from the branches of a function."""
        labels = tuple(block.label for block in function.blocks)
        number = {label: index for index, label in enumerate(labels)}
        after = tuple(
            tuple(dict.fromkeys(number[item] for item in re.findall(r"label %(B\d+)", block.instructions[-1].render())))
            for block in function.blocks
        )
        before = tuple(
            tuple(position for position, goals in enumerate(after) if index in goals) for index in range(len(labels))
        )
        return cls(labels, after, before, _dominators(before))

    def loops(self) -> Iterator[tuple[int, frozenset[int]]]:
        """Header and blocks of each natural loop, by the block that jumps back."""
        for latch, goals in enumerate(self.successors):
            for header in goals:
                if header in self.dominators[latch]:
                    yield latch, self._body(latch, header)

    def _body(self, latch: int, header: int) -> frozenset[int]:
        result, open_blocks = {header, latch}, [latch]
        while open_blocks:
            label = open_blocks.pop()
            if label != header:
                new = [predecessor for predecessor in self.predecessors[label] if predecessor not in result]
                result.update(new)
                open_blocks += new
        return frozenset(result)

    def reaches(self, value: Position, use: Position) -> bool:
        """Whether an instruction at ``value`` is there before ``use`` on every way."""
        if value[0] == use[0]:
            return value[1] < use[1]
        return value[0] in self.dominators[use[0]]


def _dominators(before: tuple[tuple[int, ...], ...]) -> tuple[frozenset[int], ...]:
    everything = frozenset(range(len(before)))
    result = [frozenset({0}), *[everything] * (len(before) - 1)]
    has_changed = True
    while has_changed:
        has_changed = False
        for index in range(1, len(before)):
            ways = [result[item] for item in before[index]]
            new = frozenset.intersection(*ways) | {index} if ways else frozenset({index})
            has_changed |= new != result[index]
            result[index] = new
    return tuple(result)


def kinds_of(function: Function) -> dict[str, str]:
    """Kind of each named value: its type, for a pointer with what is read and written through it.

    Pointers of one array, and those between which a choice is made, are of one class.
    """
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    # union-find: pointers computed from one another share a root, and what goes through any of them counts for all
    reached: dict[str, set[str]] = {}
    types = {argument.uid: argument.type for argument in function.arguments}
    for instruction in function.instructions():
        if instruction.type:
            types[instruction.uid] = instruction.type
        pointers = [operand.uid for operand in instruction.operands if operand.uid and operand.type.startswith("ptr")]
        if instruction.type.startswith("ptr") and instruction.opcode in ("getelementptr", "phi", "select", "freeze"):
            for pointer in pointers:
                parent[root(pointer)] = root(instruction.uid)
    for instruction in function.instructions():
        if instruction.opcode == "load" and instruction.operands[0].uid:
            reached.setdefault(root(instruction.operands[0].uid), set()).add(instruction.type)
        if instruction.opcode == "store" and instruction.operands[1].uid:
            reached.setdefault(root(instruction.operands[1].uid), set()).add(instruction.operands[0].type)
    return {
        uid: f"{kind}<{','.join(sorted(reached.get(root(uid), ())))}>" if kind.startswith("ptr") else kind
        for uid, kind in types.items()
    }


def one_of(kind: str) -> str:
    """The symbol C1 of a type: one, or null where there is no one."""
    if kind == "i1":
        return "true"
    if re.fullmatch(r"i\d+", kind):
        return "1"
    if kind in ("float", "double"):
        return "1.0"
    if kind == "half":
        return "0xH3C00"
    if kind.startswith("<") and not kind.startswith("<{"):
        element = kind[1:-1].split(" x ", 1)[1]
        return f"splat ({element} {one_of(element)})" if not element.startswith("ptr") else "zeroinitializer"
    return "null" if kind.startswith("ptr") else "zeroinitializer"


def is_target(instruction: Instruction) -> bool:
    """Whether an edit may take or replace it: no branch, phi, return, anchor, local memory."""
    return not instruction.is_anchor and instruction.opcode not in (
        "br",
        "switch",
        "ret",
        "unreachable",
        "phi",
        "alloca",
    )
