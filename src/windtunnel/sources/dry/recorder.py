"""Operators of one rank as they are called on fake tensors.

In: a running program, streams. Out: ``Call``s in program order: what each reads and writes, its stream, phase and
layer, what it waits for, and, of a collective, its group and message. Not here: graphs (``build``), the process group
itself (``groups``).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._pytree import tree_leaves

from windtunnel.errors import InputError
from windtunnel.sources.dry.groups import WAIT, WRAP, Groups, Message, complete_collective
from windtunnel.sources.dry.host_side import rename_for_device
from windtunnel.sources.dry.streams import Streams
from windtunnel.sources.dry.thread import mark_call, pause_profile
from windtunnel.sources.dry.values import own_line
from windtunnel.sources.memory.dispatch import DispatchTracer, is_device_query, is_of_wrappers
from windtunnel.sources.memory.in_place import as_in_place
from windtunnel.sources.memory.storages import Places, storages_of

__all__ = ["Call", "Recorder", "storages_in"]

_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "c10::BFloat16",
    torch.float16: "c10::Half",
    torch.float8_e4m3fn: "c10::Float8_e4m3fn",
    torch.float8_e5m2: "c10::Float8_e5m2",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int16: "short int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}


_NO_OPERATORS = ("prim", "profiler")
_NAMES = {bool: "Bool", int: "Int", float: "Double", str: "String"}
_TEXTS: dict[Any, str] = {}


@dataclass(slots=True)
class Call:
    """One operator.

    ``node`` is as an execution trace has it; ``born_bytes`` and ``freed_bytes`` are what storages grew by in it, and
    shrank by until the next call; ``waits`` are earlier calls that its stream waited for, ``host_waits`` those that
    the program waited for before it made the call; ``label`` is how the host calls what it does for a device.
    """

    node: dict[str, Any]
    stream: int
    phase: int
    layer: int
    waits: tuple[int, ...] = ()
    host_waits: tuple[int, ...] = ()
    message: Message | None = None
    born_bytes: int = 0
    freed_bytes: int = 0
    label: str = ""


class _Reference(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("number",)
    number: int


@dataclass
class _Storages:
    """Numbers of storages, and how many bytes they hold."""

    sizes: dict[int, int] = field(default_factory=dict)
    freed_bytes: int = 0
    _known: dict[int, _Reference] = field(default_factory=dict)
    _count: int = 0

    def number(self, storage: Any) -> int:
        """The number of a storage, a new one at first sight."""
        known = self._known.get(id(storage))
        if known is not None and known() is storage:
            return known.number
        self._count += 1
        reference = _Reference(storage, self._forget_storage)
        reference.number = self._count
        self._known[id(storage)] = reference
        return self._count

    def update_size(self, number: int, storage: Any) -> int:
        """Record the size of a storage and return by how many bytes it grew since the last call."""
        size = storage.nbytes()
        extended = size - self.sizes.get(number, 0)
        self.sizes[number] = size
        return int(extended)

    def _forget_storage(self, reference: weakref.ref[Any]) -> None:
        number = reference.number  # type: ignore[attr-defined]
        self.freed_bytes += self.sizes.pop(number, 0)


class Recorder(DispatchTracer):
    """Takes down what is called while it is entered.

    Parameters
    ----------
    streams : Streams
        Say where a call is queued, and what its stream waits for.
    groups : Groups
        Say what a call sends.

    Attributes
    ----------
    calls : list of Call
    places : Places or None
        Says phase and layer; None while nothing is taken down.
    """

    def __init__(self, streams: Streams, groups: Groups) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.places: Places | None = None
        self._streams = streams
        self._groups = groups
        self._storages = _Storages()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_device_query(func, args):
            return args[0].device
        if is_of_wrappers(types):
            return NotImplemented
        if func._schema.name == WRAP:
            return AsyncCollectiveTensor(args[0])  # a fake one makes a tensor of its own
        if func.namespace in _NO_OPERATORS or (self.places is None and func.namespace != "c10d"):
            return func(*args, **(kwargs or {}))
        if func._schema.name == WAIT and self.places is not None:
            self.wait_for(args[0])
            return args[0]  # as a real one does; a fake one makes another tensor
        func, args = as_in_place(func, args, kwargs or {})
        values = _values(func._schema, args, kwargs or {})
        message = self._groups.message_of(func._schema, values)
        inputs = self._side(values) if self.places is not None else {}
        if message is not None and func.namespace == "c10d":
            result = complete_collective(func._schema, message, values)
        else:
            with pause_profile():
                result = func(*args, **(kwargs or {}))
        if self.places is None:
            return result
        outputs = self._side(result if isinstance(result, tuple) else (result,))
        self._take(func._schema, inputs, outputs, message)
        return result

    def begin(self, places: Places) -> None:
        """Take down what is called from now on."""
        self.places, self.calls = places, []

    def end(self) -> None:
        """Take down nothing more."""
        self.places = None

    def numbers(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """Numbers of the storages that tensors lie in."""
        return [self._storages.number(storage) for tensor in tensors for storage in storages_of(tensor)]

    def wait_for(self, values: Any) -> None:
        """The program waits for these tensors of a collective."""
        tensors = [tree_leaf for tree_leaf in tree_leaves(values) if isinstance(tree_leaf, torch.Tensor)]
        self._streams.wait_for_storages(self.numbers(tensors))

    def _take(self, schema: Any, inputs: dict[str, Any], outputs: dict[str, Any], message: Message | None) -> None:
        born = outputs.pop("grown") + inputs.pop("grown")
        overload = f".{schema.overload_name}" if schema.overload_name else ""
        key = (schema.name, schema.overload_name)
        if key not in _TEXTS:
            _TEXTS[key] = str(schema)
        node = {"name": f"{schema.name}{overload}", "schema": _TEXTS[key], "inputs": inputs, "outputs": outputs}
        label = rename_for_device(node)
        assert self.places is not None
        phase, layer = self.places.now()
        number = len(self.calls)
        if number:
            self.calls[-1].freed_bytes += self._storages.freed_bytes
        self._storages.freed_bytes = 0
        stream, waits = self._streams.enqueue(number, message, _collective_outputs(node, message))
        mark_call(number)
        host_waits = self._streams.host_waits()
        self.calls.append(Call(node, stream, phase, layer, waits, host_waits, message, born, label=label))

    def _side(self, values: Iterable[Any]) -> dict[str, Any]:
        result: dict[str, Any] = {"values": [], "shapes": [], "types": [], "strides": [], "grown": 0}
        for value in values:
            self._add(result, value)
        return result

    def _add(self, side: dict[str, Any], value: Any) -> None:
        if isinstance(value, torch.Tensor):
            record, extended = self._record(value)
            row: tuple[Any, ...] = (
                record,
                list(value.shape),
                f"Tensor({_TYPES.get(value.dtype, str(value.dtype).removeprefix('torch.'))})",
                list(value.stride()),
            )
            side["grown"] += extended
        elif isinstance(value, list | tuple):
            inner = self._side(value)
            side["grown"] += inner["grown"]
            kinds = ",".join(inner["types"])
            row = (inner["values"], inner["shapes"], f"GenericList[{kinds}]", inner["strides"])
        else:
            row = (_plain(value), [], _NAMES.get(type(value), "None" if value is None else "Other"), [])
        for name, item in zip(("values", "shapes", "types", "strides"), row, strict=True):
            side[name].append(item)

    def _record(self, tensor: torch.Tensor) -> tuple[list[Any], int]:
        if tensor.layout is not torch.strided:
            raise InputError(
                f"this job computes with {str(tensor.layout).removeprefix('torch.')} tensors, whose rows are not known "
                "without running it",
                where=own_line(),
                fix="make embeddings with sparse=False for this run, or capture the job as it runs",
            )
        storage = tensor.untyped_storage()
        number = self._storages.number(storage)
        extended = self._storages.update_size(number, storage)
        index = [id(tensor), number, tensor.storage_offset(), tensor.numel(), tensor.element_size(), "cpu"]
        return index, extended


def _plain(value: Any) -> Any:
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return value if type(value) in (int, float) else float(value)
    return str(value)


def _values(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """All arguments in the order of the schema."""
    rest = [kwargs.get(argument.name, argument.default_value) for argument in schema.arguments[len(args) :]]
    return [*args, *rest]


def _collective_outputs(node: dict[str, Any], message: Message | None) -> list[int]:
    """Storages that a collective fills."""
    if message is None:
        return []
    if not message.outputs:
        return storages_in(node["outputs"])
    return storages_in({"values": [node["inputs"]["values"][tensor] for tensor in message.outputs]})


def storages_in(side: dict[str, Any]) -> list[int]:
    """Numbers of the storages of all tensors among the arguments or the results of a call."""
    result: list[int] = []
    for value in side["values"]:
        if isinstance(value, list) and len(value) == 6 and isinstance(value[5], str):
            result.append(value[1])
        elif isinstance(value, list):
            result += storages_in({"values": value})
    return result
