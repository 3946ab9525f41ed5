"""Random edits of a function, each repaired so that it parses, and the crossover of two sets.

In: a function, a generator of random numbers. Out: an edit whose repair is written down in it, or None where the draw
fits nothing. Not here: whether the result is right or fast (``run``), which parents (``search``).
Source: GEVO, TACO 2020; operators c, i, m, r, s, p, x of its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.errors import InputError
from windtunnel.systems.kernels.assume import hints_for, promises_for
from windtunnel.systems.kernels.edits import Edit, Individual, apply_one, sort_edits
from windtunnel.systems.kernels.flow import Flow, Position, is_target, kinds_of
from windtunnel.systems.kernels.ir import Function, Instruction

__all__ = ["OPERATORS", "cross", "draw_edit"]

OPERATORS = "crismp"
"""As published; x for cache hints, h for hints and a for assumptions can be added."""


@dataclass
class _View:
    """Facts about a function that a random edit needs."""

    function: Function
    flow: Flow
    kinds: dict[str, str]
    positions: dict[str, Position]

    @classmethod
    def of(cls, function: Function) -> _View:
        indices = {
            instruction.uid: (number, index)
            for number, block in enumerate(function.blocks)
            for index, instruction in enumerate(block.instructions)
        }
        return cls(function, Flow.of(function), kinds_of(function), indices)

    def values(self, kind: str, use: Position) -> list[str]:
        """Arguments and instructions of a kind that are there before a use."""
        result = [argument.uid for argument in self.function.arguments if self.kinds[argument.uid] == kind]
        for uid, index in self.positions.items():
            if self.kinds.get(uid) == kind and self.flow.reaches(index, use) and not uid.endswith(".d"):
                result.append(uid)
        return result

    def kind_of_slot(self, user: Instruction, slot: int) -> str:
        """Kind of the value that stands there; of a constant, its type."""
        operand = user.operands[slot]
        return self.kinds.get(operand.uid, operand.type) if operand.uid else operand.type

    def position_of_use(self, user: Instruction, slot: int) -> Position:
        """Return the position of a use: for a phi, the end of the block that the value comes from."""
        if not user.incoming:
            return self.positions[user.uid]
        block = self.flow.labels.index(user.incoming[slot])
        return block, len(self.function.blocks[block].instructions)

    def has(self, uid: str, use: Position) -> bool:
        """Whether a value is there at a use."""
        return uid not in self.positions or self.flow.reaches(self.positions[uid], use)


def draw_edit(function: Function, draw: np.random.Generator, operators: str = OPERATORS) -> Edit | None:
    """Return a random edit of the function; None where two positions or an operator do not fit."""
    op = operators[int(draw.integers(len(operators)))]
    if op in "ha":
        genes = list(hints_for(function) if op == "h" else promises_for(function))
        return ((f"-{op}", genes[int(draw.integers(len(genes)))]),) if genes else None
    targets = [instruction for instruction in function.instructions() if is_target(instruction)]
    if len(targets) < 2:
        return None
    source, other = (targets[int(index)] for index in draw.choice(len(targets), size=2, replace=False))
    view = _View.of(function)
    if op == "c":
        return (("-c", source.uid), *_redirect_uses(view, source, draw))
    if op == "p":
        return _operand(view, source, draw)
    if op == "x":
        return (("-x", source.uid),) if source.opcode == "load" else None
    if op == "r" and (not source.type or view.kinds[source.uid] != view.kinds.get(other.uid)):
        return None
    if op == "s" and (source.type != other.type or view.kinds.get(source.uid) != view.kinds.get(other.uid)):
        return None
    return _clone_instruction(op, function, source, other, draw)


def _pick(draw: np.random.Generator, values: Sequence[str]) -> str:
    return values[int(draw.integers(len(values)))]


def _uses(function: Function, uid: str) -> list[tuple[Instruction, int]]:
    return [
        (instruction, slot)
        for instruction in function.instructions()
        for slot, operand in enumerate(instruction.operands)
        if operand.uid == uid
    ]


def _redirect_uses(view: _View, deleted: Instruction, draw: np.random.Generator) -> Edit:
    """Replace all uses of a deleted instruction by one earlier value, or by C1."""
    used = _uses(view.function, deleted.uid)
    if not used:
        return ()
    choices = [*view.values(view.kinds[deleted.uid], view.positions[deleted.uid]), "C1"]
    value = _pick(draw, choices)
    return tuple(("-p", f"{user.uid}.OP{slot},{value}") for user, slot in used)


def _operand(view: _View, instruction: Instruction, draw: np.random.Generator) -> Edit | None:
    slots = [slot for slot, operand in enumerate(instruction.operands) if not operand.is_fixed]
    if not slots:
        return None
    slot = slots[int(draw.integers(len(slots)))]
    now = instruction.operands[slot].uid
    values = view.values(view.kind_of_slot(instruction, slot), view.position_of_use(instruction, slot))
    values = [value for value in values if value not in (now, instruction.uid)]
    return (("-p", f"{instruction.uid}.OP{slot},{_pick(draw, values)}"),) if values else None


def _clone_instruction(
    op: str, function: Function, source: Instruction, other: Instruction, draw: np.random.Generator
) -> Edit | None:
    """Copy, move, replace, swap: the head, then what repairs the clones."""
    head = (f"-{op}", f"{source.uid},{other.uid}")
    before = {item.uid for item in function.instructions()}
    try:
        changed = apply_one(function, (head,))
    except InputError:
        return None
    repairs: list[tuple[str, str]] = []
    view = _View.of(changed)
    for instruction in [item for item in changed.instructions() if item.uid not in before and not item.is_anchor]:
        repairs += _repair_operands(view, instruction, draw)
        if op == "i" and source.type and _uses(function, source.uid):
            repairs += _force_use(view, instruction, draw)
    if op == "m" and source.type:
        used = _uses(changed, source.uid)
        index = view.positions[f"{source.uid}.d"]
        kinds = kinds_of(function)
        choices = [*(value for value in view.values(kinds[source.uid], index)), "C1"]
        value = _pick(draw, choices)
        repairs += [("-p", f"{user.uid}.OP{slot},{value}") for user, slot in used]
    repairs += _dangling(view, repairs, draw)
    return (head, *repairs)


def _repair_operands(view: _View, clone: Instruction, draw: np.random.Generator) -> list[tuple[str, str]]:
    """Replace each operand of a clone that is not available at its new position."""
    result = []
    for slot, operand in enumerate(clone.operands):
        if operand.uid and (operand.uid == clone.uid or not view.has(operand.uid, view.positions[clone.uid])
                            or operand.uid not in view.kinds):  # fmt: skip
            kind = view.kinds.get(operand.uid, operand.type)
            choices = [value for value in view.values(kind, view.positions[clone.uid]) if value != clone.uid]
            result.append(("-p", f"{clone.uid}.OP{slot},{_pick(draw, [*choices, 'C1'])}"))
    return result


def _force_use(view: _View, clone: Instruction, draw: np.random.Generator) -> list[tuple[str, str]]:
    """Replace a random later operand of the same kind by the clone."""
    kind, index = view.kinds[clone.uid], view.positions[clone.uid]
    slots = [
        f"{user.uid}.OP{slot}"
        for user in view.function.instructions()
        for slot, operand in enumerate(user.operands)
        if user.uid != clone.uid and not operand.is_fixed and view.kind_of_slot(user, slot) == kind
        and view.flow.reaches(index, view.position_of_use(user, slot))
    ]  # fmt: skip
    return [("-p", f"{_pick(draw, slots)},{clone.uid}")] if slots else []


def _dangling(view: _View, repairs: list[tuple[str, str]], draw: np.random.Generator) -> list[tuple[str, str]]:
    """Uses of a clone that stands behind them, as after a swap, get another value."""
    repaired = {text.split(",")[0] for _, text in repairs}
    result = []
    for user in view.function.instructions():
        for slot, operand in enumerate(user.operands):
            name = f"{user.uid}.OP{slot}"
            if not operand.uid or name in repaired or view.has(operand.uid, view.position_of_use(user, slot)):
                continue
            choices = view.values(view.kind_of_slot(user, slot), view.position_of_use(user, slot))
            choices = [value for value in choices if value != user.uid]
            result.append(("-p", f"{name},{_pick(draw, [*choices, 'C1'])}"))
    return result


def cross(first: Individual, second: Individual, draw: np.random.Generator) -> tuple[Individual, Individual] | None:
    """Two children with what both parents have, and one part each of what only one has; None where nothing differs."""
    common, differing = first & second, sort_edits(first ^ second)
    if len(differing) < 2:
        return None
    shuffled = [differing[int(index)] for index in draw.permutation(len(differing))]
    cut = int(draw.integers(1, len(shuffled)))
    return common | frozenset(shuffled[:cut]), common | frozenset(shuffled[cut:])
