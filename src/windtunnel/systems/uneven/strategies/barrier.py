"""Strategies in which all workers wait for each other: every step, or every few.

In: gradients or weights. Out: sums over all workers. Sources: BSP, Valiant, CACM 1990; local SGD, Stich, ICLR 2019;
ADACOMM, Wang and Joshi, MLSys 2019; batches by speed, as ADSP (NeurIPS 2019 workshops; AAAI 2020) compares with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.uneven.policy import Action, Batch, Finished, Node, Policy, Reduce, Shape, Step, Worker

if TYPE_CHECKING:
    import torch

__all__ = ["LocalSgd", "adacomm", "batchtune", "bsp", "largest_remainders", "local_sgd", "rate_scale"]

_PROFILED = 3


REDUCES = ("mean", "sum")


class _Bsp(Worker):
    def __init__(self, node: Node, scale: float) -> None:
        super().__init__(node)
        self._step, self._scale = 0, scale

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self._step += 1
        return (Reduce(str(self._step), step.gradient),)

    def on_reduce(self, tag: str, total: torch.Tensor, now_ns: int) -> Sequence[Action]:
        self.node.apply(total.div_(self.node.num_workers), self._scale)
        return (Step(),)


@registry.strategy("bsp", source="Valiant, CACM 1990")
def bsp(reduce: str = "mean") -> Policy:
    """Take the mean of all gradients after each step (or ``sum``: that of all updates), and wait for it."""
    return Policy(lambda node: _Bsp(node, rate_scale(node, reduce, "mean")), shape=Shape(), goes_on="over-server")


def rate_scale(node: Node, reduce: str, usual: str) -> float:
    """Return the factor on the learning rate if the updates of all workers are combined: a sum is a larger step.

    Raises
    ------
    InputError
        It is neither ``mean`` nor ``sum``.
    """
    if reduce not in REDUCES:
        raise InputError(f"updates are not put together by {reduce!r}", where="reduce", fix="mean or sum")
    if reduce == usual:
        return 1.0
    return float(node.num_workers) if reduce == "sum" else 1.0 / node.num_workers


class LocalSgd(Worker):
    """A worker that takes local steps, then averages all weights."""

    def __init__(self, node: Node, num_local: int) -> None:
        super().__init__(node)
        self._num_local, self._done, self._round = num_local, 0, 0
        self._losses: list[float] = []

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self.node.apply(step.gradient)
        self._done += 1
        self._losses.append(step.loss)
        if self._done < self._num_local:
            return (Step(),)
        self._done = 0
        self._round += 1
        return (Reduce(str(self._round), self._vector_to_average(now_ns)),)

    def on_reduce(self, tag: str, total: torch.Tensor, now_ns: int) -> Sequence[Action]:
        self.node.weights.copy_(self._read_average(total.div_(self.node.num_workers)))
        return (Step(),)

    def retune(self, number: float) -> None:
        """Change the number of local steps."""
        self._num_local = int(number)

    def _vector_to_average(self, now_ns: int) -> torch.Tensor:
        return self.node.weights.clone()

    def _read_average(self, mean: torch.Tensor) -> torch.Tensor:
        return mean


@registry.strategy("local-sgd", source="Stich, ICLR 2019; fixed ADACOMM of Wang and Joshi, MLSys 2019")
def local_sgd(tau: int = 8) -> Policy:
    """Let each worker take ``tau`` steps alone, then average all weights and wait for it."""
    _check_tau(tau)
    return Policy(lambda node: LocalSgd(node, tau), shape=Shape(every=tau), tuned="tau", goes_on="over-server")


class _Adacomm(LocalSgd):
    """Adapts the number of local steps by losses and times, which are averaged with the weights."""

    def __init__(self, node: Node, num_local: int, interval_ns: int, decay: float) -> None:
        super().__init__(node, num_local)
        self._first = num_local
        self._interval_s, self._decay = interval_ns / 1e9, decay
        self._next_s = self._interval_s
        self._first_loss: float | None = None

    def _vector_to_average(self, now_ns: int) -> torch.Tensor:
        loss = sum(self._losses) / len(self._losses)
        self._losses.clear()
        return append_numbers(self.node.weights, [loss, now_ns / 1e9])

    def _read_average(self, mean: torch.Tensor) -> torch.Tensor:
        loss, now_s = float(mean[-2]), float(mean[-1])
        if self._first_loss is None:
            self._first_loss = loss
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            requested = math.ceil(self._first * math.sqrt(max(loss, 0.0) / self._first_loss))
            if requested >= self._num_local:  # the loss no longer falls
                requested = math.floor(self._num_local * self._decay)
            self._num_local = max(1, requested)
        return mean[:-2]


@registry.strategy("adacomm", source="Wang and Joshi, MLSys 2019")
def adacomm(tau: int = 16, interval_s: float = 10.0, decay: float = 0.5) -> Policy:
    """Like ``local-sgd``, with ever fewer steps alone: ``tau`` times the root of the loss over the first loss."""
    _check_tau(tau)
    if not (0 < decay < 1 and interval_s > 0):
        raise InputError(
            f"ADACOMM needs a decay between 0 and 1 and an interval above 0, not {decay} and {interval_s}",
            where="adacomm",
            fix="decay=0.5,interval_s=10",
        )
    return Policy(lambda node: _Adacomm(node, tau, round(interval_s * 1e9), decay), goes_on="over-server")


class _BatchTune(Worker):
    """Weights gradients by samples; batches follow the measured speeds, which all workers know."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._step, self._taken_s = 0, 0.0

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self._step += 1
        self._taken_s += (now_ns - step.begun_ns) / 1e9 / step.num_samples
        speeds = [0.0] * self.node.num_workers
        speeds[self.node.rank] = self._step / self._taken_s
        weighted = append_numbers(step.gradient * step.num_samples, [float(step.num_samples), *speeds])
        return (Reduce(str(self._step), weighted),)

    def on_reduce(self, tag: str, total: torch.Tensor, now_ns: int) -> Sequence[Action]:
        num = self.node.num_workers
        gradient, weight, speeds = total[: -1 - num], total[-1 - num], total[-num:]
        self.node.apply(gradient / weight)
        if self._step != _PROFILED:
            return (Step(),)
        if not speeds.all():  # a worker is lost: no share for it
            speeds, num = speeds.clamp(min=1e-9), int(speeds.count_nonzero())
        shares = largest_remainders(speeds.tolist(), num * self.node.batch_size)
        return (Batch(shares[self.node.rank]), Step())


@registry.strategy("batchtune", source="baseline of ADSP: Hu, Wang, Wu, AAAI 2020")
def batchtune() -> Policy:
    """BSP with each worker's batch in proportion to its speed, as measured in the first steps."""
    return Policy(_BatchTune, goes_on="over-server")


def append_numbers(values: torch.Tensor, numbers: Sequence[float]) -> torch.Tensor:
    """Append numbers to a vector, which are then summed with it."""
    vector = values.new_empty(len(values) + len(numbers))
    vector[: len(values)] = values
    vector[len(values) :] = values.new_tensor(numbers)
    return vector


def largest_remainders(weights: Sequence[float], total: int) -> list[int]:
    """Return integers of at least 1 in proportion to weights that add up to ``total``.

    Examples
    --------
    >>> largest_remainders([1, 1, 2], 9)
    [2, 2, 5]
    """
    exact = [weight / sum(weights) * total for weight in weights]
    shares = [max(1, int(item)) for item in exact]
    by_rest = sorted(range(len(exact)), key=lambda index: (int(exact[index]) - exact[index], index))
    index = 0
    while sum(shares) < total:
        shares[by_rest[index % len(shares)]] += 1
        index += 1
    while sum(shares) > total:
        shares[max(range(len(shares)), key=shares.__getitem__)] -= 1
    return shares


def _check_tau(tau: int) -> None:
    if tau < 1:
        raise InputError(f"a worker cannot take {tau} steps between two averages", where="tau", fix="take 1 or more")
