"""What a cost model is: work in, efficiency against the physical bound out, with an interval.

In: ``Work`` and a ``Device``. Out: ``Prices``. A cost model is registered by name as a function without required
arguments that returns a ``Pricer``; ``pricing`` finds it there and applies it to graphs. Not here: any one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.cost.bounds import Bounds
from windtunnel.cost.work import Work
from windtunnel.hardware import Device

__all__ = ["ComparingPricer", "Pricer", "Prices", "exact_prices"]

Floats = NDArray[np.float64]
_EFFICIENCIES = ("efficiency", "efficiency_low", "efficiency_high")


@dataclass(frozen=True, eq=False)
class Prices:
    """Times of P rows of work as efficiencies against their bounds.

    Parameters
    ----------
    bounds : Bounds
    efficiency : float [P]
        Bound over predicted time: above 0, at most 1 but for noise.
    efficiency_low, efficiency_high : float [P]
        Interval of ``level``; NaN where the model cannot say how sure it is.
    level : float
    """

    bounds: Bounds
    efficiency: Floats
    efficiency_low: Floats
    efficiency_high: Floats
    level: float = 0.9

    def __len__(self) -> int:
        return len(self.efficiency)

    @property
    def duration_ns(self) -> Floats:
        """Predicted time [P]."""
        return self.bounds.duration_ns(self.efficiency)

    @property
    def duration_low_ns(self) -> Floats:
        """Lower end of the interval [P]."""
        return self.bounds.duration_ns(self.efficiency_high)

    @property
    def duration_high_ns(self) -> Floats:
        """Upper end of the interval [P]."""
        return self.bounds.duration_ns(self.efficiency_low)

    @property
    def log_std(self) -> Floats:
        """Spread of the logarithm of the time [P], as if the interval were a normal one's; NaN where unknown."""
        # of logarithms, so that the bound, which both ends share, drops out
        width = np.log(self.efficiency_high) - np.log(self.efficiency_low)
        spread: Floats = width / (2 * NormalDist().inv_cdf((1 + self.level) / 2))
        return spread

    @property
    def duration_std_ns(self) -> Floats:
        """Spread of the time [P]; NaN where unknown."""
        return self.duration_ns * self.log_std

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Prices:
        """The given rows."""
        columns = (self.efficiency[rows], self.efficiency_low[rows], self.efficiency_high[rows])
        return Prices(self.bounds.take(rows), *columns, level=self.level)

    def replace_rows(self, rows: NDArray[np.int64] | NDArray[np.bool_], others: Prices) -> Prices:
        """These prices with the given rows taken from others, which has one row for each."""
        own: list[Any] = [getattr(self, name) for name in _EFFICIENCIES]
        parts: dict[str, Any] = {
            field.name: _replace_rows(getattr(self.bounds, field.name), rows, getattr(others.bounds, field.name))
            for field in fields(Bounds)
        }
        given = [getattr(others, name) for name in _EFFICIENCIES]
        mean, low, high = (_replace_rows(local, rows, theirs) for local, theirs in zip(own, given, strict=True))
        return Prices(Bounds(**parts), mean, low, high, self.level)


def _replace_rows(values: NDArray[Any], rows: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    filled = values.copy()
    filled[rows] = others
    return filled


def exact_prices(bounds: Bounds, efficiency: ArrayLike = 1.0) -> Prices:
    """Prices without an interval."""
    value = np.broadcast_to(np.asarray(efficiency, dtype=np.float64), len(bounds)).copy()
    unknown = np.full(len(bounds), np.nan)
    return Prices(bounds, value, unknown, unknown)


@runtime_checkable
class Pricer(Protocol):
    """A cost model, ready to price.

    Attributes
    ----------
    name : str
        What ``cost_source`` says of the tasks that it priced.
    is_measurement : bool, optional
        True: it saw these operators on this device, so times below the bound stay. All others are raised to it.
    """

    name: str

    def covers(self, work: Work, device: Device) -> NDArray[np.bool_]:
        """Rows that it can price on this device, bool [P]."""
        ...

    def price(self, work: Work, device: Device) -> Prices:
        """Prices of rows that it covers; it may choose tiles and type, hence it makes the bounds."""
        ...


@runtime_checkable
class ComparingPricer(Pricer, Protocol):
    """A cost model that knows more of some devices than of others."""

    def among(self, devices: Sequence[Device]) -> Pricer:
        """The same model, which uses only what it knows of all these devices."""
        ...
