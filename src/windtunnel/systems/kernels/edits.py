"""Edits: what a candidate changes, as explicit primitives that need no draw to be applied again.

In: a pristine function and a set of edits. Out: the changed function, or ``EditError`` where an edit names what is
not there. An individual is a set: edits are always applied in one canonical order, to the original. Not here: choosing
edits (``operators``), whether the result is right (``run``).
Source: GEVO, TACO 2020: ids that survive edits, anchors, forms of a population file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from windtunnel.errors import InputError
from windtunnel.systems.kernels.assume import add_hint, add_promise
from windtunnel.systems.kernels.flow import one_of
from windtunnel.systems.kernels.ir import Block, Function, Instruction, Operand

__all__ = ["ORDER", "Edit", "EditError", "Individual", "apply", "from_json", "key", "sort_edits", "to_json"]

ORDER = "smircxpha"
"""Heads in the order in which they are applied: of GEVO, then hints and assumptions."""
_SLOT = re.compile(r"^(.+)\.OP(\d+)$")

Edit = tuple[tuple[str, str], ...]
"""Primitives such as ``("-c", "U7")``, ``("-p", "U9.OP0,A2")``; the first one is the head."""
Individual = frozenset[Edit]


class EditError(InputError):
    """An edit names a place or a value that this function does not have."""


@dataclass
class _Draft:
    """A function while it is changed: its blocks as lists."""

    function: Function
    blocks: list[list[Instruction]]

    def locate(self, uid: str, *, is_position: bool = False) -> tuple[int, int]:
        """Block and number; for a position, the anchor will do."""
        names = (uid, f"{uid}.d") if is_position else (uid,)
        for name in names:
            for number, block in enumerate(self.blocks):
                for index, item in enumerate(block):
                    if item.uid == name:
                        return number, index
        raise EditError(f"there is no instruction {uid}", where=self.function.name,
                        fix="edits belong to the kernel for which they were found")  # fmt: skip

    def fresh(self, uid: str, letter: str) -> str:
        """Name of a new clone: the first number that is free."""
        used = {item.uid for block in self.blocks for item in block}
        number = 1
        while f"{uid}.{letter}{number}" in used:
            number += 1
        return f"{uid}.{letter}{number}"

    def clone(self, uid: str, letter: str) -> Instruction:
        number, index = self.locate(uid)
        return replace(self.blocks[number][index], uid=self.fresh(uid, letter))

    def anchor(self, uid: str) -> Instruction:
        zero = Operand("i8", "0", is_fixed=True)
        return Instruction(f"{uid}.d", "add", "i8", ("add i8 ", zero, ", ", zero))

    def redirect(self, uid: str, value: str) -> None:
        """Replace all uses of a value by another."""
        for number, block in enumerate(self.blocks):
            for index, item in enumerate(block):
                for slot, operand in enumerate(item.operands):
                    if operand.uid == uid:
                        item = item.with_operand(slot, value)
                self.blocks[number][index] = item

    def finish(self) -> Function:
        created = zip(self.function.blocks, self.blocks, strict=True)
        return replace(self.function, blocks=tuple(Block(old.label, tuple(new)) for old, new in created))


def sort_edits(edits: Iterable[Edit]) -> list[Edit]:
    """Edits in canonical order: by head, then by text."""
    return sorted(edits, key=lambda edit: (ORDER.index(edit[0][0][1]), edit))


def key(edits: Iterable[Edit]) -> str:
    """One text for one set of edits.

    Examples
    --------
    >>> key([(("-p", "U3.OP0,A1"),), (("-c", "U2"),)])
    '-c U2|-p U3.OP0,A1'
    """
    return "|".join(";".join(" ".join(item) for item in edit) for edit in sort_edits(edits))


def apply(function: Function, edits: Iterable[Edit]) -> Function:
    """The function with all edits, in canonical order.

    Raises
    ------
    EditError
        An edit does not fit.
    """
    for edit in sort_edits(edits):
        function = apply_one(function, edit)
    return function


def apply_one(function: Function, edit: Edit) -> Function:
    """The function with one edit.

    Raises
    ------
    EditError
        It does not fit.
    """
    for op, text in edit:
        if op == "-h":
            function = add_hint(function, text)
            continue
        if op == "-a":
            function = add_promise(function, text)
            continue
        draft = _Draft(function, [list(block.instructions) for block in function.blocks])
        _STEPS[op](draft, *text.split(","))
        function = draft.finish()
    return function


def _delete(draft: _Draft, uid: str) -> None:
    number, index = draft.locate(uid)
    draft.blocks[number][index] = draft.anchor(uid)


def _copy(draft: _Draft, source: str, position: str) -> None:
    created = draft.clone(source, "i")
    number, index = draft.locate(position, is_position=True)
    draft.blocks[number].insert(index, created)


def _move(draft: _Draft, source: str, position: str) -> None:
    created = draft.clone(source, "m")
    number, index = draft.locate(position, is_position=True)
    draft.blocks[number].insert(index, created)
    _delete(draft, source)


def _replace(draft: _Draft, source: str, target: str) -> None:
    """The target's uses become the clone's; its place keeps its name."""
    created = draft.clone(source, "r")
    _replace_instruction(draft, created, target)


def _replace_instruction(draft: _Draft, replacement: Instruction, target: str) -> None:
    number, index = draft.locate(target)
    had_result = draft.blocks[number][index].type
    draft.blocks[number][index : index + 1] = [draft.anchor(target), replacement]
    if had_result:
        draft.redirect(target, f"%{replacement.uid}")


def _swap(draft: _Draft, source: str, target: str) -> None:
    first, second = draft.clone(source, "s"), draft.clone(target, "s")
    _replace_instruction(draft, first, target)
    _replace_instruction(draft, second, source)


def _cache_hint(draft: _Draft, uid: str) -> None:
    """A load that shall not stay in the nearest cache: !nontemporal on processors."""
    number, index = draft.locate(uid)
    instruction = draft.blocks[number][index]
    if instruction.opcode != "load":
        raise EditError(f"{uid} is no load", fix="cache hints are for loads")
    marked = instruction.pieces[-1] if isinstance(instruction.pieces[-1], str) else ""
    draft.blocks[number][index] = replace(
        instruction, pieces=(*instruction.pieces[:-1], f"{marked}, !nontemporal !{{i32 1}}")
    )


def _operand(draft: _Draft, slot: str, value: str) -> None:
    result = _SLOT.match(slot)
    if result is None:
        raise EditError(f"{slot!r} names no operand", fix="write it like U7.OP0")
    number, index = draft.locate(result.group(1))
    instruction, position = draft.blocks[number][index], int(result.group(2))
    if position >= len(instruction.operands):
        raise EditError(f"{result.group(1)} has {len(instruction.operands)} operands, not {position + 1}")
    kind = instruction.operands[position].type
    if value != "C1":
        known = {argument.uid: argument.type for argument in draft.function.arguments}
        known |= {item.uid: item.type for block in draft.blocks for item in block}
        if known.get(value) != kind:
            raise EditError(f"{value} is no value of type {kind}", where=slot,
                            fix="edits belong to the kernel for which they were found")  # fmt: skip
    draft.blocks[number][index] = instruction.with_operand(position, one_of(kind) if value == "C1" else f"%{value}")


_STEPS: dict[str, Callable[..., None]] = {
    "-c": _delete,
    "-i": _copy,
    "-m": _move,
    "-r": _replace,
    "-s": _swap,
    "-x": _cache_hint,
    "-p": _operand,
}


def to_json(edits: Iterable[Edit]) -> list[list[list[str]]]:
    """The form of a population file."""
    return [[list(item) for item in edit] for edit in sort_edits(edits)]


def from_json(document: Any, where: str = "") -> Individual:
    """Read that form.

    Raises
    ------
    InputError
        It has another form.
    """
    try:
        edits = frozenset(tuple((str(op), str(text)) for op, text in edit) for edit in document)
    except (TypeError, ValueError) as error:
        raise InputError("this is no list of edits", where=where, fix='an edit is a list of ["-c", "U7"]') from error
    unknown: Sequence[str] = [op for edit in edits for op, _ in edit if len(op) != 2 or op[1] not in ORDER]
    if unknown or not all(edits):
        raise InputError(f"there is no operation {unknown[0] if unknown else ''!r}", where=where,
                         fix="operations are " + " ".join(f"-{item}" for item in ORDER))  # fmt: skip
    return edits
