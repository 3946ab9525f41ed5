"""A device that is not there.

In: nothing. Out: a context in which ``torch.cuda`` answers as one device of a host does, its streams only remember, and
what a program puts on it lies, as far as fake tensors lie anywhere, on the host: torch built without CUDA cannot make
tensors there, and operators below autograd are the same. Batch normalization over all ranks gives results of the right
shapes: torch has these operators for devices alone. Not here: which job it is (``job``), messages (``groups``).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo  # which looks at torch's own functions once, so before they are replaced
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from windtunnel.sources.dry.host_side import HostSide
from windtunnel.sources.dry.streams import Streams, patch_attributes
from windtunnel.sources.dry.values import READS, Values, asker, has_no_value, read_known, value_of_fake
from windtunnel.sources.memory.fake_mode import PAD, forget_value, pad
from windtunnel.sources.torch.device_operators import as_on_device, device_functions, recurrent_functions

__all__ = ["answer_reads", "device_stands_in", "on_device"]

_LIBRARY = torch.library.Library("aten", "IMPL", "Meta")
_GIB = 2**30
_NAME = "NVIDIA H100 80GB HBM3"
_HERE = torch.device("cpu")
_STANDS_IN = torch.device("cpu", 0)  # what a program gets that asks for a device: the host, but another one
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_ACCELERATOR = torch.device("cuda")
_PARSE_TO: Any = torch._C._nn._parse_to
_TAKES_DEVICE: dict[Any, int] = {torch.Tensor.to: 1, _PARSE_TO: 0}
_MOVES = (torch.Tensor.to, torch.Tensor.cuda)
# most calls of a program: they take a tensor only, and give no tensor
_FACTS = {torch.Tensor.untyped_storage, torch.Tensor.numel, torch.ops.prim.device.default} | {
    getattr(torch.Tensor, name).__get__ for name in ("dtype", "grad_fn", "is_leaf", "layout", "requires_grad", "shape")
}
_DISTRIBUTED = str(Path(torch.__file__).parent / "distributed")
_UPDATES = str(Path(torch.__file__).parent / "optim")
_INDICES = ("index", "idx")
_HOST_GENERATOR = torch.Generator


def _per_channel(x: torch.Tensor) -> torch.Tensor:
    """Statistics of 16-bit numbers have 32."""
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return x.new_empty(x.size(1), dtype=dtype)


def _two(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _per_channel(x), _per_channel(x)


def _alike(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _sums(
    _gradient: torch.Tensor, x: torch.Tensor, _mean: Any, _invstd: Any, _weight: Any, *is_wanted: bool
) -> tuple[torch.Tensor, ...]:
    """Sums of the gradient, of it times the input, and the gradients of weight and bias."""
    reduces, weighs, is_biased = is_wanted
    return tuple(_per_channel(x) if item else x.new_empty(0) for item in (reduces, reduces, weighs, is_biased))


_RESULTS: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": _two,
    "batch_norm_gather_stats_with_counts": _two,
    "batch_norm_elemt": _alike,
    "batch_norm_backward_reduce": _sums,
    "batch_norm_backward_elemt": _alike,
}
for _name, _result in _RESULTS.items():
    _LIBRARY.impl(_name, _result)


def on_device(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``SyncBatchNorm.forward`` that takes the host for a device, and every rank's batch as one that holds samples."""
    # as while a CUDA graph is captured, where the ranks with empty batches cannot be left out
    for_a_while: dict[Any, dict[str, Any]] = {
        torch._C: {"_get_privateuse1_backend_name": lambda: "cpu"},
        torch.cuda: {"is_current_stream_capturing": lambda: True},
    }

    @functools.wraps(forward)
    def call(*args: Any) -> torch.Tensor:
        with patch_attributes(for_a_while):
            return forward(*args)

    return call


class _Answers(TorchFunctionMode):
    """Gives values where there are none, and puts on the host what is meant for the device."""

    def __init__(
        self, values: Values, streams: Streams, *, has_device: bool, maps_devices: bool, host: HostSide | None
    ) -> None:
        super().__init__()
        self._host = host if has_device else None
        self._has_device = has_device
        self._maps_devices = has_device or maps_devices
        self._values = values
        self._streams = streams

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func in _FACTS:
            return func(*args)
        if func in READS and isinstance(args[0], torch.Tensor) and (value := value_of_fake(args[0])) is not None:
            return read_known(func, value)
        if func in READS and has_no_value(args[0]):
            if not asker().startswith(_UPDATES):  # its counters lie on the host
                self._streams.synchronize(self._streams.tail(self._streams.current_stream().number))
                if self._host is not None:
                    self._host.read(args[0])
            return self._values.read(func, args[0])
        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return _copy(*args)
        if func is torch.Tensor.__format__ and has_no_value(args[0]):
            return format(str(args[0]) if args[0].dim() else args[0].item(), args[1])
        if func is PAD:
            return pad(*args)
        if self._maps_devices and func is torch.device:
            target = func(*args, **(kwargs or {})) if not args or type(args[0]) is not int else _ACCELERATOR
            here = _here(target)
            return _STANDS_IN if self._host is not None and here is not target else here
        if self._maps_devices and func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        self._values.require_no_size(func, args)
        if func is torch.Tensor.__getitem__:
            args = (args[0], self._values.with_bounds(args[1]))
        if self._has_device and (result := as_on_device(func, args, kwargs or {})) is not NotImplemented:
            return result
        named = dict(kwargs or {})
        if self._maps_devices:
            args = _on_host(func, args)
            named = {key: _here(value) if key == "device" else value for key, value in named.items()}
            named |= {"pin_memory": False} if named.get("pin_memory") else {}
        result = func(*args, **named)
        if func is _SET_DATA:
            forget_value(args[0])
        self._values.mark_result(func, args, named, result)
        return result


class _NotedAnswers(_Answers):
    """Notes as well what the program does on its host."""

    _host: HostSide

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FACTS:
            return func(*args)
        self._host.enter(args)
        try:
            is_on_device = self._is_meant_for_device(func, args, kwargs or {})
            result = super().__torch_function__(func, types, args, kwargs)
            if func is _PARSE_TO:  # what a module's tensors are moved to
                return (_STANDS_IN, *result[1:]) if is_on_device else result
            if is_on_device and func in _MOVES:
                result = self._host.copy(args, kwargs or {}, result)
            elif func is _SET_DATA:
                self._host.follow(*args)
            # the device of another tensor is the host, too
            elif func is torch.Tensor.cpu or (func is torch.Tensor.to and args[1:2] == ("cpu",)):
                result = self._host.fetch(result)
            elif func is torch.Tensor.pin_memory:
                result = self._host.pin(result)
            else:
                self._host.mark(args, kwargs or {}, result, is_on_device=is_on_device)
            return result
        finally:
            self._host.leave()

    def _is_meant_for_device(self, func: Any, args: Any, named: dict[str, Any]) -> bool:
        if func is torch.Tensor.cuda or (self._values.has_default_device and "device" not in named):
            return True
        devices = [named.get("device"), *(value for value in args if isinstance(value, str | torch.device))]
        devices += [args[index] for index in [_TAKES_DEVICE.get(func, len(args))] if index < len(args)]
        if any(map(_is_stand_in, devices)):
            return True
        # meshes were made for the host, so torch's own code for sharded models takes it for their device
        return any(map(_is_here, devices)) and asker().startswith(_DISTRIBUTED)


def _copy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """What ``copy.deepcopy`` makes of a fake tensor, whose storage torch cannot copy."""
    if id(tensor) not in memo:
        copy = tensor.detach().clone(memory_format=torch.preserve_format)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        copy = torch.nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
        memo[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
        if tensor.is_leaf and tensor.grad is not None:
            copy.grad = _copy(tensor.grad, memo)
    result: torch.Tensor = memo[id(tensor)]
    return result


def _on_host(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if func in _TAKES_DEVICE:  # a number in its place is that of a device
        index = _TAKES_DEVICE[func]
        args = tuple(_HERE if index == i and type(value) is int else value for i, value in enumerate(args))
    return tuple(_here(value) if isinstance(value, str | torch.device) else value for value in args)


def _here(device: Any) -> Any:
    """The host, if it is the device that is not there."""
    if isinstance(device, str):
        return "cpu" if device.partition(":")[0] == "cuda" else device
    if isinstance(device, torch.device):
        return _HERE if device.type == "cuda" or device == _STANDS_IN else device
    return _HERE if type(device) is int else device


def _is_here(device: Any) -> bool:
    return device == "cpu" or (isinstance(device, torch.device) and device.type == "cpu")


def _is_stand_in(device: Any) -> bool:
    """Whether a program means the device that is not there."""
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    if isinstance(device, torch.device):
        return device.type == "cuda" or device == _STANDS_IN
    return type(device) is int


@contextmanager
def answer_reads(
    values: Values,
    streams: Streams,
    *,
    has_device: bool,
    maps_devices: bool = True,
    host: HostSide | None = None,
) -> Iterator[None]:
    """Answer reads of values, for which a program waits, and map devices; in a backward pass as well.

    Parameters
    ----------
    values : Values
    streams : Streams
    has_device, maps_devices : bool
        As of ``no_compute.skip_compute``.
    host : HostSide, optional
        Notes copies to a device, and what the program does on its host.
    """
    kind = _Answers if host is None or not has_device else _NotedAnswers
    answers = kind(values, streams, has_device=has_device, maps_devices=maps_devices, host=host)
    run_backward = torch.autograd.graph._engine_run_backward

    @functools.wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        # torch leaves out the mode that handles Tensor.backward, and what a backward pass recomputes is to be the same
        with nullcontext() if _get_current_function_mode() is answers else answers:
            return run_backward(*args, **kwargs)

    name = run_backward.__name__
    meanings: dict[Any, dict[str, Any]] = {torch.autograd: {name: run}, torch.autograd.graph: {name: run}}
    # its own takes numbers out one by one, of a loader millions
    meanings[FakeTensor] = {"tolist": torch.Tensor.tolist}
    if has_device:
        meanings |= {torch.nn.functional: device_functions(), torch._VF: recurrent_functions()}
    with answers, patch_attributes(meanings):
        yield


@contextmanager
def device_stands_in(streams: Streams, values: Values, devices_per_host: int, local_rank: int) -> Iterator[None]:
    """Let torch find a device; ``values`` notes whether the program makes it torch's default."""
    set_default = {torch: {"set_default_device": _map_default_device(torch.set_default_device, values)}}
    try:
        with patch_attributes(_answers(streams, devices_per_host, local_rank)), patch_attributes(set_default):
            yield
    finally:
        torch.get_device_module.cache_clear()  # it remembers that "cuda" was the host


def _answers(streams: Streams, devices_per_host: int, local_rank: int) -> dict[Any, dict[str, Any]]:
    cuda = _queues(streams) | _facts(devices_per_host, local_rank)
    foreach = torch.utils._foreach_utils
    autocast = torch.amp.autocast_mode.autocast
    by_index = {f"{verb}_device_{name}": cuda[f"{verb}_device"] for verb in ("set", "current") for name in _INDICES}
    shared = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats")
    return {
        torch.cuda: cuda,
        torch.cuda.nvtx: _constants(None, "range_push", "range_pop", "mark", "range_start", "range_end"),
        torch.cuda.memory: _constants(None, "_record_memory_history", "_dump_snapshot"),
        torch.cpu: _queues(streams) | {"device_count": lambda: devices_per_host},
        torch.accelerator: _queues(streams)
        | by_index
        | {name: cuda[name] for name in (*shared, "empty_cache", "reset_peak_memory_stats")}
        | _constants(None, "empty_host_cache", "reset_accumulated_memory_stats")
        | _constants(_ACCELERATOR, "current_accelerator")
        | {
            "is_available": lambda: True,
            "device_count": lambda: devices_per_host,
            "get_memory_info": cuda["mem_get_info"],
            "device_index": cuda["device"],
        },
        torch._C: _constants(_ACCELERATOR, "_get_accelerator"),
        torch.nn.SyncBatchNorm: {"forward": on_device(torch.nn.SyncBatchNorm.forward)},
        # what runs on the device by default: updates of many parameters at once
        foreach: {"_get_foreach_kernels_supported_devices": lambda: ["cpu", "cuda"]},
        sys.modules["torch.optim.optimizer"]: {"_get_foreach_kernels_supported_devices": lambda: ["cpu", "cuda"]},
        autocast: {"__init__": _for_host(autocast.__init__)},
        torch.Tensor: _constants(None, "record_stream"),
        torch: {
            "Generator": _Generator,
            "Stream": streams.stream_class,
            "Event": streams.event_class,
        },
    }


def _queues(streams: Streams) -> dict[str, Any]:
    return {
        "Stream": streams.stream_class,
        "Event": streams.event_class,
        "stream": functools.partial(streams.on),
        "StreamContext": functools.partial(streams.on),
        "set_stream": streams.set_stream,
        "current_stream": lambda *_: streams.current_stream(),
        "default_stream": lambda *_: streams.default,
        "synchronize": lambda *_: streams.synchronize(),
    }


def _facts(devices_per_host: int, local_rank: int) -> dict[str, Any]:
    properties = SimpleNamespace(
        name=_NAME, total_memory=80 * _GIB, major=9, minor=0, multi_processor_count=132, warp_size=32
    )
    return {
        **_constants(0, "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
        **_constants(None, "init", "_lazy_init", "set_device", "empty_cache", "ipc_collect"),
        **_constants(None, "reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated"),
        **_constants(None, "manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all"),
        **_constants(None, "set_per_process_memory_fraction"),
        **_constants(True, "is_available", "is_initialized", "is_bf16_supported", "can_device_access_peer"),
        **_constants(False, "is_current_stream_capturing"),
        **_constants(_NAME, "get_device_name"),
        **_constants("", "memory_summary"),
        "device_count": lambda: devices_per_host,
        "current_device": lambda: local_rank,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (9, 0),
        "memory_stats": lambda *_: {},
        "mem_get_info": lambda *_: (80 * _GIB, 80 * _GIB),
        "get_rng_state": lambda *_: torch.default_generator.get_state(),  # of a device it is small: not counted
        "device": lambda *_: nullcontext(),
    }


def _constants(value: Any, *names: str) -> dict[str, Callable[..., Any]]:
    """A function for each name, as torch.compile tells functions apart by identity."""
    return {name: _constant(value) for name in names}


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _for_host(original: Callable[..., None]) -> Callable[..., None]:
    """Mixed precision of the device, with its own type where none is named."""

    @functools.wraps(original)
    def construct(context: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if str(device_type).startswith("cuda"):
            device_type, dtype = "cpu", dtype or torch.float16
        original(context, device_type, dtype, *args, **kwargs)

    return construct


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    """Every generator is an instance of the class that stands in."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _HOST_GENERATOR)


class _Generator(metaclass=_AnyGenerator):
    """Stands for ``torch.Generator``: that of the device lies on the host."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _HOST_GENERATOR(device=_here(device))


def _map_default_device(original: Callable[[Any], None], values: Values) -> Callable[[Any], None]:
    def set_default_device(device: Any) -> None:
        values.has_default_device = _is_stand_in(device)
        original(_here(device))

    return set_default_device
