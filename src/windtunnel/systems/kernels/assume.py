"""Hints and promises to the compiler about a kernel.

In: a function and one gene such as ``U12,vectorize.width=16`` or ``A1,noalias``. Out: the function that says so. Hints
change no answer by the rules of the language, unless a sum of floats may be taken in another order; promises are true
only if every caller keeps them. Not here: whether a promise held in the tests (``run``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from windtunnel.errors import InputError
from windtunnel.systems.kernels.flow import Flow
from windtunnel.systems.kernels.ir import Block, Function, Instruction, Operand

__all__ = ["add_hint", "add_promise", "hints_for", "promises_for"]

_WIDTHS = (4, 8, 16, 32)
_FLOAT_OPS = {"fadd", "fsub", "fmul", "fdiv", "fneg", "fcmp", "call", "phi", "select"}
_FAST = ("contract", "reassoc", "nsz", "arcp", "nnan ninf", "afn", "fast")
_NARROWED = {"fadd", "fsub", "fmul", "fdiv", "call"}


def hints_for(function: Function) -> Iterator[str]:
    """Hints that this function could be given."""
    yield "F,prefer-vector-width=512"
    yield "F,prefer-vector-width=256"
    flow = Flow.of(function)
    for latch in sorted({latch for latch, _ in flow.loops()}):
        uid = function.blocks[latch].instructions[-1].uid
        yield from (f"{uid},vectorize.width={width}" for width in (1, *_WIDTHS))
        yield from (f"{uid},interleave.count={count}" for count in (1, 2, 4, 8))
        yield from (f"{uid},unroll.count={count}" for count in (2, 4, 8))
        yield f"{uid},unroll.disable="
        yield f"{uid},vectorize.predicate.enable=true"
        yield f"{uid},distribute.enable=true"
    for block in function.blocks:
        last = block.instructions[-1]
        if last.opcode == "br" and last.operands:
            yield f"{last.uid},unpredictable="


def promises_for(function: Function) -> Iterator[str]:
    """Promises that this function could rest on."""
    for argument in function.arguments:
        if argument.type == "ptr":
            yield f"{argument.uid},noalias"
            yield f"{argument.uid},align=64"
    floats = [instruction for instruction in function.instructions() if _is_float(instruction)]
    if floats:
        yield from (f"F,{flags}" for flags in _FAST)
        yield from (f"{float_.uid},{flags}" for float_ in floats for flags in ("contract", "reassoc", "fast"))
    yield from (f"{float_.uid},narrow" for float_ in floats if float_.type == "double" and float_.opcode in _NARROWED)
    if any(float_.type == "double" and float_.opcode in _NARROWED for float_ in floats):
        yield "F,narrow"


def _is_float(instruction: Instruction) -> bool:
    if instruction.opcode == "fcmp":
        return True
    return instruction.opcode in _FLOAT_OPS and bool(re.search(r"float|double|half", instruction.type))


def add_hint(function: Function, text: str) -> Function:
    """The function with one hint more.

    Raises
    ------
    InputError
        The hint names no branch of it.
    """
    uid, _, rest = text.partition(",")
    name, _, value = rest.partition("=")
    if (uid != "F" and (result := function.find(uid)) is None) or (uid != "F" and result and result.opcode != "br"):
        raise InputError(f"there is no branch {uid}", fix="edits belong to the kernel for which they were found")
    local = {**function.hints.get(uid, {}), name: value}
    if name == "vectorize.width" and value != "1":
        local["vectorize.enable"] = "true"
    return replace(function, hints={**function.hints, uid: local})


def add_promise(function: Function, text: str) -> Function:
    """The function with one promise more.

    Raises
    ------
    InputError
        The promise names nothing in it.
    """
    uid, _, what = text.partition(",")
    argument = next((index for index, item in enumerate(function.arguments) if item.uid == uid), None)
    if argument is not None:
        old = function.arguments[argument]
        word = what.replace("=", " ")
        kept = [attribute for attribute in old.attributes if attribute.split(" ")[0] != word.split(" ")[0]]
        new = replace(old, attributes=(*kept, word))
        return replace(function, arguments=(*function.arguments[:argument], new, *function.arguments[argument + 1 :]))
    known = {instruction.uid for instruction in function.instructions()}
    if uid != "F" and uid not in known:
        raise InputError(f"there is no instruction {uid}", fix="edits belong to the kernel for which they were found")
    blocks = [
        Block(
            block.label,
            tuple(created for instruction in block.instructions for created in _apply_promise(instruction, uid, what)),
        )
        for block in function.blocks
    ]
    changed = replace(function, blocks=tuple(blocks))
    return _declare_intrinsics(changed) if what == "narrow" else changed


def _apply_promise(instruction: Instruction, uid: str, what: str) -> list[Instruction]:
    if uid not in ("F", instruction.uid) or not _is_float(instruction):
        return [instruction]
    if what == "narrow":
        return (
            _narrow_to_float(instruction)
            if instruction.type == "double" and instruction.opcode in _NARROWED
            else [instruction]
        )
    new = tuple(dict.fromkeys((*instruction.flags, *what.split())))
    new = ("fast",) if "fast" in new else new
    text = str(instruction.pieces[0])
    head = instruction.opcode + (f" {' '.join(instruction.flags)}" if instruction.flags else "")
    pieces = (f"{instruction.opcode} {' '.join(new)}{text[len(head) :]}", *instruction.pieces[1:])
    return [replace(instruction, pieces=pieces, flags=new)]


def _narrow_to_float(instruction: Instruction) -> list[Instruction]:
    """Return the same operation on floats, between casts."""
    if instruction.opcode == "call" and not instruction.callee.endswith(".f64"):
        return [instruction]
    before: list[Instruction] = []
    pieces: list[str | Operand] = []
    count = 0
    for piece in instruction.pieces:
        if isinstance(piece, Operand) and piece.type == "double":
            count += 1
            name = f"{instruction.uid}.n{count}"
            before.append(Instruction(name, "fptrunc", "float",
                                      ("fptrunc double ", piece, " to float"), instruction.line))  # fmt: skip
            pieces.append(Operand("float", f"%{name}"))
        else:
            pieces.append(piece.replace("double", "float").replace(".f64", ".f32") if isinstance(piece, str) else piece)
    small = replace(instruction, uid=f"{instruction.uid}.n", type="float", pieces=tuple(pieces))
    wide = Instruction(instruction.uid, "fpext", "double",
                       ("fpext float ", Operand("float", f"%{small.uid}"), " to double"), instruction.line)  # fmt: skip
    return [*before, small, wide]


def _declare_intrinsics(function: Function) -> Function:
    """Add a declaration for each float intrinsic that is called now."""
    lines = function.tail.splitlines()
    for instruction in function.instructions():
        name = instruction.callee
        if name.endswith(".f32") and not any(f"{name}(" in line for line in lines):
            twin = next(line for line in lines if f"{name.replace('.f32', '.f64')}(" in line)
            lines.append(twin.replace(".f64", ".f32").replace("double", "float"))
    return replace(function, tail="\n".join(lines))
