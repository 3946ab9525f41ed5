"""What every workload is: models, optimisers and one step (room workloads).

Also the two choices that all of them share: a size by name, and the folder with real data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from windtunnel.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["SIZES", "Workload", "data_file", "endless", "of_size"]

SIZES = ("tiny", "small", "paper")
"""A step of ``tiny`` takes less than a second on two cores; ``paper`` is what the model's paper trains."""

Preset = TypeVar("Preset")


def _nothing() -> None:
    """A workload that holds no processes has nothing to end."""


@dataclass(frozen=True)
class Workload:
    """A training job in one process.

    Parameters
    ----------
    name : str
        As registered.
    models : tuple of Module
        In the order in which they are called.
    optimizers : tuple of Optimizer
    step : callable
        One whole training iteration; returns its loss, not yet read by Python.
    batch_size : int
        Samples per iteration.
    loader : DataLoader or None
        Where the samples come from; None where they rest in memory.
    size : str
        One of ``SIZES``, or empty where the workload has only one.
    data : str
        What it is trained on: ``"synthetic: ..."`` or the data set's name.
    unit : str
        What its throughput counts: ``samples``, ``tokens``, ``seconds of audio``, ``frames``.
    units : callable or None
        Units that all steps until now have processed; None where a step always processes ``batch_size`` samples.
    objective : callable or None
        What training makes fall, where that is not the loss of a step (reinforcement learning: minus the mean
        return).
    close : callable
        Ends what the workload holds beside memory (actor processes).
    """

    name: str
    models: tuple[torch.nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    step: Callable[[], torch.Tensor]
    batch_size: int
    loader: Any = None
    size: str = ""
    data: str = "synthetic"
    unit: str = "samples"
    units: Callable[[], float] | None = None
    objective: Callable[[], float] | None = None
    close: Callable[[], None] = _nothing

    @property
    def model(self) -> torch.nn.Module:
        """The first model."""
        return self.models[0]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first optimiser."""
        return self.optimizers[0]


def of_size(presets: Mapping[str, Preset], size: str) -> Preset:
    """The preset of that size.

    Raises
    ------
    InputError
        There is no such size.
    """
    if size not in presets:
        raise InputError(f"no size is called {size!r}", where="size", fix=f"choose one of {', '.join(presets)}")
    return presets[size]


def data_file(relative: str) -> Path | None:
    """A file of real data below the folder that ``WINDTUNNEL_DATA`` names, or None where it is not there."""
    folder = os.environ.get("WINDTUNNEL_DATA")
    path = Path(folder) / relative if folder else None
    return path if path is not None and path.exists() else None


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Batches without end: a new epoch begins where one ends."""
    while True:
        yield from loader
