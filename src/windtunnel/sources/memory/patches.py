"""Places where torch is changed while memory is followed.

In: what is to be told. Out: contexts that put everything back. Hooks of the program itself (checkpoints, offloading)
hide those of the tracker; a loader's iterator, what makes tensors of arrays, what resizes storages and
what copies the state of the random number generator have no hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter

from windtunnel.sources.memory.storages import DATA

__all__ = [
    "allow_transforms",
    "watch_arrays",
    "watch_fetches",
    "watch_random_states",
    "watch_resizes",
    "watch_saved_hooks",
]

_FROM_ARRAYS = ("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack")


class Phased(Protocol):
    """An object whose phase can be forced."""

    forced_phase: int

    def force(self, phase: int) -> None:
        """From now on it is this one; 0: as it seems."""


@contextmanager
def watch_saved_hooks(saved: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call ``saved`` with the tensors that a program's own hooks on saved tensors keep."""
    original = saved_tensors_hooks.__init__

    def construct(hooks: Any, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        def pack(tensor: torch.Tensor) -> Any:
            packed = pack_hook(tensor)
            for kept in tree_leaves(packed):
                if isinstance(kept, torch.Tensor):
                    saved(kept)
            return packed

        original(hooks, pack, unpack_hook)

    saved_tensors_hooks.__init__ = construct  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        saved_tensors_hooks.__init__ = original  # type: ignore[method-assign]


@contextmanager
def allow_transforms(saving: saved_tensors_hooks) -> Iterator[None]:
    """Let transforms of ``torch.func`` run, which refuse hooks on saved tensors: what they save is not seen."""
    original = torch.autograd.graph.disable_saved_tensors_hooks
    depth = 0

    @contextmanager
    def without(message: str) -> Iterator[None]:
        nonlocal depth
        if not depth:
            saving.__exit__()
        depth += 1
        try:
            with original(message):
                yield
        finally:
            depth -= 1
            if not depth:
                saving.__enter__()

    torch.autograd.graph.disable_saved_tensors_hooks = without  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.graph.disable_saved_tensors_hooks = original


@contextmanager
def watch_fetches(places: Phased, see: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Force the phase DATA while a loader fetches, and call ``see`` with every tensor of its batches."""
    original: Callable[[Any], Any] = _BaseDataLoaderIter.__next__

    def fetch(iterator: Any) -> Any:
        before = places.forced_phase
        places.force(DATA)
        try:
            batch = original(iterator)
            for tensor in tree_leaves(batch):
                if isinstance(tensor, torch.Tensor):
                    see(tensor)
        finally:
            places.force(before)
        return batch

    _BaseDataLoaderIter.__next__ = fetch  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        _BaseDataLoaderIter.__next__ = original  # type: ignore[method-assign,assignment]


@contextmanager
def watch_resizes(resized: Callable[[Any], None]) -> Iterator[None]:
    """Call ``resized`` with every storage that Python resizes, as sharded models do to free gathered parameters."""
    original: Callable[[Any, int], Any] = torch.UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        result = original(storage, size)
        resized(storage)
        return result

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del torch.UntypedStorage.resize_


@contextmanager
def watch_random_states(see: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call ``see`` with every copy of the random number generator's state, which is created without an operator."""
    original = torch.random.get_rng_state

    def get_rng_state() -> torch.Tensor:
        state = original()
        see(state)
        return state

    torch.random.get_rng_state = torch.get_rng_state = get_rng_state
    try:
        yield
    finally:
        torch.random.get_rng_state = torch.get_rng_state = original


@contextmanager
def watch_arrays(see: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call ``see`` with every tensor that is created from an array, whose memory it shares."""
    originals = {name: getattr(torch, name) for name in _FROM_ARRAYS}

    def watch(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def make_and_see(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = make(*args, **kwargs)
            see(tensor)
            return tensor

        return make_and_see

    for name, original in originals.items():
        setattr(torch, name, watch(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)
