"""Messages between processes of one host, over links that may be slowed down, and the moment at which all start.

In: how many bytes go from whom to whom. Out: functions that send and receive them: through shared
memory, where the receiver reads in the slot that the sender filled, or over gloo. A message over an emulated link
carries the moment at which it is due, until which the receiver waits. Not here: what is sent.

A slot of shared memory has one writer and one reader; each message of a round has a flag of its own:

    sender     copy to slot ── due ── number of the round ─┐
    receiver                                               └─▶ waits for this number, then reads the slot
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from windtunnel.base.extras import require
from windtunnel.errors import NotApplicableError
from windtunnel.hardware import Link
from windtunnel.measure.links import Bucket, sleep_until

__all__ = [
    "TRANSPORTS",
    "Channels",
    "GlooChannels",
    "SharedMemory",
    "Slots",
    "Start",
    "file_bytes",
    "make_file",
    "wait_for_change",
    "wake",
]

_NUMBERS = {"x86_64": 202, "aarch64": 98}  # of the system call
_WAIT, _WAKE, _PAUSE_S = 0, 1, 100e-6
Array = NDArray[Any]
Slots = Mapping[tuple[int, int], Sequence[tuple[int, int]]]
"""Where each message from one rank to another lies, by (source, target): its first byte, a multiple of 64, and bytes.

Messages that are under way at the same time lie apart.
"""
_LINE = 8  # words of 8 bytes: what two processors write does not share a cache line
_SPIN, _FIRST_SLEEP_S, _MAX_SLEEP_S = 20, 10e-6, 200e-6
_LEAD_NS, _SPIN_NS = 300_000, 60_000


@functools.cache
def _system_call() -> Callable[..., int] | None:
    """The system call; None where there is none."""
    number = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    pointer = ctypes.c_void_p
    call.argtypes = [ctypes.c_long, pointer, ctypes.c_int, ctypes.c_uint32, pointer, pointer, pointer]
    return functools.partial(call, number)


def wait_for_change(address: int, seen: int) -> None:
    """Sleep until the word at an address is woken; not at all if its lower 32 bits are not those of ``seen``."""
    call = _system_call()
    if call is None:
        time.sleep(_PAUSE_S)
    else:
        call(address, _WAIT, seen & 0xFFFFFFFF, None, None, None)


def wake(address: int) -> None:
    """Wake a thread that waits for the word at an address, after changing the word."""
    call = _system_call()
    if call is not None:
        call(address, _WAKE, 1, None, None, None)


class Channels(Protocol):
    """How a rank exchanges messages with the others."""

    def array(self, start: int, size: int, dtype: DTypeLike) -> Array:
        """Memory for what is sent, at a byte of the slots' memory where messages lie there."""

    def begin_round(self) -> None:
        """Prepare for all messages again; every rank has received those of the last round."""

    def message(self, source: int, target: int, index: int, like: Array) -> Array:
        """The memory of a message of an edge, in the form of ``like``."""

    def sender(self, peer: int, index: int, source: Array) -> Callable[[], None]:
        """A function that sends an array as message ``index`` to ``peer``, without waiting for its receiver."""

    def receiver(self, peer: int, index: int, like: Array) -> Callable[[], Array]:
        """A function that waits for message ``index`` from ``peer``, and returns it in the form of ``like``.

        The array is that of the channel, and may be read until the end of the round.
        """


def wait_for_word(words: memoryview, index: int, value: int, address: int = 0) -> None:
    """Wait until a word of shared memory is at least this.

    Its writer wakes who waits for the word's address. Without an address: look some times, then sleep ever longer.
    """
    looks, pause_s = 0, _FIRST_SLEEP_S
    while (seen := words[index]) < value:
        if address:
            wait_for_change(address, seen)
        elif looks < _SPIN:
            time.sleep(0)  # lets the other threads of this process run
            looks += 1
        else:
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _MAX_SLEEP_S)


def make_file(path: Path, size_bytes: int) -> None:
    """Make a file of zeros that several processes map."""
    with path.open("wb") as file:
        file.truncate(-(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE)


def _map_words(path: Path) -> tuple[mmap.mmap, memoryview]:
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    return memory, memoryview(memory).cast("q")


class Start:
    """Lets all ranks of a round start at the same moment, and knows what each of their threads does.

    Parameters
    ----------
    path : Path
        A file of ``size_bytes(num_ranks)``.
    num_ranks : int
    rank : int
        -1 only looks.
    """

    def __init__(self, path: Path, num_ranks: int, rank: int = -1) -> None:
        self.num_ranks, self.rank, self.round = num_ranks, rank, 0
        self._memory, self.words = _map_words(path)

    @staticmethod
    def size_bytes(num_ranks: int) -> int:
        """Bytes of the file: a line for each rank, and one for each of two threads of it."""
        return 3 * num_ranks * _LINE * 8

    def progress_word(self, thread: int, rank: int | None = None) -> int:
        """Index of the word into which a thread writes which instruction it is in."""
        return (3 * (self.rank if rank is None else rank) + 1 + thread) * _LINE

    def meet(self) -> int:
        """Wait for all ranks; the moment of the monotonic clock at which they start, a little later."""
        self.round += 1
        line = 3 * self.rank * _LINE
        self.words[line + 1] = time.monotonic_ns()
        self.words[line] = self.round
        lines = [3 * rank * _LINE for rank in range(self.num_ranks)]
        for line in lines:
            wait_for_word(self.words, line, self.round)
        return max(self.words[line + 1] for line in lines) + _LEAD_NS

    @staticmethod
    def wait_until(start_ns: int) -> None:
        """Wait until a moment, more exactly than a sleep does."""
        sleep_until(start_ns - _SPIN_NS)
        while time.monotonic_ns() < start_ns:
            pass


class _Links:
    """The emulated links of the messages that a rank sends."""

    def __init__(self, link: Link | None) -> None:
        self.link = link
        self._buckets: dict[int, Bucket] = {}

    def due(self, peer: int, size_bytes: int) -> Callable[[], int]:
        """A function that reserves the link to a peer for a message; when it arrives, 0 where there is no link."""
        if self.link is None:
            return lambda: 0
        bucket = self._buckets.setdefault(peer, Bucket(self.link.bandwidth_bytes_per_s))
        latency_ns = self.link.latency_ns  # does not keep the link busy
        return lambda: bucket.due_ns(size_bytes, time.monotonic_ns()) + latency_ns


def file_bytes(slots: Slots, num_bytes: int) -> int:
    """Bytes of the file that ``SharedMemory`` needs for these messages, whose slots lie in ``num_bytes``."""
    return sum(map(len, slots.values())) * _LINE * 8 + num_bytes


class SharedMemory:
    """Channels in a file that all ranks map.

    Parameters
    ----------
    rank : int
    slots : Slots
    path : Path
        A file of ``file_bytes(slots, num_bytes)``.
    link : Link, optional
        Emulated between any two ranks, one for each direction.

    Raises
    ------
    NotApplicableError
        The processor may show other processors two writes in another order.
    """

    def __init__(self, rank: int, slots: Slots, path: Path, link: Link | None = None) -> None:
        if platform.machine() not in ("x86_64", "AMD64"):  # elsewhere a flag may be seen before what it stands for
            raise NotApplicableError(
                "shared memory needs a processor that keeps the order of its writes",
                where=platform.machine(),
                fix="use the transport gloo",
            )
        self.rank, self.round = rank, 0
        self._slots, self._flags, flag = slots, {}, 0
        for edge in sorted(slots):
            self._flags[edge], flag = flag, flag + len(slots[edge])
        self._first_byte = flag * _LINE * 8
        self._memory, self._words = _map_words(path)
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._links = _Links(link)

    def begin_round(self) -> None:
        """Expect the number of this round in each slot."""
        self.round += 1

    def array(self, start: int, size: int, dtype: DTypeLike) -> Array:
        """An array from a byte on; a message whose slot is a part of it is sent without a copy."""
        result: Array = np.frombuffer(self._memory, dtype, size, self._first_byte + start)
        return result

    def message(self, source: int, target: int, index: int, like: Array) -> Array:
        """See ``Channels``: the slot."""
        start, _ = self._slots[source, target][index]
        return self.array(start, like.size, like.dtype).reshape(like.shape)

    def _slot(self, source: int, target: int, index: int, like: Array) -> tuple[int, Array]:
        return (self._flags[source, target] + index) * _LINE, self.message(source, target, index, like)

    def sender(self, peer: int, index: int, source: Array) -> Callable[[], None]:
        """See ``Channels``: copies the array to its slot, unless it lies there."""
        flag, slot = self._slot(self.rank, peer, index, source)
        words, due, address = self._words, self._links.due(peer, source.nbytes), self._address + 8 * flag
        is_direct = slot.ctypes.data == source.ctypes.data

        def send() -> None:
            if not is_direct:
                np.copyto(slot, source)
            words[flag + 1] = due()
            words[flag] = self.round
            wake(address)

        return send

    def receiver(self, peer: int, index: int, like: Array) -> Callable[[], Array]:
        """See ``Channels``: returns the slot."""
        flag, slot = self._slot(peer, self.rank, index, like)
        words, address = self._words, self._address + 8 * flag

        def receive() -> Array:
            wait_for_word(words, flag, self.round, address)
            sleep_until(words[flag + 1])
            return slot

        return receive


class GlooChannels:
    """Channels over point-to-point messages of ``torch.distributed``, whose process group is there.

    Receives are posted at the beginning of a round, before anything is sent; tags are numbers of messages. What is sent
    is copied first, so that a send does not wait for its receiver.
    """

    _HEAD_BYTES = 64  # the moment at which the message is due, and room that keeps the data aligned

    def __init__(self, rank: int, slots: Slots, path: Path, link: Link | None = None) -> None:
        del path
        torch, self._distributed = require("torch", extra="torch"), require("torch.distributed", extra="torch")
        self.rank = rank
        self._links = _Links(link)
        self._messages = {
            (edge, index): torch.zeros(self._HEAD_BYTES + size, dtype=torch.uint8)
            for edge, row in slots.items()
            for index, (_, size) in enumerate(row)
            if rank in edge
        }
        self._posted: dict[tuple[int, int], Any] = {}
        self._sends: list[Any] = []

    def array(self, start: int, size: int, dtype: DTypeLike) -> Array:
        """See ``Channels``: an array of its own, as gloo copies what is sent."""
        del start
        return np.zeros(size, dtype)

    def begin_round(self) -> None:
        """Post all receives."""
        for work in self._sends:
            work.wait()
        self._sends.clear()
        for ((source, target), index), message in self._messages.items():
            if target == self.rank:
                self._posted[source, index] = self._distributed.irecv(message, source, tag=index)

    def message(self, source: int, target: int, index: int, like: Array) -> Array:
        """See ``Channels``: behind the message's head."""
        data = self._messages[(source, target), index].numpy()
        result: Array = data[self._HEAD_BYTES :].view(like.dtype).reshape(like.shape)
        return result

    def _parts(self, source: int, target: int, index: int, like: Array) -> tuple[Array, Array]:
        """The word of the moment, and the data, of a message."""
        head = self._messages[(source, target), index].numpy()[:8].view(np.int64)
        return head, self.message(source, target, index, like)

    def sender(self, peer: int, index: int, source: Array) -> Callable[[], None]:
        """See ``Channels``: copies the array, and leaves it to gloo's own thread."""
        head, data = self._parts(self.rank, peer, index, source)
        message, due = self._messages[(self.rank, peer), index], self._links.due(peer, source.nbytes)

        def send() -> None:
            np.copyto(data, source)
            head[0] = due()
            self._sends.append(self._distributed.isend(message, peer, tag=index))

        return send

    def receiver(self, peer: int, index: int, like: Array) -> Callable[[], Array]:
        """See ``Channels``: waits for gloo."""
        head, data = self._parts(peer, self.rank, index, like)

        def receive() -> Array:
            self._posted.pop((peer, index)).wait()
            sleep_until(int(head[0]))
            return data

        return receive


TRANSPORTS: Mapping[str, Callable[[int, Slots, Path, Link | None], Channels]] = {
    "shared_memory": SharedMemory,
    "gloo": GlooChannels,
}
"""Channels by name."""
