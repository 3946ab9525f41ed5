"""Training losses: normalized predictions and labels in, one differentiable number out.

Source: CDMPP (EuroSys 2024), section 4.5: hybrid loss and the domain term; the denominator of MAPE is guarded, for
normalized labels cross zero. ``ratio`` is ours, for labels that are logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from windtunnel.errors import InputError

__all__ = ["DomainTerm", "LossKind", "label_loss"]

LossKind = Literal["hybrid", "mse", "mape", "mspe", "mae", "huber", "ratio"]
DomainTerm = Literal["none", "cmd"]
GUARD = 1e-2
HYBRID_WEIGHT = 1000.0
MAX_LOG_RATIO = 2.0  # far off, at the start, an exponential is all that a step would see


def _relative(predicted: Any, label: Any) -> Any:
    return (predicted - label) / label.abs().clamp_min(GUARD)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "mse": lambda predicted, label: (predicted - label) ** 2,
    "mae": lambda predicted, label: (predicted - label).abs(),
    "huber": lambda predicted, label: (1 + ((predicted - label) / 0.05) ** 2) ** 0.5 - 1,
    "mape": lambda predicted, label: _relative(predicted, label).abs(),
    "mspe": lambda predicted, label: _relative(predicted, label) ** 2,
    "hybrid": lambda predicted, label: HYBRID_WEIGHT * (predicted - label) ** 2 + _relative(predicted, label).abs(),
}


def label_loss(kind: LossKind, predicted: Any, label: Any, *, log_scale: float | None = None) -> Any:
    """Mean loss of a batch.

    Parameters
    ----------
    log_scale
        What one unit of a label is in natural logarithms of the time; None where labels are no logarithms.
    """
    if kind not in get_args(LossKind):
        raise InputError(f"unknown loss {kind!r}", fix=", ".join(get_args(LossKind)))
    if kind == "ratio":
        if log_scale is None:
            raise InputError("the loss 'ratio' is of logarithms, and these labels are none", fix='labels="log"')
        # Squares of small differences, and by which share the time itself is off: what MAPE counts.
        off = predicted - label
        size = off.abs()
        near = size.clamp(max=1.0)
        return (near * (size - near / 2) + ((off * log_scale).clamp(max=MAX_LOG_RATIO).exp() - 1).abs()).mean()
    return LOSSES[kind](predicted, label).mean()
