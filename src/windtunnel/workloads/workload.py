"""What every workload is: models, optimisers and one step (room workloads)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Workload", "endless"]


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
    """

    name: str
    models: tuple[torch.nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    step: Callable[[], torch.Tensor]
    batch_size: int
    loader: Any = None

    @property
    def model(self) -> torch.nn.Module:
        """The first model."""
        return self.models[0]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first optimiser."""
        return self.optimizers[0]


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Batches without end: a new epoch begins where one ends."""
    while True:
        yield from loader
