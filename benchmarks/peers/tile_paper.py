"""NeuSight's regression to the letter, for the prices of its tiles beside ours.

In: training rows. Out: one ``PaperModel`` per class: the tile of the nearest measured kernel, four ratios of the tile
to the chip, a network that says ``utilization = gamma - alpha / waves``, and the roofline of the operator. Changed in
two places, as the released code divides by zero and reads tiles of far kernels without saying so: utilization stays
within [0.01, 1], and the distance of the kernel is part of the answer. Not here: what we price with
(``cost.operators.tile_trees``).

Source: Lee et al., NeuSight, ASPLOS 2025, and its released code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.cost.operators.physics import ITEM_BYTES, Chips, chips_of, tile_bounds
from windtunnel.cost.operators.table import CLASSES, PRODUCTS, OpTable
from windtunnel.cost.operators.tile import TilePrices
from windtunnel.cost.operators.tile_lookup import positions_of
from windtunnel.hardware import Device

__all__ = ["FEATURES", "PaperModel", "Tiles", "latency_ms", "tiles_of", "train_paper"]

# P rows
Floats = NDArray[np.float64]
Sheet = Mapping[str, Device]

FEATURES = ("tile_flops_to_unit", "tile_bytes_to_unit", "wave_bytes_to_memory", "wave_bytes_to_cache")
_WIDTH, _DEPTH = 512, 8
_LEARNING_RATE = {"bmm": 1e-5, "linear": 5e-3, "elementwise": 5e-4, "ln": 1e-6, "softmax": 1e-6}
_BATCH = {"bmm": 128, "linear": 128, "elementwise": 64, "ln": 16, "softmax": 16}
_OPERATIONS = {"ln": 6.0, "softmax": 5.0}
_TWO_INPUTS = ("add", "div", "mul", "pow")
_MIB, _GIB = 2.0**20, 2.0**30


@dataclass(frozen=True, eq=False)
class Tiles:
    """What the formulas of the paper need of P rows with tiles.

    Parameters
    ----------
    waves : float [P]
    tile_gflop : float [P]
        Of one tile, in 1e9.
    roof_gflops_per_s : float [P]
        ``min(peak, intensity * bandwidth)``; the intensity is 1e9 operations per 2^30 bytes.
    features : float [P, 4]
        ``FEATURES``, base-2 logarithms.
    num_units : float [P]
    """

    waves: Floats
    tile_gflop: Floats
    roof_gflops_per_s: Floats
    features: Floats
    num_units: Floats


def tiles_of(table: OpTable, chips: Chips, tile: Floats, dtype: str = "fp32") -> Tiles:
    """Steps 2 to 4 of the method, with its units: 1e9 operations, 2^30 and 2^20 bytes, rates in 1e9 per second."""
    item = ITEM_BYTES[dtype]
    is_product = table.op_class[0] in PRODUCTS
    sizes = _product(table, tile, item) if is_product else _vector(table, tile, item)
    blocks, tile_gflop, tile_mib, intensity = sizes
    units = chips.num_units
    waves = np.ceil(blocks / units)
    peak, rate = chips.flops_per_s / 1e9, chips.bytes_per_s / 1e9
    features = np.stack(
        [
            tile_gflop / (peak / 1000 / units),
            tile_mib / (rate / units),
            waves * tile_mib / (chips.memory_bytes / _GIB * 1024 / units),
            waves * tile_mib / (chips.cache_bytes / _MIB * 1024 / units),
        ],
        axis=1,
    )
    return Tiles(waves, tile_gflop, np.minimum(peak, intensity * rate), np.log2(features), units)


def _product(table: OpTable, tile: Floats, item: int) -> tuple[Floats, ...]:
    first, second = tile.T
    num_m, num_k = np.ceil(table.M / first), np.ceil(table.K / second)
    flops = 2 * num_m * first * table.N * num_k * second / 1e9
    moved = item * (table.M * table.N + table.N * table.K + table.M * table.K) / _GIB
    tile_mib = item * (first * table.N + table.N * second + first * second) / _MIB
    return table.B * num_m * num_k, 2 * first * table.N * second / 1e9, tile_mib, flops / moved


def _vector(table: OpTable, tile: Floats, item: int) -> tuple[Floats, ...]:
    width = tile[:, 0]
    operations = np.array([_OPERATIONS.get(op, 1.0) for op in table.op.tolist()])
    tensors = np.where(np.isin(table.op, _TWO_INPUTS), 3, 2)
    num = np.ceil(table.H / width)
    flops = operations * num * width / 1e9
    moved = item * tensors * table.H / _GIB
    return table.B * num, operations * width / 1e9, item * tensors * width / _MIB, flops / moved


def latency_ms(tiles: Tiles, utilization: Floats) -> Floats:
    """Step 6: waves of tiles, each at its share of the roof."""
    per_wave_s = tiles.num_units * tiles.tile_gflop / (tiles.roof_gflops_per_s * utilization)
    return 1e3 * tiles.waves * per_wave_s


@dataclass(frozen=True, eq=False)
class UnscaledLookup:
    """Measured kernels of one class: ``points`` [N, Q] as they are, ``tiles`` [N, 2]."""

    points: Floats
    tiles: Floats

    @classmethod
    def fit(cls, measured: OpTable, sheet: Sheet) -> UnscaledLookup:
        """Keep each distinct (sizes, device) once."""
        points, first = np.unique(positions_of(measured, sheet), axis=0, return_index=True)
        return cls(points, np.stack([measured.tile1, measured.tile2], axis=1)[first])

    def nearest(self, table: OpTable, sheet: Sheet) -> tuple[Floats, Floats]:
        """Tiles [P, 2] of the nearest kernels and their distances [P]; of ties, the first."""
        tree = require("scipy.spatial", extra="learn").cKDTree(self.points)
        distances, rows = tree.query(positions_of(table, sheet))
        return self.tiles[rows], distances


@dataclass(frozen=True, eq=False)
class PaperModel:
    """Prices one class as NeuSight does.

    Parameters
    ----------
    op_class : str
    weights : mapping of str to array
        Of the network.
    lookup : UnscaledLookup
    """

    op_class: str
    weights: Mapping[str, NDArray[Any]]
    lookup: UnscaledLookup

    def price(self, table: OpTable, sheet: Sheet, dtype: str) -> TilePrices:
        """Prices of rows of this class."""
        torch = require("torch", extra="learn")
        network = _network()
        network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in self.weights.items()})
        chips = chips_of(table, sheet, dtype)
        tile, distance = _tile_of(table, sheet, self.lookup)
        tiles = tiles_of(table, chips, tile, dtype)
        with torch.inference_mode():
            inputs, waves = _tensors(tiles.features, tiles.waves)
            utilization = _utilization(network(inputs), waves).numpy().astype(np.float64)
        known = (tile[:, 1], tile[:, 0]) if self.op_class in PRODUCTS else None
        found = tile_bounds(table, chips, 0.0, known, dtype)
        unknown = np.full(len(table), np.nan)
        return TilePrices(latency_ms(tiles, utilization), found, tile, distance, unknown, unknown)


def _tile_of(table: OpTable, sheet: Sheet, lookup: UnscaledLookup) -> tuple[Floats, Floats]:
    tile, distance = lookup.nearest(table, sheet)
    if table.op_class[0] in ("ln", "softmax"):
        return np.stack([table.H, np.zeros(len(table))], axis=1), distance
    return tile, distance


def _network() -> Any:
    nn = require("torch", extra="learn").nn
    widths = [len(FEATURES), *[_WIDTH] * (_DEPTH - 1), 3]
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _tensors(*arrays: NDArray[Any]) -> tuple[Any, ...]:
    torch = require("torch", extra="learn")
    return tuple(torch.from_numpy(np.asarray(array, dtype=np.float32)) for array in arrays)


def _utilization(outputs: Any, waves: Any) -> Any:
    """Gamma - alpha / waves; the middle output is not used, as in the released code.

    Outside of [0.01, 1] the value is that of the border, and the gradient is kept: one wave begins near 0.
    """
    free = outputs[:, 2].sigmoid() - outputs[:, 0].sigmoid() / waves
    return free + (free.clamp(0.01, 1.0) - free).detach()


def train_paper(
    table: OpTable, sheet: Sheet, *, seed: int = 0, num_epochs: int = 100, max_rows: int = 0
) -> dict[str, PaperModel]:
    """Fit every class that the table has, a random fifth kept to choose the epoch by.

    Parameters
    ----------
    num_epochs : int
        The paper's 100 take hours on a few cores.
    max_rows : int
        Of a class, drawn at random; 0 takes all.
    """
    models = {}
    for name in CLASSES:
        rows = table.of_class(name)
        if not len(rows):
            continue
        if 0 < max_rows < len(rows):
            rows = rows.take(np.random.default_rng(seed).choice(len(rows), max_rows, replace=False))
        models[name] = _fit(name, rows, sheet, seed, num_epochs)
    return models


def _fit(name: str, table: OpTable, sheet: Sheet, seed: int, num_epochs: int) -> PaperModel:
    measured = table.take(table.tile1 > 0)
    lookup = UnscaledLookup.fit(measured, sheet)
    tile = np.stack([measured.tile1, measured.tile2], axis=1)
    if name in ("ln", "softmax"):
        tile = np.stack([measured.H, np.zeros(len(measured))], axis=1)
    tiles = tiles_of(measured, chips_of(measured, sheet), tile)
    full = latency_ms(tiles, np.ones(len(measured)))
    inputs, waves, ideal, truth = _tensors(tiles.features, tiles.waves, full, measured.latency_ms)
    return PaperModel(name, _descend(name, inputs, waves, ideal / truth, seed, num_epochs), lookup)


def _descend(name: str, inputs: Any, waves: Any, target: Any, seed: int, num_epochs: int) -> dict[str, NDArray[Any]]:
    """Weights of the best epoch; ``target`` is the utilization that was measured, so time over truth is target / u."""
    torch = require("torch", extra="learn")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _network()
        order = torch.randperm(len(inputs))
        held, train = order[: len(order) // 5], order[len(order) // 5 :]
        optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE[name])
        best, weights = float("inf"), network.state_dict()
        for _ in range(num_epochs):
            for batch in train[torch.randperm(len(train))].split(_BATCH[name]):
                ratio = target[batch] / _utilization(network(inputs[batch]), waves[batch])
                loss = ((ratio - 1).abs() / (ratio + 1)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                error = float((target[held] / _utilization(network(inputs[held]), waves[held]) - 1).abs().mean())
            if error < best:
                best, weights = error, {key: value.clone() for key, value in network.state_dict().items()}
    return {key: value.detach().numpy() for key, value in weights.items()}
