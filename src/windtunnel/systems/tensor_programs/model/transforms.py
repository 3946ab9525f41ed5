"""Normalization of inputs and labels: raw features and seconds in, what a network likes out, and back.

Everything is fitted on training rows only and is plain numbers, so that it travels in a checkpoint. Eight transforms of
labels stand behind one switch; a prediction that has no inverse is clamped and counted. Not here: splits, networks.

Source: CDMPP (EuroSys 2024), section 4.4; Box and Cox (1964); Yeo and Johnson (2000).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from windtunnel.base.extras import require
from windtunnel.errors import InputError

__all__ = ["FeatureScale", "LabelKind", "LabelTransform", "check_labels"]

LabelKind = Literal["box-cox", "yeo-johnson", "quantile-normal", "quantile-uniform", "min-max", "std", "log", "none"]
NUM_QUANTILES = 500
MIN_PROBABILITY = 1e-7
TINY = float(np.finfo(np.float64).tiny)
FALLBACK_SECONDS = 1e-6  # of a prediction that is not a number
MAX_SECONDS = 1e6
STANDARDISED = ("box-cox", "yeo-johnson", "log", "std")


def check_labels(seconds: ArrayLike, where: str = "") -> np.ndarray:
    """Check labels and return them as float64, [P]."""
    values = np.asarray(seconds, dtype=np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if wrong.size:
        raise InputError(
            f"sample {wrong[0]} has the time {values[wrong[0]]:g} s ({wrong.size} of {values.size} are not above zero)",
            where=where,
            fix="measure these samples again, or leave them out",
        )
    return values


@dataclass(frozen=True)
class FeatureScale:
    """Per-entry range of training rows: ``(x - low) / (high - low + 1e-6)``."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def fit(cls, rows: np.ndarray) -> FeatureScale:
        """Fit the ranges of ``rows``, [M, F]."""
        values = np.asarray(rows, dtype=np.float32)
        return cls(values.min(axis=0), values.max(axis=0))

    @classmethod
    def standard(cls, rows: np.ndarray) -> FeatureScale:
        """Mean zero and unit variance instead; entries that never change only lose their mean."""
        values = np.asarray(rows, dtype=np.float32)
        mean, std = values.mean(axis=0), values.std(axis=0)
        return cls(mean, mean + np.where(std > 1e-4, std, np.float32(1)))

    def __call__(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Scaled rows, float32, into ``out`` where it is given; training rows lie within 0 and 1."""
        scaled: np.ndarray = np.subtract(np.asarray(rows, dtype=np.float32), self.low, out=out)
        scaled /= self.high - self.low + np.float32(1e-6)
        return scaled


@dataclass(frozen=True)
class LabelTransform:
    """A fitted transform of positive labels.

    Parameters
    ----------
    kind
        One of ``LabelKind``.
    power
        Lambda of Box-Cox and Yeo-Johnson.
    shift, scale
        ``(f(y) - shift) / scale``.
    quantiles, references
        Knots of the quantile transforms.
    """

    kind: LabelKind
    power: float = 1.0
    shift: float = 0.0
    scale: float = 1.0
    quantiles: tuple[float, ...] = ()
    references: tuple[float, ...] = ()

    @classmethod
    def fit(cls, kind: LabelKind, seconds: ArrayLike, where: str = "") -> LabelTransform:
        """Fit the transform on training labels, [P]."""
        if kind not in get_args(LabelKind):
            raise InputError(f"unknown label transform {kind!r}", fix=", ".join(get_args(LabelKind)))
        values = check_labels(seconds, where)
        if kind.startswith("quantile"):
            quantiles, references = _knots(values)
            return cls(kind, quantiles=quantiles, references=references)
        if kind == "min-max":
            return cls(kind, shift=float(values.min()), scale=float(np.ptp(values)) or 1.0)
        raw = cls(kind, power=_likeliest_power(kind, values))
        if kind not in STANDARDISED:
            return raw
        bent = raw._bend(values)
        return cls(kind, raw.power, float(bent.mean()), float(bent.std()) or 1.0)

    def forward(self, seconds: ArrayLike) -> np.ndarray:
        """Labels as the network learns them, float64."""
        bent: np.ndarray = (self._bend(np.asarray(seconds, dtype=np.float64)) - self.shift) / self.scale
        return bent

    def inverse(self, values: ArrayLike) -> tuple[np.ndarray, int]:
        """Seconds, and how many of them had to be clamped."""
        bent = np.asarray(values, dtype=np.float64) * self.scale + self.shift
        with np.errstate(over="ignore", invalid="ignore"):
            seconds, is_clamped = self._unbend(bent)
        is_clamped |= ~np.isfinite(seconds) | (seconds <= 0) | (seconds > MAX_SECONDS)
        seconds = np.nan_to_num(seconds, nan=FALLBACK_SECONDS, posinf=MAX_SECONDS, neginf=FALLBACK_SECONDS)
        seconds = np.where(seconds <= 0, FALLBACK_SECONDS, np.minimum(seconds, MAX_SECONDS))
        return seconds, int(is_clamped.sum())

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LabelTransform:
        """Read what ``to_json`` returned."""
        knots = {key: tuple(values[key]) for key in ("quantiles", "references")}
        return cls(**{**values, **knots})

    def _bend(self, y: Any) -> Any:
        if self.kind == "log":
            return np.log(y)
        if self.kind == "box-cox":
            return np.log(y) if self.power == 0 else np.expm1(self.power * np.log(y)) / self.power
        if self.kind == "yeo-johnson":
            return np.log1p(y) if self.power == 0 else np.expm1(self.power * np.log1p(y)) / self.power
        if self.kind.startswith("quantile"):
            share = np.interp(y, self.quantiles, self.references)
            return _special().ndtri(share) if self.kind == "quantile-normal" else share
        return y

    def _unbend(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        none = np.zeros(z.shape, dtype=bool)
        if self.kind == "log":
            return np.exp(z), none
        if self.kind in ("box-cox", "yeo-johnson"):
            offset = 1.0 if self.kind == "yeo-johnson" else 0.0
            if self.power == 0:
                return np.exp(z) - offset, none
            # 1 + power * z has to stay above 0: beyond, no value was bent to z, and the nearest one is given
            is_outside = self.power * z <= TINY - 1
            inside = np.log1p(np.where(is_outside, 0.0, self.power * z))
            logarithm = np.where(is_outside, np.log(TINY), inside) / self.power
            return (np.expm1(logarithm) if offset else np.exp(logarithm)), is_outside
        if self.kind.startswith("quantile"):
            share = _special().ndtr(z) if self.kind == "quantile-normal" else z
            is_outside = (share < self.references[0] - 1e-12) | (share > self.references[-1] + 1e-12)
            return np.interp(share, self.references, self.quantiles), is_outside
        return z, none


def _special() -> Any:
    return require("scipy.special", extra="learn")


def _likeliest_power(kind: LabelKind, values: np.ndarray) -> float:
    """Lambda of the greatest likelihood; 1 for kinds that have none."""
    if kind not in ("box-cox", "yeo-johnson"):
        return 1.0
    if np.ptp(values) == 0:
        raise InputError("every label is the same, so no power transform fits", fix="choose another label transform")
    stats = require("scipy.stats", extra="learn")
    return float((stats.boxcox if kind == "box-cox" else stats.yeojohnson)(values)[1])


def _knots(values: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    shares = np.linspace(MIN_PROBABILITY, 1 - MIN_PROBABILITY, min(NUM_QUANTILES, values.size))
    positions = np.linspace(0, 1, shares.size)
    quantiles, first = np.unique(np.quantile(values, positions), return_index=True)
    return tuple(map(float, quantiles)), tuple(map(float, shares[first]))
