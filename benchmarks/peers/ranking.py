"""Models that only rank (room cost): scores within a task in, a loss, and seconds where the task's best time is known.

Not here: the models.

Source: LambdaLoss (Wang et al., CIKM 2018) with the LambdaRank weights; TenSet (NeurIPS 2021), TLP (ASPLOS 2023).
"""

# M samples, G tasks of a batch, n programs of a task

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.systems.tensor_programs.model.samples import labels_of
from windtunnel.systems.tensor_programs.program_set import ProgramSet

__all__ = ["Calibration", "best_times", "lambda_rank_loss", "pairwise_rank_accuracy", "task_batches", "throughput"]

LEAST_SHARE = 1e-3


def _groups(programs: ProgramSet, samples: np.ndarray) -> np.ndarray:
    """Task and device of each sample as one number [M]."""
    numbers: np.ndarray = programs.task[samples[:, 0]].astype(np.int64) * len(programs.devices) + samples[:, 1]
    return numbers


def best_times(programs: ProgramSet, samples: np.ndarray) -> Any:
    """Least measured seconds of each sample's task among the samples, on its device [M]."""
    seconds = labels_of(programs, samples)
    _, place = np.unique(_groups(programs, samples), return_inverse=True)
    best = np.full(place.max() + 1, np.inf)
    np.minimum.at(best, place, seconds)
    return best[place]


def throughput(programs: ProgramSet, samples: np.ndarray) -> Any:
    """Fastest time of the task over own time [M]: 1 is best."""
    shares: Any = best_times(programs, samples) / labels_of(programs, samples)
    return shares


def pairwise_rank_accuracy(predicted_s: np.ndarray, measured_s: np.ndarray, task: np.ndarray) -> float:
    """Mean over tasks of the share of pairs in the right order; equal predictions count half, NaN without any pair."""
    shares = []
    for number in np.unique(task):
        rows = np.flatnonzero(task == number)
        first, second = np.triu_indices(rows.size, k=1)
        truth = np.sign(measured_s[rows][first] - measured_s[rows][second])
        guess = np.sign(predicted_s[rows][first] - predicted_s[rows][second])
        counts = truth != 0
        if counts.any():
            agreement = np.where(guess == 0, 0.5, guess == truth)
            shares.append(agreement[counts].mean())
    return float(np.mean(shares)) if shares else float("nan")


@dataclass(frozen=True)
class Calibration:
    """Increasing map from scores to throughput, fitted on training samples."""

    isotonic: Any

    @classmethod
    def fit(cls, scores: np.ndarray, label: np.ndarray) -> Calibration:
        """Isotonic regression; scores beyond those of training take the nearest."""
        kind = require("sklearn.isotonic", extra="learn").IsotonicRegression
        return cls(kind(y_min=LEAST_SHARE, y_max=1.0, out_of_bounds="clip").fit(scores, label))

    def __call__(self, scores: np.ndarray) -> Any:
        """Throughput within 0.001 and 1."""
        shares: np.ndarray = self.isotonic.predict(np.asarray(scores, dtype=np.float64))
        return np.clip(shares, LEAST_SHARE, 1.0)


def task_batches(programs: ProgramSet, samples: np.ndarray, batch_size: int, seed: int) -> Iterator[list[np.ndarray]]:
    """Whole tasks in random order until a batch has ``batch_size`` samples; each item holds the rows of one task."""
    groups = _groups(programs, samples)
    order = np.argsort(groups, kind="stable")
    tasks = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    batch: list[np.ndarray] = []
    for place in np.random.default_rng(seed).permutation(len(tasks)):
        batch.append(tasks[place])
        if sum(map(len, batch)) >= batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


def lambda_rank_loss(scores: list[Any], labels: list[Any]) -> Any:
    """Mean over tasks of the pairwise logistic loss, weighted by the change of NDCG that a swap would make.

    ``scores`` and ``labels``: one tensor [n] per task.
    """
    torch = require("torch", extra="learn")
    losses = [_task_loss(torch, score, label) for score, label in zip(scores, labels, strict=True) if len(score) > 1]
    return torch.stack(losses).mean() if losses else sum(score.sum() * 0 for score in scores)


def _task_loss(torch: Any, score: Any, label: Any) -> Any:
    order = torch.argsort(score.detach(), descending=True)
    score, label = score[order], label[order]
    gain = 2.0**label - 1
    discount = torch.log2(torch.arange(len(score), dtype=score.dtype) + 2)
    ideal = (torch.sort(gain, descending=True).values / discount).sum().clamp_min(1e-10)
    gain = gain / ideal
    weight = (gain[:, None] - gain[None, :]).abs() * (1 / discount[:, None] - 1 / discount[None, :]).abs()
    is_pair = label[:, None] > label[None, :]
    logistic = torch.nn.functional.softplus(-(score[:, None] - score[None, :]))
    return (weight * logistic)[is_pair].sum()
