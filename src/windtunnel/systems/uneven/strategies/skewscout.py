"""SkewScout: tunes the communication savings of a compressed learner to the skew of the data.

In: a learner of ``compressed``, accuracies of models that traveled, bytes. Out: a new value of the learner's tuned
number, period after period. Source: Hsieh, Phanishayee, Mutlu, Gibbons, The Non-IID Data Quagmire of Decentralized
Machine Learning, ICML 2020, section 7. Every worker runs the same tuner on the same sums, so that all agree without a
server. Traffic counts over that of a sum of all gradients per step, on the same links; models that travel count too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.uneven.policy import (
    Action,
    Finished,
    Message,
    Node,
    Policy,
    Probe,
    Reduce,
    Send,
    Worker,
    dense_bytes,
)
from windtunnel.systems.uneven.strategies.barrier import LocalSgd
from windtunnel.systems.uneven.strategies.compressed import Dgc, Gaia

if TYPE_CHECKING:
    import torch

__all__ = ["GRIDS", "TUNERS", "Tuner", "objective", "skewscout"]

GRIDS: dict[str, tuple[float, ...]] = {
    "gaia": (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
    "fedavg": (1, 2, 5, 10, 20, 50, 100, 200),
    "dgc": (1600, 800, 400, 200, 100, 50, 25),
}
"""Grid of each learner, from most to least traffic: threshold, local steps, steps per stage of the warm-up."""

TUNERS = ("hill", "stochastic", "anneal")
_LOSS_ALLOWED, _LOSS_WEIGHT, _BYTES_WEIGHT = 0.05, 50.0, 1.0
_COOLING = 0.8
_REMEMBERED = 8


def objective(accuracy_loss: float, bytes_ratio: float) -> float:
    """Return the objective to minimize: 50 max(0, accuracy loss - 5 %) + bytes relative to BSP.

    Examples
    --------
    >>> objective(0.03, 0.5), objective(0.07, 0.1)
    (0.5, 1.1)
    """
    return round(_LOSS_WEIGHT * max(0.0, accuracy_loss - _LOSS_ALLOWED) + _BYTES_WEIGHT * bytes_ratio, 12)


class Tuner:
    """Search an ordered grid by recorded scores (smaller is better), from the position with the least traffic on.

    Parameters
    ----------
    num : int
        Number of grid positions.
    kind : str
        ``hill``: move to the next neighbor, and turn around when it is worse. ``stochastic``: move to a random
        neighbor, and back when it is worse. ``anneal``: as ``stochastic``, but accept a worse neighbor with a falling
        probability.
    seed : int
    """

    def __init__(self, num: int, kind: str, seed: int = 0) -> None:
        self.position = num - 1
        self._num, self._kind, self._random = num, kind, random.Random(seed)
        self._direction, self._temperature = -1, 1.0
        self._scores: dict[int, tuple[float, int]] = {}  # with the time of recording: training moves the optimum
        self._count = 0
        self._before: int | None = None

    def record_score(self, score: float) -> int:
        """Record the score of the current position and return the next position."""
        self._count += 1
        self._scores[self.position] = score, self._count
        before = self._before
        # The last move made it worse: go back, and try the other direction next.
        if before is not None and before != self.position and not self._is_kept(score, self._scores[before][0]):
            self._direction = -self._direction
            self._before, self.position = None, before
            return self.position
        self._before = self.position
        self.position = self._neighbor()
        return self.position

    def _is_kept(self, score: float, before: float) -> bool:
        if score <= before or self._kind != "anneal":
            return score <= before
        self._temperature *= _COOLING
        return self._random.random() < math.exp(-(score - before) / self._temperature)

    def _neighbor(self) -> int:
        if self._kind != "hill":
            self._direction = self._random.choice((-1, 1))
        if not 0 <= self.position + self._direction < self._num:
            self._direction = -self._direction
        there = self.position + self._direction
        score, when = self._scores.get(there, (-math.inf, 0))
        # A score is only believed for some periods, because training moves the optimum.
        is_worse = score > self._scores[self.position][0] and self._count - when <= _REMEMBERED
        return self.position if is_worse and self._kind == "hill" else there


class _SkewScout(Worker):
    """A learner with counted traffic, whose model is evaluated on every other worker, round robin."""

    def __init__(self, node: Node, learner: str, tuner: str, travel_every: int, num_probed: int, reduce: str) -> None:
        super().__init__(node)
        self._grid = GRIDS[learner]
        self._tuner = Tuner(len(self._grid), tuner)
        self._inner = _learner(learner, node, self._grid[self._tuner.position], reduce)
        self._travel_every, self._num_probed = travel_every, num_probed
        self._num_steps = self._period = 0
        self._sent_bytes = self._num_sums = 0
        self._seen: dict[str, float] = {}

    def start(self, now_ns: int) -> Sequence[Action]:
        return self._count_traffic(self._inner.start(now_ns))

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        actions = list(self._count_traffic(self._inner.on_step(step, now_ns)))
        self._num_steps += 1
        if self._num_steps % self._travel_every or self.node.num_workers == 1:
            return actions
        self._period += 1
        weights, buffers = self.node.weights.clone(), self.node.buffers.clone()
        # Round robin over all other workers: in period p the model travels p places further around.
        target = (self.node.rank + 1 + (self._period - 1) % (self.node.num_workers - 1)) % self.node.num_workers
        size_bytes = dense_bytes(weights) + dense_bytes(buffers)
        travel = Send(target, "travel", (weights, buffers), size_bytes, {"period": self._period})
        home = Probe(weights, buffers, self._num_probed, f"home {self._period}")
        return [*self._count_traffic([travel]), home, *actions]

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        # home: this worker's model on its own data; away: the same model on the data of another worker. The
        # difference is the loss of accuracy by skew.
        if message.tag == "travel":
            period = int(message.about["period"])
            weights, buffers = message.values
            return (Probe(weights, buffers, self._num_probed, f"away {period} {message.source}"),)
        if message.tag == "judged":
            return self._record_accuracy("away", int(message.about["period"]), message.about["accuracy"])
        return self._count_traffic(self._inner.on_message(message, now_ns))

    def on_probe(self, tag: str, loss: float, accuracy: float, now_ns: int) -> Sequence[Action]:
        where, period, *owner = tag.split()
        if where == "home":
            return self._record_accuracy("home", int(period), accuracy)
        return self._count_traffic([Send(int(owner[0]), "judged", about={"period": int(period), "accuracy": accuracy})])

    def on_reduce(self, tag: str, total: torch.Tensor, now_ns: int) -> Sequence[Action]:
        if not tag.startswith("skew"):
            return self._count_traffic(self._inner.on_reduce(tag, total, now_ns))
        missing, share = (float(item) / self.node.num_workers for item in total)
        self._inner.retune(self._grid[self._tuner.record_score(objective(missing, share))])
        return ()

    def _record_accuracy(self, where: str, period: int, accuracy: float) -> Sequence[Action]:
        """Once the accuracies at home and away are known, sum losses of accuracy and traffic over all workers."""
        self._seen[f"{where} {period}"] = accuracy
        both = [self._seen.get(f"{item} {period}") for item in ("home", "away")]
        if both[0] is None or both[1] is None:
            return ()
        self._seen = {key: value for key, value in self._seen.items() if not key.endswith(f" {period}")}
        share = (
            self._sent_bytes / (self.node.size_bytes() * self.node.sum_ratio) + self._num_sums
        ) / self._travel_every
        self._sent_bytes = self._num_sums = 0
        return (Reduce(f"skew {period}", self.node.weights.new_tensor([both[0] - both[1], share])),)

    def _count_traffic(self, actions: Sequence[Action]) -> Sequence[Action]:
        for action in actions:
            if isinstance(action, Send):
                self._sent_bytes += action.size_bytes
            self._num_sums += isinstance(action, Reduce)
        return actions

    def model(self) -> torch.Tensor:
        return self._inner.model()


def _learner(name: str, node: Node, number: float, reduce: str) -> Gaia | LocalSgd | Dgc:
    if name == "gaia":
        return Gaia(node, number, reduce)
    return LocalSgd(node, int(number)) if name == "fedavg" else Dgc(node, 0.999, int(number), True, reduce)


@registry.strategy("skewscout", source="Hsieh et al., ICML 2020")
def skewscout(
    learner: str = "gaia", tuner: str = "hill", travel_every: int = 500, probe: int = 400, reduce: str = "sum"
) -> Policy:
    """Run gaia, fedavg or dgc; let models travel every ``travel_every`` steps, and save as much as the data allows."""
    if learner not in GRIDS or tuner not in TUNERS or travel_every < 1 or probe < 1:
        raise InputError(
            f"SkewScout runs no {learner!r} by {tuner!r}, or never travels ({travel_every} steps, {probe} samples)",
            where="skewscout",
            fix=f"learners: {', '.join(GRIDS)}; tuners: {', '.join(TUNERS)}; 1 step and 1 sample or more",
        )
    return Policy(lambda node: _SkewScout(node, learner, tuner, travel_every, probe, reduce))
