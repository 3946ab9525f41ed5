"""Arrival times of requests.

In: the name of a pattern with its parameters, or a CSV file. Out: ascending times in ns. Not here: answering them
(``tail``, ``run``).
"""

# R requests

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.columns import number, read_rows
from windtunnel.errors import InputError
from windtunnel.registry import did_you_mean

__all__ = ["COLUMN", "requests_of"]

COLUMN = "arrival_ms"
_MOST = 10_000_000

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_USUAL = {"rate": 10.0, "seconds": 30.0}


def requests_of(text: str) -> Ints:
    """Return arrival times in ns, int64 [R], ascending from 0 on.

    Parameters
    ----------
    text : str
        ``constant:rate=20,seconds=30``; ``poisson`` with a ``seed``; ``bursts``, also Poisson, whose rate is ``peak``
        times as high in the last tenth of every ``period`` seconds as in the rest; rates are means per second. Or a
        file with a column ``arrival_ms``.

    Raises
    ------
    InputError
        The pattern is unknown, a value is invalid, or there are no requests.

    Examples
    --------
    >>> requests_of("constant:rate=2,seconds=2").tolist()
    [0, 500000000, 1000000000, 1500000000]
    """
    if text.endswith((".csv", ".csv.gz")):
        return _read_arrivals(Path(text))
    name, _, given = text.partition(":")
    if name not in _PATTERNS:
        fix = did_you_mean(name, _PATTERNS) or f"choose one of {', '.join(_PATTERNS)}, or give a .csv file"
        raise InputError(f"there is no pattern {name!r}", where=text, fix=fix)
    pattern, defaults = _PATTERNS[name]
    values = _values(text, given, defaults)
    if values["rate"] * values["seconds"] > _MOST:
        raise InputError(f"these are more than {_MOST:,} requests", where=text, fix="give fewer seconds")
    found_ns = np.sort((1e9 * pattern(values)).astype(np.int64))
    if not found_ns.size:
        raise InputError("no request arrives in that time", where=text, fix="give more seconds, or a higher rate")
    return found_ns


def _values(text: str, given: str, defaults: dict[str, float]) -> dict[str, float]:
    result = dict(defaults)
    for piece in filter(None, (piece.strip() for piece in given.split(","))):
        key, _, value = piece.partition("=")
        if key not in defaults:
            fix = did_you_mean(key, defaults) or f"it has {', '.join(defaults)}"
            raise InputError(f"there is no {key!r}", where=text, fix=fix)
        try:
            result[key] = float(value)
        except ValueError:
            result[key] = float("nan")
        if not 0 <= result[key] < float("inf") or (key != "seed" and not result[key]):
            raise InputError(f"{value!r} is no {key}", where=text, fix="give a number above 0")
    return result


def _constant(values: dict[str, float]) -> Floats:
    return np.arange(int(values["rate"] * values["seconds"]), dtype=np.float64) / values["rate"]


def _poisson(values: dict[str, float]) -> Floats:
    return _draw_arrivals(values["rate"] * values["seconds"], values) * values["seconds"]


def _bursts(values: dict[str, float]) -> Floats:
    """Place a fraction of the arrivals in the last tenth of every period."""
    share = 0.1 * values["peak"] / (0.1 * values["peak"] + 0.9)
    indices, period = _draw_arrivals(values["rate"] * values["seconds"], values), values["period"]
    within: Floats = np.where(
        indices < 1 - share, indices / (1 - share) * 0.9, 0.9 + 0.1 * (indices - 1 + share) / share
    )
    rng = np.random.default_rng([int(values["seed"]), 1])
    moments: Floats = (rng.integers(0, max(1, round(values["seconds"] / period)), size=len(indices)) + within) * period
    return moments


def _draw_arrivals(mean: float, values: dict[str, float]) -> Floats:
    """Draw a Poisson number of arrivals, uniform in [0, 1)."""
    rng = np.random.default_rng(int(values["seed"]))
    indices: Floats = rng.random(rng.poisson(mean))
    return indices


_PATTERNS: dict[str, tuple[Callable[[dict[str, float]], Floats], dict[str, float]]] = {
    "constant": (_constant, _USUAL),
    "poisson": (_poisson, {**_USUAL, "seed": 0.0}),
    "bursts": (_bursts, {**_USUAL, "seed": 0.0, "peak": 4.0, "period": 10.0}),
}


def _read_arrivals(path: Path) -> Ints:
    rows = read_rows(path, (COLUMN,))
    result = np.array([number(row, COLUMN, path, line) for line, row in enumerate(rows, 2)])
    if (np.diff(result) < 0).any():
        line = int(np.flatnonzero(np.diff(result) < 0)[0]) + 3
        raise InputError("a request comes before the one above it", where=f"{path}: line {line}", fix="sort the rows")
    moments: Ints = (1e6 * (result - result[0])).astype(np.int64)
    return moments
