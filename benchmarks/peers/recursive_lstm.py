"""Tiramisu's recursive LSTM (room cost): the whole tree in, seconds out.

Each statement goes through a perceptron; each inner node joins an LSTM over its child nodes with one over its own
statements; the root's embedding becomes a time. Only programs of the same tree can share a batch, which is what makes
it slow. Not here: compact trees.

Source: Baghdadi et al. (MLSys 2021).
"""

# B programs of one tree, E width of an embedding (180)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.cost.metrics import mape
from windtunnel.systems.tensor_programs.model.encoding import END
from windtunnel.systems.tensor_programs.model.samples import labels_of
from windtunnel.systems.tensor_programs.model.splits import Split
from windtunnel.systems.tensor_programs.model.training import History, TrainingConfig, fit
from windtunnel.systems.tensor_programs.model.transforms import FeatureScale, LabelTransform
from windtunnel.systems.tensor_programs.program_set import ProgramSet

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = require("torch", extra="learn")
    nn = torch.nn

__all__ = ["LstmPredictor", "RecursiveLstm", "Tree", "parse_tree", "train_recursive_lstm"]

WIDTH = 180
DROPOUT = 0.225
MOST_LOGARITHM = 12.0
LSTM_TRAINING = TrainingConfig(learning_rate=1e-3, weight_decay=1e-4, batch_size=32, max_epochs=60, patience=20)
Tree = tuple[Any, ...]
"""An inner node: its children in order, each another tree or the number of a statement."""


def parse_tree(serialized: np.ndarray, leaf_positions: np.ndarray) -> Tree:
    """The nested form of a serialized tree."""
    leaves = {int(place): number for number, place in enumerate(leaf_positions)}
    stack: list[list[Any]] = [[]]
    open_leaf = False
    for place, token in enumerate(serialized.tolist()):
        if token == END:
            if open_leaf:
                open_leaf = False
            else:
                done = tuple(stack.pop())
                stack[-1].append(done)
        elif place in leaves:
            stack[-1].append(leaves[place])
            open_leaf = True
        else:
            stack.append([])
    root: Tree = stack[0][0]
    return root


def _elu_stack(*widths: int) -> Any:
    layers: list[Any] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ELU(), nn.Dropout(DROPOUT)]
    return nn.Sequential(*layers)


class RecursiveLstm(nn.Module):
    """The recursive network; see the module."""

    def __init__(self, num_features: int, width: int = WIDTH) -> None:
        super().__init__()
        self.leaf = _elu_stack(num_features, 600, 350, 200, width)
        self.over_nodes = nn.LSTM(width, width, batch_first=True)
        self.over_statements = nn.LSTM(width, width, batch_first=True)
        self.no_nodes = nn.Parameter(0.1 * torch.randn(width))
        self.no_statements = nn.Parameter(0.1 * torch.randn(width))
        self.join = _elu_stack(2 * width, 200, width)
        self.top = _elu_stack(width, 200, width)
        self.last = nn.Linear(width, 1)

    def forward(self, tree: Tree, leaves_BNF: Tensor) -> Any:
        """Logarithms of times [B] of programs that share ``tree``."""
        return self.last(self.top(self._embed(tree, self.leaf(leaves_BNF)))).squeeze(-1)

    def _embed(self, tree: Tree, encoded_BNE: Tensor) -> Any:
        nodes = [self._embed(child, encoded_BNE) for child in tree if isinstance(child, tuple)]
        own = [encoded_BNE[:, child] for child in tree if not isinstance(child, tuple)]
        num_programs = encoded_BNE.shape[0]
        below = self._run(self.over_nodes, nodes, self.no_nodes, num_programs)
        beside = self._run(self.over_statements, own, self.no_statements, num_programs)
        return self.join(torch.cat([below, beside], dim=1))

    @staticmethod
    def _run(lstm: Any, items: list[Tensor], nothing: Tensor, num_programs: int) -> Tensor:
        if not items:
            return nothing.expand(num_programs, -1)
        last: Tensor = lstm(torch.stack(items, dim=1))[1][0][0]
        return last


@dataclass(frozen=True)
class TreeBatch:
    """Samples of one tree."""

    tree: Tree
    leaves: Tensor
    label: Any
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


class TreeBatches:
    """Samples grouped by their trees; batches hold one tree each."""

    def __init__(
        self, programs: ProgramSet, samples: np.ndarray, scale: FeatureScale, label: np.ndarray | None
    ) -> None:
        self.programs, self.samples, self.scale, self.label = programs, samples, scale, label
        groups: dict[bytes, list[int]] = {}
        for row, program in enumerate(samples[:, 0]):
            groups.setdefault(self._shape(program), []).append(row)
        self.groups = [np.array(rows) for rows in groups.values()]

    def _shape(self, program: int) -> bytes:
        begin, end = self.programs.tree_offset[program : program + 2]
        return self.programs.tree[begin:end].tobytes()

    def batches(self, batch_size: int, seed: int | None = None) -> Iterator[TreeBatch]:
        """Batches, in random order with a seed."""
        generator = np.random.default_rng(seed)
        found = []
        for rows in self.groups:
            shuffled = rows if seed is None else generator.permutation(rows)
            found += np.split(shuffled, range(batch_size, len(rows), batch_size))
        for place in range(len(found)) if seed is None else generator.permutation(len(found)):
            yield self._batch(found[place])

    def _batch(self, rows: np.ndarray) -> TreeBatch:
        programs, members = self.programs, self.samples[rows, 0]
        first = int(members[0])
        begin, end = programs.leaf_offset[first : first + 2]
        index = programs.leaf_offset[members][:, None] + np.arange(end - begin)
        tree = parse_tree(
            programs.tree[programs.tree_offset[first] : programs.tree_offset[first + 1]], programs.leaf_pos[begin:end]
        )
        label = None if self.label is None else torch.from_numpy(self.label[rows])
        return TreeBatch(tree, torch.from_numpy(self.scale(programs.features[index])), label, rows)


@dataclass(frozen=True)
class LstmPredictor:
    """A trained recursive network."""

    model: Any
    scale: FeatureScale
    labels: LabelTransform

    def predict(self, programs: ProgramSet, samples: np.ndarray) -> np.ndarray:
        """Seconds float64 [M]."""
        values = np.zeros(len(samples))
        self.model.eval()
        with torch.inference_mode():
            for batch in TreeBatches(programs, samples, self.scale, None).batches(512):
                values[batch.rows] = self.model(batch.tree, batch.leaves).numpy()
        return self.labels.inverse(values)[0]


def train_recursive_lstm(
    programs: ProgramSet, split: Split, config: TrainingConfig = LSTM_TRAINING, width: int = WIDTH
) -> tuple[LstmPredictor, History]:
    """Train with the relative error of the time itself; the network gives its standardized logarithm."""
    known = np.unique(split.train[:, 0])
    leaves = [np.arange(programs.leaf_offset[row], programs.leaf_offset[row + 1]) for row in known]
    scale = FeatureScale.fit(programs.features[np.concatenate(leaves)])
    labels = LabelTransform.fit("log", labels_of(programs, split.train))
    torch.manual_seed(config.seed)
    model = RecursiveLstm(programs.features.shape[1], width)
    truth = labels.forward(labels_of(programs, split.train)).astype(np.float32)
    source = TreeBatches(programs, split.train, scale, truth)
    held = split.validation if len(split.validation) else split.train
    seconds = labels_of(programs, held)

    def loss_of(model: Any, batch: TreeBatch) -> Tensor:
        difference = (model(batch.tree, batch.leaves) - batch.label) * labels.scale
        loss: Tensor = difference.clamp(max=MOST_LOGARITHM).expm1().abs().mean()
        return loss

    def validate(model: Any) -> float:
        return mape(LstmPredictor(model, scale, labels).predict(programs, held), seconds)

    history = fit(
        model, lambda epoch: source.batches(config.batch_size, config.seed * 1009 + epoch), loss_of, validate, config
    )
    return LstmPredictor(model, scale, labels), history
