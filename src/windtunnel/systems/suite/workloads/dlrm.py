"""The deep learning recommendation model, with sparse gradients.

In: a size and a seed. Out: a ``Workload`` with two optimizers: one for the perceptrons, one that touches only the
rows of the embedding tables that a step has read. ``recommender`` is its dense and simpler cousin.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.workloads.texts import zipf
from windtunnel.workloads.workload import Training, Workload, move_to_device

if TYPE_CHECKING:
    import torch

__all__ = ["PRESETS", "dlrm"]

NUM_DENSE = 13
"""Continuous features of a Criteo record."""

CRITEO_ROWS = (
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27, 14_992, 5_461_306,
    10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
"""Categories of the 26 fields of the Criteo Kaggle data."""


@dataclass(frozen=True)
class Preset:
    """Rows of each table, width of a row, look-ups per bag, and hidden widths of the perceptrons."""

    batch_size: int
    rows: tuple[int, ...]
    width: int
    pooling: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    learning_rate: float
    table_learning_rate: float = 3.0


PRESETS = {
    "tiny": Preset(256, (100, 500, 20, 2000, 3, 300), 8, 4, bottom=(32,), top=(32,), learning_rate=1e-2),
    "small": Preset(
        1024, (1000, 5000, 200, 50_000, 3, 20_000) * 2, 16, 4, bottom=(128, 64), top=(128, 64), learning_rate=3e-3
    ),
    "paper": Preset(
        128, CRITEO_ROWS, 16, 1, bottom=(512, 256, 64), top=(512, 256), learning_rate=1e-3, table_learning_rate=0.1
    ),
}
"""``paper`` is the authors' configuration for Criteo Kaggle, and as theirs, tables learn by plain gradient descent."""


@registry.workload("dlrm", source="Naumov et al., DLRM, 2019", domain="recommendation")
def dlrm(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Predict clicks; embedding rows are updated by an optimizer of their own.

    A batch counts impressions. Parameters and errors are those of :meth:`Training.of`.
    """
    require("torch", extra="torch")
    import torch
    from torch import nn

    training = Training.of("dlrm", PRESETS, size, batch_size, seed)
    preset = training.preset
    num_samples = training.batch_size
    model = _network(preset)
    tables = model.get_submodule("tables")
    perceptrons = [*model.get_submodule("bottom").parameters(), *model.get_submodule("top").parameters()]
    optimizer = torch.optim.Adam(perceptrons, lr=preset.learning_rate)
    table_optimizer = torch.optim.SGD(tables.parameters(), lr=preset.table_learning_rate)
    loss_function = nn.BCEWithLogitsLoss()
    random = np.random.default_rng(seed)

    def step() -> torch.Tensor:
        dense, items, clicks = (move_to_device(part, training.device) for part in _draw(preset, num_samples, random))
        optimizer.zero_grad()
        table_optimizer.zero_grad()
        loss: torch.Tensor = loss_function(model(dense, items), clicks)
        loss.backward()
        optimizer.step()
        table_optimizer.step()
        return loss.detach()

    data = "synthetic: Zipf categories and normal features in Criteo's layout, clicks that both explain"
    return training.workload((model,), (optimizer, table_optimizer), step, data=data)


def _draw(
    preset: Preset, num_samples: int, random: np.random.Generator
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Dense features [B, 13], categories [tables, B, pooling], clicks [B]; about one sample in four is clicked."""
    dense = random.standard_normal((num_samples, NUM_DENSE), dtype=np.float32)
    shape = (num_samples, preset.pooling)
    items = np.stack([zipf_of_many(rows, shape, random) for rows in preset.rows])
    appeal = np.cos(2.4 * items + np.arange(len(preset.rows))[:, None, None]).sum(axis=(0, 2))
    score = 1.5 * appeal / np.sqrt(len(preset.rows) * preset.pooling) + dense[:, :4].sum(axis=1) - 1.5
    clicks = random.random(num_samples) < 1.0 / (1.0 + np.exp(-score))
    return dense, items, clicks.astype(np.float32)


def zipf_of_many(num_rows: int, shape: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Zipf's law; for large tables by inverting its integral, which needs no table of chances."""
    if num_rows <= 10_000:
        return zipf(num_rows, shape, random)
    ranks = 2.7 * ((num_rows + 2.7) / 2.7) ** random.random(shape) - 2.7
    return ranks.astype(np.int64).clip(0, num_rows - 1)


def _perceptron(widths: tuple[int, ...]) -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(*(nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in itertools.pairwise(widths)))


def _table(num_rows: int, width: int) -> torch.nn.Module:
    from torch import nn

    table = nn.EmbeddingBag(num_rows, width, mode="sum", sparse=True)
    nn.init.uniform_(table.weight, -(num_rows**-0.5), num_rows**-0.5)
    return table


def _network(preset: Preset) -> torch.nn.Module:
    import torch
    from torch import nn

    width, num_vectors = preset.width, len(preset.rows) + 1

    class Model(nn.Module):
        """Dense features and embedding bags meet in dot products of every pair."""

        pairs: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.bottom = _perceptron((NUM_DENSE, *preset.bottom, width))
            self.tables = nn.ModuleList(_table(rows, width) for rows in preset.rows)
            inputs = num_vectors * (num_vectors - 1) // 2 + width
            self.top = nn.Sequential(_perceptron((inputs, *preset.top)), nn.Linear(preset.top[-1], 1))
            self.register_buffer("pairs", torch.tril_indices(num_vectors, num_vectors, -1), persistent=False)

        def forward(self, dense: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            features = self.bottom(dense)
            looked_up = [table(item) for table, item in zip(self.tables, items.unbind(), strict=True)]
            vectors = torch.stack([features, *looked_up], dim=1)
            products = torch.bmm(vectors, vectors.transpose(1, 2))
            interactions = products[:, self.pairs[0], self.pairs[1]]
            return self.top(torch.cat([features, interactions], dim=1)).squeeze(-1)  # type: ignore[no-any-return]

    return Model()
