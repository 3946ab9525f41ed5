"""Fuzzed inputs: random contents of arrays in a kernel's own shapes.

In: cases. Out: more cases: constants, zeros, negatives, extremes, tiny and huge numbers, noise. Whole numbers stay
within what the case has, as they may be places in other arrays; only in the form ``beyond`` they may also be negative,
which counts only where the original itself bears it. Not here: running them (``verdict``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.kernels.cases import Case, Value

__all__ = ["BEYOND", "fuzz_cases"]

BEYOND = "beyond"

_FORMS = ("noise", "constant", "zeros", "negative", "wide", "tiny", "sorted", "spikes", BEYOND)


def fuzz_cases(cases: Sequence[Case], seed: int, num_each: int = 9) -> list[Case]:
    """Return ``num_each`` variants of each case, in all forms."""
    result = []
    for index, case in enumerate(cases):
        for number in range(num_each):
            draw = np.random.default_rng([seed, index, number])
            form = _FORMS[number % len(_FORMS)]
            arguments = tuple(_vary_value(value, form, draw) for value in case.arguments)
            result.append(replace(case, name=f"{case.name}, {form} {number}", arguments=arguments))
    return result


def _vary_value(value: Value, form: str, draw: np.random.Generator) -> Value:
    if not isinstance(value, np.ndarray) or not value.size:
        return value
    if value.dtype.kind in "iu":
        return _whole(value, form, draw)
    scale = float(np.abs(value).max()) or 1.0
    created = {
        BEYOND: lambda: draw.normal(0, scale, value.shape),
        "noise": lambda: draw.normal(0, scale, value.shape),
        "constant": lambda: np.full(value.shape, draw.uniform(-scale, scale)),
        "zeros": lambda: np.where(draw.random(value.shape) < 0.5, 0.0, -0.0),
        "negative": lambda: -np.abs(draw.normal(0, scale, value.shape)),
        "wide": lambda: draw.normal(0, 1, value.shape) * 10.0 ** draw.uniform(-6, 6, value.shape),
        "tiny": lambda: draw.normal(0, 1e-40 if value.dtype == np.float32 else 1e-310, value.shape),
        "sorted": lambda: np.sort(draw.normal(0, scale, value.size)).reshape(value.shape),
        "spikes": lambda: np.where(draw.random(value.shape) < 0.02, 1e6 * scale, value),
    }[form]()
    return np.ascontiguousarray(created, dtype=value.dtype)


def _whole(value: NDArray[Any], form: str, draw: np.random.Generator) -> NDArray[Any]:
    low, high = int(value.min()), int(value.max())
    if form == BEYOND:
        least = -high - 1 if value.dtype.kind == "i" else low
        return draw.integers(least, high + 1, value.shape).astype(value.dtype)
    if form in ("constant", "zeros"):
        return np.full_like(value, high if form == "constant" else low)
    if form == "sorted":
        return np.sort(value, axis=None).reshape(value.shape)
    return draw.integers(low, high + 1, value.shape).astype(value.dtype)
