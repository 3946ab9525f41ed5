"""A workload taken apart for a pipeline: model, loss, optimizer, batches in microbatches.

In: a registered workload's name and parameters. Out: the built workload, its batches one by one. Not here: stages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.sources.targets import build_workload

if TYPE_CHECKING:
    from windtunnel.workloads.workload import Supervised, Workload

__all__ = ["Batches", "RestingBatch", "build_parts", "home_of", "optimizer_like"]


def home_of(workload: str) -> str:
    """The module that registers a workload, for processes that have to know it, too."""
    module: str = registry.get("workload", workload).function.__module__
    return module


def build_parts(workload: str, parameters: dict[str, Any], num_parts: int, home: str = "") -> Workload:
    """A workload whose batch can be cut into parts.

    Parameters
    ----------
    workload : str
    parameters : dict
    num_parts : int
        Microbatches of all replicas.
    home : str
        The module that registers it, where that is not one of ours.

    Raises
    ------
    NotApplicableError
        A step is more than a model and a loss.
    InputError
        The batch does not divide into equal parts.
    """
    if home:
        importlib.import_module(home)
    built = build_workload(workload, parameters)
    if built.supervised is None:
        built.close()
        raise NotApplicableError(
            "its step has more than one model and a loss", where=workload, fix="choose resnet50, vit, decoder-lm or mlp"
        )
    if built.batch_size % num_parts:
        built.close()
        raise InputError(
            f"{num_parts} microbatches of a batch of {built.batch_size}", where="microbatches",
            fix="a divisor of the batch",
        )  # fmt: skip
    return built


def optimizer_like(whole: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer that does to some parameters what another one does to all."""
    kind: Any = type(whole)
    created: torch.optim.Optimizer = kind(parameters)  # not every default is an argument: they go in afterwards
    created.param_groups[0].update({key: value for key, value in whole.param_groups[0].items() if key != "params"})
    return created


class RestingBatch:
    """One batch in parts, over and over.

    Parameters
    ----------
    inputs : tuple of tensor
    target : tensor
    num_parts : int
    """

    def __init__(self, inputs: tuple[torch.Tensor, ...], target: torch.Tensor, num_parts: int) -> None:
        self._inputs = list(zip(*(tensor.chunk(num_parts) for tensor in inputs), strict=True))
        self._targets = target.chunk(num_parts)

    def inputs(self, _batch: int, part: int) -> tuple[torch.Tensor, ...]:
        """Return the inputs of the first stage for a microbatch."""
        result: tuple[torch.Tensor, ...] = self._inputs[part]
        return result

    def target(self, _batch: int, part: int) -> torch.Tensor:
        """Return the target for the last stage's output."""
        return self._targets[part]


class Batches:
    """A workload's batches, each in parts; of each only what is still to be read here.

    Parameters
    ----------
    pieces : Supervised
    num_microbatches, num_replicas, replica : int
        Batches are cut into the microbatches of all replicas; those of this one are given.
    num_reads : (int, int)
        How often inputs, and targets, of a batch are read: then they can go.
    skip : int
        Batches that were trained on before.
    """

    def __init__(
        self,
        pieces: Supervised,
        num_microbatches: int,
        *,
        num_reads: tuple[int, int],
        num_replicas: int = 1,
        replica: int = 0,
        skip: int = 0,
    ) -> None:
        self._pieces, self._num_parts, self._num_reads = pieces, num_microbatches * num_replicas, num_reads
        self._mine = slice(replica * num_microbatches, (replica + 1) * num_microbatches)
        self._drawn: tuple[dict[int, list[Any]], ...] = ({}, {})  # of inputs and targets: parts, reads to come
        self._random = torch.get_rng_state()
        for _ in range(skip):
            self._draw()
        self._next = skip
        self.example: tuple[torch.Tensor, ...] = self._draw_batch()[0][0]
        """A microbatch of the first batch to come."""

    def inputs(self, batch: int, part: int) -> tuple[torch.Tensor, ...]:
        """Return the inputs of the first stage for a microbatch of a batch."""
        result: tuple[torch.Tensor, ...] = self._read(0, batch, part)
        return result

    def target(self, batch: int, part: int) -> torch.Tensor:
        """Return the target for the last stage's output."""
        result: torch.Tensor = self._read(1, batch, part)
        return result

    def _read(self, which: int, batch: int, part: int) -> Any:
        while self._next <= batch:
            self._draw_batch()
        sampled = self._drawn[which][batch]
        sampled[1] -= 1
        if not sampled[1]:
            del self._drawn[which][batch]
        return sampled[0][part]

    def _draw_batch(self) -> tuple[list[Any], list[Any]]:
        """Draw the next batch, keep what is read of it."""
        inputs, target = self._draw()
        parts = (
            list(zip(*(tensor.chunk(self._num_parts) for tensor in inputs), strict=True)),
            target.chunk(self._num_parts),
        )
        local = (parts[0][self._mine], list(parts[1][self._mine]))
        for kept, item, num_reads in zip(self._drawn, local, self._num_reads, strict=True):
            if num_reads:
                kept[self._next] = [item, num_reads]
        self._next += 1
        return local

    def _draw(self) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """With a state of its own: what dropout draws on this rank must not change what all ranks read."""
        others = torch.get_rng_state()
        torch.set_rng_state(self._random)
        sampled = self._pieces.draw()
        self._random = torch.get_rng_state()
        torch.set_rng_state(others)
        return sampled
