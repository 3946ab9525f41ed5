"""One really running process of a script: what it calls, or what it holds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from windtunnel.measure.workers import Place
from windtunnel.sources.memory.in_place import as_in_place
from windtunnel.sources.memory.watch import Watch
from windtunnel.sources.torch.hooks import StepHooks
from windtunnel.sources.torch.script import EndOfScript, run_until_enough

Span = tuple[int, int, int]  # storage, first byte, the one behind the last
Row = tuple[str, str, list[Span], list[Span]]  # name, shapes, what it reads, what it writes

# what a message fills, and what goes into it, among its arguments
SENT = {
    "c10d.allreduce_.default": ((0,), (0,)),
    "c10d._allgather_base_.default": ((0,), (1,)),
    "c10d._reduce_scatter_base_.default": ((0,), (1,)),
    "c10d.broadcast_.default": ((0,), (0,)),
    "c10d.send.default": ((), (0,)),
    "c10d.recv_.default": ((0,), ()),
}
FILLED = ("aten.copy_.", "aten.zero_.", "aten.fill_.", "aten._foreach_copy_.", "aten._foreach_zero_.")
FILLS_RESULT = "fsdp.all_gather_copy_in.default"  # a part of what it is given, as its schema does not say


class Calls(TorchDispatchMode):
    """Names of operators, shapes of their tensors, and the bytes that they read and write.

    Autograd adds up gradients in place, but not while a mode is active: what it would do without one is called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._kept: list[Any] = []  # so that no storage has the place of an earlier one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented
        func, args = as_in_place(func, args, kwargs or {})
        row: Row = (str(func), str(shapes((args, kwargs))), [], [])
        self.rows.append(row)
        named = {one.name: value for one, value in zip(func._schema.arguments, args, strict=False)} | (kwargs or {})
        given = {name: self._spans(value) for name, value in named.items()}
        result = func(*args, **(kwargs or {}))
        values = list(given.values())
        if row[0] in SENT:
            filled, read = SENT[row[0]]
            row[2].extend(span for place in read for span in values[place])
            row[3].extend(span for place in filled for span in values[place])
            return result
        changed = {one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write}
        unread = {"out"} | ({func._schema.arguments[0].name} if row[0].startswith(FILLED) else set())
        row[2].extend(span for name, spans in given.items() if name not in unread for span in spans)
        row[3].extend(span for name in changed for span in given.get(name, []))
        if row[0] == FILLS_RESULT:
            row[3].extend(self._spans(result[:1]))
        known = {span[0] for spans in values for span in spans}
        row[3].extend(span for span in self._spans(result) if span[0] not in known)
        return result

    def _spans(self, value: Any) -> list[Span]:
        found = []
        for one in tensors(value):
            if one.numel():
                storage, size = one.untyped_storage(), one.element_size()
                self._kept.append(storage)
                low = one.storage_offset() * size
                reach = 1 + sum((count - 1) * step for count, step in zip(one.shape, one.stride(), strict=True))
                found.append((storage._cdata, low, low + reach * size))
        return found


def tensors(value: Any) -> list[torch.Tensor]:
    """All in it."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for item in value for one in tensors(item)] if isinstance(value, list | tuple) else []


def shapes(value: Any) -> list[Any]:
    """Of all tensors in it."""
    return [list(one.shape) for one in tensors(value)]


class Steady:
    """Watches one whole iteration after its loop is known, of memory two (a ``Pilot``)."""

    def __init__(self, what: str) -> None:
        self.calls, self.watch, self.what = Calls(), Watch(is_fake=True), what
        self.seen = 0
        self.is_open = self.is_done = False

    def at_boundary(self, hooks: StepHooks, is_regular: bool) -> None:
        """Begin, or end."""
        self.seen += is_regular
        if self.is_open and self.what == "memory" and self.seen == 2:
            self.watch.next_iteration()  # what C++ made before, as a reducer's buckets, shows itself in the first
        elif self.is_open:
            self.close()
            self.is_done = True
            raise EndOfScript
        elif self.seen == 1:
            self.is_open = True
            self.watch.discovery.add(hooks.models, hooks.optimizers)
            (self.calls if self.what == "calls" else self.watch).__enter__()

    def close(self) -> None:
        """Watch no more."""
        if self.is_open:
            self.is_open = False
            (self.calls if self.what == "calls" else self.watch).__exit__(None, None, None)

    @property
    def found(self) -> object:
        """Calls, or bytes at the peak: storages followed operator by operator, as no allocator tells whose they are."""
        return self.calls.rows if self.what == "calls" else self.watch.profile().peak_bytes


@contextmanager
def as_launched(place: Place) -> Iterator[None]:
    """As torchrun would start it."""
    told = {"RANK": place.rank, "LOCAL_RANK": place.rank, "WORLD_SIZE": place.num_ranks, "MASTER_ADDR": "localhost"}
    os.environ |= {name: str(value) for name, value in {**told, "MASTER_PORT": place.config["port"]}.items()}
    yield


def main(place: Place) -> int:
    """Run it."""
    torch.set_num_threads(1)
    script = Path(place.config["script"])
    with as_launched(place):
        pilot = Steady(place.config["what"])
        ended = run_until_enough(script, (), pilot)
        place.tell((pilot.found if pilot.is_done else None, repr(ended.failure) if ended.failure else ""))
    return 0
