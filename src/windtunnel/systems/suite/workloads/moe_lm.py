"""A decoder with a mixture of experts, which predicts the next word.

In: a size and a seed. Out: a ``Workload`` in which a router sends each word to two experts of fixed capacity; every
shape is known beforehand, and words that find their expert full pass by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.systems.suite.workloads.decoder import Shape
from windtunnel.systems.suite.workloads.next_word import next_word
from windtunnel.workloads.workload import Training, Workload

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "moe_lm"]

NUM_CHOICES = 2
"""Experts per word."""

# N words, E experts, C capacity, W width, K choices


@dataclass(frozen=True)
class Preset:
    """Shape of the network and of its training; ``capacity_factor`` 1 holds all words when experts share evenly."""

    batch_size: int
    shape: Shape
    num_experts: int
    learning_rate: float
    capacity_factor: float = 1.25
    balance_weight: float = 0.01


PRESETS = {
    "tiny": Preset(8, Shape(32, width=64, depth=2, heads=4, key_heads=2, inner=128, vocabulary=1000), 4, 3e-3),
    "small": Preset(8, Shape(128, width=256, depth=4, heads=8, key_heads=4, inner=512, vocabulary=8000), 8, 5e-4),
    "paper": Preset(
        1, Shape(4096, width=4096, depth=32, heads=32, key_heads=8, inner=14_336, vocabulary=32_000), 8, 1e-4
    ),
}
"""``paper`` is Mixtral 8x7B, trained with GShard's capacity; its batch is one device's share."""


@registry.workload(
    "moe-lm", source="Lepikhin et al., GShard, ICLR 2021; Jiang et al., Mixtral, 2024", domain="language"
)
def moe_lm(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Predict the next word with two experts for each word.

    A batch counts windows of text. Parameters and errors are those of :meth:`Training.of`.
    """
    require("torch", extra="torch")
    training = Training.of("moe-lm", PRESETS, size, batch_size, seed)
    preset = training.preset
    return next_word(
        training,
        lambda: experts(preset),
        extra_weight=preset.balance_weight,
    )


def experts(preset: Preset) -> torch.nn.Module:
    """A feed-forward layer of gated experts behind a router; it appends its imbalance to the list of losses."""
    import torch
    from torch import nn

    width, inner, num_experts = preset.shape.width, preset.shape.inner, preset.num_experts

    class Experts(nn.Module):
        """GShard's dispatch with fixed capacity; one batched product does each layer of all experts."""

        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(width, num_experts, bias=False)
            self.gate = nn.Parameter(torch.empty(num_experts, width, inner))
            self.up = nn.Parameter(torch.empty(num_experts, width, inner))
            self.down = nn.Parameter(torch.empty(num_experts, inner, width))
            for weight in (self.gate, self.up, self.down):
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

        def forward(self, hidden: torch.Tensor, losses: list[torch.Tensor]) -> torch.Tensor:
            words_NW = hidden.flatten(0, 1)
            chances_NE = self.router(words_NW).softmax(dim=-1)
            weights_NK, chosen_NK = chances_NE.topk(NUM_CHOICES, dim=-1)
            # The probabilities of the selected experts are scaled to a sum of one.
            weights_NK = weights_NK / weights_NK.sum(dim=-1, keepdim=True)
            losses.append(imbalance(chances_NE, chosen_NK[:, 0]))
            #      N words x K choices -> seats [E, C] -> one batched product per layer of all experts -> back by seat
            # A fixed capacity keeps shapes static; a word that finds no seat gets the row of zeros at the end.
            capacity = expert_capacity(len(words_NW), num_experts, preset.capacity_factor)
            seats_NK = assign_seats(chosen_NK, num_experts, capacity)
            answers = self.ask(words_NW, seats_NK, capacity)
            mixed: torch.Tensor = (answers[seats_NK] * weights_NK[..., None]).sum(dim=1)
            return mixed.view_as(hidden)

        def ask(self, words_NW: torch.Tensor, seats_NK: torch.Tensor, capacity: int) -> torch.Tensor:
            """Answers by seat, with a row of zeros for those who found none: [E * C + 1, W]."""
            seated = words_NW.new_zeros(num_experts * capacity + 1, width)
            requested = words_NW.repeat_interleave(NUM_CHOICES, 0)
            rows = seated.index_copy(0, seats_NK.flatten(), requested)[:-1].view(num_experts, capacity, width)
            opened = nn.functional.silu(torch.bmm(rows, self.gate)) * torch.bmm(rows, self.up)
            answers = torch.bmm(opened, self.down).flatten(0, 1)
            return torch.cat([answers, answers.new_zeros(1, width)])

    return Experts()


def expert_capacity(num_words: int, num_experts: int, factor: float) -> int:
    """Seats of one expert."""
    return math.ceil(factor * NUM_CHOICES * num_words / num_experts)


def assign_seats(chosen_NK: torch.Tensor, num_experts: int, capacity: int) -> torch.Tensor:
    """The seat of every choice, first choices first: int64 [N, K] of expert * capacity + place.

    Who finds the expert full gets the seat after the last: ``num_experts * capacity``.
    """
    from torch.nn.functional import one_hot

    by_choice = chosen_NK.T.flatten()
    is_of_KNE = one_hot(by_choice, num_experts)
    index = ((is_of_KNE.cumsum(dim=0) - 1) * is_of_KNE).sum(dim=1)
    seats = (by_choice * capacity + index).masked_fill(index >= capacity, num_experts * capacity)
    return seats.view(chosen_NK.shape[1], chosen_NK.shape[0]).T


def imbalance(chances_NE: torch.Tensor, first_N: torch.Tensor) -> torch.Tensor:
    """E times the sum over experts of (share of words) x (mean chance): 1 when even (Switch, equation 4)."""
    from torch.nn.functional import one_hot

    num_experts = chances_NE.shape[1]
    shares_E = one_hot(first_N, num_experts).to(chances_NE.dtype).mean(dim=0)
    uneven: torch.Tensor = num_experts * (shares_E * chances_NE.mean(dim=0)).sum()
    return uneven
