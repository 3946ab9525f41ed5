"""How good predicted times are (room cost): predicted and measured seconds in, errors and ranks out.

The mean absolute percentage error rewards under-prediction, so the signed mean and the geometric mean of the ratio are
always beside it. Not here: which rows are held out (``programs.model.splits``), intervals.
"""

# P programs, T tasks

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

__all__ = ["Errors", "errors_of", "mape", "pairwise_rank_accuracy", "top_k_ratio"]


@dataclass(frozen=True)
class Errors:
    """Errors of one set of predictions; every share and ratio is a fraction, ``rmse_s`` is in seconds."""

    mape: float
    rmse_s: float
    within_5: float
    within_10: float
    within_20: float
    signed_mean: float
    geometric_mean_ratio: float
    median_ape: float
    num_samples: int
    rank_accuracy: float = float("nan")
    top_1: float = float("nan")
    top_5: float = float("nan")

    def row(self) -> dict[str, float]:
        """As plain values."""
        return asdict(self)


def mape(predicted_s: np.ndarray, measured_s: np.ndarray) -> float:
    """Mean of ``|predicted - measured| / measured``."""
    return float(np.mean(np.abs(predicted_s - measured_s) / measured_s))


def errors_of(
    predicted_s: np.ndarray,
    measured_s: np.ndarray,
    task: np.ndarray | None = None,
    task_weight: np.ndarray | None = None,
) -> Errors:
    """All metrics [P]; ranks and top-k need the ``task`` of each program and take ``task_weight`` [T] (ones)."""
    predicted, measured = np.asarray(predicted_s, np.float64), np.asarray(measured_s, np.float64)
    relative = (predicted - measured) / measured
    absolute = np.abs(relative)
    ranks = {}
    if task is not None:
        ranks = {
            "rank_accuracy": pairwise_rank_accuracy(predicted, measured, task),
            "top_1": top_k_ratio(predicted, measured, task, 1, task_weight),
            "top_5": top_k_ratio(predicted, measured, task, 5, task_weight),
        }
    return Errors(
        mape=float(absolute.mean()),
        rmse_s=float(np.sqrt(np.mean((predicted - measured) ** 2))),
        within_5=float((absolute <= 0.05).mean()),
        within_10=float((absolute <= 0.10).mean()),
        within_20=float((absolute <= 0.20).mean()),
        signed_mean=float(relative.mean()),
        geometric_mean_ratio=float(np.exp(np.mean(np.log(predicted / measured)))),
        median_ape=float(np.median(absolute)),
        num_samples=predicted.size,
        **ranks,
    )


def pairwise_rank_accuracy(predicted_s: np.ndarray, measured_s: np.ndarray, task: np.ndarray) -> float:
    """Mean over tasks of the share of pairs in the right order; equal predictions count half, NaN without any pair."""
    shares = []
    for rows in _rows_by_task(task):
        first, second = np.triu_indices(rows.size, k=1)
        truth = np.sign(measured_s[rows][first] - measured_s[rows][second])
        guess = np.sign(predicted_s[rows][first] - predicted_s[rows][second])
        counts = truth != 0
        if counts.any():
            agreement = np.where(guess == 0, 0.5, guess == truth)
            shares.append(agreement[counts].mean())
    return float(np.mean(shares)) if shares else float("nan")


def top_k_ratio(
    predicted_s: np.ndarray,
    measured_s: np.ndarray,
    task: np.ndarray,
    k: int,
    task_weight: np.ndarray | None = None,
) -> float:
    """Weighted best times over weighted best times among the ``k`` predicted fastest of each task; 1 is best."""
    best, found = 0.0, 0.0
    for rows in _rows_by_task(task):
        weight = 1.0 if task_weight is None else float(task_weight[task[rows[0]]])
        chosen = rows[np.argsort(predicted_s[rows], kind="stable")[:k]]
        best += weight * float(measured_s[rows].min())
        found += weight * float(measured_s[chosen].min())
    return best / found if found else float("nan")


def _rows_by_task(task: np.ndarray) -> list[np.ndarray]:
    order = np.argsort(task, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(np.asarray(task)[order])) + 1)
