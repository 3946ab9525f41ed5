"""Communication stalls predicted from two numbers of a model: collectives and bytes.

In: models with their tensors, buckets and bytes of gradients, and the stall that each showed. Out: what one collective
and one byte take, with the error on models that were left out. Source: Stash, ICDCS 2023, section on model features;
buckets, which merge small tensors, are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.systems.stalls.model import Stalls

__all__ = ["TIERS", "Features", "StallModel", "features_of", "fit_stalls", "fit_tiers"]

_MIB, _MIN_MODELS = 2**20, 4
COUNTS = ("tensors", "buckets")
TIERS = ("exchange", "network")
"""Causes that models of two numbers predict."""


@dataclass(frozen=True)
class Features:
    """The messages of a model per iteration.

    Attributes
    ----------
    num_tensors : int
        Gradients: two of most layers.
    num_buckets : int
        Messages into which they are put.
    size_bytes : int
    """

    num_tensors: int
    num_buckets: int
    size_bytes: int


@dataclass(frozen=True)
class StallModel:
    """``stall = collective_ns * count + byte_ns * bytes + rest_ns``, no term below 0.

    Attributes
    ----------
    counts : str
        ``tensors`` or ``buckets``, by the error on left-out models.
    collective_ns, byte_ns, rest_ns : float
    left_out_errors : tuple of float
        Of each model by the others, relative.
    """

    counts: str
    collective_ns: float
    byte_ns: float
    rest_ns: float
    left_out_errors: tuple[float, ...] = ()

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Effective bytes per second of averaging; infinite if bytes cost nothing."""
        return 1e9 / self.byte_ns if self.byte_ns > 0 else float("inf")

    def stall_ns(self, features: Features) -> float:
        """Return the predicted stall of one iteration."""
        return float(_row(features, self.counts) @ (self.collective_ns, self.byte_ns, self.rest_ns))


def features_of(
    sizes_bytes: Sequence[int], *, bucket_bytes: int = 25 * _MIB, first_bucket_bytes: int = _MIB
) -> Features:
    """Return the features of gradients by size, in parameter order, with buckets as PyTorch's DDP fills them.

    Examples
    --------
    >>> features_of([4_000_000, 1000, 30_000_000, 1000])
    Features(num_tensors=4, num_buckets=2, size_bytes=34002000)
    """
    num_buckets, filled, limit = 0, 0, first_bucket_bytes
    for size in reversed(sizes_bytes):  # the backward pass comes to the last ones first
        filled += size
        if filled >= limit:
            num_buckets, filled, limit = num_buckets + 1, 0, bucket_bytes
    return Features(len(sizes_bytes), num_buckets + bool(filled), sum(sizes_bytes))


def fit_stalls(features: Sequence[Features], stalls_ns: Sequence[float]) -> StallModel:
    """Fit by non-negative least squares of relative errors; count what predicts left-out models better.

    Raises
    ------
    InputError
        There are fewer than four models, or a stall is not above 0.
    """
    if (
        len(features) != len(stalls_ns)
        or len(features) < 4
        or not all(np.isfinite(item) and item > 0 for item in stalls_ns)
    ):
        raise InputError(
            f"{len(features)} models with {len(stalls_ns)} stalls do not say what a collective and a byte take",
            where="stalls_ns",
            fix="measure four models or more, each with a stall above 0",
        )
    result = [_with_errors(features, np.array(stalls_ns, dtype=np.float64), counts) for counts in COUNTS]
    return min(result, key=lambda model: float(np.median(model.left_out_errors)))


def fit_tiers(measured: Sequence[Stalls]) -> dict[str, StallModel]:
    """Fit a model for each tier in which at least four jobs stalled."""
    models = {}
    for tier in TIERS:
        pairs = [
            (job.features, stall.per_iteration_ns.value)
            for job in measured
            for stall in job.stalls
            if stall.cause == tier and stall.is_detected
        ]
        if len(pairs) >= _MIN_MODELS:
            models[tier] = fit_stalls(*(list(column) for column in zip(*pairs, strict=True)))
    return models


def _with_errors(features: Sequence[Features], stalls_ns: NDArray[np.float64], counts: str) -> StallModel:
    rows = np.array([_row(feature, counts) for feature in features])
    errors = []
    for index in range(len(features)):
        others = np.arange(len(features)) != index
        model = _fit_model(rows[others], stalls_ns[others], counts)
        errors.append(abs(model.stall_ns(features[index]) / float(stalls_ns[index]) - 1))
    return replace(_fit_model(rows, stalls_ns, counts), left_out_errors=tuple(errors))


def _fit_model(rows: NDArray[np.float64], stalls_ns: NDArray[np.float64], counts: str) -> StallModel:
    from scipy.optimize import nnls

    scale = np.maximum(rows.max(axis=0), 1e-30)
    weighted = rows / scale / stalls_ns[:, None]  # a share of each stall counts, not its size
    result, _ = nnls(weighted, np.ones(len(stalls_ns)))
    collective_ns, byte_ns, rest_ns = (result / scale).tolist()
    return StallModel(counts, collective_ns, byte_ns, rest_ns)


def _row(features: Features, counts: str) -> NDArray[np.float64]:
    return np.array([features.num_tensors if counts == "tensors" else features.num_buckets, features.size_bytes, 1.0])
