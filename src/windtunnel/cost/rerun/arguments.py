"""Arguments of recorded calls: from values in a trace to something that torch accepts.

In: the calls of a program. Out: ``Prepared``: the operator itself, its arguments with a slot for every tensor, and
which tensors are needed for the last time. Tensors are single assignments: each write makes a new version of an
identity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from windtunnel import registry
from windtunnel.cost.rerun.form import Form
from windtunnel.cost.rerun.lengths import with_lengths
from windtunnel.cost.rerun.program import NOT_FLOWN, UNDEFINED, Call, Program, TensorSpec, argument_names, tensors_of
from windtunnel.errors import PriceError

__all__ = ["DTYPES", "Prepared", "Replaced", "Slot", "fill", "prepare"]

DTYPES: dict[str, torch.dtype] = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::BFloat16": torch.bfloat16,
    "c10::Half": torch.float16,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "short": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::complex<float>": torch.complex64,
    "c10::complex<double>": torch.complex128,
}


@dataclass
class Slot:
    """A tensor among arguments or results; ``version`` names its value."""

    version: int
    spec: TensorSpec
    shape: tuple[int, ...]  # in the form that is run
    is_held: bool = False  # comes from outside of the program: a parameter, a buffer, data
    is_used: bool = False
    is_root: bool = False


@dataclass
class Prepared:
    """One call, ready to run."""

    function: Any = None
    positional: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)
    inputs: list[Slot] = field(default_factory=list)
    outputs: list[Slot] = field(default_factory=list)
    dies: tuple[int, ...] = ()
    grad: bool = False
    problem: str = ""
    is_fitted: bool = False

    def arguments(self, values: dict[int, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments with the current tensors."""
        if self.problem:
            raise ValueError(self.problem)
        positional = [_fill_slots(item, values) for item in self.positional]
        return positional, {name: _fill_slots(item, values) for name, item in self.keywords.items()}


def _fill_slots(item: Any, values: dict[int, Any]) -> Any:
    if isinstance(item, Slot):
        return values[item.version]
    if isinstance(item, list):
        return [_fill_slots(inner, values) for inner in item]
    return item


def fill(spec: TensorSpec, shape: tuple[int, ...], *, positive: bool = True, bound: int = 2) -> torch.Tensor:
    """A tensor with random values: numbers from 0 to 1, integers below ``bound``, all False; a lone integer is 1.

    A lone one is a number that Python passed, which divides more often than it indexes.
    """
    if spec.device != "cpu":
        with torch.device(spec.device):
            return fill(replace(spec, device="cpu"), shape, positive=positive, bound=bound)
    dtype = DTYPES.get(spec.dtype)
    if dtype is None:
        raise PriceError(f"no tensor of type {spec.dtype!r} can be made here")
    if dtype == torch.bool:
        created = torch.zeros(shape, dtype=dtype)
    elif dtype.is_floating_point or dtype.is_complex:
        created = torch.rand(shape, dtype=dtype) if positive else torch.randn(shape, dtype=dtype)
    else:
        created = torch.randint(0 if shape else min(1, bound - 1), max(1, bound), shape, dtype=dtype)
    if shape == spec.shape and spec.stride and not _is_usual(created, spec.stride):
        return _with_stride(created, spec.stride)
    return created


def _is_usual(tensor: torch.Tensor, stride: tuple[int, ...]) -> bool:
    return tensor.numel() == 0 or tuple(tensor.stride()) == stride


def _with_stride(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, stride, strict=True))
    if min(stride, default=0) < 0 or reach > 4 * tensor.numel() + 64:
        return tensor
    if 0 in stride:
        flat = torch.zeros(reach, dtype=tensor.dtype)
        return flat.as_strided(tensor.shape, stride)
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def prepare(program: Program, form: Form) -> list[Prepared]:
    """Make every call of the program ready."""
    builder = _Builder(program, form)
    rows = [builder.call(call) for call in program.calls]
    for norm, rectifier, leak in form.rectified:
        rows[norm].function = _make_rectified_norm(leak)
        if rectifier >= 0:
            rows[rectifier].function = _pass_through
    for index, layer, settings in form.replaced:
        rows[index].function = Replaced(program.calls[index].operator, layer, dict(settings))
    for index in form.sparse:
        rows[index].positional[argument_names(program.calls[index].schema).index("sparse")] = True
    _mark_lives(program, rows)
    return rows


class Replaced:
    """What a registered layer runs in place of an operator; made when the first arguments are there.

    Attributes
    ----------
    parameters : tuple of Tensor
        What the layer brings along.
    """

    def __init__(self, operator: str, layer: str, settings: dict[str, Any]) -> None:
        self._operator, self._layer, self._settings = operator, layer, settings
        self._function: Callable[..., Any] | None = None
        self.parameters: tuple[torch.Tensor, ...] = ()

    def __call__(self, *arguments: Any) -> Any:
        """As the operator."""
        if self._function is None:
            created = registry.get("layer", self._layer).function(self._operator, arguments, **self._settings)
            self._function, self.parameters = created.function, created.parameters
        return self._function(*arguments)


def _make_rectified_norm(leak: float) -> Callable[..., torch.Tensor]:
    from windtunnel.cost.rerun.rectified_norm import RectifiedNorm

    def run(x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, *settings: Any) -> torch.Tensor:
        _training, momentum, eps = settings[:3]
        y, batch_mean, batch_variance = RectifiedNorm.apply(x, weight, bias, eps, leak)
        count = x.numel() // x.shape[1]
        if mean is not None:
            with torch.no_grad():
                mean.lerp_(batch_mean, momentum)
                variance.lerp_(batch_variance * (count / max(count - 1, 1)), momentum)
        result: torch.Tensor = y
        return result

    return run


def _pass_through(x: torch.Tensor, *_settings: Any) -> torch.Tensor:
    return x


class _Builder:
    """Walks the calls in order and knows the newest version of every identity."""

    def __init__(self, program: Program, form: Form) -> None:
        self._form = form
        self._current: dict[int, Slot] = {}
        self._versions = 0
        self._data = program.data_inputs()

    def call(self, call: Call) -> Prepared:
        if call.mark or call.phase in NOT_FLOWN:
            return Prepared()
        specs = {spec.path: spec for spec in tensors_of(call.inputs, call.shapes, call.types, call.strides)}
        slots = {path: self._read(spec) for path, spec in specs.items()}
        prepared = Prepared(grad=call.grad, inputs=list(slots.values()))
        arguments = [
            self._argument(value, kind, (index,), slots)
            for index, (value, kind) in enumerate(zip(call.inputs, call.types, strict=True))
        ]
        try:
            operator, names = operator_of(call.schema)
            prepared.function = with_lengths(call, operator)
        except (RuntimeError, AttributeError) as error:
            prepared.problem = str(error).partition("\n")[0]
            names = [("", False)] * len(arguments)
        for (name, only_keyword), value in zip(names, arguments, strict=False):
            if only_keyword:
                prepared.keywords[name] = value
            else:
                prepared.positional.append(value)
        outputs = tensors_of(call.outputs, call.output_shapes, call.output_types)
        prepared.outputs = [self._write(spec, prepared.inputs) for spec in outputs]
        return prepared

    def _argument(self, value: Any, kind: str, path: tuple[int, ...], slots: dict[tuple[int, ...], Slot]) -> Any:
        if path in slots:
            return slots[path]
        if isinstance(value, list) and kind.startswith("GenericList"):
            kinds = _inner_kinds(kind, len(value))
            return [self._argument(item, kinds[row], (*path, row), slots) for row, item in enumerate(value)]
        return _constant(value, kind)

    def _read(self, spec: TensorSpec) -> Slot:
        known = self._current.get(spec.identity)
        if known is None or known.spec.shape != spec.shape:
            known = Slot(self._new(), spec, self._new_shape(spec), is_held=True)
            self._current[spec.identity] = known
        return Slot(known.version, spec, known.shape, known.is_held)

    def _new_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        old, new = self._form.batch
        dims = [row for row, size in enumerate(spec.shape) if size == old]
        if old == new or spec.identity not in self._data or not dims:
            return spec.shape
        return tuple(new if row == dims[0] else size for row, size in enumerate(spec.shape))

    def _write(self, spec: TensorSpec, inputs: list[Slot]) -> Slot:
        is_held = any(slot.is_held and slot.spec.identity == spec.identity for slot in inputs)  # changed in place
        slot = Slot(self._new(), spec, spec.shape, is_held)
        self._current[spec.identity] = slot
        return slot

    def _new(self) -> int:
        self._versions += 1
        return self._versions


def _inner_kinds(kind: str, count: int) -> list[str]:
    inside = kind[len("GenericList[") : -1] if kind.startswith("GenericList[") else ""
    kinds = [part.strip() for part in inside.split(",")] if inside else []
    return (kinds + [""] * count)[:count]


def _constant(value: Any, kind: str) -> Any:
    if value == "<None>" or kind == "None" or kind.startswith(UNDEFINED):
        return None
    if kind == "Double" and isinstance(value, str):
        return float(value)
    if kind == "Generator":
        return None
    if kind == "Device" and isinstance(value, str):
        return value.partition(":")[0]  # the GPU here need not have the number that it had there
    return value


@functools.cache
def operator_of(schema: str) -> tuple[Any, list[tuple[str, bool]]]:
    """The operator of a schema, and the name of every argument with whether it is keyword-only."""
    parsed = torch._C.parse_schema(schema)
    namespace, _, name = parsed.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    overload = getattr(packet, parsed.overload_name or "default")
    return overload, [(argument.name, bool(argument.kwarg_only)) for argument in parsed.arguments]


def _mark_lives(program: Program, rows: list[Prepared]) -> None:
    """Find the last use of every version, and which results nothing differentiable ever reads."""
    last: dict[int, int] = {}
    # A root is a loss: one number that no differentiable call reads. detach and item read it without taking part in the
    # gradient, so they do not count.
    differentiated: set[int] = set()
    for index, row in enumerate(rows):
        for slot in row.inputs:
            last[slot.version] = index
            if row.grad and not program.calls[index].operator.endswith(("::detach", "::item", "::_local_scalar_dense")):
                differentiated.add(slot.version)
    for index, row in enumerate(rows):
        row.dies = tuple({slot.version for slot in row.inputs if last[slot.version] == index})
        row.outputs = [
            replace(
                slot,
                is_used=slot.version in last,
                is_root=slot.version not in differentiated and math.prod(slot.shape) == 1,
            )
            for slot in row.outputs
        ]
