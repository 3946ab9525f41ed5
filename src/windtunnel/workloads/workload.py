"""What every workload is: models, optimizers and one step.

Also what all of them share that come in sizes, and the folder with real data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from windtunnel.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["SIZES", "Sized", "Supervised", "Training", "Workload", "data_file", "endless", "move_to_device"]

SIZES = ("tiny", "small", "paper")
"""A step of ``tiny`` takes less than a second on two cores; ``paper`` is what the model's paper trains."""


class Sized(Protocol):
    """What a preset says at least."""

    @property
    def batch_size(self) -> int:
        """Samples per iteration."""


Preset = TypeVar("Preset", bound=Sized, covariant=True)


def _nothing() -> None:
    """A workload that holds no processes has nothing to end."""


@dataclass(frozen=True)
class Supervised:
    """What a step is made of, for who puts it together in another way: a batch, the first model, a loss.

    Parameters
    ----------
    draw : callable
        A batch: what the model is called with, and what its output is compared with; all of them have the batch in
        front.
    loss : callable
        Of the model's output and the target.
    """

    draw: Callable[[], tuple[tuple[Any, ...], torch.Tensor]]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]


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
        Releases what the workload holds in addition to memory (actor processes).
    supervised : Supervised or None
        The pieces of a step; None where a step is more than a model and a loss.
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
    supervised: Supervised | None = None

    @property
    def model(self) -> torch.nn.Module:
        """The first model."""
        return self.models[0]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first optimizer."""
        return self.optimizers[0]


@dataclass(frozen=True)
class Training(Generic[Preset]):
    """One training of a workload that comes in sizes, as it was asked for.

    Parameters
    ----------
    name : str
        As registered.
    preset : Preset
        Of that size.
    size : str
        One of ``SIZES``.
    batch_size : int
    seed : int
    device : torch.device
        Where torch made new tensors when it was asked for: what a step draws goes there.
    """

    name: str
    preset: Preset
    size: str
    batch_size: int
    seed: int
    device: torch.device

    @classmethod
    def of(
        cls, name: str, presets: Mapping[str, Preset], size: str, batch_size: int | None, seed: int
    ) -> Training[Preset]:
        """Choose the preset; what torch draws from now on follows from ``seed``.

        Parameters
        ----------
        name : str
        presets : mapping of size to Preset
        size : str
            ``tiny``, ``small`` or ``paper``.
        batch_size : int or None
            Samples per step; None for the size's own.
        seed : int

        Raises
        ------
        InputError
            There is no such size.
        """
        import torch

        if size not in presets:
            raise InputError(f"no size is called {size!r}", where="size", fix=f"choose one of {', '.join(presets)}")
        preset = presets[size]
        torch.manual_seed(seed)
        samples = preset.batch_size if batch_size is None else batch_size
        return cls(name, preset, size, samples, seed, torch.get_default_device())

    def workload(
        self,
        models: tuple[torch.nn.Module, ...],
        optimizers: tuple[torch.optim.Optimizer, ...],
        step: Callable[[], torch.Tensor],
        **more: Any,
    ) -> Workload:
        """The workload that trains so; ``more`` are further fields of :class:`Workload`."""
        return Workload(self.name, models, optimizers, step, self.batch_size, size=self.size, **more)


def data_file(relative: str) -> Path | None:
    """A file of real data below the folder that ``WINDTUNNEL_DATA`` names, or None where it is not there."""
    folder = os.environ.get("WINDTUNNEL_DATA")
    path = Path(folder) / relative if folder else None
    return path if path is not None and path.exists() else None


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Batches without end, on the host: a new epoch begins where one ends."""
    while True:
        batches = iter(loader)
        while (batch := _fetch_batch(batches)) is not None:
            yield batch


def _fetch_batch(batches: Iterator[Any]) -> Any:
    """The next batch, or None; a loader collates on the host, wherever torch makes other new tensors."""
    import torch

    host = torch.device("cpu")
    with nullcontext() if torch.get_default_device() == host else host:
        return next(batches, None)


def move_to_device(data: np.ndarray[Any, Any] | torch.Tensor, device: torch.device) -> torch.Tensor:
    """What was drawn on the host, on a device; on the host nothing is copied."""
    import torch

    tensor = data if isinstance(data, torch.Tensor) else torch.from_numpy(data)
    return tensor if device == torch.device("cpu") else tensor.to(device)
