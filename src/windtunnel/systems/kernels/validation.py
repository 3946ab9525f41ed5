"""Whether an edited function does the same for every input: a proof where it can be had.

In: the original and the edited function, whose branches are the same. Out: True where both are shown to walk through
the same blocks with the same memory; False where that could not be shown, which does not say that they differ. Not
here: running either (``verdict``).

Both are read into terms: what an instruction does to which terms. Values that a phi joins, and memory at the begin of
a block, are taken to be the same in both; then every phi must be given the same terms, every branch the same condition,
every block must leave the same memory. By induction over the steps of a run, all of it holds.
Source: Necula, Translation validation for an optimizing compiler, PLDI 2000.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from windtunnel.systems.kernels.flow import Flow
from windtunnel.systems.kernels.ir import Function, Instruction

__all__ = ["is_same"]

Term = Any
_COMMUTES = {"add", "mul", "and", "or", "xor", "fadd", "fmul"}
_COMMUTING_CALLS = ("smin", "smax", "umin", "umax")
_TRAPS = {"load", "sdiv", "udiv", "srem", "urem"}


def is_same(original: Function, edited: Function) -> bool:
    """Whether the edited function is shown to do the same for every input."""
    if [block.label for block in original.blocks] != [block.label for block in edited.blocks]:
        return False
    promised = [(argument.uid, argument.type, argument.attributes) for argument in original.arguments]
    if promised != [(argument.uid, argument.type, argument.attributes) for argument in edited.arguments]:
        return False
    flow = Flow.of(original)
    left, right = _Reading(original, flow), _Reading(edited, flow)
    left.read()
    right.read()
    for index in range(len(original.blocks)):
        if left.leaves[index] != right.leaves[index] or left.ends[index] != right.ends[index]:
            return False
        if left.joins[index] != right.joins[index]:
            return False
        # The edited function may fail (reach an address, divide) only where the original has failed the same way
        # before: in this block, or in one that every path to it goes through.
        allowed = set().union(*(left.risks[dominator] for dominator in flow.dominators[index]))
        if not right.risks[index] <= allowed:
            return False
    return True


@dataclass
class _Reading:
    """Symbolic terms of a function, value by value."""

    function: Function
    flow: Flow
    terms: dict[str, Term] = field(default_factory=dict)
    leaves: dict[int, Term] = field(default_factory=dict)
    ends: dict[int, Term] = field(default_factory=dict)
    joins: dict[int, Term] = field(default_factory=dict)
    risks: dict[int, set[Term]] = field(default_factory=dict)

    def read(self) -> None:
        """Read all blocks, dominators first, and then the operands of phis, which may come from any block."""
        order = sorted(range(len(self.function.blocks)), key=lambda index: (len(self.flow.dominators[index]), index))
        for item in self.function.blocks:
            for instruction in item.instructions:
                if instruction.opcode == "phi":
                    self.terms[instruction.uid] = ("phi", instruction.uid, instruction.type)
        for index in order:
            self._block(index)
        for index, block in enumerate(self.function.blocks):
            self.joins[index] = tuple(
                (entry.uid, tuple(sorted((label, self._term(value.value, value.type))
                                       for label, value in zip(entry.incoming, entry.operands, strict=True))))
                for entry in block.instructions if entry.opcode == "phi"
            )  # fmt: skip

    def _block(self, block: int) -> None:
        before = self.flow.predecessors[block]
        # behind a single predecessor memory is what that one left; where paths join it is a new unknown
        memory: Term = ("memory", block)
        if len(before) == 1 and before[0] in self.leaves:
            memory = self.leaves[before[0]]
        risks: set[Term] = set()
        for instruction in self.function.blocks[block].instructions:
            if instruction.opcode == "phi" or instruction.is_anchor:
                continue
            operands = tuple(self._term(value.value, value.type) for value in instruction.operands)
            if instruction.opcode == "store":
                memory = _store_term(memory, instruction, operands)
                risks.add(("reach", operands[1]))
            elif instruction.opcode == "load":
                self.terms[instruction.uid] = _load_term(memory, instruction, operands[0])
                risks.add(("reach", operands[0]))
            elif instruction.opcode in ("br", "switch", "ret", "unreachable"):
                self.ends[block] = (instruction.key, operands)
            elif instruction.opcode == "call" and not instruction.type:
                memory = ("call", instruction.key, operands, memory)
                risks.add(("call", instruction.key, operands))
            else:
                self.terms[instruction.uid] = term = _operation_term(instruction, operands)
                if instruction.opcode in _TRAPS:
                    risks.add(term)
        self.leaves[block], self.risks[block] = memory, risks

    def _term(self, value: str, kind: str) -> Term:
        if not value.startswith("%"):
            return ("constant", kind, value)
        return self.terms.get(value[1:], ("argument", value[1:]))


def _operation_term(instruction: Instruction, operands: tuple[Term, ...]) -> Term:
    if instruction.opcode == "select" and operands[1] == operands[2]:
        return operands[1]
    is_commuting = instruction.opcode in _COMMUTES or instruction.callee.startswith(
        tuple(f"@llvm.{item}." for item in _COMMUTING_CALLS)
    )
    # Terms are compared by equality, so that equal meanings are brought to one form: operands of commuting
    # operations in a fixed order, x & x and x + 0 as x.
    if is_commuting:
        if operands[0] == operands[1] and (instruction.opcode in ("and", "or") or instruction.opcode == "call"):
            return operands[0]
        operands = tuple(sorted(operands, key=repr))
    if instruction.opcode in ("add", "or", "xor", "shl", "lshr", "ashr", "sub"):
        rest = [operand for operand in operands if operand[0] != "constant" or operand[2] != "0"]
        if len(rest) == 1 and operands[0] == rest[0]:
            return rest[0]
    return (instruction.key, operands)


def _store_term(memory: Term, instruction: Instruction, operands: tuple[Term, ...]) -> Term:
    """Memory after a store: one that only writes what is there changes nothing; a later one to the same place wins."""
    #      store v at a, into memory m  ->  ("store", how, v, a, m): memory is a term, the history of its stores
    value, index = operands
    if value[0] == "load" and value[2] == index and value[3] == memory:
        return memory
    if memory[0] == "store" and memory[3] == index and memory[1] == instruction.key:
        memory = memory[4]
    return ("store", instruction.key, value, index, memory)


def _load_term(memory: Term, instruction: Instruction, address: Term) -> Term:
    """Return the loaded value: the last one stored there, looking past stores that cannot overlap."""
    while memory[0] == "store":
        value, there = memory[2], memory[3]
        stored = memory[1].removeprefix("store ").split(" ", 1)[0]
        if there == address and stored == instruction.type:
            return value
        # Whether two places of at most eight bytes surely do not overlap: one base, constant distances.
        (first, near), (second, far) = _base(there), _base(address)
        if not (first == second and abs(near - far) >= 8):
            break
        memory = memory[4]
    return ("load", instruction.key, address, memory)


def _base(address: Term) -> tuple[Term, int]:
    distance = 0
    while isinstance(address[0], str) and address[0].startswith("getelementptr") and " i8, " in address[0]:
        base, *rest = address[1]
        if len(rest) != 1 or rest[0][0] != "constant" or not rest[0][2].lstrip("-").isdigit():
            break
        distance += int(rest[0][2])
        address = base
    return address, distance
