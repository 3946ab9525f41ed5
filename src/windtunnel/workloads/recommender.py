"""A recommender with embedding tables.

In: sizes. Out: a ``Workload`` of table look-ups, pairwise products and two small perceptrons: memory-bound where
the others compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.workload import Workload

if TYPE_CHECKING:
    import torch

__all__ = ["recommender"]


@registry.workload("recommender", source="Naumov et al., DLRM, 2019")
def recommender(
    *,
    batch_size: int = 1024,
    tables: int = 12,
    rows: int = 20_000,
    width: int = 32,
    pooling: int = 4,
    seed: int = 0,
) -> Workload:
    """Predict clicks from dense features and several categorical ones."""
    require("torch", extra="torch")
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = _network(tables, rows, width)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    loss_function = nn.BCEWithLogitsLoss()
    dense = torch.randn(batch_size, 13)
    items = torch.randint(0, rows, (tables, batch_size, pooling))
    clicks = torch.randint(0, 2, (batch_size, 1)).float()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = loss_function(model(dense, items), clicks)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Workload("recommender", (model,), (optimizer,), step, batch_size)


def _network(tables: int, rows: int, width: int) -> torch.nn.Module:
    import torch
    from torch import nn

    class Recommender(nn.Module):
        """Dense features and embeddings meet in pairwise products."""

        def __init__(self) -> None:
            super().__init__()
            self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
            self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
            pairs = (tables + 1) * tables // 2
            self.top = nn.Sequential(nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 1))
            self.pair_rows = torch.tril_indices(tables + 1, tables + 1, -1)

        def forward(self, dense: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            features = self.bottom(dense)
            looked_up = [table(item) for table, item in zip(self.tables, items, strict=True)]
            vectors = torch.stack([features, *looked_up], dim=1)
            products = torch.bmm(vectors, vectors.transpose(1, 2))
            pairs = products[:, self.pair_rows[0], self.pair_rows[1]]
            return self.top(torch.cat([features, pairs], dim=1))  # type: ignore[no-any-return]

    return Recommender()
