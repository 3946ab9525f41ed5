"""A word-level LSTM language model.

In: sizes. Out: a ``Workload`` of long recurrent operators with dropout between layers and clipped gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Workload

if TYPE_CHECKING:
    import torch

__all__ = ["lstm"]


@registry.workload("lstm", source="Zaremba, Sutskever, Vinyals, 2014")
def lstm(
    *, batch_size: int = 16, length: int = 32, width: int = 256, vocabulary: int = 2000, seed: int = 0
) -> Workload:
    """Predict the next word with two recurrent layers."""
    require("torch", extra="torch")
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = _network(width, vocabulary)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss_function = nn.CrossEntropyLoss()
    words = torch.randint(0, vocabulary, (batch_size, length + 1))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        scores = model(words[:, :-1])
        loss: torch.Tensor = loss_function(scores.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.detach()

    return Workload("lstm", (model,), (optimizer,), step, batch_size)


def _network(width: int, vocabulary: int) -> torch.nn.Module:
    from torch import nn

    class LanguageModel(nn.Module):
        """Embedding, recurrence, scores over the vocabulary."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            self.recurrent = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
            self.dropout = nn.Dropout(0.2)
            self.scores = nn.Linear(width, vocabulary)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            hidden, _ = self.recurrent(self.embedding(words))
            return self.scores(self.dropout(hidden))  # type: ignore[no-any-return]

    return LanguageModel()
