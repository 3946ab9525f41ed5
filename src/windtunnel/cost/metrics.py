"""How good predicted times are: predicted and measured seconds in, errors out.

The mean absolute percentage error rewards under-prediction, so the signed mean and the geometric mean of the ratio are
always next to it. Not here: intervals.
"""

# P programs

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

__all__ = ["Errors", "errors_of", "mape"]


@dataclass(frozen=True)
class Errors:
    """Errors of one set of predictions; every share and ratio is a fraction, ``rmse_s`` is in seconds."""

    mape: float
    rmse_s: float
    within_5: float
    within_10: float
    within_20: float
    signed_mean: float
    geometric_mean_ratio: float
    median_ape: float
    num_samples: int

    def row(self) -> dict[str, float]:
        """As plain values."""
        return asdict(self)


def mape(predicted_s: np.ndarray, measured_s: np.ndarray) -> float:
    """Mean of ``|predicted - measured| / measured``."""
    return float(np.mean(np.abs(predicted_s - measured_s) / measured_s))


def errors_of(predicted_s: np.ndarray, measured_s: np.ndarray) -> Errors:
    """All metrics of P predictions."""
    predicted, measured = np.asarray(predicted_s, np.float64), np.asarray(measured_s, np.float64)
    relative = (predicted - measured) / measured
    absolute = np.abs(relative)
    return Errors(
        mape=float(absolute.mean()),
        rmse_s=float(np.sqrt(np.mean((predicted - measured) ** 2))),
        within_5=float((absolute <= 0.05).mean()),
        within_10=float((absolute <= 0.10).mean()),
        within_20=float((absolute <= 0.20).mean()),
        signed_mean=float(relative.mean()),
        geometric_mean_ratio=float(np.exp(np.mean(np.log(predicted / measured)))),
        median_ape=float(np.median(absolute)),
        num_samples=predicted.size,
    )
