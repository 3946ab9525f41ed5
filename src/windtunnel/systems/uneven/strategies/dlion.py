"""DLion: batches by compute power, gradients by link rate, weights from the best worker.

In: gradients, losses, times, what peers say of themselves. Out: the entries that matter most, to each peer within its
own budget. Source: Hong, Chandra, DLion: Decentralized Distributed Deep Learning in Micro-Clouds, HPDC 2021. The paper
weighs a gradient by its batch over the receiver's; here by its batch over all of them, so that each sample counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.uneven.policy import (
    CONTROL_BYTES,
    Action,
    Batch,
    Finished,
    Message,
    Node,
    Policy,
    Send,
    spans,
    sparse_bytes,
)
from windtunnel.systems.uneven.strategies.barrier import largest_remainders
from windtunnel.systems.uneven.strategies.peers import Paced, check_staleness

if TYPE_CHECKING:
    import torch

__all__ = ["BatchPlan", "Power", "dlion", "equal_times", "largest_that_fits", "line_of"]

_NUM_BINS = 256
_SMOOTHING = 0.3
_MIN_GAIN = 0.01
_OFF, _MAX_DEVIATION = 0.2, 2


@dataclass(frozen=True)
class BatchPlan:
    """The growth of the global batch: by steps to 1 % of the samples, by a factor to 10 %, then constant."""

    first: int
    num_samples: int
    step: int
    factor: float

    def after(self, num_adjustments: int) -> int:
        """Return the samples of all workers together."""
        total = float(self.first)
        for _ in range(num_adjustments):
            if total < 0.01 * self.num_samples:
                total = min(total + self.step, max(0.01 * self.num_samples, total))
            elif total < 0.1 * self.num_samples:
                total = min(total * self.factor, 0.1 * self.num_samples)
        return int(total)


@dataclass(frozen=True)
class Power:
    """The announced power of a worker: a step on b samples takes ``fixed_s + per_sample_s * b``."""

    round: float
    fixed_s: float
    per_sample_s: float
    num_samples: float


@dataclass(frozen=True)
class Numbers:
    """Parameters of the strategy."""

    adjust_every: int
    transfer_every: int
    transfer: float
    least: float
    staleness: int
    accumulates: bool


class _Dlion(Paced):
    def __init__(self, node: Node, numbers: Numbers) -> None:
        super().__init__(node, numbers.staleness)
        self._numbers = numbers
        self._batch = node.batch_size
        self._times: list[tuple[int, float]] = []  # samples, s
        self._powers: dict[int, Power] = {}
        self._is_profiled, self._num_off = False, 0
        self._rates: dict[int, float] = {}  # to each peer, as it measured, bytes per s
        self._measured: dict[int, float] = {}  # from each peer
        self._losses: list[float] = []
        self._said: dict[int, dict[int, float]] = {}
        self._kept: dict[int, torch.Tensor] = {}  # of each link, what was not sent yet
        self._parts: dict[int, dict[int, tuple[Any, torch.Tensor, float]]] = {}  # of steps that are not complete
        self._batches = dict.fromkeys(range(node.num_workers), float(node.batch_size))  # last known

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self.num_steps += 1
        took_s = (now_ns - step.begun_ns) / 1e9
        self._times.append((step.num_samples, took_s))
        self._losses.append(step.loss)
        actions: list[Action] = [self._gradient_for(peer, step, took_s) for peer in self.node.peers]
        self._learn(self.num_steps, self.node.rank, (slice(None), step.gradient, float(step.num_samples)))
        return [*actions, *self._adjust_batch(took_s), *self._share_loss(), *self.go_on()]

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        about, source = message.about, message.source
        if message.tag == "gradient":
            self._learn(int(about["step"]), source, (*message.values, about["samples"]))
            self._measure(source, message.size_bytes / max((now_ns - message.sent_ns) / 1e9, 1e-9))
            if about["rate"] > 0:
                self._rates[source] = about["rate"]
            self.hear(source, int(about["step"]))
            return self.after_hearing()
        if message.tag == "power":
            self._powers[source] = Power(**about)
            return self._new_batch()
        if message.tag == "loss":
            self._said.setdefault(int(about["round"]), {})[source] = about["loss"]
            return self._transfer(int(about["round"]))
        if message.tag == "want":
            weights = self.node.weights.clone()
            return (Send(source, "best", weights, self.node.size_bytes()),)
        # what is left is "best", the weights asked for: go towards them
        self.node.weights.add_(message.values - self.node.weights, alpha=self._numbers.transfer)
        return ()

    def on_worker_lost(self, worker: int, now_ns: int) -> Sequence[Action]:
        self._batches.pop(worker, None)
        self._powers.pop(worker, None)
        for reported in self._said.values():
            reported.pop(worker, None)
        for step in sorted(self._parts):
            self._whole(step)
        transfers = [item for number in list(self._said) for item in self._transfer(number)]
        return [*self._new_batch(), *transfers, *super().on_worker_lost(worker, now_ns)]

    # --- what is sent ----------------------------------------------------------------------------------------

    def _learn(self, step: int, source: int, part: tuple[Any, torch.Tensor, float]) -> None:
        """Weight gradients by samples: with the last known batches, or once all gradients of a step arrived."""
        if source in self._batches:
            self._batches[source] = part[2]
        if self._numbers.staleness:
            self._descend([part], sum(self._batches.values()))
            return
        self._parts.setdefault(step, {})[source] = part
        self._whole(step)

    def _whole(self, step: int) -> None:
        """Apply a step once all of its gradients have arrived."""
        parts = self._parts[step]
        if all(rank in parts for rank in self.node.alive):
            del self._parts[step]
            self._descend([parts[rank] for rank in sorted(parts)], sum(part[2] for part in parts.values()))

    def _descend(self, parts: Sequence[tuple[Any, torch.Tensor, float]], total: float) -> None:
        gradient = self.node.weights.new_zeros(self.node.weights.shape)
        for indices, values, samples in parts:
            gradient[indices] += values * (samples / total)
        self.descend(gradient, 1.0)

    def _gradient_for(self, peer: int, step: Finished, took_s: float) -> Send:
        gradient = step.gradient
        if self._numbers.accumulates:
            gradient = self._kept[peer] = self._kept.get(peer, 0.0) + step.gradient
        budget = self._rates[peer] * took_s if peer in self._rates else float("inf")
        indices = largest_that_fits(gradient, self.node.shapes, budget, self._numbers.least)
        values = gradient[indices].clone()
        if self._numbers.accumulates:
            gradient[indices] = 0.0
        about = {"step": self.num_steps, "rate": self._measured.get(peer, 0.0), "samples": step.num_samples}
        size_bytes = min(sparse_bytes(len(indices), len(gradient)), 4 * len(gradient))
        return Send(peer, "gradient", (indices, values), size_bytes or CONTROL_BYTES, about)

    def _measure(self, source: int, rate: float) -> None:
        before = self._measured.get(source)
        self._measured[source] = rate if before is None else (1 - _SMOOTHING) * before + _SMOOTHING * rate

    # --- batches ---------------------------------------------------------------------------------------------

    def _adjust_batch(self, took_s: float) -> list[Action]:
        """Announce the time per sample to all peers, periodically and when steps deviate from the announced time.

        One step before an announcement has another batch size; the difference shows the fixed part of a step.
        """
        every = self._numbers.adjust_every
        if not every:
            return []
        if self._is_profiled:
            return self._announce_power()
        self._num_off = self._num_off + 1 if self._is_off(took_s) else 0
        is_changed = self._num_off == _MAX_DEVIATION
        if is_changed:  # what was measured before no longer counts
            self._times = self._times[-_MAX_DEVIATION:]
        self._is_profiled = is_changed or self.num_steps % every == every - 1
        return [Batch(max(1, self._batch // 2))] if self._is_profiled else []

    def _is_off(self, took_s: float) -> bool:
        """Whether a step took another time than the announced line predicts."""
        reported = self._powers.get(self.node.rank)
        expected_s = reported.fixed_s + reported.per_sample_s * self._times[-1][0] if reported else took_s
        return abs(took_s - expected_s) > _OFF * expected_s

    def _announce_power(self) -> list[Action]:
        self._is_profiled, self._num_off = False, 0
        fixed_s, per_sample_s = line_of(self._times)
        self._times = self._times[-2 * self._numbers.adjust_every :]
        number = self.num_steps // self._numbers.adjust_every
        power = Power(number, fixed_s, per_sample_s, self.node.num_samples)
        self._powers[self.node.rank] = power
        sends = [Send(peer, "power", about=asdict(power)) for peer in self.node.peers]
        return [Batch(self._batch), *sends, *self._new_batch()]

    def _new_batch(self) -> list[Action]:
        """Choose batches with which all steps take equally long, once every worker has announced its speed."""
        alive = self.node.alive
        reported = [self._powers[rank] for rank in alive if rank in self._powers]
        if len(reported) < len(alive) or len({item.round for item in reported}) > 1:
            return []
        first = self.node.batch_size * len(alive)
        plan = BatchPlan(first, round(sum(item.num_samples for item in reported)), first, 1.5)
        shares = equal_times(reported, plan.after(round(reported[0].round)))
        self._batch = shares[alive.index(self.node.rank)]
        return [] if self._is_profiled else [Batch(self._batch)]

    # --- weights of the best ---------------------------------------------------------------------------------

    def _share_loss(self) -> list[Action]:
        every = self._numbers.transfer_every
        if not every or self.num_steps % every:
            return []
        number, loss = self.num_steps // every, sum(self._losses) / len(self._losses)
        self._losses = []
        self._said.setdefault(number, {})[self.node.rank] = loss
        about = {"round": number, "loss": loss}
        return [*(Send(peer, "loss", about=about) for peer in self.node.peers), *self._transfer(number)]

    def _transfer(self, number: int) -> list[Action]:
        reported = self._said.get(number, {})
        if not all(rank in reported for rank in self.node.alive):
            return []
        del self._said[number]
        best = min(self.node.alive, key=lambda rank: (reported[rank], rank))
        own = reported[self.node.rank]
        return [Send(best, "want")] if best != self.node.rank and own > (1 + _MIN_GAIN) * reported[best] else []


def line_of(times: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fit the fixed seconds of a step and the seconds per sample to (samples, s).

    Examples
    --------
    >>> [round(one, 6) for one in line_of([(10, 0.3), (20, 0.5)])]
    [0.1, 0.02]
    """
    samples, took_s = np.array(times, float).T
    if len(set(samples.tolist())) > 1:
        per_sample_s, fixed_s = np.polyfit(samples, took_s, 1)
        if per_sample_s > 0 and fixed_s > 0:
            return float(fixed_s), float(per_sample_s)
    return 0.0, float(took_s.sum() / samples.sum())


def equal_times(powers: Sequence[Power], total: int) -> list[int]:
    """Return batches of ``total`` samples with equal step times, at least 1 sample each.

    The paper takes the largest batch that a worker does in a unit of time; here the unit is the time at which these
    batches add up.

    Examples
    --------
    >>> equal_times([Power(1, 0.0, 0.01, 9), Power(1, 0.2, 0.01, 9)], 40)
    [30, 10]
    """
    rates = [1 / power.per_sample_s for power in powers]
    shares, active, left = [1] * len(powers), list(range(len(powers))), total
    while True:
        fixed = sum(powers[position].fixed_s * rates[position] for position in active)
        time_s = (left + fixed) / sum(rates[position] for position in active)
        requested = {position: (time_s - powers[position].fixed_s) * rates[position] for position in active}
        kept = [position for position in active if requested[position] >= 1]
        if not kept or len(kept) == len(active):
            break
        left -= len(active) - len(kept)  # one sample each for those that would take as long for nothing
        active = kept
    for index, share in zip(
        active, largest_remainders([max(requested[position], 1e-9) for position in active], left), strict=True
    ):
        shares[index] = share
    return shares


def largest_that_fits(
    gradient: torch.Tensor, shapes: Sequence[int], budget_bytes: float, min_percent: float
) -> torch.Tensor:
    """Return indices of entries that reach (1 - N / 100) of their parameter's maximum, for the largest N that fits.

    Never fewer than for N = ``min_percent``; nothing of a parameter that is all zero.
    """
    relative = gradient.new_zeros(gradient.shape)
    for span in spans(shapes or [len(gradient)]):
        part = gradient[span].abs()
        most = part.max()
        if most > 0:
            relative[span] = part / most
    anything = relative > 0
    if sparse_bytes(int(anything.sum()), len(gradient)) <= budget_bytes:
        return anything.nonzero().squeeze(1)
    counts = relative[anything].histc(bins=_NUM_BINS, min=0.0, max=1.0).flip(0).cumsum(0).tolist()
    fits = [index for index, count in enumerate(counts) if sparse_bytes(int(count), len(gradient)) <= budget_bytes]
    threshold = 1 - (fits[-1] + 1) / _NUM_BINS if fits else 1.0
    threshold = min(threshold, 1 - min_percent / 100)
    return ((relative >= threshold) & (relative > 0)).nonzero().squeeze(1)


@registry.strategy("dlion", source="Hong and Chandra, HPDC 2021")
def dlion(
    adjust_every: int = 20,
    transfer_every: int = 100,
    transfer: float = 0.75,
    least: float = 0.85,
    staleness: int = 0,
    accumulates: bool = False,
) -> Policy:
    """Choose batches by power and gradients by link; take weights of the best every ``transfer_every`` steps."""
    check_staleness(staleness)
    if adjust_every < 0 or adjust_every == 1 or transfer_every < 0 or not 0 <= transfer <= 1 or not 0 <= least <= 100:
        raise InputError(
            "DLion adjusts every 2 steps or more (0: never), transfers every step or more (0: never) a share from 0 to "
            "1, and sends at least 0 to 100 percent",
            where="dlion",
            fix="adjust_every=20,transfer_every=100,transfer=0.75,least=0.85",
        )
    numbers = Numbers(adjust_every, transfer_every, transfer, least, staleness, accumulates)
    return Policy(lambda node: _Dlion(node, numbers), goes_on="always")
