"""An LSTM encoder and decoder with attention, which translate (room workloads).

In: a size and a seed. Out: a ``Workload`` of recurrent operators over padded sentences of one bucket per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from windtunnel import registry
from windtunnel.extras import require
from windtunnel.workloads._texts import PAD, translations
from windtunnel.workloads.workload import Workload, of_size

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "seq2seq"]


@dataclass(frozen=True)
class Preset:
    """Shape of the network and of its data."""

    batch_size: int
    width: int
    depth: int
    vocabulary: int
    learning_rate: float


PRESETS = {
    "tiny": Preset(batch_size=16, width=64, depth=2, vocabulary=1000, learning_rate=1e-2),
    "small": Preset(batch_size=32, width=256, depth=2, vocabulary=8000, learning_rate=2e-3),
    "paper": Preset(batch_size=128, width=512, depth=2, vocabulary=17_188, learning_rate=1e-3),
}
"""``paper`` is the network and the vocabulary of TBD's training on IWSLT'15."""


@registry.workload(
    "seq2seq",
    source="Sutskever et al., NeurIPS 2014; Luong et al., EMNLP 2015; Zhu et al., IISWC 2018",
    domain="translation",
)
def seq2seq(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Translate sentences with two recurrent networks and attention; counts words of both languages.

    Parameters
    ----------
    size : str
        ``tiny``, ``small`` or ``paper``.
    batch_size : int or None
        Sentence pairs per step; None for the size's own.
    seed : int

    Raises
    ------
    InputError
        There is no such size.
    """
    require("torch", extra="torch")
    import torch
    from torch import nn

    preset = of_size(PRESETS, size)
    num_pairs = batch_size or preset.batch_size
    torch.manual_seed(seed)
    model = _network(preset)
    optimizer = torch.optim.Adam(model.parameters(), lr=preset.learning_rate)
    loss_function = nn.CrossEntropyLoss(ignore_index=PAD)
    data, random = translations(preset.vocabulary, seed), np.random.default_rng(seed)
    num_tokens = 0

    def step() -> torch.Tensor:
        nonlocal num_tokens
        batch = data.draw(num_pairs, random)
        num_tokens += batch.num_tokens
        source, target = torch.from_numpy(batch.source), torch.from_numpy(batch.target)
        optimizer.zero_grad()
        scores = model(source, target[:, :-1])
        loss: torch.Tensor = loss_function(scores.flatten(0, 1), target[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.detach()

    return Workload(
        "seq2seq",
        (model,),
        (optimizer,),
        step,
        num_pairs,
        size=size,
        data=data.origin,
        unit="tokens",
        units=lambda: num_tokens,
    )


def _network(preset: Preset) -> torch.nn.Module:
    import torch
    from torch import nn

    width, depth, vocabulary = preset.width, preset.depth, preset.vocabulary
    dropout = 0.2 if depth > 1 else 0.0

    class Translator(nn.Module):
        """Luong's global attention with the general score; the decoder starts from the encoder's last state."""

        def __init__(self) -> None:
            super().__init__()
            self.source_words = nn.Embedding(vocabulary, width, padding_idx=PAD)
            self.target_words = nn.Embedding(vocabulary, width, padding_idx=PAD)
            self.encoder = nn.LSTM(width, width, depth, batch_first=True, dropout=dropout)
            self.decoder = nn.LSTM(width, width, depth, batch_first=True, dropout=dropout)
            self.agreement = nn.Linear(width, width, bias=False)
            self.combine = nn.Linear(2 * width, width, bias=False)
            self.scores = nn.Linear(width, vocabulary, bias=False)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            read, state = self.encoder(self.source_words(source))
            written, _ = self.decoder(self.target_words(target), state)
            match = torch.bmm(written, self.agreement(read).transpose(1, 2))
            match = match.masked_fill((source == PAD)[:, None, :], float("-inf"))
            context = torch.bmm(match.softmax(dim=-1), read)
            return self.scores(torch.tanh(self.combine(torch.cat([context, written], dim=-1))))  # type: ignore[no-any-return]

    return Translator()
