"""Strategies around a parameter server that apply each step at once: asynchronous, or bounded.

In: workers' weights after a step. Out: the server's weights, when the bound lets the worker go on. Sources: SSP, Ho et
al., NIPS 2013; asynchronous SGD, Recht et al., NIPS 2011.
"""

from __future__ import annotations

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
    Send,
    Server,
    Shape,
    Step,
    Worker,
    dense_bytes,
)

if TYPE_CHECKING:
    import torch

__all__ = ["Commits", "asp", "ssp"]


class Commits:
    """A server's weights, to which workers add what they learned since it last answered them.

    A worker sends its weights; the server knows what it gave that worker, and adds the difference, shared over those
    that are not lost. In float64 a difference and its sum are exact, so that one worker trains as if there were no
    server.
    """

    def __init__(self, node: Node) -> None:
        self._node, self.weights = node, node.weights
        self._given = [node.weights.clone() for _ in range(node.num_workers)]
        self.counts = [0] * node.num_workers

    def add(self, worker: int, weights: torch.Tensor) -> None:
        """A worker's commit."""
        learned = weights.double() - self._given[worker]
        self.weights.copy_(self.weights + learned * (1 / len(self._node.alive)))
        self.counts[worker] += 1

    def answer(self, worker: int) -> Send:
        """The weights for that worker."""
        given = self.weights.clone()
        self._given[worker] = given
        return Send(worker, "weights", given, dense_bytes(given))


class _Committing(Worker):
    """Commit after each step; go on with the server's answer."""

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self.node.apply(step.gradient)
        return (Send(self.node.server, "commit", self.node.weights.clone(), self.node.size_bytes()),)

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        self.node.weights.copy_(message.values)
        return (Step(),)


class _Bounded(Server):
    """Answer a worker once it is at most ``max_ahead`` commits ahead of the slowest."""

    def __init__(self, node: Node, max_ahead: float) -> None:
        super().__init__(node)
        self._commits = Commits(node)
        self._max_ahead = max_ahead
        self._waiting: list[int] = []

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        self._commits.add(message.source, message.values)
        self._waiting.append(message.source)
        return self._answers()

    def on_worker_lost(self, worker: int, now_ns: int) -> Sequence[Action]:
        self._waiting = [item for item in self._waiting if item != worker]
        return self._answers()

    def _answers(self) -> list[Action]:
        counts = self._commits.counts
        slowest = min(counts[item] for item in self.node.alive)
        free = [item for item in self._waiting if counts[item] - slowest <= self._max_ahead]
        self._waiting = [item for item in self._waiting if item not in free]
        return [self._commits.answer(item) for item in free]


@registry.strategy("ssp", source="Ho et al., NIPS 2013")
def ssp(staleness: int = 3) -> Policy:
    """Commit each step to a server; wait where one is more than ``staleness`` commits ahead of the slowest."""
    if staleness < 0:
        raise InputError(f"no worker can be {staleness} commits ahead", where="staleness", fix="take 0 or more")
    shape = Shape(max_ahead=staleness)
    return Policy(_Committing, lambda node: _Bounded(node, staleness), shape, goes_on="always")


@registry.strategy("asp", source="Recht et al., NIPS 2011")
def asp() -> Policy:
    """Commit each step to a server without waiting for other workers."""
    shape = Shape(max_ahead=float("inf"))
    return Policy(_Committing, lambda node: _Bounded(node, float("inf")), shape, goes_on="always")
