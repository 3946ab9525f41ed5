"""Loop nests of tensor programs as light trees.

In: nodes built by hand or from a tensor compiler. Out: ``Nest``, the one form that the features, the
encoding and the physical bound read. Not here: features, compilers.

Expressions are nested tuples, so that they hash and compare without help: an ``int``, a ``float``, a
``str`` (the variable of a loop) or ``(operation, *operands)``. ``("load", buffer, *indices)`` reads a buffer,
``("call", name, *arguments)`` is a pure mathematical function, ``("cast", dtype, operand)`` changes the type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from windtunnel.errors import InputError

__all__ = [
    "Allocate",
    "Attribute",
    "Buffer",
    "Expression",
    "For",
    "If",
    "LoopAxis",
    "LoopKind",
    "Nest",
    "Node",
    "Store",
    "stores",
]

LoopKind = Literal["serial", "parallel", "vectorized", "unrolled", "thread"]
LoopAxis = Literal["spatial", "reduce"]
Expression = int | float | str | tuple[Any, ...]

ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "floormod", "min", "max")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BINARY = frozenset((*ARITHMETIC, *COMPARISONS, "and", "or"))
THREADS = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z", "vthread")
NUM_OPERANDS = {**dict.fromkeys(BINARY, 2), "not": 1, "select": 3, "cast": 2}
DTYPE_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "float16": 2, "bfloat16": 2, "int16": 2, "int32": 4, "uint32": 4}
DTYPE_BYTES |= {"float32": 4, "float64": 8, "int64": 8, "uint64": 8}
UNROLL_KEY = "pragma_auto_unroll_max_step"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor: its name, extents and type."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def num_elements(self) -> int:
        """Product of the extents."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total


@dataclass(frozen=True, slots=True)
class For:
    """A loop; with ``kind="thread"`` the loop variable is the GPU index named by ``thread``."""

    variable: str
    extent: int
    body: tuple[Node, ...]
    kind: LoopKind = "serial"
    axis: LoopAxis = "spatial"
    minimum: int = 0
    thread: str = ""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A pragma over its body, such as ``pragma_auto_unroll_max_step``."""

    key: str
    value: int | str
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Allocate:
    """A temporary of the nest; lives from here on."""

    buffer: str
    body: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class If:
    """A guard; it carries no id of its own in the serialized tree."""

    condition: Expression
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """``buffer[indices] = value``: a leaf."""

    buffer: str
    indices: tuple[Expression, ...]
    value: Expression


Node = For | Attribute | Allocate | If | Store


@dataclass(frozen=True, slots=True)
class Nest:
    """A scheduled tensor program: the tree under an artificial root, and its buffers."""

    body: tuple[Node, ...]
    buffers: Mapping[str, Buffer]
    name: str = ""
    is_gpu: bool = field(default=False)

    def __post_init__(self) -> None:
        for buffer in self.buffers.values():
            if buffer.dtype not in DTYPE_BYTES:
                raise InputError(f"{buffer.name} is of unknown type {buffer.dtype!r}", where=self.name or "nest")
        _check_nodes(self.body, self.buffers, frozenset(), self.name or "nest")


def stores(nodes: tuple[Node, ...]) -> Iterator[Store]:
    """The leaves of a tree in program order."""
    for node in nodes:
        if isinstance(node, Store):
            yield node
            continue
        yield from stores(node.body)
        if isinstance(node, If):
            yield from stores(node.otherwise)


def _check_nodes(nodes: tuple[Node, ...], buffers: Mapping[str, Buffer], variables: frozenset[str], where: str) -> None:
    for node in nodes:
        if isinstance(node, Store):
            _check_access(node.buffer, node.indices, buffers, variables, where)
            _check_expression(node.value, buffers, variables, where)
            continue
        inner = variables
        if isinstance(node, For):
            _check_loop(node, where)
            inner = variables | {node.variable}
        elif isinstance(node, Allocate) and node.buffer not in buffers:
            raise InputError(f"the nest allocates {node.buffer!r}, which is not among its buffers", where=where)
        elif isinstance(node, If):
            _check_expression(node.condition, buffers, variables, where)
            _check_nodes(node.otherwise, buffers, inner, where)
        _check_nodes(node.body, buffers, inner, where)


def _check_loop(node: For, where: str) -> None:
    if node.extent < 1:
        raise InputError(f"loop {node.variable!r} has extent {node.extent}", where=where, fix="extents are >= 1")
    if node.kind not in get_args(LoopKind) or node.axis not in get_args(LoopAxis):
        raise InputError(f"loop {node.variable!r} is of unknown kind {node.kind!r} or axis {node.axis!r}", where=where)
    if node.kind == "thread" and node.thread not in THREADS:
        raise InputError(f"loop {node.variable!r} is bound to {node.thread!r}", where=where, fix=", ".join(THREADS))


def _check_access(
    name: str,
    indices: tuple[Expression, ...],
    buffers: Mapping[str, Buffer],
    variables: frozenset[str],
    where: str,
) -> None:
    buffer = buffers.get(name)
    if buffer is None:
        raise InputError(f"an access names buffer {name!r}, which the nest does not have", where=where)
    if len(indices) != len(buffer.shape):
        raise InputError(f"{name} has {len(buffer.shape)} dimensions but is read with {len(indices)}", where=where)
    for index in indices:
        _check_expression(index, buffers, variables, where)


def _check_expression(value: Expression, buffers: Mapping[str, Buffer], variables: frozenset[str], where: str) -> None:
    if not isinstance(value, tuple):
        if isinstance(value, str) and value not in variables:
            raise InputError(f"variable {value!r} belongs to no enclosing loop", where=where)
        return
    operation, *operands = value
    if operation == "load":
        _check_access(operands[0], tuple(operands[1:]), buffers, variables, where)
        return
    if operation != "call" and NUM_OPERANDS.get(operation) != len(operands):
        raise InputError(f"unknown operation {operation!r} with {len(operands)} operands", where=where)
    for operand in operands[operation in ("call", "cast") :]:
        _check_expression(operand, buffers, variables, where)
