"""How data are loaded (flights of "loader-workers", "prefetch" and "batch-size").

In: a live program before it makes its ``DataLoader``. Out: loaders with another number of workers, with a thread that
loads ahead, or another batch size.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from windtunnel import registry
from windtunnel.errors import FlightError, InputError
from windtunnel.flights.proof import BATCHES_AHEAD, LOADING_THREAD, becomes, proven_by, rises, scales
from windtunnel.sources.torch.live import LiveProgram, apart, at_start, swap

_PATIENCE_S = 0.1  # until a thread looks whether its batches are still wanted


@registry.flight("loader-workers", source="PyTorch DataLoader")
@proven_by(becomes("workers", "num_workers"))
@apart
@contextmanager
def loader_workers(program: LiveProgram, *, num_workers: int = 2, prefetch_factor: int = 2) -> Iterator[None]:
    """Load data with another number of worker processes."""
    if num_workers < 0:
        raise InputError(f"{num_workers} workers cannot load anything", fix="use 0 or more")

    def change(arguments: dict[str, Any]) -> dict[str, Any]:
        extra = (
            {"prefetch_factor": prefetch_factor}
            if num_workers
            else {"prefetch_factor": None, "persistent_workers": False}
        )
        return arguments | {"num_workers": num_workers} | extra

    with program.each_loader(change):
        yield


@registry.flight("prefetch", source="Murray et al., tf.data, VLDB 2021")
@proven_by(rises("loading threads"))
@apart
@contextmanager
def prefetch(program: LiveProgram, *, num_batches: int = 2) -> Iterator[None]:
    """Load the next batches in one thread, as the program would load them itself."""
    if num_batches < 1:
        raise InputError(f"{num_batches} batches ahead are none", fix="use 1 or more")
    from torch.utils.data import DataLoader

    iterate = DataLoader.__iter__

    def load_ahead(loader: Any) -> Any:
        batches = iterate(loader)
        return batches if loader.num_workers else _load_in_thread(batches, num_batches)

    restore = swap(DataLoader, "__iter__", load_ahead)
    program.kept[BATCHES_AHEAD] = num_batches
    try:
        yield
    finally:
        restore()


def _load_in_thread(batches: Iterator[Any], num_batches: int) -> Iterator[Any]:
    """The same batches, of which a thread keeps a number ready; it ends with the iterator."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(num_batches)
    is_over = threading.Event()

    def hand_over(kind: str, value: Any = None) -> None:
        while not is_over.is_set():
            with suppress(queue.Full):
                ready.put((kind, value), timeout=_PATIENCE_S)
                return

    def load() -> None:
        try:
            for batch in batches:
                hand_over("batch", batch)
                if is_over.is_set():
                    return
            hand_over("end")
        except BaseException as error:  # raised again where the batch is taken
            hand_over("error", error)

    threading.Thread(target=load, name=LOADING_THREAD, daemon=True).start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value
    finally:
        is_over.set()


@registry.flight("batch-size", source="Goyal et al., 2017")
@proven_by(scales("input elements", lambda given: given["factor"], instead="elements"))
@at_start
@contextmanager
def batch_size(program: LiveProgram, *, factor: float = 2.0) -> Iterator[None]:
    """Train on batches of another size."""

    def change(arguments: dict[str, Any]) -> dict[str, Any]:
        before = arguments.get("batch_size", 1)
        if before is None or arguments.get("batch_sampler") is not None:
            raise FlightError("the loader's batches are made by a sampler of its own", fix="change the sampler by hand")
        return arguments | {"batch_size": max(1, round(before * factor))}

    with program.each_loader(change) if program.is_hooked else program.each_workload(change):
        yield
