"""Instructions of LLVM's text form taken apart into literal pieces and typed operands.

In: the text of one instruction behind its ``=``. Out: opcode, type of the result, pieces. Not here: what they mean.
Source: LLVM Language Reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["UnknownTextError", "split_bracket", "split_top", "take_apart", "take_type", "words"]

Piece = str | tuple[str, str, bool]
Parts = tuple[str, str, list[Piece], tuple[str, ...], tuple[str, ...]]
_CLOSED = {"<": ">", "[": "]", "{": "}", "(": ")"}
_BINARY = {
    "add",
    "sub",
    "mul",
    "udiv",
    "sdiv",
    "urem",
    "srem",
    "shl",
    "lshr",
    "ashr",
    "and",
    "or",
    "xor",
    "fadd",
    "fsub",
    "fmul",
    "fdiv",
    "frem",
}
_CASTS = {
    "trunc",
    "zext",
    "sext",
    "fptrunc",
    "fpext",
    "fptoui",
    "fptosi",
    "uitofp",
    "sitofp",
    "ptrtoint",
    "inttoptr",
    "bitcast",
    "addrspacecast",
}
_FLAGS = {
    "nuw",
    "nsw",
    "exact",
    "disjoint",
    "fast",
    "nnan",
    "ninf",
    "nsz",
    "arcp",
    "contract",
    "afn",
    "reassoc",
    "nneg",
    "samesign",
    "inbounds",
    "nusw",
}
_PLAIN_TYPE = re.compile(r"(i\d+|half|bfloat|float|double|fp128|x86_fp80|void|label|metadata|ptr(?: addrspace\(\d+\))?)"
                         r"(?![\w.])")  # fmt: skip
_VALUE = re.compile(r"%[-a-zA-Z$._0-9]+|@[-a-zA-Z$._0-9]+|-?[0-9][-+.0-9a-zA-Z]*|[a-z]+")
SHARED = "ptr addrspace(3)"
"""Memory of a block of a GPU: the only globals that a kernel may have."""
_CONSTANT_WORDS = {"true", "false", "null", "undef", "poison", "zeroinitializer", "splat", "none"}
MATH = {
    "sin",
    "cos",
    "tan",
    "exp",
    "exp2",
    "log",
    "log2",
    "log10",
    "log1p",
    "expm1",
    "sqrt",
    "pow",
    "fabs",
    "floor",
    "ceil",
    "tanh",
    "fmod",
    "atan",
    "atan2",
    "erf",
    "cbrt",
    "hypot",
    "fmin",
    "fmax",
}
ParsedInstruction = tuple[str, list[Piece], tuple[str, ...]]


class UnknownTextError(ValueError):
    """Something that a kernel may not have, in words."""


def split_bracket(text: str, start: int) -> tuple[str, str]:
    """Return the content of the bracket at ``start`` and the text behind it."""
    depth, quoted = 0, False
    for index in range(start, len(text)):
        letter = text[index]
        quoted ^= letter == '"'
        if quoted:
            continue
        depth += letter in "<[{("
        depth -= letter in ">]})"
        if depth == 0:
            return text[start + 1 : index], text[index + 1 :]
    raise UnknownTextError(f"a {text[start]} without its end")


def split_top(text: str) -> list[str]:
    """Parts between commas that are in no bracket."""
    parts, depth, last = [], 0, 0
    for index, letter in enumerate(text):
        depth += letter in "<[{("
        depth -= letter in ">]})"
        if letter == "," and depth == 0:
            parts.append(text[last:index].strip())
            last = index + 1
    rest = text[last:].strip()
    return [*parts, rest] if rest else parts


def words(text: str) -> list[str]:
    """Words, each with the brackets or the number that belong to it."""
    result = re.findall(r'(?:align|dereferenceable|dereferenceable_or_null) \d+|"[^"]*"(?:="[^"]*")?|'
                       r"[^\s(]+(?:\((?:[^()]|\([^()]*\))*\))?", text)  # fmt: skip
    return [item.strip() for item in result]


def take_type(text: str) -> tuple[str, str]:
    """The type with which a text begins, and the rest."""
    text = text.lstrip()
    if text[:1] in _CLOSED:
        inside, rest = split_bracket(text, 0)
        return text[0] + inside + _CLOSED[text[0]], rest.lstrip()
    result = _PLAIN_TYPE.match(text)
    if result is None:
        raise UnknownTextError(f"the type {text.split(' ', 1)[0]!r}")
    return result.group(), text[result.end() :].lstrip()


def _take_value(text: str, kind: str = "") -> tuple[str, str]:
    text = text.lstrip()
    if text[:1] == "<" or text[:1] in "[{":
        inside, rest = split_bracket(text, 0)
        return text[0] + inside + _CLOSED[text[0]], rest
    result = _VALUE.match(text)
    if result is None:
        raise UnknownTextError(f"the value {text[:20]!r}")
    value, rest = result.group(), text[result.end() :]
    if value.startswith("@") and kind == SHARED:
        return value, rest
    if value.startswith("@"):
        raise UnknownTextError(f"the global {value}")
    if value[0].isalpha():
        if value not in _CONSTANT_WORDS:
            raise UnknownTextError(f"the constant {value!r}")
        if rest.lstrip().startswith("("):
            inside, rest = split_bracket(rest.lstrip(), 0)
            value = f"{value} ({inside})"
    return value, rest


def _take_flags(text: str) -> tuple[tuple[str, ...], str]:
    flags = []
    while (word := text.split(" ", 1)[0]) in _FLAGS:
        flags.append(word)
        text = text[len(word) + 1 :]
    return tuple(flags), text


def _several(text: str, count: int, fixed: tuple[int, ...] = ()) -> tuple[list[Piece], str]:
    """``count`` operands of form ``type value``, with commas between."""
    pieces: list[Piece] = []
    for index in range(count):
        kind, text = take_type(text.lstrip(", "))
        value, text = _take_value(text, kind)
        pieces += [("" if index == 0 else ", ") + kind + " ", (kind, value, index in fixed)]
    return pieces, text


def take_apart(text: str) -> Parts:
    """Opcode, type of the result, pieces, blocks that values come from, flags.

    Raises
    ------
    UnknownTextError
    """
    opcode, _, rest = text.partition(" ")
    if opcode in ("tail", "notail", "musttail") or opcode == "call":
        return _call(rest[5:] if opcode != "call" else rest)
    flags, rest = _take_flags(rest)
    head = " ".join([opcode, *flags]) + " "
    if opcode in _BINARY or opcode in ("icmp", "fcmp"):
        return _same_type(opcode, head, rest, flags)
    if opcode in ("fneg", "freeze"):
        pieces, _ = _several(rest, 1)
        return opcode, str(pieces[1][0]), _prepend_text(head, pieces), (), flags
    if opcode in _CASTS:
        pieces, rest = _several(rest, 1)
        kind = take_type(rest.strip().removeprefix("to "))[0]
        return opcode, kind, [*_prepend_text(head, pieces), f" to {kind}"], (), flags
    maker = _MAKERS.get(opcode)
    if maker is None:
        raise UnknownTextError(f"the instruction {opcode!r}")
    kind, pieces, incoming = maker(rest)
    return opcode, kind, _prepend_text(head, pieces), incoming, flags


def _prepend_text(head: str, pieces: list[Piece]) -> list[Piece]:
    return [head + pieces[0], *pieces[1:]] if pieces and isinstance(pieces[0], str) else [head, *pieces]


def _same_type(opcode: str, head: str, rest: str, flags: tuple[str, ...]) -> Parts:
    if opcode in ("icmp", "fcmp"):
        relation, _, rest = rest.partition(" ")
        head += f"{relation} "
    kind, rest = take_type(rest)
    first, rest = _take_value(rest, kind)
    second, _ = _take_value(rest.lstrip(", "), kind)
    result = kind
    if opcode in ("icmp", "fcmp"):
        result = re.sub(r"x .*>$", "x i1>", kind) if kind.startswith("<") else "i1"
    return opcode, result, [f"{head}{kind} ", (kind, first, False), ", ", (kind, second, False)], (), flags


def _select(rest: str) -> ParsedInstruction:
    pieces, _ = _several(rest, 3)
    return str(pieces[3][0]), pieces, ()


def _load(rest: str) -> ParsedInstruction:
    if rest.startswith(("volatile", "atomic")):
        raise UnknownTextError(f"a load that is {rest.split(' ', 1)[0]}")
    kind, rest = take_type(rest)
    pieces, rest = _several(rest, 1)
    return kind, [f"{kind}, ", *pieces, rest], ()


def _store(rest: str) -> ParsedInstruction:
    if rest.startswith(("volatile", "atomic")):
        raise UnknownTextError(f"a store that is {rest.split(' ', 1)[0]}")
    pieces, rest = _several(rest, 2)
    return "", [*pieces, rest], ()


def _address(rest: str) -> ParsedInstruction:
    element, rest = take_type(rest)
    parts = split_top(rest.lstrip(", "))
    pieces: list[Piece] = [f"{element}"]
    for index, part in enumerate(parts):
        kind, value = take_type(part)
        is_fixed = index > 0 and element[0] in "{%[" and not value.startswith("%")
        pieces += [f", {kind} ", (kind, _take_value(value, kind)[0], is_fixed)]
    return str(pieces[2][0]), pieces, ()


def _phi(rest: str) -> ParsedInstruction:
    kind, rest = take_type(rest)
    pieces: list[Piece] = [f"{kind} "]
    incoming = []
    for index, pair in enumerate(split_top(rest)):
        value, label = _take_value(pair[1:])
        block = label.strip(" ,]")
        incoming.append(block[1:])
        pieces += ["[ " if index == 0 else ", [ ", (kind, value, False), f", {block} ]"]
    return kind, pieces, tuple(incoming)


def _branch(rest: str) -> ParsedInstruction:
    if rest.startswith("label"):
        return "", [rest], ()
    pieces, rest = _several(rest, 1)
    return "", [*pieces, rest], ()


def _return(rest: str) -> ParsedInstruction:
    if rest.strip() == "void" or not rest:
        return "", [rest], ()
    pieces, rest = _several(rest, 1)
    return "", [*pieces, rest], ()


def _extract(rest: str) -> ParsedInstruction:
    pieces, _ = _several(rest, 2)
    return str(pieces[1][0]).split(" x ", 1)[1][:-1], pieces, ()


def _insert(rest: str) -> ParsedInstruction:
    pieces, _ = _several(rest, 3)
    return str(pieces[1][0]), pieces, ()


def _shuffle(rest: str) -> ParsedInstruction:
    pieces, _ = _several(rest, 3, fixed=(2,))
    length = str(pieces[5][0]).split(" x ", 1)[0]
    return f"{length} x {str(pieces[1][0]).split(' x ', 1)[1]}", pieces, ()


def _field(rest: str) -> ParsedInstruction:
    pieces, rest = _several(rest, 1)
    kind = str(pieces[1][0])
    for index in rest.strip(" ,").split(","):
        if not kind.startswith("{"):
            raise UnknownTextError("a field of an array")
        kind = split_top(kind[1:-1])[int(index)]
    return kind, [*pieces, rest], ()


def _local(rest: str) -> ParsedInstruction:
    return "ptr", [rest], ()


def _nowhere(rest: str) -> ParsedInstruction:
    return "", [rest], ()


_MAKERS: dict[str, Callable[[str], ParsedInstruction]] = {
    "select": _select, "load": _load, "store": _store, "getelementptr": _address, "phi": _phi, "br": _branch,
    "switch": _branch, "ret": _return, "extractelement": _extract, "insertelement": _insert, "shufflevector": _shuffle,
    "extractvalue": _field, "alloca": _local, "unreachable": _nowhere,
}  # fmt: skip


def _call(rest: str) -> Parts:
    if " asm " in f" {rest}":
        raise UnknownTextError("assembly")
    flags, rest = _take_flags(rest)
    index = rest.find("@")
    paren = rest.find("(", index)
    if index < 0 or paren < 0 or re.search(r"%[-\w.]+\($", rest[: paren + 1]):
        raise UnknownTextError("a call through a pointer")
    name = rest[index:paren].strip('@"')
    if not name.startswith("llvm.") and name.removesuffix("f") not in MATH and name not in MATH:
        raise UnknownTextError(f"a call of {name}")
    before = words(rest[:index].strip())
    kinds = [word for word in before if word[0] in "<[{" or _PLAIN_TYPE.fullmatch(word)]
    kind = rest[rest.index("<") : index].strip() if any(word[0] == "<" for word in before) else kinds[-1]
    inside, _ = split_bracket(rest, paren)
    pieces: list[Piece] = [f"call {''.join(flag + ' ' for flag in flags)}{kind} @{name}("]
    for position, part in enumerate(split_top(inside)):
        typed, value = take_type(part)
        value = words(value)[-1] if not value.startswith(("<", "splat")) else value
        if typed == "metadata":
            raise UnknownTextError("a call with metadata")
        used = _take_value(value)[0]
        pieces += [("" if position == 0 else ", ") + typed + " ", (typed, used, not used.startswith("%"))]
    pieces.append(")")
    return "call", "" if kind == "void" else kind, pieces, (), flags
