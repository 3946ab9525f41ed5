"""Strategies that send only what matters: Gaia, deep gradient compression, federated averaging.

In: gradients. Out: the entries of updates that are significant, or largest, to all other workers. Every worker has a
momentum of its own, and the updates of all are *added*, as published, so that the rate of one worker that did the same
alone is the number of workers times as large; with ``reduce=mean`` it is the same. Federated averaging takes the mean.
Sources: Hsieh et al., Gaia, NSDI 2017; Lin et al., DGC, ICLR 2018; McMahan et al., FedAvg, AISTATS 2017; all as in
Hsieh et al., The Non-IID Data Quagmire, ICML 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
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
    spans,
    sparse_bytes,
)
from windtunnel.systems.uneven.strategies.barrier import local_sgd, rate_scale

if TYPE_CHECKING:
    import torch

__all__ = ["Dgc", "Gaia", "dgc", "fedavg", "gaia"]

_DGC_SPARSITY = (0.75, 0.9375, 0.984375, 0.996, 0.999)


class _UpdateExchange(Worker):
    """A worker that sends entries of its update to all others after each step and waits for theirs."""

    def __init__(self, node: Node, reduce: str) -> None:
        super().__init__(node)
        self._step, self._scale = 0, rate_scale(node, reduce, "sum")
        self._heard: dict[int, dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
        self._kept = node.weights.new_zeros(node.weights.shape)
        self._is_waiting = False

    def on_step(self, step: Finished, now_ns: int) -> Sequence[Action]:
        # ``_kept`` is the update that was not sent yet; what is sent is taken out of it, the rest waits.
        before = self.node.weights.clone()
        self.node.apply(step.gradient, self._scale)
        self._kept += self.node.weights - before
        indices, size_bytes = self._select_entries(before)
        values = self._kept[indices].clone()
        self._kept[indices] = 0.0
        self._after_sending(indices, values)
        self._step += 1
        about = {"step": self._step}
        sends = [
            Send(peer, "update", (indices, values), size_bytes or CONTROL_BYTES, about) for peer in self.node.peers
        ]
        self._is_waiting = True
        return [*sends, *self._go_on()]

    def on_message(self, message: Message, now_ns: int) -> Sequence[Action]:
        self._heard.setdefault(int(message.about["step"]), {})[message.source] = message.values
        return self._go_on()

    def on_worker_lost(self, worker: int, now_ns: int) -> Sequence[Action]:
        return self._go_on()

    def _go_on(self) -> Sequence[Action]:
        """Add what all others sent for this step, in the order of ranks; then the next one."""
        heard = self._heard.get(self._step, {})
        if not self._is_waiting or not all(peer in heard for peer in self.node.peers):
            return ()
        self._is_waiting = False
        for source in sorted(heard):
            indices, values = heard[source]
            self.node.weights[indices] += values
        self._heard.pop(self._step, None)
        return (Step(),)

    def _select_entries(self, before: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the indices of the entries to send, and their size on a link."""
        raise NotImplementedError

    def _after_sending(self, indices: torch.Tensor, values: torch.Tensor) -> None:
        """Update local state after sending."""


class Gaia(_UpdateExchange):
    """Applies the update at once, and sends significant entries of the accumulated update."""

    def __init__(self, node: Node, threshold: float, reduce: str) -> None:
        super().__init__(node, reduce)
        self._threshold, self._first_rate = threshold, node.learning_rate

    def retune(self, number: float) -> None:
        """Change the threshold."""
        self._threshold = number

    def _select_entries(self, before: torch.Tensor) -> tuple[torch.Tensor, int]:
        # a rate that warms up from 0 has no ratio yet
        self._first_rate = self._first_rate or self.node.learning_rate
        scaled = self._threshold * (self.node.learning_rate / self._first_rate if self._first_rate else 1.0)
        weights, kept = self.node.weights, self._kept
        # Relative to the weight; a weight of 0 has no ratio, so that any update of it counts.
        is_significant = (kept != 0) & ((weights == 0) | (kept.abs() > scaled * weights.abs()))
        indices = is_significant.nonzero().squeeze(1)
        return indices, sparse_bytes(len(indices), len(kept))


@registry.strategy("gaia", source="Hsieh et al., NSDI 2017")
def gaia(threshold: float = 0.2, reduce: str = "sum") -> Policy:
    """Send entries whose pending update is more than ``threshold`` of the weight; the rest is kept for later."""
    if threshold < 0:
        raise InputError(f"no update is {threshold} of a weight", where="threshold", fix="take 0 or more, such as 0.2")
    return Policy(lambda node: Gaia(node, threshold, reduce), tuned="threshold", goes_on="always")


class Dgc(_UpdateExchange):
    """Applies only what it sends: the largest entries of each parameter."""

    def __init__(self, node: Node, sparsity: float, warm_up: int, masks_momentum: bool, reduce: str) -> None:
        super().__init__(node, reduce)
        self._sparsity, self._warm_up, self._masks_momentum = sparsity, warm_up, masks_momentum

    def retune(self, number: float) -> None:
        """Change the length of the warm-up stages."""
        self._warm_up = int(number)

    def _select_entries(self, before: torch.Tensor) -> tuple[torch.Tensor, int]:
        # The optimizer's step is taken back: DGC applies only what is sent, on all workers alike.
        self.node.weights.copy_(before)
        levels = (*(item for item in _DGC_SPARSITY if item < self._sparsity), self._sparsity)
        index = len(levels) - 1 if not self._warm_up else min(self._step // self._warm_up, len(levels) - 1)
        is_sent = self._kept.new_zeros(self._kept.shape)
        for size, span in zip(self.node.shapes, spans(self.node.shapes), strict=True):
            num = max(1, int(size * (1 - levels[index]) + 1e-9))
            is_sent[span][self._kept[span].abs().topk(num).indices] = 1.0
        indices = is_sent.nonzero().squeeze(1)
        return indices, 8 * len(indices)

    def _after_sending(self, indices: torch.Tensor, values: torch.Tensor) -> None:
        self.node.weights[indices] += values
        if self._masks_momentum:
            for state in self.node.optimizer.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"][indices] = 0.0


@registry.strategy("dgc", source="Lin et al., ICLR 2018")
def dgc(sparsity: float = 0.999, warm_up: int = 1000, masks_momentum: bool = True, reduce: str = "sum") -> Policy:
    """Send the largest pending entries of each parameter, ever fewer of them every ``warm_up`` steps."""
    if not 0 <= sparsity < 1 or warm_up < 0:
        raise InputError(
            f"DGC leaves out a share from 0 to below 1 and warms up for 0 steps or more, not {sparsity} and {warm_up}",
            where="dgc",
            fix="sparsity=0.999,warm_up=1000",
        )
    created = partial(Dgc, sparsity=sparsity, warm_up=warm_up, masks_momentum=masks_momentum, reduce=reduce)
    return Policy(created, tuned="warm_up", goes_on="always")


@registry.strategy("fedavg", source="McMahan et al., AISTATS 2017")
def fedavg(local: int = 50) -> Policy:
    """Average all weights, with equal shares, every ``local`` steps; each worker's momentum stays its own."""
    return replace(local_sgd(local), tuned="local")
