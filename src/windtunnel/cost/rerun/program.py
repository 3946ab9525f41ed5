"""The program of a captured iteration.

In: a graph whose capture kept its calls (``meta.program``, column ``call``). Out: ``Program``: the operators that
Python called, in order, with all their arguments. Not here: running it (``interpreter``).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import PriceError
from windtunnel.graph import Graph, Phase

__all__ = [
    "NOT_FLOWN",
    "Call",
    "Program",
    "TensorSpec",
    "data_of",
    "device_names",
    "program_of",
    "random_inputs",
    "tensors_of",
]

# updates have flights of their own, and what a loader makes is an input of the step
NOT_FLOWN = (Phase.UPDATE, Phase.DATA)
_TENSOR_FIELDS = 6  # of a recorded tensor: two identities, offset, elements, bytes of one, device
UNDEFINED = "Tensor(nullptr"  # an optional tensor that was not given
_COMPILED = "compiled"  # the mark of compiled code
# arguments that look like data but belong to a layer
_LAYER_ARGUMENTS = frozenset({"weight", "bias", "running_mean", "running_var", "params"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as the capture saw it: identity, shape, stride, type; ``path`` is its place among the arguments.

    ``device`` is the kind of device that it lies on, such as ``cuda``.
    """

    identity: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    path: tuple[int, ...] = ()
    device: str = "cpu"

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Call:
    """One operator that Python called, or a mark: ``backward``, ``update``."""

    mark: str = ""
    schema: str = ""
    inputs: Any = field(default=(), repr=False)
    shapes: Any = field(default=(), repr=False)
    types: Any = field(default=(), repr=False)
    strides: Any = field(default=(), repr=False)
    outputs: Any = field(default=(), repr=False)
    output_shapes: Any = field(default=(), repr=False)
    output_types: Any = field(default=(), repr=False)
    grad: bool = False
    layer: str = ""
    phase: Phase = Phase.OTHER

    @property
    def operator(self) -> str:
        """Schema name without overload, such as ``aten::linear``."""
        return self.schema.partition("(")[0].partition(".")[0]

    @property
    def signature(self) -> str:
        """Everything but identities: equal calls cost the same."""
        arguments = [None if "Tensor" in kind else value for kind, value in zip(self.types, self.inputs, strict=True)]
        return json.dumps([self.shapes, self.types, self.strides, arguments, self.grad], separators=(",", ":"))


@dataclass(frozen=True)
class Program:
    """The calls of one iteration.

    Parameters
    ----------
    calls : tuple of Call
    parameters : dict
        Tensor identity to parameter name.
    frozen : frozenset
        Names of parameters that needed no gradient in the capture.
    threads : int
        Threads within operators during the capture; 0 if unknown.
    recomputed : tuple of (int, int)
        Ranges of calls, [first, last), that checkpoints ran again in the backward pass.
    compiled : tuple of (int, int)
        Ranges of calls, [first, last), that ran as compiled code.
    captured_on : tuple of str
        Names of the GPUs that the capture saw.
    """

    calls: tuple[Call, ...]
    parameters: dict[int, str]
    frozen: frozenset[str] = frozenset()
    threads: int = 0
    recomputed: tuple[tuple[int, int], ...] = ()
    compiled: tuple[tuple[int, int], ...] = ()
    captured_on: tuple[str, ...] = ()

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """GPUs that hold tensors of its calls, such as ``("cuda:0",)``; empty for a program on the CPU."""
        values = [value for call in self.calls for value in (*call.inputs, *call.outputs)]
        found = {name for value in values for name in _gpus_among(value)}
        return tuple(sorted(found))

    @property
    def device(self) -> str:
        """``cuda`` for a program that runs on a GPU, ``cpu`` otherwise."""
        return "cuda" if self.devices else "cpu"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all calls: equal programs cost the same."""
        flown = [call for call in self.calls if call.phase is not Phase.DATA]
        strings = [call.mark or call.schema + call.signature for call in flown]
        again = [str(self.recomputed)] if self.recomputed else []
        again += [f"compiled {self.compiled}"] if self.compiled else []
        again += [f"on {self.device}"] if self.devices else []
        return hashlib.sha256("\n".join([*strings, str(sorted(self.frozen)), *again]).encode()).hexdigest()[:16]

    def data_inputs(self) -> dict[int, TensorSpec]:
        """Tensors that come from outside and belong to no layer, by identity; gradients are no data."""
        produced: set[int] = set(self.parameters)
        result: dict[int, TensorSpec] = {}
        for call in self.calls:
            if call.mark or call.phase in NOT_FLOWN:
                continue
            if call.grad:
                new = [spec for spec in data_of(call) if spec.identity not in produced]
                result |= {spec.identity: spec for spec in new if spec.identity not in result}
            produced |= {spec.identity for spec in tensors_of(call.outputs, call.output_shapes, call.output_types)}
            result |= random_inputs(call)
        return result


def data_of(call: Call) -> list[TensorSpec]:
    """Tensors that a call reads and that do not belong to its layer."""
    names = argument_names(call.schema)
    specs = tensors_of(call.inputs, call.shapes, call.types, call.strides)
    return [spec for spec in specs if not (spec.path[0] < len(names) and names[spec.path[0]] in _LAYER_ARGUMENTS)]


def random_inputs(call: Call) -> dict[int, TensorSpec]:
    """A step that draws its own data: what a generator makes outside of any layer is an input."""
    if call.layer or not call.operator.startswith(("aten::rand", "aten::normal")) or call.operator.endswith("like"):
        return {}
    outputs = tensors_of(call.outputs, call.output_shapes, call.output_types)
    return {spec.identity: spec for spec in outputs}


def argument_names(schema: str) -> list[str]:
    """Names of the arguments of an operator schema.

    Examples
    --------
    >>> argument_names("aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor")
    ['input', 'weight', 'bias']
    """
    inside = schema.partition("(")[2].rpartition(" -> ")[0].rstrip(")")
    parts = [part for part in _top_level(inside) if part and part != "*"]
    return [part.partition("=")[0].split(" ")[-1] for part in parts]


def _top_level(text: str) -> list[str]:
    """Split at the commas that lie in no bracket."""
    parts, depth, started = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[started:index].strip())
            started = index + 1
    parts.append(text[started:].strip())
    return parts


def tensors_of(values: Any, shapes: Any, types: Any, strides: Any = ()) -> list[TensorSpec]:
    """Every tensor among recorded values, lists of tensors opened."""
    result: list[TensorSpec] = []
    for index, (value, shape, kind) in enumerate(zip(values, shapes, types, strict=True)):
        stride = strides[index] if index < len(strides) else ()
        result += _specs(value, shape, kind, stride, (index,))
    return result


def _device_of(value: Any) -> str:
    """Where a recorded tensor lies; older captures kept fewer fields."""
    return str(value[-1]) if len(value) == _TENSOR_FIELDS and value[-1] else "cpu"


def _specs(value: Any, shape: Any, kind: str, stride: Any, path: tuple[int, ...]) -> list[TensorSpec]:
    if kind.startswith(UNDEFINED):
        return []
    if kind.startswith("Tensor(nullptr"):  # an argument that was left out
        return []
    if kind.startswith("Tensor("):
        known = tuple(stride) if isinstance(stride, list) and len(stride) == len(shape) else ()
        return [TensorSpec(int(value[0]), tuple(shape), known, kind[7:-1], path, _device_of(value).partition(":")[0])]
    if kind.startswith("GenericList[") and "Tensor(" in kind:
        kinds = _top_level(kind[len("GenericList[") : -1])
        result: list[TensorSpec] = []
        for index, (item, inner) in enumerate(zip(value, kinds, strict=False)):
            inner_stride = stride[index] if isinstance(stride, list) and index < len(stride) else ()
            result += _specs(item, shape[index], inner, inner_stride, (*path, index))
        return result
    return []


def _gpus_among(value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)):
        return []
    if len(value) == _TENSOR_FIELDS and isinstance(value[-1], str):
        return [value[-1]] if value[-1].startswith("cuda") else []
    return [name for item in value for name in _gpus_among(item)]


def program_of(graph: Graph) -> Program:
    """Read the program that a capture kept.

    Raises
    ------
    PriceError
        The graph has none: it comes from a trace that others made, or from an older capture.
    """
    stored = graph.meta.program
    if not stored or "call" not in graph.tasks:
        raise PriceError(
            "this graph does not say which operators were called with which arguments",
            where=f"source {graph.meta.source!r}",
            fix="capture the step with windtunnel, or take published ratios: prices='paper'",
        )
    if any(row.get("mark") == _COMPILED for row in stored["calls"]):
        raise PriceError(
            "this step runs compiled code whose operators are not known",
            where=stored.get("reason", "torch.compile"),
            fix="capture it uncompiled, or verify the what-if by a real run",
        )
    layers, phases = _places(graph, len(stored["calls"]))
    ranges = tuple((int(first), int(last)) for first, last in stored.get("compiled", ()))
    for key, layer in stored.get("layers", {}).items():
        layers[int(key)], phases[int(key)] = layer, Phase.FORWARD
    calls = tuple(Call(**row, layer=layers[index], phase=phases[index]) for index, row in enumerate(stored["calls"]))
    parameters = {int(identity): name for identity, name in stored["parameters"].items()}
    threads = int(graph.meta.hardware.get("num_threads", 0))
    recomputed = tuple((int(first), int(last)) for first, last in stored.get("recomputed", ()))
    frozen, captured_on = frozenset(stored.get("frozen", ())), device_names(graph)
    return Program(calls, parameters, frozen, threads, recomputed, ranges, captured_on)


def device_names(graph: Graph) -> tuple[str, ...]:
    """Names of the GPUs that a capture saw, each once; empty where it says none."""
    named = graph.meta.hardware.get("devices", ())
    return tuple(dict.fromkeys(str(item["name"]) for item in named if item.get("name")))


def _places(graph: Graph, num_calls: int) -> tuple[list[str], list[Phase]]:
    """Layer and phase of every call, from the tasks that did its forward work."""
    layers, phases = [""] * num_calls, [Phase.OTHER] * num_calls
    call: NDArray[np.int32] = graph.tasks["call"]
    phase = graph.tasks["phase"]
    strings = graph.tasks.strings("layer") if "layer" in graph.tasks else None
    for row in np.flatnonzero((call >= 0) & (phase != Phase.BACKWARD)).tolist():
        phases[call[row]] = Phase(int(phase[row]))
        if strings is not None and not layers[call[row]]:
            layers[call[row]] = strings.decode(row)
    return layers, phases
