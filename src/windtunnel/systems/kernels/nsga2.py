"""Who survives and who has children: NSGA-II.

In: goals of a population, all to be minimized. Out: places in it. Not here: fronts and crowding (``base.pareto``).
Source: Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, 2002.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.pareto import crowding, fronts

__all__ = ["rank_and_crowding", "select", "tournament"]


def rank_and_crowding(goals: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Front of each, and how alone it stands in its front [P]."""
    table = np.asarray(goals, dtype=np.float64)
    front = fronts(table)
    alone = np.zeros(len(table))
    for number in np.unique(front):
        local = front == number
        alone[local] = crowding(table[local])
    return front, alone


def select(goals: ArrayLike, num_kept: int) -> list[int]:
    """The best, by front and then by how alone they stand; of equals the earlier."""
    front, alone = rank_and_crowding(goals)
    order = np.lexsort((np.arange(len(front)), -alone, front))
    return [int(item) for item in order[:num_kept]]


def tournament(goals: ArrayLike, num_drawn: int, draw: np.random.Generator) -> list[int]:
    """Winners of pairs that are drawn so that everyone takes part equally often; equals are decided by the draw."""
    front, alone = rank_and_crowding(goals)
    result: list[int] = []
    while len(result) < num_drawn:
        for first, second in draw.permutation(len(front))[: len(front) // 2 * 2].reshape(-1, 2):
            better = (front[first], -alone[first]) < (front[second], -alone[second])
            worse = (front[second], -alone[second]) < (front[first], -alone[first])
            wins = bool(draw.integers(2)) if better == worse else better
            result.append(int(first if wins else second))
        if len(front) < 2:
            result.append(0)
    return result[:num_drawn]
