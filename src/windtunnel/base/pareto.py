"""Choices among several goals at once: fronts, crowding, hypervolume.

In: points [P, G], every goal to be minimized. Out: which points no other beats, fronts behind them, how alone a point
stands in its front, how much a front covers. Not here: what the points are, steps of a search.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError

__all__ = ["crowding", "fronts", "hypervolume", "is_best"]

# P points, G goals
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def is_best(points: ArrayLike) -> NDArray[np.bool_]:
    """Points that no other beats: nowhere worse and somewhere better [P].

    Raises
    ------
    InputError
        The points are no table, or one is no number.

    Examples
    --------
    >>> is_best([[1, 4], [2, 2], [3, 3], [2, 2]]).tolist()
    [True, True, False, True]
    """
    result: NDArray[np.bool_] = fronts(points) == 0
    return result


def fronts(points: ArrayLike) -> Ints:
    """Number of each point's front [P]: 0 for those that no other beats, 1 for those that only these beat, and so on.

    Raises
    ------
    InputError
        The points are no table, or one is no number.

    Notes
    -----
    The front of a point is the longest chain of points that beat one another down to it: Deb et al., NSGA-II, 2002.
    """
    table = _table(points)
    order = np.lexsort(table.T[::-1]).astype(np.int64)
    result = np.zeros(len(table), dtype=np.int64)
    result[order] = _chains(np.ascontiguousarray(table[order]))
    return result


def _table(points: ArrayLike) -> Floats:
    table = np.asarray(points, dtype=np.float64)
    if table.ndim != 2 or not table.shape[1]:
        raise InputError(f"points of shape {table.shape} are no table of goals", fix="give one row per point")
    if np.isnan(table).any():
        row, goal = (int(item) for item in np.argwhere(np.isnan(table))[0])
        raise InputError(f"point {row} has no number for goal {goal}", fix="leave it out, or give infinity")
    return table


@numba.njit(cache=True)
def _chains(sorted_points: Any) -> Any:
    """Longest chain to each point; who beats a point lies before it."""
    # The front of a point is one more than the highest front of those that beat it. Points are sorted
    # lexicographically, so that what dominates a point is visited before it.
    count, goals = sorted_points.shape
    length = np.zeros(count, dtype=np.int64)
    for index in range(count):
        longest = 0
        for other in range(index - 1, -1, -1):
            # A point in a front that is not higher cannot lengthen the chain: skip comparing its goals.
            if length[other] + 1 <= longest:
                continue
            beats, differs = True, False
            for goal in range(goals):
                if sorted_points[other, goal] > sorted_points[index, goal]:
                    beats = False
                    break
                differs = differs or sorted_points[other, goal] < sorted_points[index, goal]
            if beats and differs:
                longest = length[other] + 1
        length[index] = longest
    return length


def crowding(points: ArrayLike) -> Floats:
    """How alone each point of one front stands [P]: the sides of the box between its neighbors, over the front's.

    Points at an end are infinitely alone.

    Raises
    ------
    InputError
        The points are no table, or one is no number.

    Examples
    --------
    >>> crowding([[1, 4], [2, 2], [4, 1]]).tolist()
    [inf, 2.0, inf]

    References
    ----------
    Deb et al., NSGA-II, 2002, section III-B.
    """
    table = _table(points)
    result = np.zeros(len(table))
    for goal in range(table.shape[1]):
        order = np.argsort(table[:, goal], kind="mergesort")
        column = table[order, goal]
        width = column[-1] - column[0]
        result[order[[0, -1]]] = np.inf
        if width > 0:
            result[order[1:-1]] += (column[2:] - column[:-2]) / width
    return result


def hypervolume(points: ArrayLike, reference: ArrayLike) -> float:
    """What lies between the points and a reference that is worse in every goal.

    Points that are worse than the reference somewhere add nothing.

    Raises
    ------
    InputError
        The points are no table, one is no number, or the reference has another number of goals.

    Examples
    --------
    >>> hypervolume([[1, 2], [2, 1]], [3, 3])
    3.0
    """
    table, corner = _table(points), np.asarray(reference, dtype=np.float64)
    if corner.shape != table.shape[1:] or not np.isfinite(corner).all():
        raise InputError(f"the reference {corner.tolist()} is no point of {table.shape[1]} goals")
    inside = table[(table < corner).all(axis=1)]
    return _volume(inside[is_best(inside)], corner) if len(inside) else 0.0


def _volume(points: Floats, corner: Floats) -> float:
    """Slices along the last goal, each with the points that reach it."""
    if len(corner) == 1:
        return float(corner[0] - points.min())
    ordered = points[np.argsort(points[:, -1], kind="stable")]
    if len(corner) == 2:  # the best first goal so far, by how far it reaches
        best = np.minimum.accumulate(ordered[:, 0])
        return float(((corner[0] - best) * np.diff(ordered[:, 1], append=corner[1])).sum())
    depths = np.diff(ordered[:, -1], append=corner[-1])
    slices = (_volume(ordered[: row + 1, :-1], corner[:-1]) for row in np.flatnonzero(depths))
    return float(sum(depth * part for depth, part in zip(depths[depths != 0], slices, strict=True)))
