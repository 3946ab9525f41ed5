"""Preset ``best-tile`` of the tile model: boosted trees on log-efficiency.

In: training rows. Out: one ``TreeModel`` per class. Chosen among what was tried because it was best where the device
and the sizes were both held out from training (docs, NeuSight page). Not here: the regression of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.cost.bounds import Bounds
from windtunnel.cost.operators.physics import Chips, chips_of, roofline_ms, tile_bounds
from windtunnel.cost.operators.table import CLASSES, PRODUCTS, OpTable
from windtunnel.cost.operators.tile import TilePrices
from windtunnel.cost.operators.tile_features import OWN_TO_A_CHIP, product_features, vector_features
from windtunnel.cost.operators.tile_lookup import TileLookup
from windtunnel.hardware import Device

__all__ = ["TreeModel", "Trees", "train_trees"]

# P rows, F features
Floats = NDArray[np.float64]
Sheet = Mapping[str, Device]

_RARE = 0.02  # of a device's kernels of a class: a tile below this share is no choice of the library
_SMALLEST = 0.05  # of a class's rows on a device: their time is launch and nothing else
_LOOKUP_ROWS = 8000
_TWIN = 0.5  # octaves between the numbers of one chip with other memory; different chips are one apart and more
_ROUNDS = {"bmm": 150, "linear": 150}
_VECTOR_ROUNDS = 100


@dataclass(frozen=True, eq=False)
class Trees:
    """Boosted trees, as bytes that are no pickle, with what they were fitted against.

    Parameters
    ----------
    data, plain : bytes
        XGBoost's own format. Of a chip the second knows its ridge alone; on one that was not measured both count alike.
        Those of elementwise operators are one: the ridge does not predict what they reach of the bandwidth.
    overhead_ns : mapping of device to float
        Floor of this class on each training device; other devices get the median.
    tiles : mapping of device to tuple of (float, float)
        Output tiles, along K and M, that the library uses there; empty for vector operators.
    chips : mapping of device to tuple of float
        Logarithms of units, flops and bytes per second and cache.
    """

    data: bytes
    plain: bytes
    overhead_ns: Mapping[str, float]
    tiles: Mapping[str, tuple[tuple[float, float], ...]]
    chips: Mapping[str, tuple[float, ...]]

    @cached_property
    def _boosters(self) -> list[Any]:
        boosters = [require("xgboost", extra="learn").Booster({"nthread": 1}) for _ in range(2)]
        for booster, data in zip(boosters, (self.data, self.plain), strict=True):
            booster.load_model(bytearray(data))
        return boosters

    def overheads(self, table: OpTable) -> Floats:
        """Floor of each row [P]."""
        median = float(np.median(list(self.overhead_ns.values())))
        return np.array([self.overhead_ns.get(name, median) for name in table.device.tolist()])

    def tiles_of(self, table: OpTable, chips: Chips) -> list[tuple[tuple[float, float], ...]]:
        """Tiles of each row's device or of its measured twins; where there are none, all that are used anywhere [P]."""
        names, first = np.unique(table.device.astype(str), return_index=True)
        result = dict(self.tiles)
        for name, index in zip(names.tolist(), _places(chips)[first], strict=True):
            twins = [tile for tile in self.tiles if np.linalg.norm(index - self.chips[tile]) < _TWIN]
            used = {tile for twin in twins or self.tiles for tile in self.tiles[twin]}
            result.setdefault(name, tuple(sorted(used)))
        return [result[name] for name in table.device.tolist()]

    def efficiency(self, features: Floats, table: OpTable) -> Floats:
        """Bound over time of features [P, F] of rows."""
        shown = {given.shape[1]: given for given in (features, np.delete(features, OWN_TO_A_CHIP, axis=1))}
        own, plain = (booster.inplace_predict(shown[booster.num_features()]) for booster in self._boosters)
        is_measured = np.isin(table.device.astype(str), list(self.overhead_ns))
        efficiency: Floats = np.exp(np.where(is_measured, own, (own + plain) / 2).astype(np.float64))
        return efficiency


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
        result = [_price(trees, table, chips, dtype) for trees in self.views]
        own = result[0].latency_ms
        latency = np.exp(np.mean([np.log(np.minimum(own, item.latency_ms)) for item in result], axis=0))
        return replace(result[0], latency_ms=latency, distance=self.lookup.nearest(table, sheet)[1])


def _price(trees: Trees, table: OpTable, chips: Chips, dtype: str) -> TilePrices:
    """Prices of the fastest tile."""
    overhead = trees.overheads(table)
    if not trees.tiles:
        result = tile_bounds(table, chips, overhead, None, dtype)
        return _prices(
            result, trees.efficiency(vector_features(table, chips, result), table), np.zeros((len(table), 2))
        )
    used = trees.tiles_of(table, chips)
    options = []
    for tile in sorted({tile for tiles in used for tile in tiles}):
        result = tile_bounds(table, chips, overhead, tile, dtype)
        efficiency = trees.efficiency(product_features(table, chips, result, tile), table)
        priced = _prices(result, efficiency, np.broadcast_to(np.array(tile, dtype=np.float64), (len(table), 2)))
        is_used = np.array([tile in tiles for tiles in used])
        options.append(replace(priced, latency_ms=np.where(is_used, priced.latency_ms, np.inf)))
    return _fastest(options)


def _prices(bounds: Bounds, efficiency: Floats, tile: Floats) -> TilePrices:
    unknown = np.full(len(bounds), np.nan)
    return TilePrices(bounds.duration_ns(efficiency) / 1e6, bounds, tile, unknown, unknown, unknown)


def _fastest(options: list[TilePrices]) -> TilePrices:
    best = np.argmin([option.latency_ms for option in options], axis=0)
    rows = np.arange(len(best))
    columns = ([getattr(option.bounds, field.name) for option in options] for field in fields(Bounds))
    bound = Bounds(*(np.stack(column)[best, rows] for column in columns))
    latency, tile = (
        np.stack([getattr(option, name) for option in options])[best, rows] for name in ("latency_ms", "tile")
    )
    return TilePrices(latency, bound, tile, *(options[0].distance,) * 3)


def train_trees(table: OpTable, sheet: Sheet, *, seed: int = 0, num_rounds: int = 0) -> dict[str, TreeModel]:
    """Fit every class that the table has; ``num_rounds`` above 0 replaces the number of trees."""
    trees = {name: _fit(name, table.of_class(name), sheet, seed, num_rounds) for name in CLASSES if _has(table, name)}
    models = {}
    for name, own in trees.items():
        views = (own, trees["bmm"]) if name == "linear" and "bmm" in trees else (own,)
        models[name] = TreeModel(name, views, TileLookup.fit(table.of_class(name).some(_LOOKUP_ROWS, seed), sheet))
    return models


def _has(table: OpTable, name: str) -> bool:
    return bool((table.op_class == name).any())


def _fit(name: str, table: OpTable, sheet: Sheet, seed: int, num_rounds: int) -> Trees:
    floors = _floors(table, sheet)
    chips = chips_of(table, sheet)
    overhead = np.array([floors[device] for device in table.device.tolist()])
    if name in PRODUCTS:
        # a kernel whose name contains no tile size gets the smallest one: 16 is below every tile that names contain
        tile = (np.maximum(table.tile1, 16.0), np.maximum(table.tile2, 16.0))
        result = tile_bounds(table, chips, overhead, tile)
        features = product_features(table, chips, result, tile)
    else:
        result = tile_bounds(table, chips, overhead, None)
        features = vector_features(table, chips, result)
    labels = np.log(result.efficiency(1e6 * table.latency_ms))
    plain = features if name == "elementwise" else np.delete(features, OWN_TO_A_CHIP, axis=1)
    rounds = num_rounds or _ROUNDS.get(name, _VECTOR_ROUNDS)
    data, hidden = (
        _train_trees(item, labels, _weights(table), rounds, name in PRODUCTS, seed) for item in (features, plain)
    )
    tiles = {device: _tiles(table.on(device)) for device in table.devices} if name in PRODUCTS else {}
    rows = {device: int(np.argmax(table.device == device)) for device in table.devices}
    indices = {device: tuple(_places(chips)[row].tolist()) for device, row in rows.items()}
    return Trees(data, hidden, floors, tiles, indices)


def _train_trees(
    features: Floats, labels: Floats, weights: Floats, num_rounds: int, is_product: bool, seed: int
) -> bytes:
    settings = {
        "max_depth": 8 if is_product else 4,
        "eta": 0.1 if is_product else 0.12,
        "subsample": 0.8,
        "colsample_bytree": 0.6,
        "min_child_weight": 5,
        "tree_method": "hist",
        "nthread": 1,  # threads that wait for each other lose more than they gain on a busy machine
        "seed": seed,
    }
    xgboost = require("xgboost", extra="learn")
    rows = xgboost.DMatrix(features, labels, weight=weights, nthread=1)
    return bytes(xgboost.train(settings, rows, num_rounds).save_raw("ubj"))


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
