"""How data are loaded (flights of "loader-workers" and "batch-size").

In: a live program before it makes its ``DataLoader``. Out: loaders with another number of workers, or another batch
size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from windtunnel import registry
from windtunnel.errors import FlightError, InputError
from windtunnel.flights.proof import becomes, proven_by, scales
from windtunnel.sources.torch.live import LiveProgram, apart, at_start


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
