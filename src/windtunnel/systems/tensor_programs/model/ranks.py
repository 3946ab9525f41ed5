"""Whether predictions put programs of one task in the right order: seconds in, shares and ratios out.

Not here: how far predictions are off (``cost.metrics``), which rows are held out (``splits``).
"""

# P programs, T tasks

from __future__ import annotations

import numpy as np

from windtunnel.cost.metrics import Errors, errors_of

__all__ = ["pairwise_rank_accuracy", "ranked_errors", "top_k_ratio"]


def ranked_errors(predicted_s: np.ndarray, measured_s: np.ndarray, task: np.ndarray) -> Errors:
    """All metrics [P], with ranks within each ``task`` [P]."""
    predicted, measured = np.asarray(predicted_s, np.float64), np.asarray(measured_s, np.float64)
    return errors_of(
        predicted,
        measured,
        rank_accuracy=pairwise_rank_accuracy(predicted, measured, task),
        top_1=top_k_ratio(predicted, measured, task, 1),
        top_5=top_k_ratio(predicted, measured, task, 5),
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
