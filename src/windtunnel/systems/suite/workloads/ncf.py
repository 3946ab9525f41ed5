"""Neural collaborative filtering.

In: a size and a seed. Out: a ``Workload`` of four embedding tables, a product and a perceptron, which tells the
item that a user chose from items that nobody showed.
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

__all__ = ["PRESETS", "ncf"]

NUM_NEGATIVES = 4
"""Items drawn at random for each chosen one (section 4.1 of the paper)."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Preset:
    """Sizes of the tables, the factors and the perceptron; users of one group like the same items."""

    batch_size: int
    num_users: int
    num_items: int
    factors: int
    learning_rate: float
    num_groups: int = 8


PRESETS = {
    "tiny": Preset(320, num_users=600, num_items=400, factors=8, learning_rate=1e-2),
    "small": Preset(1280, num_users=6040, num_items=3706, factors=16, learning_rate=2e-3),
    "paper": Preset(1280, num_users=6040, num_items=3706, factors=64, learning_rate=1e-3),
}
"""``paper`` has the users and items of MovieLens-1M and 64 factors: 256 chosen items and their negatives a step."""


@registry.workload("ncf", source="He et al., Neural Collaborative Filtering, WWW 2017", domain="recommendation")
def ncf(*, size: str = "small", batch_size: int | None = None, seed: int = 0) -> Workload:
    """Guess what a user chooses, from a matrix factorization and a perceptron together.

    A batch counts pairs of user and item, one in five of them real. Parameters and errors are those of
    :meth:`Training.of`.
    """
    require("torch", extra="torch")
    import torch
    from torch import nn

    training = Training.of("ncf", PRESETS, size, batch_size, seed)
    preset = training.preset
    num_pairs = training.batch_size
    model = _network(preset)
    optimizer = torch.optim.Adam(model.parameters(), lr=preset.learning_rate)
    loss_function = nn.BCEWithLogitsLoss()
    random = np.random.default_rng(seed)
    taste = np.stack([random.permutation(preset.num_items) for _ in range(preset.num_groups)])

    def step() -> torch.Tensor:
        users, items, is_chosen = (
            move_to_device(part, training.device) for part in _draw(preset, taste, num_pairs, random)
        )
        optimizer.zero_grad()
        loss: torch.Tensor = loss_function(model(users, items), is_chosen)
        loss.backward()
        optimizer.step()
        return loss.detach()

    data = "synthetic: Zipf choices by groups of users, MovieLens-1M's four negatives to each"
    return training.workload((model,), (optimizer,), step, data=data)


def _draw(
    preset: Preset, taste: Numbers, num_pairs: int, random: np.random.Generator
) -> tuple[Numbers, Numbers, npt.NDArray[np.float32]]:
    """Users, items and whether chosen, each [num_pairs]."""
    is_chosen = np.arange(num_pairs) % (1 + NUM_NEGATIVES) == 0
    users = random.integers(0, preset.num_users, num_pairs)
    liked = taste[users % preset.num_groups, zipf(preset.num_items, num_pairs, random)]
    items = np.where(is_chosen, liked, random.integers(0, preset.num_items, num_pairs))
    return users, items, is_chosen.astype(np.float32)


def _network(preset: Preset) -> torch.nn.Module:
    import torch
    from torch import nn

    factors = preset.factors

    def table(num_rows: int, width: int) -> nn.Embedding:
        rows = nn.Embedding(num_rows, width)
        nn.init.normal_(rows.weight, std=0.1)
        return rows

    class Filter(nn.Module):
        """NeuMF, equation 12: a tower of three layers of halving width, and element-wise products in parallel."""

        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = table(preset.num_users, factors), table(preset.num_items, factors)
            self.deep_users = table(preset.num_users, 4 * factors)
            self.deep_items = table(preset.num_items, 4 * factors)
            widths = [8 * factors, 4 * factors, 2 * factors, factors]
            layers = [nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in itertools.pairwise(widths)]
            self.tower = nn.Sequential(*layers)
            self.score = nn.Linear(2 * factors, 1)

        def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            product = self.users(users) * self.items(items)
            deep = self.tower(torch.cat([self.deep_users(users), self.deep_items(items)], dim=-1))
            return self.score(torch.cat([product, deep], dim=-1)).squeeze(-1)  # type: ignore[no-any-return]

    return Filter()
