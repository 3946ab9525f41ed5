"""What each rank does: lists of instructions on buffers, one for each of its threads.

In: instructions, written by ``lower``. Out: a ``Plan`` that an executor runs, a simulator prices, and ``interpret``
runs in one process. Not here: where values lie, how data travels.

Sends return when their data may be overwritten. Between two ranks messages arrive in the order in which they were sent;
tags only prove that both sides mean the same message.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.collectives.kernels import Kernel
from windtunnel.systems.collectives.layouts import numpy_dtype

__all__ = ["Buffer", "Call", "Copy", "Instruction", "MatMul", "Plan", "RankPlan", "Receive", "ReceiveReduce", "Send",
           "Signal", "View", "Wait"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a rank.

    Attributes
    ----------
    size : int
        Elements.
    dtype : str
        Of a tensor.
    role : str
        ``input``, ``value`` of the program, or ``work``: partial sums, packed copies.
    """

    size: int
    dtype: str
    role: str = "value"

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return numpy_dtype(self.dtype).itemsize

    @property
    def size_bytes(self) -> int:
        """Bytes of it."""
        return self.size * self.item_bytes


@dataclass(frozen=True, slots=True)
class View:
    """Part of a buffer.

    Attributes
    ----------
    buffer : str
    start : int
        First element.
    shape : tuple of int
    strides : tuple of int
        In elements; without any, the part is contiguous.
    """

    buffer: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Elements of it."""
        return math.prod(self.shape)

    def part(self, first: int, size: int) -> View:
        """A range of its elements; it has to be contiguous."""
        return View(self.buffer, self.start + first, (size,))

    def reshape(self, *shape: int) -> View:
        """The same elements in another shape."""
        return View(self.buffer, self.start, shape)

    def of(self, buffers: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
        """The array that it is in these buffers; shares their memory."""
        flat = buffers[self.buffer][self.start :]
        if not self.strides:
            return flat[: self.size].reshape(self.shape)
        strides = [stride * flat.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides)


@dataclass(frozen=True, slots=True)
class Call:
    """Run a kernel on a range of elements: ``kernel(arrays, first, base)``."""

    kernel: Kernel
    arguments: tuple[View, ...]
    first: int = 0
    base: int = 0

    def __str__(self) -> str:
        shown = (f"{view.buffer}[{view.start}:{view.start + view.size}]" for view in self.arguments)
        return f"{self.kernel.name}({', '.join(shown)}, first={self.first})"


@dataclass(frozen=True, slots=True)
class MatMul:
    """``target = a @ b`` of matrices."""

    a: View
    b: View
    target: View

    def __str__(self) -> str:
        return f"{_show(self.target)} = {_show(self.a)} @ {_show(self.b)}"


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy between views of one shape, with a conversion where their types differ."""

    source: View
    target: View

    def __str__(self) -> str:
        return f"copy {_show(self.source)} to {_show(self.target)}"


@dataclass(frozen=True, slots=True)
class Send:
    """Send contiguous elements to a rank."""

    peer: int
    tag: int
    source: View

    def __str__(self) -> str:
        return f"send {_show(self.source)} to rank {self.peer} (tag {self.tag})"


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive contiguous elements from a rank."""

    peer: int
    tag: int
    target: View

    def __str__(self) -> str:
        return f"receive {_show(self.target)} from rank {self.peer} (tag {self.tag})"


@dataclass(frozen=True, slots=True)
class ReceiveReduce:
    """``target = received + own``, or their maximum; the received elements are of the target's type."""

    peer: int
    tag: int
    own: View
    target: View
    reduction: str = "sum"

    def __str__(self) -> str:
        sign = "+" if self.reduction == "sum" else self.reduction
        return f"{_show(self.target)} = received from rank {self.peer} {sign} {_show(self.own)} (tag {self.tag})"


@dataclass(frozen=True, slots=True)
class Signal:
    """Tell the other thread of the rank that an event has happened."""

    event: int

    def __str__(self) -> str:
        return f"signal {self.event}"


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an event of the other thread."""

    event: int

    def __str__(self) -> str:
        return f"wait {self.event}"


Instruction = Call | MatMul | Copy | Send | Receive | ReceiveReduce | Signal | Wait


def _show(view: View) -> str:
    if len(view.shape) == 1 and not view.strides:
        return f"{view.buffer}[{view.start}:{view.start + view.size}]"
    return f"{view.buffer}[{view.start}: {'x'.join(map(str, view.shape))}]"


@dataclass(frozen=True)
class RankPlan:
    """Buffers and instructions of one rank.

    Attributes
    ----------
    rank : int
        Over all groups: ranks of group 0 come first.
    buffers : mapping of str to Buffer
    threads : mapping of str to tuple of Instruction
        ``compute``, and ``communication`` where something overlaps.
    labels : mapping of str to tuple of str
        For each thread, the unit of the program that each instruction belongs to.
    values : mapping of str to View
        Where inputs, and values that are outputs, lie.
    """

    rank: int
    buffers: Mapping[str, Buffer]
    threads: Mapping[str, tuple[Instruction, ...]]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, View] = field(default_factory=dict)

    @property
    def num_events(self) -> int:
        """Events that its threads signal."""
        return sum(isinstance(item, Signal) for items in self.threads.values() for item in items)

    def resident_bytes(self, names: Sequence[str]) -> int:
        """Bytes that inputs of these names take between steps."""
        return sum(self.buffers[name].size_bytes for name in names)

    def traffic_bytes(self) -> int:
        """Bytes that it sends in a step."""
        items = [item for items in self.threads.values() for item in items if isinstance(item, Send)]
        return sum(item.source.size * self.buffers[item.source.buffer].item_bytes for item in items)


@dataclass(frozen=True)
class Plan:
    """What all ranks do in one step.

    Attributes
    ----------
    name : str
    group_sizes : tuple of int
    ranks : tuple of RankPlan
    """

    name: str
    group_sizes: tuple[int, ...]
    ranks: tuple[RankPlan, ...]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffers of all ranks."""
        return sum(buffer.size_bytes for rank in self.ranks for buffer in rank.buffers.values())

    def kernels(self) -> Iterator[Kernel]:
        """Its kernels, once each."""
        seen: set[str] = set()
        for rank in self.ranks:
            for items in rank.threads.values():
                for item in items:
                    if isinstance(item, Call) and item.kernel.source not in seen:
                        seen.add(item.kernel.source)
                        yield item.kernel

    def source(self, rank: int = 0) -> str:
        """Kernels and instructions of a rank, to read."""
        lines = [kernel.source for kernel in self.kernels()]
        for name, items in self.ranks[rank].threads.items():
            lines += [f"# rank {rank}, {name} thread", *map(str, items), ""]
        return "\n".join(lines)
