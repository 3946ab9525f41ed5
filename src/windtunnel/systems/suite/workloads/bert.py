"""BERT, which fills in masked words.

In: a size and a seed. Out: a ``Workload`` around the BERT of transformers with random weights. Every window is full,
so no step needs an attention mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.texts import MASK, NUM_SPECIAL, Text, Tokens
from windtunnel.workloads.workload import Training, Workload, move_to_device

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "bert"]

IGNORED = -100
"""The label of a place that the loss leaves out (transformers)."""


@dataclass(frozen=True)
class Preset:
    """Shape of the network and of its data."""

    batch_size: int
    length: int
    width: int
    depth: int
    heads: int
    vocabulary: int
    learning_rate: float


PRESETS = {
    "tiny": Preset(8, length=32, width=64, depth=2, heads=2, vocabulary=1000, learning_rate=3e-3),
    "small": Preset(8, length=128, width=256, depth=4, heads=4, vocabulary=8000, learning_rate=3e-4),
    "paper": Preset(256, length=512, width=1024, depth=24, heads=16, vocabulary=30_522, learning_rate=1e-4),
}
"""``small`` is BERT-mini; ``paper`` is BERT-large, the 24 layers that TBD trains."""


@registry.workload("bert", source="Devlin et al., NAACL 2019", domain="language")
def bert(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Fill in masked words from both sides.

    A batch counts windows of text. Parameters and errors are those of :meth:`Training.of`.
    """
    require("torch", extra="torch")
    require("transformers", extra="suite")
    import torch

    training = Training.of("bert", PRESETS, size, batch_size, seed)
    preset = training.preset
    num_windows = training.batch_size
    model = _network(preset)
    optimizer = torch.optim.AdamW(model.parameters(), lr=preset.learning_rate)
    data, random = Text.of(preset.vocabulary, seed), np.random.default_rng(seed)
    num_tokens = 0

    def step() -> torch.Tensor:
        nonlocal num_tokens
        words = data.draw(num_windows, preset.length, random)
        num_tokens += words.size
        sampled = mask_words(words, preset.vocabulary, random)
        masked, labels = (move_to_device(array, training.device) for array in sampled)
        optimizer.zero_grad()
        loss: torch.Tensor = model(input_ids=masked, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return training.workload(
        (model,),
        (optimizer,),
        step,
        data=data.origin,
        unit="tokens",
        units=lambda: num_tokens,
    )


def mask_words(words: Tokens, vocabulary: int, random: np.random.Generator) -> tuple[Tokens, Tokens]:
    """Words with some hidden, and the labels of those: section 3.1 of the paper.

    Of all places 15 % are chosen; of these 80 % become ``MASK``, 10 % any word, 10 % stay.
    """
    is_chosen = random.random(words.shape) < 0.15
    if not is_chosen.any():  # the mean loss over zero words is NaN
        is_chosen.flat[random.integers(words.size)] = True
    fate = random.random(words.shape)
    anything = random.integers(NUM_SPECIAL, vocabulary, words.shape)
    shown = np.where(fate < 0.8, MASK, np.where(fate < 0.9, anything, words))
    return np.where(is_chosen, shown, words), np.where(is_chosen, words, IGNORED)


def _network(preset: Preset) -> torch.nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=preset.vocabulary,
        hidden_size=preset.width,
        num_hidden_layers=preset.depth,
        num_attention_heads=preset.heads,
        intermediate_size=4 * preset.width,
        max_position_embeddings=preset.length,
    )
    model: torch.nn.Module = BertForMaskedLM(config).train()
    return model
