"""What a program does on its host, noted while all of its tensors lie there.

In: calls of torch's functions as a program without a device makes them, and where each is meant to run. Out: operators
of our own in the profile: a copy to the device, which ``Tensor.to`` makes of a batch but not of what lies there
already; a read that waits for the device; and marks for long stretches of Python and NumPy between two calls. Not here:
what they become in a graph (``sources.torch.host_work``), what they take (``cost.host_times``).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from windtunnel.graph.host_work import DEVICE_READ, HOST_CODE, MEMCPY, NON_BLOCKING
from windtunnel.sources.dry.values import own_line
from windtunnel.sources.memory.storages import storages_of

__all__ = ["COPY", "ON_HOST", "READ", "HostSide", "lies_on_host", "rename_for_device"]

COPY, READ = "windtunnel::copy_to_device", "windtunnel::read_value"
# Python of a module's call, its hooks among it, takes less in a dry run; NumPy that draws a batch takes more
MIN_CODE_NS = 200_000
ON_HOST = "_windtunnel_on_host"
"""Attribute of tensors, and of storages from their birth on."""
_PINNED = "_windtunnel_pinned"


@torch.library.custom_op(COPY, mutates_args=())
def _copy_to_device(values: torch.Tensor, is_pinned: bool, is_blocking: bool) -> torch.Tensor:
    del is_pinned, is_blocking
    return values.clone()


@_copy_to_device.register_fake
def _(values: torch.Tensor, is_pinned: bool, is_blocking: bool) -> torch.Tensor:
    del is_pinned, is_blocking
    return torch.empty_like(values)


@torch.library.custom_op(READ, mutates_args=())
def _read_value(values: torch.Tensor) -> None:
    del values


@_read_value.register_fake
def _(values: torch.Tensor) -> None:
    del values


class HostSide:
    """Follows which tensors lie on the host, and notes what happens there.

    A fake tensor that no call of torch's functions has returned, such as a gradient, is taken to lie on the device.

    Attributes
    ----------
    num_workers, pins_batches
        Of the program's loaders, which load in their own process in a dry run.
    uses_device
        Whether the program has put anything on a device.
    """

    def __init__(self) -> None:
        self.uses_device = False
        self.num_workers, self.pins_batches = 0, False
        self._left_ns = time.thread_time_ns()
        self._code_ns: dict[tuple[str, int], int] = {}  # the least of each line and stretch
        self._num_stretches = self._unmarked_ns = 0

    def start_iteration(self) -> None:
        """Start to count anew: what ran before is not the program's."""
        self._num_stretches = 0
        self._unmarked_ns = 0
        self.leave()

    def enter(self, args: Any) -> None:
        """Count the time since the last call, if it was long and what follows is given data of the host.

        The least counts that the same stretch took in any iteration. Before other calls, Python did what the price of
        every call holds.
        """
        taken_ns = time.thread_time_ns() - self._left_ns
        if taken_ns >= MIN_CODE_NS and _has_host_data(args):
            stretch = (own_line(), self._num_stretches)
            self._num_stretches += 1
            self._code_ns[stretch] = min(taken_ns, self._code_ns.get(stretch, taken_ns))
            self._unmarked_ns += self._code_ns[stretch]

    def leave(self) -> None:
        """Start to count what the program does itself: a call has ended, or work that is not the program's."""
        self._left_ns = time.thread_time_ns()

    def copy(self, args: Any, named: dict[str, Any], result: Any) -> Any:
        """Return what a call that moves a tensor to the device gives: a copy, if the tensor lies on the host."""
        values = args[0] if args else None
        if not (isinstance(result, torch.Tensor) and isinstance(values, torch.Tensor)):
            return result
        self.uses_device = True
        if not lies_on_host(values):
            return result
        if result.requires_grad:
            setattr(result, ON_HOST, False)
            return result
        if self._unmarked_ns:  # not earlier: what is within calls of fake tensors is not the program's
            with torch.profiler.record_function(f"{HOST_CODE}{round(self._unmarked_ns, -5)}"):
                self._unmarked_ns = 0
        is_blocking = not (named.get("non_blocking") or True in args[1:])
        copied = torch.ops.windtunnel.copy_to_device(result, self.pins_batches or _is_pinned(values), is_blocking)
        setattr(copied, ON_HOST, False)
        return copied

    def read(self, values: torch.Tensor) -> None:
        """Note that the program waits for a value, if it lies on the device."""
        if isinstance(values, FakeTensor) and not getattr(values, ON_HOST, False):
            torch.ops.windtunnel.read_value(values.detach())

    def fetch(self, values: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the host; what lay on the device is waited for."""
        if lies_on_host(values):
            return values
        self.read(values)
        fetched = values.view_as(values)
        setattr(fetched, ON_HOST, True)
        return fetched

    def pin(self, values: torch.Tensor) -> torch.Tensor:
        """Return the tensor in pinned memory; it stays where it is."""
        pinned = values.detach()
        setattr(pinned, ON_HOST, getattr(values, ON_HOST, False))
        setattr(pinned, _PINNED, True)
        return pinned

    def mark(self, args: Any, named: dict[str, Any], result: Any, *, is_on_device: bool) -> None:
        """Say where a result lies: where the call was told to put it, else where any of its tensors lies."""
        results = [item for item in _tensors(result) if isinstance(item, FakeTensor)]
        if not results:
            return
        inputs = [*_tensors(args), *_tensors(list(named.values()))]
        self.uses_device |= is_on_device
        stays = not is_on_device and all(map(lies_on_host, inputs))
        for item in results:
            setattr(item, ON_HOST, stays)
            for storage in storages_of(item):
                vars(storage).setdefault(ON_HOST, stays)  # a view of the device's memory may stand for a fetched copy

    def note_loader(self, arguments: dict[str, Any]) -> None:
        """Keep what a loader is made with that a dry run leaves out."""
        self.num_workers = max(self.num_workers, int(arguments.get("num_workers") or 0))
        self.pins_batches |= bool(arguments.get("pin_memory"))

    def follow(self, tensor: torch.Tensor, data: torch.Tensor) -> None:
        """A tensor holds other data: it lies where these lie."""
        setattr(tensor, ON_HOST, getattr(data, ON_HOST, False))


def rename_for_device(node: dict[str, Any]) -> str:
    """Give an operator of ours the schema that a device's own has; returns how that is called, empty for others."""
    if node["name"] == COPY:
        is_pinned, is_blocking = node["inputs"]["values"][1:3]
        name = MEMCPY.format("Pinned" if is_pinned else "Pageable") + ("" if is_blocking else NON_BLOCKING)
        node["schema"] = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"
    elif node["name"] == READ:
        name, node["schema"] = DEVICE_READ, "aten::_local_scalar_dense(Tensor self) -> Scalar"
    else:
        return ""
    node["name"] = node["schema"].partition("(")[0]
    node["inputs"] = {name: column[:1] for name, column in node["inputs"].items()}
    return name


def _has_host_data(args: Any) -> bool:
    return any(map(lies_on_host, _tensors(args))) or any(isinstance(item, np.ndarray) for item in args)


def lies_on_host(values: torch.Tensor) -> bool:
    """Whether it is known to; a tensor that is not fake is NumPy's, or of a file."""
    return bool(getattr(values, ON_HOST, not isinstance(values, FakeTensor)))


def _is_pinned(values: torch.Tensor) -> bool:
    return bool(getattr(values, _PINNED, False))


def _tensors(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in _tensors(value)]
    return []
