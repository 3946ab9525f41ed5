"""Edits in words: what is dropped, moved, promised, at which line.

In: an edit, and the function for which it was found. Out: a sentence without a full stop. Not here: whether it is safe
(``verdict``).
"""

from __future__ import annotations

import re

from windtunnel.systems.kernels.edits import Edit
from windtunnel.systems.kernels.ir import Function, Instruction

__all__ = ["describe"]

_NAMES = {
    "load": "load", "store": "store", "icmp": "comparison", "fcmp": "comparison", "select": "choice",
    "getelementptr": "address", "call": "call", "zext": "widening", "sext": "widening", "fpext": "widening to double",
    "fptrunc": "rounding to float", "trunc": "cut to fewer bits", "add": "addition", "fadd": "addition",
    "sub": "subtraction", "fsub": "subtraction", "mul": "product", "fmul": "product", "fdiv": "division",
    "sdiv": "division", "udiv": "division", "shl": "shift", "lshr": "shift", "ashr": "shift", "freeze": "freeze",
}  # fmt: skip
_CALLS = {"smin": "clamp (minimum)", "smax": "clamp (maximum)", "umin": "clamp (minimum)", "umax": "clamp (maximum)",
          "minnum": "clamp (minimum)", "maxnum": "clamp (maximum)", "fabs": "absolute value", "sqrt": "root",
          "exp": "exponential", "log": "logarithm", "fmuladd": "product with sum", "fma": "product with sum",
          "memset": "filling of memory", "memcpy": "copying of memory"}  # fmt: skip
_HINTS = {
    "vectorize.width": "tells the compiler to do {} turns of the loop at line {} at once",
    "interleave.count": "tells the compiler to interleave {} turns of the loop at line {}",
    "unroll.count": "tells the compiler to unroll the loop at line {1} {0} times",
    "unroll.disable": "tells the compiler not to unroll the loop at line {1}",
    "vectorize.predicate.enable": "tells the compiler to mask the last turns of the loop at line {1}",
    "distribute.enable": "tells the compiler to split the loop at line {1}",
    "unpredictable": "tells the compiler that the branch at line {1} cannot be predicted",
    "prefer-vector-width": "tells the compiler to use vectors of {} bits",
}


def describe(function: Function, edit: Edit) -> str:
    """Describe an edit, with lines of the source."""
    op, text = edit[0]
    if op == "-h":
        return _hint(function, text)
    if op == "-a":
        return _promise(function, text)
    names = text.split(",")
    first = _of(function, names[0])
    if op == "-c":
        return _describe_deletion(function, first, edit)
    if op == "-p":
        slot, value = names
        uid, _, index = slot.rpartition(".OP")
        return (
            f"gives {_instruction_name(_of(function, uid), uid)} {_value(function, value)} as operand {int(index) + 1}"
        )
    if op == "-x":
        return f"reads past the nearest cache at {_instruction_name(first, names[0])}"
    second = _instruction_name(_of(function, names[1]), names[1])
    name = _instruction_name(first, names[0])
    return {"-i": f"does {name} once more before {second}", "-m": f"moves {name} before {second}",
            "-r": f"puts a copy of {name} in place of {second}",
            "-s": f"exchanges {name} and {second}"}[op]  # fmt: skip


def _describe_deletion(function: Function, instruction: Instruction | None, edit: Edit) -> str:
    uid = edit[0][1]
    values = {text.split(",")[1] for op, text in edit[1:] if op == "-p"}
    users = [_of(function, text.split(".OP")[0]) for op, text in edit[1:] if op == "-p"]
    if instruction is not None and instruction.type == "i1" and values == {"C1"}:
        branches = [user for user in users if user is not None and user.opcode == "br"]
        what = "the branch" if branches else "it"
        return f"takes {_instruction_name(instruction, uid)} as always true" + (
            f", so {what} has one way" if branches else ""
        )
    words = f"drops {_instruction_name(instruction, uid)}"
    return f"{words}, and uses {_value(function, next(iter(values)))} instead" if values else words


def _of(function: Function, uid: str) -> Instruction | None:
    return function.find(uid) or function.find(re.split(r"\.[imrsdn]\d*$", uid)[0].split(".")[0])


def _instruction_name(instruction: Instruction | None, uid: str) -> str:
    if instruction is None:
        return uid
    name = _NAMES.get(instruction.opcode, instruction.opcode)
    if instruction.opcode == "call":
        callee = instruction.callee.removeprefix("@").removeprefix("llvm.").split(".")[0]
        name = _CALLS.get(callee, f"call of {callee}")
    return f"the {name}{f' at line {instruction.line}' if instruction.line else ''} ({uid})"


def _value(function: Function, value: str) -> str:
    if value == "C1":
        return "1 (or true, or null)"
    if value.startswith("A"):
        return f"argument {value[1:]}"
    return _instruction_name(_of(function, value), value)


def _hint(function: Function, text: str) -> str:
    uid, _, rest = text.partition(",")
    name, _, value = rest.partition("=")
    instruction = _of(function, uid)
    return _HINTS[name].format(value, instruction.line if instruction is not None and instruction.line else uid)


def _promise(function: Function, text: str) -> str:
    uid, _, what = text.partition(",")
    if uid.startswith("A"):
        return {
            "noalias": f"promises that argument {uid[1:]} overlaps no other",
            "align=64": f"promises that argument {uid[1:]} begins at a multiple of 64 bytes",
        }.get(what, f"promises that argument {uid[1:]} is {what}")
    where = "everywhere" if uid == "F" else f"at {_instruction_name(_of(function, uid), uid)}"
    if what == "narrow":
        return f"computes with floats instead of doubles {where}"
    meaning = {"contract": "products and sums may be fused", "reassoc": "sums may be taken in another order",
               "nsz": "the sign of zero does not matter", "arcp": "a division may be a product with the reciprocal",
               "nnan ninf": "there are no infinities and only numbers", "afn": "functions may be approximated",
               "fast": "all rules of floats may be bent"}  # fmt: skip
    return f"assumes that {meaning.get(what, what)} {where}"
