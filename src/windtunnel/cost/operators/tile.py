"""Operators priced for a GPU that was never measured: tiles, waves, learned efficiency.

In: measured operators of some GPUs and a sheet. Out: ``TileModel``: rows of any device in, times, tiles and intervals
out. Trees predict the efficiency against the bound of ``cost.bounds`` for each tile that a
library has, and the fastest counts; a linear layer is also a product of batch one, and both views are averaged.
Not here: files (``tile_file``), graphs.

Source: Lee, Phanishayee, Mahajan, Forecasting GPU performance for deep learning (NeuSight), ASPLOS 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.cost.bounds import Bounds
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.metrics import errors_of
from windtunnel.cost.operators.table import CLASSES, OpSplit, OpTable
from windtunnel.errors import InputError, PriceError
from windtunnel.hardware import Device

__all__ = [
    "ClassModel",
    "TileModel",
    "TilePrices",
    "errors_of_ratio",
    "train_tile",
    "validate_tile",
]

# P rows
Floats = NDArray[np.float64]
Sheet = Mapping[str, Device]

_CALIBRATION_ROWS = 1500  # of one class on one held-out device
_LEVEL = 0.9


def _silent(what: str, done: int, total: int) -> None:
    """Say nothing."""


class ClassModel(Protocol):
    """What prices one class of operators."""

    def price(self, table: OpTable, sheet: Sheet, dtype: str) -> TilePrices:
        """Prices of rows of this class."""
        ...


@dataclass(frozen=True, eq=False)
class TilePrices:
    """Prices of P operators.

    Parameters
    ----------
    latency_ms : float [P]
    bounds : Bounds
        Those of the tile that was taken.
    tile : float [P, 2]
        Along K and M; 0 where the class has none.
    distance : float [P]
        From the nearest measured kernel, in spreads of its features: far above those of the training set, the
        price is an extrapolation.
    low_ms, high_ms : float [P]
        Interval of the model's level; NaN where it was not calibrated.
    """

    latency_ms: Floats
    bounds: Bounds
    tile: Floats
    distance: Floats
    low_ms: Floats
    high_ms: Floats

    @property
    def efficiency(self) -> Floats:
        """Bound over predicted time [P]."""
        return self.bounds.efficiency(1e6 * self.latency_ms)


@dataclass(frozen=True, eq=False)
class TileModel:
    """A trained pricer of operators.

    Parameters
    ----------
    classes : mapping of class to ClassModel
    devices : tuple of str
        That it learned from.
    digest : str
        Hash of the training rows.
    intervals : ConformalIntervals, optional
        Of devices that were held out.
    validation : mapping of class to mapping of str to float
        Errors on devices that were held out while training.
    """

    classes: Mapping[str, ClassModel]
    devices: tuple[str, ...]
    digest: str
    intervals: ConformalIntervals | None = None
    validation: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def price(self, table: OpTable, sheet: Sheet, dtype: str = "fp32") -> TilePrices:
        """Price rows of any device of the sheet.

        Raises
        ------
        PriceError
            No model for some operators; names them.
        InputError
            A device is not in the sheet or lacks a field.
        """
        classes = table.op_class
        unknown = sorted({op for op, name in zip(table.op.tolist(), classes, strict=True) if name not in self.classes})
        if unknown:
            raise PriceError(f"no tile model prices {', '.join(unknown)}", fix=f"it knows {', '.join(self.classes)}")
        rows = {name: np.flatnonzero(classes == name) for name in self.classes if (classes == name).any()}
        parts = [(own, self.classes[name].price(table.take(own), sheet, dtype)) for name, own in rows.items()]
        return self._within(_merge_prices(parts, len(table)), classes)

    def _within(self, prices: TilePrices, classes: NDArray[np.object_]) -> TilePrices:
        if self.intervals is None:
            return prices
        ends = np.array([self.intervals.by_class.get(name, self.intervals.pooled) for name in classes]).reshape(-1, 2)
        low, high = prices.latency_ms * np.exp(ends.T)
        return replace(prices, low_ms=low, high_ms=high)


def _merge_prices(parts: list[tuple[NDArray[np.int64], TilePrices]], count: int) -> TilePrices:
    if len(parts) == 1:
        return parts[0][1]
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable") if parts else np.zeros(0, np.int64)
    if len(order) != count:
        raise InputError("there are no rows to price", where="operators")
    result = [prices for _, prices in parts]
    merged: Any = {
        name: np.concatenate([getattr(prices, name) for prices in result])[order]
        for name in ("latency_ms", "tile", "distance", "low_ms", "high_ms")
    }
    columns = (
        np.concatenate([getattr(prices.bounds, field_.name) for prices in result])[order] for field_ in fields(Bounds)
    )
    return TilePrices(bounds=Bounds(*columns), **merged)


def train_tile(
    table: OpTable,
    sheet: Sheet,
    *,
    seed: int = 0,
    num_rounds: int = 0,
    is_calibrated: bool = True,
    progress: Progress = _silent,
) -> TileModel:
    """Learn from measured operators.

    Parameters
    ----------
    table : OpTable
        Training rows only: the model keeps tiles and scales of nothing else.
    sheet : mapping of str to Device
    num_rounds : int
        Trees of each class; 0: as many as suit the class.
    is_calibrated : bool
        Also hold each device out once, for validation errors and intervals; about as long again as training for each.
    progress : callable
        Called with what begins, how many steps are done, and of how many.

    Raises
    ------
    InputError
        The table has no row of any class.
    """
    from windtunnel.cost.operators.tile_trees import train_trees

    present = [name for name in CLASSES if (table.op_class == name).any()]
    if not present:
        raise InputError("no row is of a class that the tile model knows", where="op set", fix=", ".join(CLASSES))
    progress(f"training {', '.join(present)}", 0, 1 + len(table.devices) * is_calibrated)
    classes = train_trees(table, sheet, seed=seed, num_rounds=num_rounds)
    model = TileModel(classes, table.devices, table.digest())
    if not is_calibrated or len(table.devices) < 2:
        return model
    validation, intervals = validate_tile(table, sheet, seed=seed, num_rounds=num_rounds, progress=progress)
    return TileModel(classes, table.devices, model.digest, intervals, validation)


def validate_tile(
    table: OpTable,
    sheet: Sheet,
    *,
    seed: int = 0,
    num_rounds: int = 0,
    progress: Progress = _silent,
) -> tuple[dict[str, dict[str, float]], ConformalIntervals]:
    """Hold each device out once: errors by class on its larger shapes (mean over devices), and intervals.

    Errors of one device go together: an interval is as wide, to both sides, as the worst device needs.
    """
    from windtunnel.cost.operators.tile_trees import train_trees

    widths: dict[str, float] = {}
    errors: dict[str, list[dict[str, float]]] = {}
    for step, device in enumerate(table.devices, start=1):
        progress(f"holding out {device}", step, 1 + len(table.devices))
        split = OpSplit.without_device(table, device)
        trained = train_trees(split.train, sheet, seed=seed, num_rounds=num_rounds)
        for name, model in trained.items():
            rows = OpSplit.by_size(split.held_out.of_class(name)).held_out.some(_CALIBRATION_ROWS, seed)
            if not len(rows):
                continue
            ratio = model.price(rows, sheet, "fp32").latency_ms / rows.latency_ms
            widths[name] = max(widths.get(name, 0.0), float(np.quantile(np.abs(np.log(ratio)), _LEVEL)))
            errors.setdefault(name, []).append(errors_of_ratio(ratio))
    means = {
        name: {key: float(np.mean([item[key] for item in error])) for key in error[0]} for name, error in errors.items()
    }
    ends = {name: (-wide, wide) for name, wide in widths.items()}
    return means, ConformalIntervals(_LEVEL, max(ends.values(), key=max), ends)


def errors_of_ratio(ratio: Floats) -> dict[str, float]:
    """Errors of predicted over measured: the mean absolute one is never shown without its sign."""
    result = errors_of(ratio, np.ones_like(ratio))
    return {
        "mape": result.mape,
        "signed_mean": result.signed_mean,
        "geometric_mean_ratio": result.geometric_mean_ratio,
    }
