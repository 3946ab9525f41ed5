"""One really running process of a script: what it calls, or what it holds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from windtunnel.measure.workers import Place
from windtunnel.sources.memory.watch import Watch
from windtunnel.sources.torch.hooks import StepHooks
from windtunnel.sources.torch.script import EndOfScript, run_until_enough

Row = tuple[str, str]


class Calls(TorchDispatchMode):
    """Names of operators and shapes of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented
        self.rows.append((str(func), str(shapes((args, kwargs)))))
        return func(*args, **(kwargs or {}))


def shapes(value: Any) -> list[Any]:
    """Of all tensors in it."""
    if isinstance(value, torch.Tensor):
        return [list(value.shape)]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for item in value for one in shapes(item)] if isinstance(value, list | tuple) else []


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
