"""A light model of one LLVM function: blocks, instructions, operands that can be exchanged.

In: text of a module as llvmlite prints it, with one function. Out: ``Function``, whose arguments are ``A1`` .., whose
instructions are ``U1`` .. in program order and whose blocks are ``B1`` ..; it renders to text that LLVM reads. Edits
make copies; instructions never change. Not here: which value may stand where (``flow``), edits (``edits``).
Source of the names: Liou et al., GEVO, TACO 2020.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from windtunnel.errors import InputError
from windtunnel.systems.kernels import ir_text

__all__ = ["Argument", "Block", "Function", "Instruction", "Operand", "parse"]

_LABEL = re.compile(r"^([-a-zA-Z$._0-9]+|\"[^\"]*\"):")
_RESULT = re.compile(r"^(%(?:[-a-zA-Z$._0-9]+|\"[^\"]*\")) = ")
_LOCAL = re.compile(r"%(?:[-a-zA-Z$._0-9]+|\"[^\"]*\")")
_PROMISES = r"noalias|align|dereferenceable|nonnull"  # of the caller; what the compiler found may end with an edit
_ENTRY = "ptx_kernel"
_SHARED = re.compile(r"@\S+ = .*addrspace\(3\) global ")
_ATTACHED = re.compile(r", ![a-zA-Z._]+ !\d+")


@dataclass(frozen=True, slots=True)
class Operand:
    """A value in its place: ``%U3`` or a constant, with its type; ``is_fixed`` where no other may stand there."""

    type: str
    value: str
    is_fixed: bool = False

    @property
    def uid(self) -> str:
        """Name of the local value, or nothing for a constant."""
        return self.value[1:] if self.value.startswith("%") else ""


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the function, with the attributes that it has."""

    uid: str
    type: str
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its text as pieces, between which the operands stand.

    Attributes
    ----------
    uid : str
    opcode : str
    type : str
        Of the result; empty where there is none.
    pieces : tuple of str or Operand
    line : int
        Line of the source text, from 1.
    incoming : tuple of str
        Of a phi: the block from which each operand comes.
    """

    uid: str
    opcode: str
    type: str
    pieces: tuple[str | Operand, ...]
    line: int = 0
    incoming: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def operands(self) -> list[Operand]:
        """Operands in the order of the instruction's text."""
        return [piece for piece in self.pieces if isinstance(piece, Operand)]

    @property
    def is_anchor(self) -> bool:
        """Whether only its place is left."""
        return self.uid.endswith(".d")

    @property
    def callee(self) -> str:
        """Function that is called, with its ``@``; empty for what is no direct call."""
        if self.opcode != "call":
            return ""
        result = re.search(r"@(?:[-a-zA-Z$._0-9]+|\"[^\"]*\")\($", str(self.pieces[0]))
        return result.group()[:-1] if result else ""

    @property
    def key(self) -> str:
        """Text of the operation without names of values; flags and alignment are part of it."""
        return "".join(piece if isinstance(piece, str) else "\0" for piece in self.pieces)

    def with_operand(self, slot: int, value: str) -> Instruction:
        """Return the instruction with another value as operand ``slot``."""
        position = [index for index, piece in enumerate(self.pieces) if isinstance(piece, Operand)][slot]
        pieces = list(self.pieces)
        pieces[position] = replace(pieces[position], value=value)  # type: ignore[type-var]
        return replace(self, pieces=tuple(pieces))

    def render(self) -> str:
        """Return the line of LLVM IR."""
        text = "".join(piece if isinstance(piece, str) else piece.value for piece in self.pieces)
        return f"  %{self.uid} = {text}" if self.type else f"  {text}"


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions that follow one another; the last one says where it goes on."""

    label: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Function:
    """One function in its module.

    Attributes
    ----------
    name, result : str
    arguments : tuple of Argument
    blocks : tuple of Block
    head, tail : str
        Text of the module before and after the function.
    suffix : str
        What stands behind the parameters.
    hints : mapping
        Of a block's last instruction, or of ``F`` for the function: names with values, which do not change what is
        computed.
    """

    name: str
    result: str
    arguments: tuple[Argument, ...]
    blocks: tuple[Block, ...]
    head: str
    tail: str
    suffix: str = ""
    hints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def instructions(self) -> Iterator[Instruction]:
        """Iterate over all instructions in program order."""
        for block in self.blocks:
            yield from block.instructions

    @property
    def num_instructions(self) -> int:
        """Number of instructions that are not anchors."""
        return sum(not instruction.is_anchor for instruction in self.instructions())

    def find(self, uid: str) -> Instruction | None:
        """The instruction of that name."""
        return next((instruction for instruction in self.instructions() if instruction.uid == uid), None)

    def render(self) -> str:
        """Return the module as LLVM IR."""
        parameters = ", ".join(
            " ".join((argument.type, *argument.attributes, f"%{argument.uid}")) for argument in self.arguments
        )
        own = dict(self.hints.get("F", {}))
        suffix = "".join(f' "{name}"="{value}"' for name, value in sorted(own.items()))
        lines = [self.head, f"define {self.result} @{self.name}({parameters}){self.suffix}{suffix} {{"]
        nodes: list[str] = []
        for block in self.blocks:
            lines.append(f"{block.label}:")
            lines += [
                instruction.render() + self._hint_suffix(instruction, nodes) for instruction in block.instructions
            ]
        return "\n".join([*lines, "}", self.tail, *nodes, ""])

    def _hint_suffix(self, instruction: Instruction, nodes: list[str]) -> str:
        """Return what an instruction's hints add to its line; append their metadata to ``nodes``."""
        hints = self.hints.get(instruction.uid)
        if not hints:
            return ""
        text = ""
        if "unpredictable" in hints:
            nodes.append(f"!{len(nodes)} = !{{}}")
            text += f", !unpredictable !{len(nodes) - 1}"
        loop = sorted((name, value) for name, value in hints.items() if name != "unpredictable")
        if loop:
            first = len(nodes)
            members = ", ".join(f"!{first + 1 + index}" for index in range(len(loop)))
            nodes.append(f"!{first} = distinct !{{!{first}, {members}}}")
            for name, value in loop:
                typed = f"i1 {value}" if value in ("true", "false") else f"i32 {value}"
                nodes.append(f'!{len(nodes)} = !{{!"llvm.loop.{name}", {typed}}}' if value
                             else f'!{len(nodes)} = !{{!"llvm.loop.{name}"}}')  # fmt: skip
            text += f", !llvm.loop !{first}"
        return text


def parse(text: str) -> Function:
    """Read a module that has exactly one function.

    Raises
    ------
    InputError
        It has another number of functions, or something that a kernel may not have; names the line.
    """
    lines, source = _without_debugging(text)
    begins = [index for index, line in enumerate(lines) if line.startswith("define ")]
    if len(begins) != 1:
        raise InputError(f"the module has {len(begins)} functions; a kernel is one",
                         fix="keep one function; what it calls must be an intrinsic or of libm")  # fmt: skip
    begin = begins[0]
    end = next(index for index in range(begin, len(lines)) if lines[index] == "}")
    name, result, arguments, suffix = _signature(lines[begin], begin + 1)
    rest = [line for line in (*lines[:begin], *lines[end + 1 :]) if line.startswith("declare ")]
    body = list(_statements(lines[begin + 1 : end], begin + 2))
    names = _names(arguments, body)
    renamed = tuple(replace(argument, uid=names[f"%{argument.uid}"][1:]) for argument in arguments)
    head = "\n".join(line for line in lines[:begin] if line.startswith(("target ", "%")) or _SHARED.match(line)).strip(
        "\n"
    )
    tail = "\n".join(re.sub(r" #\d+$", "", line) for line in rest if line.strip())
    blocks = _blocks(body, names)
    if source:
        blocks = tuple(replace(block, instructions=tuple(
            replace(instruction, line=source.get(instruction.line,
                0)) for instruction in block.instructions)) for block in blocks)  # fmt: skip
    return Function(name, result, renamed, blocks, head, tail, suffix)


def _without_debugging(text: str) -> tuple[list[str], dict[int, int]]:
    """Lines without what is there for debuggers, and the line of the source for each that has one."""
    lines = text.splitlines()
    indices = {result.group(1): int(result.group(2)) for line in lines
              if (result := re.match(r"(!\d+) = !DILocation\(line: (\d+)", line))}  # fmt: skip
    source: dict[int, int] = {}
    for index, line in enumerate(lines):
        if line.lstrip().startswith("#dbg_"):
            lines[index] = ""
        elif result := re.search(r", !dbg (!\d+)", line):
            source[index + 1] = indices.get(result.group(1), 0)
    return lines, source


def _signature(line: str, number: int) -> tuple[str, str, list[Argument], str]:
    results = re.match(r"define (.*?)@([-a-zA-Z$._0-9]+|\"[^\"]*\")\(", line)
    if results is None:
        raise InputError("this line defines no function that can be read", where=f"line {number}: {line[:80]}")
    inside, behind = ir_text.split_bracket(line, results.end() - 1)
    words = results.group(1).split()
    result = words[-1] if words else "void"
    if _ENTRY in words:  # what a GPU is asked to run, and no function that its code calls
        result = f"{_ENTRY} {result}"
    arguments = []
    for index, part in enumerate(ir_text.split_top(inside)):
        kind, rest = ir_text.take_type(part)
        *attributes, last = ir_text.words(rest) or [f"%{index}"]
        if not last.startswith("%"):
            attributes, last = [*attributes, last], f"%{index}"
        promised = tuple(word for word in attributes if re.match(_PROMISES, word))
        arguments.append(Argument(last[1:], kind, promised))
    kept = [word for word in re.findall(r"[a-z_]+(?:\([^)]*\))?", behind.split("{")[0].split("#")[0])
            if word in ("nounwind", "norecurse", "nosync", "nofree")]  # fmt: skip
    return results.group(2), result, arguments, "".join(f" {word}" for word in kept)


def _statements(lines: list[str], first: int) -> Iterator[tuple[int, str]]:
    """Line number and text of labels and instructions, each on one line."""
    joined, number = "", 0
    for index, line in enumerate(lines):
        plain = line.split(";", 1)[0].rstrip() if '"' not in line else line.rstrip()
        if not plain.strip():
            continue
        number = number if joined else first + index
        joined = f"{joined} {plain.strip()}" if joined else plain
        if joined.count("[") > joined.count("]"):
            continue
        yield number, joined
        joined = ""


def _names(arguments: list[Argument], body: list[tuple[int, str]]) -> dict[str, str]:
    names = {f"%{argument.uid}": f"%A{position}" for position, argument in enumerate(arguments, 1)}
    unnamed = sum(argument.uid.isdigit() for argument in arguments)
    num_blocks = num_instructions = 0
    for index, (_, text) in enumerate(body):
        label = _LABEL.match(text)
        if label or index == 0:
            num_blocks += 1
            names[f"%{label.group(1)}" if label else f"%{unnamed}"] = f"%B{num_blocks}"
        if not label:
            num_instructions += 1
            result = _RESULT.match(text.strip())
            if result:
                names[result.group(1)] = f"%U{num_instructions}"
    return names


def _blocks(body: list[tuple[int, str]], names: dict[str, str]) -> tuple[Block, ...]:
    blocks: list[Block] = []
    current: list[Instruction] = []
    count = 0
    for index, (number, text) in enumerate(body):
        label = _LABEL.match(text)
        if label or index == 0:
            current = []
            blocks.append(Block(f"B{len(blocks) + 1}", ()))
        if label:
            continue
        count += 1
        plain = _ATTACHED.sub("", _LOCAL.sub(lambda m: names.get(m.group(), m.group()), text.strip()))
        current.append(_instruction(f"U{count}", re.sub(r" #\d+$", "", plain), number))
        blocks[-1] = Block(blocks[-1].label, tuple(current))
    return tuple(blocks)


def _instruction(uid: str, text: str, line: int) -> Instruction:
    plain = text.split(" = ", 1)[1] if re.match(r"%\S+ = ", text) else text
    try:
        opcode, kind, pieces, incoming, flags = ir_text.take_apart(plain)
    except ir_text.UnknownTextError as error:
        raise InputError(
            f"a kernel may not have {error}", where=f"line {line}: {text[:100]}",
            fix="kernels have arithmetic, loads, stores, branches, and calls of intrinsics and libm",
        ) from error  # fmt: skip
    created = tuple(piece if isinstance(piece, str) else Operand(*piece) for piece in pieces)
    return Instruction(uid, opcode, kind, created, line, incoming, flags)
