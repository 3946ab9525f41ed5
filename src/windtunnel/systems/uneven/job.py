"""A model with data that workers train together, on one flat vector of weights.

In: a model, a loss, samples, a local rule. Out: gradients at given weights, losses on samples that were held back. Not
here: who trains when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.systems.uneven.policy import Node, Probe, spans

__all__ = ["FlatModel", "Samples", "TrainJob", "step_seed"]

_EVALUATED = 500


@dataclass(frozen=True)
class TrainJob:
    """What is trained. A function of one's own returns one: ``windtunnel train plan ... --job my_job.py:make``.

    Parameters
    ----------
    name : str
    model : callable
        Makes the model; called right after the seed of torch was set.
    loss : callable
        Of the model's output and the targets, a mean over samples.
    inputs, targets : tensors
        Training samples, in front: [samples, ...].
    test_inputs, test_targets : tensors
        Samples that were held back.
    optimizer : callable
        Of a list with one parameter (all weights in a row), the local rule: ``lambda ps: torch.optim.SGD(ps, lr=0.1)``.
    batch_size : int
        Samples per worker and step.
    schedule : callable, optional
        Of that optimizer, a learning-rate scheduler that is stepped with it.
    labels : int array [samples], optional
        What partitioners go by; the targets where they are whole numbers.
    """

    name: str
    model: Callable[[], torch.nn.Module]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor
    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
    batch_size: int = 32
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    labels: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or len(self.test_inputs) != len(self.test_targets):
            raise InputError(
                f"{len(self.inputs)} inputs have {len(self.targets)} targets, "
                f"{len(self.test_inputs)} test inputs {len(self.test_targets)}",
                where=f"job {self.name}",
                fix="give each sample its target",
            )
        if not len(self.inputs) or not len(self.test_inputs) or self.batch_size < 1:
            raise InputError("a job needs samples, samples to test, and a batch size of 1 or more", where=self.name)

    def sample_labels(self) -> NDArray[Any]:
        """What partitioners go by, [samples]; all equal where nothing is known."""
        if self.labels is not None:
            return np.asarray(self.labels)
        if self.targets.dtype in (torch.int64, torch.int32, torch.uint8) and self.targets.ndim == 1:
            return self.targets.numpy()
        return np.zeros(len(self.targets), np.int64)


class FlatModel:
    """A model whose parameters lie in one vector, as do their gradients.

    One of them serves any number of workers in turn, each of which has weights (and buffers, such as the statistics of
    batch norms) of its own.

    Attributes
    ----------
    initial : tensor [n]
        Of float32, or float64 where the model is.
    shapes : tuple of int
        Entries of each parameter.
    """

    def __init__(self, job: TrainJob, seed: int) -> None:
        self.job = job
        torch.manual_seed(seed)
        self.module = job.model()
        parameters = [item for item in self.module.parameters() if item.requires_grad]
        if not parameters:
            raise InputError("the model has nothing to train", where=f"job {job.name}", fix="give it parameters")
        self.shapes = tuple(item.numel() for item in parameters)
        dtype = torch.promote_types(torch.float32, parameters[0].dtype)
        self._weights = torch.cat([item.detach().reshape(-1).to(dtype) for item in parameters])
        self._gradient = torch.zeros_like(self._weights)
        for parameter, span in zip(parameters, spans(self.shapes), strict=True):
            parameter.data = self._weights[span].view(parameter.shape)
            parameter.grad = self._gradient[span].view(parameter.shape)
        self._buffers = [buffer for buffer in self.module.buffers() if buffer.is_floating_point()]
        self._buffer_spans = spans([buffer.numel() for buffer in self._buffers])
        self.initial = self._weights.clone()
        self.initial_buffers = self.buffers()

    def buffers(self) -> torch.Tensor:
        """All buffers in a row, a copy."""
        if not self._buffers:
            return torch.empty(0)
        return torch.cat([buffer.detach().reshape(-1) for buffer in self._buffers])

    def gradient(
        self, weights: torch.Tensor, buffers: torch.Tensor, selected: torch.Tensor, seed: int
    ) -> tuple[torch.Tensor, float]:
        """Return the gradient, [n], and the value of the mean loss over samples; ``buffers`` change in place."""
        self._enter(weights, buffers)
        self._gradient.zero_()
        self.module.train()
        # dropout must not depend on the order of workers; torch.manual_seed would query all devices each time
        torch.default_generator.manual_seed(seed)
        loss = self.job.loss(self.module(self.job.inputs[selected]), self.job.targets[selected])
        loss.backward()
        if self._buffers:
            buffers.copy_(self.buffers())
        return self._gradient.clone(), float(loss.detach())

    def evaluate(self, weights: torch.Tensor, buffers: torch.Tensor) -> tuple[float, float]:
        """Return the mean loss over the held-out samples and the accuracy (nan without classes)."""
        return self.evaluate_on(weights, buffers, self.job.test_inputs, self.job.test_targets)

    def probe(self, probe: Probe, indices: NDArray[np.int64]) -> tuple[float, float]:
        """Return loss and accuracy over evenly spaced samples of a worker."""
        num = min(probe.num_samples, len(indices))
        selected = torch.as_tensor(indices[np.arange(num) * len(indices) // num])
        return self.evaluate_on(probe.weights, probe.buffers, self.job.inputs[selected], self.job.targets[selected])

    def evaluate_on(
        self, weights: torch.Tensor, buffers: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[float, float]:
        """Return the mean loss and the accuracy over the given samples."""
        self._enter(weights, buffers)
        self.module.eval()
        loss, right, counted = 0.0, 0, 0
        with torch.no_grad():
            for x, y in zip(inputs.split(_EVALUATED), targets.split(_EVALUATED), strict=True):
                out = self.module(x)
                loss += float(self.job.loss(out, y)) * len(x)
                if not y.is_floating_point():
                    right += int((out.argmax(1) == y).sum())
                    counted += y.numel()
        return loss / len(inputs), right / counted if counted else float("nan")

    def node(self, rank: int, num_workers: int, num_samples: int = 0) -> Node:
        """Return the initial state of a worker or of the server."""
        parameter = torch.nn.Parameter(self.initial.clone())
        optimizer = self.job.optimizer([parameter])
        schedule = None if self.job.schedule is None else self.job.schedule(optimizer)
        return Node(
            rank,
            num_workers,
            parameter.data,
            self.initial_buffers.clone(),
            optimizer,
            self.job.batch_size,
            self.shapes,
            schedule,
            num_samples=num_samples,
        )

    def _enter(self, weights: torch.Tensor, buffers: torch.Tensor) -> None:
        self._weights.copy_(weights)
        for buffer, span in zip(self._buffers, self._buffer_spans, strict=True):
            buffer.copy_(buffers[span].view(buffer.shape))


class Samples:
    """An endless random sequence of one worker's samples, which depends on the seed and the worker alone."""

    def __init__(self, indices: NDArray[np.int64], seed: int, rank: int) -> None:
        self._indices, self._random = torch.as_tensor(indices), np.random.default_rng([seed, rank])
        self._left = torch.empty(0, dtype=torch.int64)

    def draw(self, num: int) -> torch.Tensor:
        """Return the next ``num`` indices."""
        while len(self._left) < num:
            order = torch.as_tensor(self._random.permutation(len(self._indices)))
            self._left = torch.cat([self._left, self._indices[order]])
        sampled, self._left = self._left[:num], self._left[num:]
        return sampled


def step_seed(seed: int, rank: int, step: int) -> int:
    """Return the seed of the random numbers within one step of one worker."""
    return int(np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))
