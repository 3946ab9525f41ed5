"""Preset ``best-tile`` of the tile model: boosted trees on log-efficiency (room cost).

In: training rows. Out: one ``TreeModel`` per class. Chosen among what was tried because it was best where the device
and the sizes were both held out from training (docs, NeuSight page). Not here: the regression of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.cost.bounds import Bounds
from windtunnel.cost.operators.physics import Chips, chips_of, roofline_ms, tile_bounds
from windtunnel.cost.operators.table import CLASSES, PRODUCTS, OpTable
from windtunnel.cost.operators.tile import TilePrices
from windtunnel.cost.operators.tile_features import product_features, vector_features
from windtunnel.cost.operators.tile_lookup import TileLookup
from windtunnel.extras import require
from windtunnel.hardware import Device

__all__ = ["TreeModel", "Trees", "train_trees"]

# P rows, F features
Floats = NDArray[np.float64]
Sheet = Mapping[str, Device]
Tile = tuple[ArrayLike, ArrayLike]

_RARE = 0.02  # of a device's kernels of a class: a tile below this share is no choice of the library
_SMALLEST = 0.05  # of a class's rows on a device: their time is launch and nothing else
_LOOKUP_ROWS = 8000
_ROUNDS = {"bmm": 150, "linear": 150}
_VECTOR_ROUNDS = 100


@dataclass(frozen=True, eq=False)
class Trees:
    """Boosted trees, as bytes that are no pickle, with what they were fitted against.

    Parameters
    ----------
    data : bytes
        XGBoost's own format.
    overhead_ns : mapping of device to float
        Floor of this class on each training device; other devices get the median.
    tiles : mapping of device to tuple of (float, float)
        Output tiles, along K and M, that the library uses there; empty for vector operators.
    chips : mapping of device to tuple of float
        Logarithms of units, flops and bytes per second and cache, to find the nearest device by.
    """

    data: bytes
    overhead_ns: Mapping[str, float]
    tiles: Mapping[str, tuple[tuple[float, float], ...]]
    chips: Mapping[str, tuple[float, ...]]

    @cached_property
    def _booster(self) -> Any:
        booster = require("xgboost", extra="learn").Booster({"nthread": 1})
        booster.load_model(bytearray(self.data))
        return booster

    def overheads(self, table: OpTable) -> Floats:
        """Floor of each row [P]."""
        median = float(np.median(list(self.overhead_ns.values())))
        return np.array([self.overhead_ns.get(name, median) for name in table.device.tolist()])

    def nearest_tiles(self, table: OpTable, chips: Chips) -> list[tuple[tuple[float, float], ...]]:
        """Tiles of each row's device, or of the most similar one that was measured [P]."""
        names, first, rows = np.unique(table.device.astype(str), return_index=True, return_inverse=True)
        places = _places(chips)[first]
        known = list(self.tiles)
        points = np.array([self.chips[name] for name in known])
        nearest = [int(np.argmin(np.linalg.norm(points - place, axis=1))) for place in places]
        found = [
            self.tiles.get(name, self.tiles[known[near]]) for name, near in zip(names.tolist(), nearest, strict=True)
        ]
        return [found[row] for row in rows.tolist()]

    def efficiency(self, features: Floats) -> Floats:
        """Bound over time of features [P, F]."""
        return np.exp(np.asarray(self._booster.inplace_predict(features), dtype=np.float64))


@dataclass(frozen=True, eq=False)
class TreeModel:
    """Prices one class of operators.

    Parameters
    ----------
    op_class : str
    views : tuple of Trees
        Each prices the same rows. Those of a linear layer: its own and that of products of batch one, which a library
        may run instead; where that is faster, the geometric mean of both counts.
    lookup : TileLookup
        Only to say how far the nearest measured kernel is.
    """

    op_class: str
    views: tuple[Trees, ...]
    lookup: TileLookup

    def price(self, table: OpTable, sheet: Sheet, dtype: str) -> TilePrices:
        """Prices of rows of this class."""
        chips = chips_of(table, sheet, dtype)
        found = [_price(trees, table, chips, dtype) for trees in self.views]
        own = found[0].latency_ms
        latency = np.exp(np.mean([np.log(np.minimum(own, one.latency_ms)) for one in found], axis=0))
        return replace(found[0], latency_ms=latency, distance=self.lookup.nearest(table, sheet)[1])


def _price(trees: Trees, table: OpTable, chips: Chips, dtype: str) -> TilePrices:
    """Prices of the fastest tile."""
    overhead = trees.overheads(table)
    if not trees.tiles:
        found = tile_bounds(table, chips, overhead, None, dtype)
        return _prices(found, trees.efficiency(vector_features(table, chips, found)), np.zeros((len(table), 2)))
    used = trees.nearest_tiles(table, chips)
    options = []
    for tile in sorted({tile for tiles in used for tile in tiles}):
        found = tile_bounds(table, chips, overhead, tile, dtype)
        efficiency = trees.efficiency(product_features(table, chips, found, tile))
        priced = _prices(found, efficiency, np.broadcast_to(np.array(tile, dtype=np.float64), (len(table), 2)))
        is_used = np.array([tile in tiles for tiles in used])
        options.append(replace(priced, latency_ms=np.where(is_used, priced.latency_ms, np.inf)))
    return _fastest(options)


def _prices(found: Bounds, efficiency: Floats, tile: Floats) -> TilePrices:
    unknown = np.full(len(found), np.nan)
    return TilePrices(found.duration_ns(efficiency) / 1e6, found, tile, unknown, unknown, unknown)


def _fastest(options: list[TilePrices]) -> TilePrices:
    best = np.argmin([one.latency_ms for one in options], axis=0)
    rows = np.arange(len(best))
    names = ("bound_ns", "compute_ns", "memory_ns", "overhead_ns", "num_waves", "binding")
    bound = Bounds(*(np.stack([getattr(one.bounds, name) for one in options])[best, rows] for name in names))
    latency, tile = (np.stack([getattr(one, name) for one in options])[best, rows] for name in ("latency_ms", "tile"))
    return TilePrices(latency, bound, tile, *(options[0].distance,) * 3)


def train_trees(table: OpTable, sheet: Sheet, *, seed: int = 0, num_rounds: int = 0) -> dict[str, TreeModel]:
    """Fit every class that the table has; ``num_rounds`` above 0 replaces the number of trees."""
    trees = {name: _fit(name, table.of_class(name), sheet, seed, num_rounds) for name in CLASSES if _has(table, name)}
    models = {}
    for name, own in trees.items():
        views = (own, trees["bmm"]) if name == "linear" and "bmm" in trees else (own,)
        models[name] = TreeModel(name, views, TileLookup.fit(_some(table.of_class(name), seed), sheet))
    return models


def _has(table: OpTable, name: str) -> bool:
    return bool((table.op_class == name).any())


def _fit(name: str, table: OpTable, sheet: Sheet, seed: int, num_rounds: int) -> Trees:
    floors = _floors(table, sheet)
    chips = chips_of(table, sheet)
    overhead = np.array([floors[device] for device in table.device.tolist()])
    if name in PRODUCTS:
        # a kernel whose name tells no tile has the smallest one; 16 is below all that are told
        tile = (np.maximum(table.tile1, 16.0), np.maximum(table.tile2, 16.0))
        found = tile_bounds(table, chips, overhead, tile)
        features = product_features(table, chips, found, tile)
    else:
        found = tile_bounds(table, chips, overhead, None)
        features = vector_features(table, chips, found)
    labels = np.log(found.efficiency(1e6 * table.latency_ms))
    is_product = name in PRODUCTS
    xgboost = require("xgboost", extra="learn")
    booster = xgboost.train(
        {
            "max_depth": 8 if is_product else 4,
            "eta": 0.1 if is_product else 0.12,
            "subsample": 0.8,
            "colsample_bytree": 0.6,
            "min_child_weight": 5,
            "tree_method": "hist",
            "nthread": 1,  # threads that wait for each other lose more than they gain on a busy machine
            "seed": seed,
        },
        xgboost.DMatrix(features, labels, weight=_weights(table), nthread=1),
        num_rounds or _ROUNDS.get(name, _VECTOR_ROUNDS),
    )
    tiles = {device: _tiles(table.on(device)) for device in table.devices} if is_product else {}
    rows = {device: int(np.argmax(table.device == device)) for device in table.devices}
    places = {device: tuple(_places(chips)[row].tolist()) for device, row in rows.items()}
    return Trees(bytes(booster.save_raw("ubj")), floors, tiles, places)


def _tiles(table: OpTable) -> tuple[tuple[float, float], ...]:
    """Tiles that one device's library uses, most often first."""
    known = np.stack([table.tile1, table.tile2], axis=1)[table.tile1 > 0]
    tiles, counts = np.unique(known, axis=0, return_counts=True)
    order = [row for row in np.argsort(-counts) if counts[row] >= _RARE * len(known)]
    return tuple((float(tiles[row, 0]), float(tiles[row, 1])) for row in order)


def _places(chips: Chips) -> Floats:
    return np.log2(np.stack([chips.num_units, chips.flops_per_s, chips.bytes_per_s, chips.cache_bytes], axis=1))


def _floors(table: OpTable, sheet: Sheet) -> dict[str, float]:
    """Nanoseconds that the smallest work takes on each device."""
    least = roofline_ms(table, sheet)
    floors = {}
    for name in table.devices:
        rows = np.flatnonzero(table.device == name)
        smallest = rows[np.argsort(least[rows])[: max(1, round(_SMALLEST * len(rows)))]]
        floors[name] = 1e6 * float(np.median(table.latency_ms[smallest]))
    return floors


def _weights(table: OpTable) -> Floats:
    """Every device counts the same, however many rows it has."""
    names, rows, counts = np.unique(table.device.astype(str), return_inverse=True, return_counts=True)
    weights: Floats = (len(table) / len(names) / counts)[rows]
    return weights


def _some(table: OpTable, seed: int) -> OpTable:
    if len(table) <= _LOOKUP_ROWS:
        return table
    return table.take(np.sort(np.random.default_rng(seed).choice(len(table), _LOOKUP_ROWS, replace=False)))
