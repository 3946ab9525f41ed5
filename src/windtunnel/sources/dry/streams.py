"""Streams and events that only remember who waits for whom, and names of torch that mean something else for a while.

In: what a program says to streams and events. Out: of every call its stream and the earlier calls that this stream was
told to wait for. Collectives have a stream of their own per process group, as NCCL gives them one, and messages between
two ranks one for each way, as those of a batch go at once. Whoever called goes on, unless the call was a blocking one,
and waits where it asks for the result. Patches are contexts that put everything back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from windtunnel.sources.dry.groups import Message

__all__ = ["COMM", "Event", "Stream", "Streams", "patch_attributes", "replace_functions"]

COMM = 1_000
"""Streams from this number on carry messages."""

_ABSENT = object()


class Streams:
    """What is queued where; one per traced rank."""

    def __init__(self) -> None:
        self._count = 0
        # classes, as programs ask whether something is an instance of one
        self.stream_class = type("Stream", (Stream,), {"__init__": lambda own, *_, **__: Stream.__init__(own, self)})
        self.event_class = type("Event", (Event,), {"__init__": lambda own, *_, **__: Event.__init__(own, self)})
        self.default = Stream(self)
        self._stack = [self.default]
        self.ways: list[tuple[int, int, bool]] = []  # of messages: group, peer, whether they go out
        self._last: dict[int, int] = {}  # stream: its last call
        self._waits: dict[int, set[int]] = {}  # stream: what its next call waits for
        self._made_by: dict[int, int] = {}  # storage: the collective that fills it
        self._host_waits: set[int] = set()

    def new(self) -> int:
        """Number of a further stream."""
        self._count += 1
        return self._count - 1

    def begin(self) -> None:
        """Forget what was queued: an iteration begins."""
        self._last, self._waits, self._made_by, self._host_waits = {}, {}, {}, set()

    def enqueue(self, call: int, message: Message | None, storages: Iterable[int]) -> tuple[int, tuple[int, ...]]:
        """Queue a call on its stream, that of its process group for a collective; says what it waits for."""
        here = self._stack[-1].number
        if message is None:
            return here, self._enqueue(call, here)
        # Messages between ranks have a stream per peer and direction.
        way = (message.group, message.peer, message.op == "send")
        if way not in self.ways:
            self.ways.append(way)
        stream = COMM + self.ways.index(way)
        self._wait(stream, self._last.get(here), *self._waits.get(here, ()))  # its input is ready there
        waits = self._enqueue(call, stream)
        if message.blocks:
            self._wait(here, call)
        else:
            self._made_by |= dict.fromkeys(storages, call)
        return stream, waits

    def _enqueue(self, call: int, stream: int) -> tuple[int, ...]:
        waits = tuple(sorted(self._waits.pop(stream, ())))
        self._last[stream] = call
        return waits

    def _wait(self, stream: int, *calls: int | None) -> None:
        self._waits.setdefault(stream, set()).update(call for call in calls if call is not None)

    def synchronize(self, tail: Iterable[int] | None = None) -> None:
        """The program itself waits for these calls, or for all of them."""
        self._host_waits.update(self._last.values() if tail is None else tail)

    def host_waits(self) -> tuple[int, ...]:
        """What the program waited for since it was last asked."""
        result, self._host_waits = tuple(sorted(self._host_waits)), set()
        return result

    def wait_for_storages(self, storages: Iterable[int]) -> None:
        """The current stream waits for the collectives that fill these storages."""
        self._wait(self._stack[-1].number, *(self._made_by.get(storage) for storage in storages))

    def wait_for(self, stream: int, tail: Iterable[int]) -> None:
        """A stream waits for earlier calls."""
        self._wait(stream, *tail)

    def tail(self, stream: int) -> tuple[int, ...]:
        """What an event that is recorded now stands for."""
        waiting = self._waits.get(stream, set())
        last = self._last.get(stream)
        return tuple(sorted(waiting | ({last} if last is not None else set())))

    def current_stream(self) -> Stream:
        """Where calls are queued now."""
        return self._stack[-1]

    def set_stream(self, stream: Stream | None) -> None:
        """Queue what follows on this stream, until the block ends that is entered last."""
        self._stack[-1] = stream or self._stack[-1]

    def enter(self, stream: Stream | None) -> None:
        """Begin a block whose calls are queued on this stream."""
        self._stack.append(stream or self._stack[-1])

    def leave(self) -> None:
        """End the block that was entered last."""
        self._stack.pop()

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        """Queue the calls within on this stream."""
        self.enter(stream)
        try:
            yield
        finally:
            self.leave()


class Stream:
    """Stands for ``torch.Stream`` and ``torch.cuda.Stream``."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.number = streams.new()
        self.stream_id, self.device_index, self.cuda_stream = self.number, 0, self.number
        self.device, self.native_handle = torch.device("cpu"), self.number

    def __enter__(self) -> Self:
        self.streams.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.streams.leave()

    def wait_stream(self, other: Any) -> None:
        """Wait for all that is queued there now."""
        if isinstance(other, Stream):
            self.streams.wait_for(self.number, self.streams.tail(other.number))

    def record_event(self, event: Any = None) -> Event:
        """Mark this point of the queue."""
        marked: Event = event if isinstance(event, Event) else Event(self.streams)
        marked.record(self)
        return marked

    def wait_event(self, event: Any) -> None:
        """Wait for a marked point."""
        if isinstance(event, Event):
            self.streams.wait_for(self.number, event.tail)

    def synchronize(self) -> None:
        """The program waits until all of it is done."""
        self.streams.synchronize(self.streams.tail(self.number))

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether calls go to a CUDA graph."""
        return False


class Event:
    """Stands for ``torch.Event`` and ``torch.cuda.Event``."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.tail: tuple[int, ...] = ()
        self.device, self.event_id = torch.device("cpu"), id(self)

    def record(self, stream: Any = None) -> None:
        """Mark a point of a queue."""
        marked = stream if isinstance(stream, Stream) else self.streams.current_stream()
        self.tail = self.streams.tail(marked.number)

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for the marked point."""
        (stream if isinstance(stream, Stream) else self.streams.current_stream()).wait_event(self)

    def query(self) -> bool:
        """Whether it is reached."""
        return True

    def synchronize(self) -> None:
        """The program waits until it is reached."""
        self.streams.synchronize(self.tail)

    def elapsed_time(self, _other: Any) -> float:
        """Return 1 millisecond, as no work takes time here; not 0, by which a program would divide."""
        return 1.0


@contextmanager
def patch_attributes(meanings: Mapping[Any, Mapping[str, Any]]) -> Iterator[None]:
    """Set attributes of modules and classes within."""
    kept: list[tuple[Any, str, Any]] = []
    try:
        for owner, names in meanings.items():
            for name, value in names.items():
                kept.append((owner, name, vars(owner).get(name, _ABSENT)))
                setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(kept):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def replace_functions(others: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Call other functions in the place of some, in every module that has them, and in those that are loaded within."""
    ours = {original: functools.update_wrapper(other, original) for original, other in others.items()}
    _exchange(ours)
    try:
        yield
    finally:
        _exchange({other: original for original, other in ours.items()})


def _exchange(others: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
    by_name = {old.__name__: (old, new) for old, new in others.items()}
    for module in list(sys.modules.values()):
        own = getattr(module, "__dict__", {})
        for name in by_name.keys() & own.keys():
            old, new = by_name[name]
            if own[name] is old:
                setattr(module, name, new)
