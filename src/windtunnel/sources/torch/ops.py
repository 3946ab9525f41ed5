"""What an operator does with its tensors.

In: a node of the execution trace. Out: ``Operator``: what it reads, what it writes, whether it computes at all, its
shapes and its work in flops. Ranges of storages, not tensors, so that views and in-place operators need no special
case.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import torch

from windtunnel.graph.flops import operator_flops, sums_products

__all__ = [
    "Operator",
    "Role",
    "Span",
    "describe",
    "is_tensor_record",
    "is_view",
    "resolve_recipes",
    "spans_of",
    "text_of",
]

_READERS = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal")
# running statistics change although the schema does not say so
_UNSTATED_MUTATIONS = {
    "aten::native_batch_norm": frozenset({3, 4}),
    "aten::cudnn_batch_norm": frozenset({3, 4}),
    "aten::miopen_batch_norm": frozenset({3, 4}),
}
# the first is filled, whatever it held
_OVERWRITES = ("aten::copy_", "aten::zero_", "aten::fill_", "aten::_foreach_copy_", "aten::_foreach_zero_")
# beta times the first, which is not read where beta is 0
_ADDS_SCALED = ("aten::addmm", "aten::addmv", "aten::addbmm", "aten::baddbmm")
_UNSTATED_VIEWS = ("aten::_unsafe_view", "aten::_reshape_alias")
_CHANGES_ONLY_FORM = re.compile(r"aten::(detach|requires_grad|t|transpose|squeeze|unsqueeze|as_strided|swapaxes)_$")
_ALLOCATORS = re.compile(r"aten::(empty|new_empty|empty_like|empty_strided|resize_|set_)\w*$")


class Role(Enum):
    """What running an operator means for the tensors."""

    COMPUTE = "compute"  # reads and writes elements
    VIEW = "view"  # other shape, same elements
    ALLOCATE = "allocate"  # elements of no defined value
    COMPOSITE = "composite"  # only calls other operators
    RECIPE = "recipe"  # may only call other operators: its calls show it
    READ = "read"  # a number for Python: the thread needs the value
    NONE = "none"  # not an operator: annotation, autograd node


class Span(NamedTuple):
    """Bytes ``low`` to ``high`` of a storage that a tensor reaches; ``num_bytes`` of them are its elements."""

    storage: int
    low: int
    high: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Operator:
    """One call: its tensors as spans, its arguments as JSON text."""

    role: Role
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()  # fresh outputs
    mutates: tuple[Span, ...] = ()  # changed in place
    schema: str = ""
    shapes: str = "[]"
    dtypes: str = "[]"
    strides: str = "[]"
    arguments: str = "[]"
    flops: int = 0


class _Schema(NamedTuple):
    name: str
    mutated: frozenset[int]
    aliases_output: bool
    outs: frozenset[int]  # only written: what they held does not matter


_NOT_AN_OPERATOR = Operator(Role.NONE)


def describe(node: dict[str, Any] | None) -> Operator:
    """Describe one node of the execution trace; one without a schema is not an operator."""
    if node is None or not node["schema"]:
        return _NOT_AN_OPERATOR
    schema = _parse(node["schema"])
    values = node["inputs"]["values"]
    shapes, strides = node["inputs"]["shapes"], node["inputs"].get("strides", [])
    per_input = [
        spans_of(value, shapes[row], strides[row] if row < len(strides) else None) for row, value in enumerate(values)
    ]
    if any(_is_sparse(value, shape) for value, shape in zip(values, shapes, strict=False)):
        # of a table, rows as many as a sparse gradient has: how many that is stands in no record
        per_input = [[span._replace(num_bytes=0) for span in spans] for spans in per_input]
    outputs = node["outputs"]
    is_unread = schema.name.split(".")[0] in _OVERWRITES or (schema.name in _ADDS_SCALED and values[3] == 0)
    unread = schema.outs | ({0} if is_unread else set())
    reads = tuple(span for row, spans in enumerate(per_input) if row not in unread for span in spans)
    # a result in an argument's storage is a view of it, whatever the schema says (aten::_unsafe_view, aten::reshape)
    known = {span.storage for spans in per_input for span in spans}
    fresh = [] if schema.aliases_output else [span for span in _all_spans(outputs) if span.storage not in known]
    role = _role(schema, bool(fresh) or bool(schema.mutated))
    return Operator(
        role=role,
        reads=reads,
        writes=tuple(fresh),
        mutates=tuple(span for row in sorted(schema.mutated) if row < len(per_input) for span in per_input[row]),
        schema=node["schema"],
        shapes=text_of(shapes),
        dtypes=text_of(node["inputs"]["types"]),
        strides=text_of(strides),
        arguments=text_of(
            [None if spans else _constant(value) for spans, value in zip(per_input, values, strict=True)]
        ),
        flops=operator_flops(schema.name, shapes, values, outputs["shapes"])
        if role in (Role.COMPUTE, Role.RECIPE)
        else 0,
    )


def is_view(text: str) -> bool:
    """Whether by its schema an operator's result lies in the storage of its first tensor."""
    schema = _parse(text)
    return schema.aliases_output or schema.name.split(".")[0] in _UNSTATED_VIEWS


def _role(schema: _Schema, writes: bool) -> Role:
    if schema.name.startswith("c10d::"):  # it only issues: what it sends is a task of its own
        return Role.COMPOSITE
    if schema.name.split(".")[0] in _READERS:
        return Role.READ
    if _ALLOCATORS.match(schema.name.split(".")[0]):
        return Role.ALLOCATE
    if _is_composite(schema.name):
        return Role.COMPOSITE
    if not writes or _CHANGES_ONLY_FORM.match(schema.name.split(".")[0]):
        return Role.VIEW
    return Role.RECIPE if _is_recipe(schema.name) else Role.COMPUTE


@functools.cache
def _parse(text: str) -> _Schema:
    """Which arguments change (``(a!)``) and whether the result is one of them or a view of one."""
    name, _, rest = text.partition("(")
    arguments, _, returns = rest.rpartition(") -> ")
    stated = [part.strip() for part in _split_arguments(arguments)]
    parts = [part for part in stated if part != "*"]
    num_positional = stated.index("*") if "*" in stated else len(stated)
    mutated = frozenset(row for row, part in enumerate(parts) if re.search(r"\(\w+!(\s*->[^)]*)?\)", part))
    outs = frozenset(row for row in mutated if row >= num_positional)  # torch passes these by name alone
    mutated |= _UNSTATED_MUTATIONS.get(name.split(".")[0], frozenset())
    return _Schema(name, mutated, re.search(r"Tensor\(\w", returns) is not None, outs)


def _split_arguments(arguments: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(arguments):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(arguments[begin:index])
            begin = index + 1
    return [*parts, arguments[begin:]] if arguments.strip() else []


@functools.cache
def _is_composite(name: str) -> bool:
    """Whether the operator has no kernel of its own, only a recipe of other operators."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return has(name, "CompositeImplicitAutograd") and not has(name, "CPU")
    except RuntimeError:  # an operator of an extension that has been unloaded
        return False


@functools.cache
def _is_recipe(name: str) -> bool:
    """Whether the operator's kernel is the same for every device, so most likely made of others."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return has(name, "CompositeExplicitAutograd") and not has(name, "CPU")
    except RuntimeError:
        return False


def resolve_recipes(operators: list[Operator], parents: list[int]) -> list[Operator]:
    """Say of every recipe, by its calls (``parents`` [E]), whether it computes itself or only calls what does.

    A recipe of products whose calls make none makes them itself, whatever else it calls: a convolution's backward pass
    leaves only the sum for the bias to others.
    """
    sums = [
        operator.role in (Role.COMPUTE, Role.RECIPE) and sums_products(_parse(operator.schema).name)
        for operator in operators
    ]
    calls_compute, calls_sums = [False] * len(operators), [False] * len(operators)
    for event in range(len(operators) - 1, -1, -1):
        parent = parents[event]
        if parent >= 0:
            computes = operators[event].role in (Role.COMPUTE, Role.RECIPE) or calls_compute[event]
            calls_compute[parent] |= computes
            calls_sums[parent] |= sums[event] or calls_sums[event]
    computes_itself = [
        not calls or (sum_ and not called) for calls, sum_, called in zip(calls_compute, sums, calls_sums, strict=True)
    ]
    return [
        replace(operator, role=Role.COMPUTE if itself else Role.COMPOSITE) if operator.role is Role.RECIPE else operator
        for operator, itself in zip(operators, computes_itself, strict=True)
    ]


def is_tensor_record(value: Any) -> bool:
    """Whether an argument that a profile noted is a tensor: its number, storage, offset, size, item and device."""
    return isinstance(value, list) and len(value) == 6 and isinstance(value[5], str)


def _is_sparse(value: Any, shape: Any) -> bool:
    """Whether a tensor has elements by its shape and none in a storage, as a sparse one."""
    is_shape = isinstance(shape, list) and len(shape) > 0 and all(isinstance(size, int) for size in shape)
    return is_tensor_record(value) and is_shape and not value[3] and math.prod(shape) > 0


def _constant(value: Any) -> Any:
    """What is no tensor; one without storage has a number nevertheless, another in every process."""
    if is_tensor_record(value):
        return None
    return [_constant(item) for item in value] if isinstance(value, list) else value


def spans_of(value: Any, shape: Any, stride: Any) -> list[Span]:
    """Byte ranges of the storages that a recorded value covers: one per tensor."""
    if is_tensor_record(value):
        _, storage, offset, num_elements, element_bytes, _ = value
        reach = _reach(shape, stride, num_elements)
        low = offset * element_bytes
        return [Span(storage, low, low + reach * element_bytes, num_elements * element_bytes)] if num_elements else []
    if not isinstance(value, list):
        return []
    result = []
    for row, item in enumerate(value):
        inner = stride[row] if isinstance(stride, list) and row < len(stride) else None
        result += spans_of(item, shape[row] if isinstance(shape, list) and row < len(shape) else None, inner)
    return result


def _reach(shape: Any, stride: Any, num_elements: int) -> int:
    """Elements from the first to the last that a strided tensor touches."""
    if not (isinstance(shape, list) and isinstance(stride, list) and len(shape) == len(stride)):
        return num_elements
    if not all(isinstance(size, int) for size in (*shape, *stride)):
        return num_elements
    return 1 + sum(int((size - 1) * step) for size, step in zip(shape, stride, strict=True))


def _all_spans(side: dict[str, Any]) -> list[Span]:
    strides = side.get("strides", [])
    return [
        span
        for row, value in enumerate(side["values"])
        for span in spans_of(value, side["shapes"][row], strides[row] if row < len(strides) else None)
    ]


def text_of(value: Any) -> str:
    """Return a recorded value as JSON."""
    return msgspec.json.encode(value).decode()
