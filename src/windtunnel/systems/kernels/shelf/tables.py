"""Kernels that fill tables from what lies before: alignment of sequences, ways through a grid."""

# mypy: ignore-errors
# the loops below are for numba, which has types of its own

from __future__ import annotations

import numpy as np

from windtunnel.systems.kernels.cases import FITNESS, Out

__all__ = ["nw", "nw_inputs", "pathfinder", "pathfinder_inputs"]


def nw(table, reference, penalty):
    """Needleman-Wunsch: scores of aligning two sequences; the first row and column are given."""
    rows, cols = table.shape
    for i in range(1, rows):
        for j in range(1, cols):
            best = table[i - 1, j - 1] + reference[i, j]
            best = max(best, table[i, j - 1] - penalty)
            best = max(best, table[i - 1, j] - penalty)
            table[i, j] = best


def nw_inputs(split):
    """Fitness: 96; held out: the published 256 and 2048 with both penalties, odd sizes."""
    draw = np.random.default_rng(11 if split == FITNESS else 12)

    def case(size, penalty, cols=0):
        shape = (size + 1, (cols or size) + 1)
        table = np.zeros(shape, np.int32)
        table[:, 0] = -penalty * np.arange(shape[0])
        table[0] = -penalty * np.arange(shape[1])
        return table, draw.integers(-4, 12, shape, dtype=np.int32), penalty

    if split == FITNESS:
        return {"96": case(96, 10), "64x100": case(64, 3, 100)}
    return {"256": case(256, 10), "256 3": case(256, 3), "2048": case(2048, 10), "37x51": case(37, 10, 51)}


def pathfinder(wall, now, after):
    """The cheapest way down through each column, row by row."""
    rows, cols = wall.shape
    for r in range(rows):
        for c in range(cols):
            best = now[c]
            if c > 0:
                best = min(best, now[c - 1])
            if c < cols - 1:
                best = min(best, now[c + 1])
            after[c] = wall[r, c] + best
        for c in range(cols):
            now[c] = after[c]


def pathfinder_inputs(split):
    """Fitness: 1165 columns; held out: the published 1165 and 66254, odd ones, one column."""
    draw = np.random.default_rng(13 if split == FITNESS else 14)

    def case(rows, cols):
        wall = draw.integers(0, 10, (rows, cols), dtype=np.int32)
        return wall, draw.integers(0, 10, cols, dtype=np.int32), Out((cols,), "int32")

    if split == FITNESS:
        return {"32x1165": case(32, 1165), "24x700": case(24, 700)}
    return {"1024x1165": case(1024, 1165), "32x66254": case(32, 66254), "5x37": case(5, 37), "7x1": case(7, 1)}
