"""The tile of the nearest measured kernel: rows in, tile and distance out.

Distances are taken between logarithms of sizes and of what the chip has, each scaled by its spread, so that no
feature drowns the others. How far the nearest kernel was is part of the answer. Not here: what a tile costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.cost.operators.physics import chips_of
from windtunnel.cost.operators.table import OpTable
from windtunnel.hardware import Device

__all__ = ["TileLookup", "positions_of"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TileLookup:
    """Measured kernels of one class.

    Parameters
    ----------
    points : float [N, Q]
        Where they lie, scaled.
    tiles : float [N, 2]
    center, scale : float [Q]
    """

    points: Floats
    tiles: Floats
    center: Floats
    scale: Floats

    @classmethod
    def fit(cls, table: OpTable, sheet: Mapping[str, Device]) -> TileLookup:
        """Keep each distinct (sizes, device) of the training rows that has a tile, once."""
        known = table.take(table.tile1 > 0)
        unique, first = np.unique(np.log2(positions_of(known, sheet)), axis=0, return_index=True)
        center, deviation = unique.mean(axis=0), unique.std(axis=0)
        scale = np.where(deviation > 0, deviation, 1.0)
        tiles = np.stack([known.tile1, known.tile2], axis=1)[first]
        return cls((unique - center) / scale, tiles, center, scale)

    def nearest(self, table: OpTable, sheet: Mapping[str, Device]) -> tuple[Floats, Floats]:
        """Tiles [P, 2] of the nearest kernels and their distances [P]; of ties, the first."""
        positions = (np.log2(positions_of(table, sheet)) - self.center) / self.scale
        tree = require("scipy.spatial", extra="learn").cKDTree(self.points)
        distances, rows = tree.query(positions)
        return self.tiles[rows], distances


def positions_of(table: OpTable, sheet: Mapping[str, Device]) -> Floats:
    """Sizes of the operators and what their chips have, [P, Q]."""
    chips = chips_of(table, sheet)
    sizes = (table.B, table.H) if (table.H > 0).all() else (table.B, table.M, table.N, table.K)
    # units of the publication: GFLOP/s, GB, GB/s, MiB
    chip = (
        chips.num_units,
        chips.flops_per_s / 1e9,
        chips.memory_bytes / 2**30,
        chips.bytes_per_s / 1e9,
        chips.cache_bytes / 2**20,
    )
    return np.stack([*sizes, *chip], axis=1)
