"""Strategies in which workers send gradients or weights to each other at their own pace.

In: gradients. Out: messages to peers; a worker waits only where it would be too far ahead of them. Sources:
Watcharapichat et al., Ako, SoCC 2016; Luo et al., Hop, ASPLOS 2019; DLion, Hong and Chandra, HPDC 2021, compares with
them. Gradients are applied as plain SGD at the job's rate: a momentum of gradients that come in parts has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.uneven.policy import (
    CONTROL_BYTES,
    Action,
    Finished,
    Message,
    Node,
    Policy,
    Send,
    Step,
    Worker,
    dense_bytes,
)

if TYPE_CHECKING:
    import torch

__all__ = ["Paced", "ako", "all_to_all", "check_staleness", "hop"]


class Paced(Worker):
    """A worker that is at most ``staleness`` steps ahead of enough of its peers; -1 never waits."""

    def __init__(self, node: Node, staleness: int, *, num_backup: int = 0) -> None:
        super().__init__(node)
        self.num_steps = 0
        self._staleness, self._num_backup = staleness, num_backup
        self._heard = dict.fromkeys(self.sources(), 0)
        self._is_waiting = False

    def sources(self) -> Iterable[int]:
        """Return the workers whose messages this worker waits for."""
        return self.node.peers

    def hear(self, source: int, step: int) -> None:
        """Record that a peer has finished ``step`` steps."""
        if source in self._heard:  # what a lost worker sent may come later
            self._heard[source] = max(self._heard[source], step)

    def go_on(self) -> Sequence[Action]:
        """Begin the next step now, or once enough peers have caught up."""
        needed = self.num_steps - self._staleness
        behind = sum(item < needed for item in self._heard.values()) if self._staleness >= 0 else 0
        self._is_waiting = behind > self._num_backup
        return () if self._is_waiting else (Step(),)

    def after_hearing(self) -> Sequence[Action]:
        """Begin the next step if this worker waits and may continue."""
        return self.go_on() if self._is_waiting else ()

    def on_worker_lost(self, worker: int, now_ns: int) -> Sequence[Action]:
        self._heard.pop(worker, None)
        return self.after_hearing()

    def descend(self, gradient: torch.Tensor, share: float) -> None:
        """Apply a fraction of a gradient with plain SGD."""
        if any(group.get("momentum") for group in self.node.optimizer.param_groups):
            self.node.warn("the job's momentum is not used: gradients of peers come one by one")
        self.node.weights.add_(gradient, alpha=-self.node.learning_rate * share)


class _AllToAll(Paced):
    """Every worker sends each gradient to all others."""

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self.num_steps += 1
        self.descend(step.gradient, 1 / len(self.node.alive))
        about = {"step": self.num_steps}
        size_bytes = dense_bytes(step.gradient)
        sends = [Send(peer, "gradient", step.gradient, size_bytes, about) for peer in self.node.peers]
        return [*sends, *self.go_on()]

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        self.descend(message.values, 1 / len(self.node.alive))
        self.hear(message.source, int(message.about["step"]))
        return self.after_hearing()


@registry.strategy("all-to-all", source="baseline of DLion, Hong and Chandra, HPDC 2021")
def all_to_all(staleness: int = 0) -> Policy:
    """Send whole gradients to all others; wait where more than ``staleness`` steps ahead (0: each step, -1: never)."""
    check_staleness(staleness)
    return Policy(lambda node: _AllToAll(node, staleness), goes_on="always")


class _Ako(Paced):
    """Every worker sends one partition of its accumulated gradient per step to all others, round robin."""

    def __init__(self, node: Node, num_partitions: int) -> None:
        super().__init__(node, -1)
        self._num = num_partitions
        self._gathered = node.weights.new_zeros(node.weights.shape)

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self.descend(step.gradient, 1 / len(self.node.alive))
        self._gathered += step.gradient
        index, total = self.num_steps % self._num, len(self._gathered)
        begin, end = index * total // self._num, (index + 1) * total // self._num
        part = self._gathered[begin:end].clone()
        self._gathered[begin:end] = 0.0
        self.num_steps += 1
        about = {"begin": begin}
        sends = [Send(peer, "part", part, dense_bytes(part) or CONTROL_BYTES, about) for peer in self.node.peers]
        return [*sends, *self.go_on()]

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        begin = int(message.about["begin"])
        part = self.node.weights[begin : begin + len(message.values)]
        part.add_(message.values, alpha=-self.node.learning_rate / len(self.node.alive))
        return ()


@registry.strategy("ako", source="Watcharapichat et al., SoCC 2016")
def ako(partitions: int = 4) -> Policy:
    """Send one of ``partitions`` of the accumulated gradient per step to all others, round robin, without waiting."""
    if partitions < 1:
        raise InputError(f"a gradient has no {partitions} partitions", where="partitions", fix="take 1 or more")
    return Policy(lambda node: _Ako(node, partitions), goes_on="always")


class _Hop(Paced):
    """A worker of a ring that averages its weights with the last ones received from its neighbors."""

    def __init__(self, node: Node, staleness: int, num_backup: int) -> None:
        super().__init__(node, staleness, num_backup=num_backup)
        self._last: dict[int, tuple[int, torch.Tensor]] = {}
        self._max_age = staleness if staleness >= 0 else float("inf")

    def sources(self) -> list[int]:
        rank, num = self.node.rank, self.node.num_workers
        return sorted({(rank + 1) % num, (rank - 1) % num} - {rank} - self.node.lost_workers)

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        self._mix()
        self.node.apply(step.gradient)
        self.num_steps += 1
        sent = self.node.weights.clone()
        about = {"step": self.num_steps}
        sends = [Send(source, "weights", sent, dense_bytes(sent), about) for source in self.sources()]
        return [*sends, *self.go_on()]

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        index = int(message.about["step"])
        self._last[message.source] = index, message.values
        self.hear(message.source, index)
        return self.after_hearing()

    def on_worker_lost(self, worker: int, now_ns: int) -> Sequence[Action]:
        self._last.pop(worker, None)
        return super().on_worker_lost(worker, now_ns)

    def _mix(self) -> None:
        """Average the weights with those of neighbors that are not too old."""
        fresh = [entry for index, entry in self._last.values() if index >= self.num_steps - self._max_age]
        if fresh:
            total = self.node.weights.clone()
            for item in fresh:
                total += item
            self.node.weights.copy_(total.div_(len(fresh) + 1))


@registry.strategy("hop", source="Luo et al., ASPLOS 2019")
def hop(staleness: int = 5, backup: int = 1) -> Policy:
    """Average weights with two neighbors; wait where more than ``staleness`` steps ahead of all but ``backup``."""
    check_staleness(staleness)
    if backup < 0:
        raise InputError(f"the number of backup workers cannot be {backup}", where="backup", fix="take 0 or more")
    return Policy(lambda node: _Hop(node, staleness, backup), goes_on="always")


def check_staleness(staleness: int) -> None:
    """Reject an invalid staleness.

    Raises
    ------
    InputError
    """
    if staleness < -1:
        raise InputError(
            f"no worker is {staleness} steps ahead", where="staleness", fix="0 waits each step, -1 never waits"
        )
