"""A node as drivers see it: the state machine of a strategy, whose sums are translated into messages.

In: events of the node. Out: ``Step``, ``Send``, ``Timer`` and ``Probe`` actions only. Not here: time, links,
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from windtunnel.cost.collective import ring_ratio
from windtunnel.errors import FlightError, InputError
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.policy import (
    Action,
    Batch,
    Finished,
    Message,
    Node,
    Policy,
    Probe,
    Reduce,
    Send,
    Server,
    Step,
    Timer,
    Worker,
)
from windtunnel.systems.uneven.reduction import Ring, Star, StarCenter
from windtunnel.units import format_duration

__all__ = ["Endpoint", "check_policy", "goes_on"]

Outward = Step | Send | Timer | Probe
_SUM = "sum:"


class Endpoint:
    """One node with its strategy.

    Parameters
    ----------
    node : Node
    policy : Policy
    over_server : bool
        Sums go over the server instead of around the ring of workers.
    """

    def __init__(self, node: Node, policy: Policy, *, over_server: bool = False) -> None:
        self.node = node
        node.sum_ratio = 2.0 if over_server else ring_ratio(node.num_workers)
        self.batch_size = node.batch_size
        self._over_server = over_server
        self.is_server = node.rank == node.num_workers
        self._serves = policy.server is not None
        self._logic: Worker | Server
        if self.is_server:
            self._logic = (policy.server or Server)(node)
        else:
            self._logic = policy.worker(node)
        self._sums: dict[str, Ring | Star] = {}
        self._centers: dict[str, StarCenter] = {}

    def start(self) -> list[Outward]:
        """Handle the start of training at time 0."""
        return self._outward(self._logic.start(0), 0)

    def on_step(self, step: Finished, now_ns: int) -> list[Outward]:
        """Handle the end of a local step.

        Raises
        ------
        FlightError
            The gradient is not finite; the message names the worker.
        """
        # a finite sum proves finite terms; a sum that overflows needs the slower check of all terms
        if not math.isfinite(step.gradient.sum()) and not torch.isfinite(step.gradient).all():
            raise FlightError(
                f"worker {self.node.rank} has a gradient that is not finite (loss {step.loss})",
                where=f"its step that began at {step.begun_ns / 1e9:.3f} s",
                fix="lower the learning rate, clip the gradients, or check this worker's data",
            )
        assert isinstance(self._logic, Worker)
        return self._outward(self._logic.on_step(step, now_ns), now_ns)

    def on_message(self, message: Message, now_ns: int) -> list[Outward]:
        """Handle a message."""
        if not message.tag.startswith(_SUM):
            return self._outward(self._logic.on_message(message, now_ns), now_ns)
        if self.is_server:
            center = self._centers.setdefault(message.tag, StarCenter(self.node, message.tag))
            return self._close_center(message.tag, center.on_message(message))
        return self._outward(self._advance_sum(message.tag, self._sum(message.tag).on_message(message), now_ns), now_ns)

    def on_timer(self, tag: str, now_ns: int) -> list[Outward]:
        """Handle a timer that expired."""
        return self._outward(self._logic.on_timer(tag, now_ns), now_ns)

    def on_probe(self, tag: str, loss: float, accuracy: float, now_ns: int) -> list[Outward]:
        """Handle the result of a probe."""
        assert isinstance(self._logic, Worker)
        return self._outward(self._logic.on_probe(tag, loss, accuracy, now_ns), now_ns)

    def on_worker_lost(self, worker: int, now_ns: int) -> list[Outward]:
        """Handle the loss of a worker."""
        self.node.lost_workers.add(worker)
        sums = [send for tag, item in list(self._centers.items()) for send in self._close_center(tag, item.whole())]
        return [*sums, *self._outward(self._logic.on_worker_lost(worker, now_ns), now_ns)]

    def _close_center(self, tag: str, sends: Sequence[Send]) -> list[Outward]:
        if sends:
            del self._centers[tag]
        return list(sends)

    def retune(self, number: float) -> None:
        """Go on with another value of the number that the strategy lets change."""
        self._logic.retune(number)

    @property
    def serves(self) -> bool:
        """Whether this is a server whose weights are the job's."""
        return self.is_server and self._serves

    def model(self) -> torch.Tensor:
        """Return the weights of this node to evaluate."""
        return self._logic.model()

    def _outward(self, actions: Iterable[Action], now_ns: int) -> list[Outward]:
        out: list[Outward] = []
        for action in actions:
            if isinstance(action, Reduce):
                tag = _SUM + action.tag
                out += self._outward(self._advance_sum(tag, self._sum(tag).add(action.values), now_ns), now_ns)
            elif isinstance(action, Batch):
                self.batch_size = action.num_samples
            else:
                out.append(action)
        return out

    def _advance_sum(self, tag: str, sends: Sequence[Send], now_ns: int) -> list[Action]:
        """Return the messages of a sum and, once it is complete, the actions of the strategy."""
        total = self._sums[tag].total
        if total is None:
            return list(sends)
        del self._sums[tag]
        assert isinstance(self._logic, Worker)
        return [*sends, *self._logic.on_reduce(tag.removeprefix(_SUM), total, now_ns)]

    def _sum(self, tag: str) -> Ring | Star:
        if tag not in self._sums:
            self._sums[tag] = (Star if self._over_server else Ring)(self.node, tag)
        return self._sums[tag]


def check_policy(name: str, policy: Policy, fleet: Fleet) -> None:
    """Reject a strategy that needs a server that the fleet lacks, or a worker that is lost.

    Raises
    ------
    InputError
    """
    if policy.server is not None and not fleet.has_server:
        raise InputError(
            f"{name} needs a parameter server, and the cluster has none",
            where="cluster file",
            fix="add a [server] table to it, or choose a strategy without one",
        )
    missing = [worker for worker in fleet.workers if worker.lost_ns is not None]
    if missing and not goes_on(policy, fleet):
        is_ring = policy.goes_on == "over-server"
        raise InputError(
            f"{name} cannot go on without {missing[0].name}, which is lost at "
            f"{format_duration(missing[0].lost_ns or 0)}"
            + (": its sums go around a ring of all workers" if is_ring else ""),
            where=f"cluster {fleet.name}",
            fix=("add a [server] table, " if is_ring else "")
            + "choose a strategy such as asp, ssp, adsp, hop or dlion",
        )


def goes_on(policy: Policy, fleet: Fleet) -> bool:
    """Whether training continues when a worker is lost."""
    return policy.goes_on == "always" or (policy.goes_on == "over-server" and fleet.has_server)
