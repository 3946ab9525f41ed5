"""An LSTM encoder and decoder with attention, which translate.

In: a size and a seed. Out: a ``Workload`` of recurrent operators over padded sentences of one bucket per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.systems.suite.workloads.translation import translation
from windtunnel.workloads.texts import PAD
from windtunnel.workloads.workload import Training, Workload

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

    A batch counts sentence pairs. Parameters and errors are those of :meth:`Training.of`.
    """
    require("torch", extra="torch")
    import torch

    training = Training.of("seq2seq", PRESETS, size, batch_size, seed)
    preset = training.preset
    model = _network(preset)
    return translation(
        training,
        model,
        torch.optim.Adam(model.parameters(), lr=preset.learning_rate),
        max_norm=5.0,
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
