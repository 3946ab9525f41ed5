"""TenSet-MLP and TLP (room cost): statement rows or schedule steps in, a score per program out.

TenSet-MLP sums an embedding of each statement; TLP reads the schedule's steps, not the program, with self-attention.
Both learn the order within a task. Not here: the ranking loss.

Source: TenSet (NeurIPS 2021); TLP (ASPLOS 2023).
"""

# B programs of a batch, N statements, S steps (25), K numbers of a step (22)

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks.peers.ranking import (
    Calibration,
    best_times,
    lambda_rank_loss,
    pairwise_rank_accuracy,
    task_batches,
    throughput,
)
from windtunnel.base.extras import require
from windtunnel.systems.tensor_programs.model.samples import labels_of
from windtunnel.systems.tensor_programs.model.splits import Split
from windtunnel.systems.tensor_programs.model.training import History, TrainingConfig, fit
from windtunnel.systems.tensor_programs.model.transforms import FeatureScale
from windtunnel.systems.tensor_programs.program_set import SCHEDULE_SHAPE, ProgramSet

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = require("torch", extra="learn")
    nn = torch.nn

__all__ = ["RANKER_TRAINING", "Ranker", "SchedulePredictor", "StatementMlp", "train_ranker"]

RankerKind = Literal["tenset-mlp", "tlp"]
WIDTH = 256
_SHARED = TrainingConfig(learning_rate=7e-4, weight_decay=1e-6, max_epochs=50, schedule="none", patience=50)
RANKER_TRAINING = {"tenset-mlp": replace(_SHARED, batch_size=512), "tlp": replace(_SHARED, batch_size=1024)}


class StatementMlp(nn.Module):
    """TenSet-MLP: two layers by statement, their sum, two residual layers."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(num_features, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.norm = nn.LayerNorm(WIDTH)
        self.residual = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, rows_LF: Tensor, owner_L: Tensor, num_programs: int) -> Any:
        """Scores [B] of programs whose statements lie one behind the other."""
        encoded = self.encode(rows_LF)
        total = self.norm(encoded.new_zeros(num_programs, WIDTH).index_add(0, owner_L, encoded))
        for layer in self.residual:
            total = total + torch.relu(layer(total))
        return self.last(total).squeeze(-1)


class SchedulePredictor(nn.Module):
    """TLP: steps embedded, attended to, decoded and summed."""

    def __init__(self) -> None:
        super().__init__()
        widths = (SCHEDULE_SHAPE[1], 64, 128, WIDTH, WIDTH)
        layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        self.embed = nn.Sequential(*layers)
        self.attention = nn.MultiheadAttention(WIDTH, 8, batch_first=True)
        self.residual = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2))
        self.decode = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, steps_BSK: Tensor) -> Any:
        """Scores [B]."""
        x = self.embed(steps_BSK)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        for layer in self.residual:
            x = x + layer(x)
        return self.decode(x).squeeze(-1).sum(1)


@dataclass(frozen=True)
class Ranker:
    """A trained ranking model."""

    model: Any
    inputs: _Inputs
    calibration: Calibration | None

    def scores(self, programs: ProgramSet, samples: np.ndarray) -> np.ndarray:
        """Larger is faster within a task, float64 [M]."""
        self.model.eval()
        with torch.inference_mode():
            parts = np.array_split(np.arange(len(samples)), max(1, len(samples) // 1024))
            found = [self.inputs.score(self.model, programs, samples[rows]).numpy() for rows in parts]
        return np.concatenate(found).astype(np.float64)

    def predict(self, programs: ProgramSet, samples: np.ndarray) -> Any:
        """Seconds float64 [M], by the fastest time of each task."""
        assert self.calibration is not None
        return best_times(programs, samples) / self.calibration(self.scores(programs, samples))


@dataclass(frozen=True)
class _Inputs:
    """What a ranker reads of a program; scaled on training programs."""

    kind: RankerKind
    scale: FeatureScale

    def score(self, model: Any, programs: ProgramSet, samples: np.ndarray) -> Any:
        rows = samples[:, 0]
        if self.kind == "tlp":
            return model(torch.from_numpy(self.scale(_steps(programs, rows))))
        counts = programs.num_leaves[rows]
        leaves = np.concatenate([np.arange(programs.leaf_offset[row], programs.leaf_offset[row + 1]) for row in rows])
        owner = torch.from_numpy(np.repeat(np.arange(len(rows)), counts))
        return model(torch.from_numpy(self.scale(programs.features[leaves])), owner, len(rows))


def _steps(programs: ProgramSet, rows: np.ndarray) -> np.ndarray:
    """Logarithms of the steps' numbers, float32 [B, S, K]: extents span orders of magnitude."""
    steps = programs.sched[rows].astype(np.float32)
    signed: np.ndarray = np.sign(steps) * np.log2(1 + np.abs(steps))
    return signed


def train_ranker(
    programs: ProgramSet, split: Split, kind: RankerKind, config: TrainingConfig | None = None
) -> tuple[Ranker, History]:
    """Train on whole tasks; the order of validation programs stops it."""
    config = RANKER_TRAINING[kind] if config is None else config
    known = np.unique(split.train[:, 0])
    if kind == "tlp":
        scale = FeatureScale.fit(_steps(programs, known).reshape(-1, SCHEDULE_SHAPE[1]))
    else:
        leaves = [np.arange(programs.leaf_offset[row], programs.leaf_offset[row + 1]) for row in known]
        scale = FeatureScale.fit(programs.features[np.concatenate(leaves)])
    torch.manual_seed(config.seed)
    model = SchedulePredictor() if kind == "tlp" else StatementMlp(programs.features.shape[1])
    inputs = _Inputs(kind, scale)
    labels = torch.from_numpy(throughput(programs, split.train).astype(np.float32))

    def loss_of(model: Any, batch: _Tasks) -> Tensor:
        scores = inputs.score(model, programs, split.train[batch.rows])
        sizes = [len(task) for task in batch.tasks]
        truth = labels[torch.from_numpy(batch.rows)]
        loss: Tensor = lambda_rank_loss(list(scores.split(sizes)), list(truth.split(sizes)))
        return loss

    held = split.validation if len(split.validation) else split.train

    def validate(model: Any) -> float:
        scores = Ranker(model, inputs, None).scores(programs, held)
        accuracy = pairwise_rank_accuracy(-scores, labels_of(programs, held), programs.task[held[:, 0]])
        return 1 - accuracy

    def batches(epoch: int) -> Any:
        return map(_Tasks, task_batches(programs, split.train, config.batch_size, config.seed * 1009 + epoch))

    history = fit(model, batches, loss_of, validate, config)
    scores = Ranker(model, inputs, None).scores(programs, split.train)
    return Ranker(model, inputs, Calibration.fit(scores, labels.numpy())), history


@dataclass(frozen=True)
class _Tasks:
    """A batch of whole tasks."""

    tasks: list[np.ndarray]

    @property
    def rows(self) -> np.ndarray:
        return np.concatenate(self.tasks)

    def __len__(self) -> int:
        return sum(map(len, self.tasks))
