"""Layers of networks as naive loops: normalization, softmax, cross-entropy."""

# mypy: ignore-errors
# the loops below are for numba, which has types of its own

from __future__ import annotations

import math

import numpy as np

from windtunnel.systems.kernels.cases import FITNESS, Out

__all__ = [
    "cross_entropy",
    "cross_entropy_inputs",
    "layernorm",
    "layernorm_inputs",
    "softmax",
    "softmax_inputs",
]


def layernorm(x, weight, bias, out):
    """Each row less its mean, over its deviation."""
    rows, cols = x.shape
    for r in range(rows):
        mean = np.float32(0.0)
        for c in range(cols):
            mean += x[r, c]
        mean /= np.float32(cols)
        variance = np.float32(0.0)
        for c in range(cols):
            variance += (x[r, c] - mean) * (x[r, c] - mean)
        for c in range(cols):
            deviation = np.float32(math.sqrt(variance / np.float32(cols) + np.float32(1e-5)))
            out[r, c] = (x[r, c] - mean) / deviation * weight[c] + bias[c]


def layernorm_inputs(split):
    """Fitness: 32 rows of 128; held out: larger and odd ones, shifted rows."""
    draw = np.random.default_rng(41 if split == FITNESS else 42)

    def case(rows, cols, shift=0.0):
        x = (draw.normal(size=(rows, cols)) + shift).astype(np.float32)
        return x, *(draw.normal(size=cols).astype(np.float32) for _ in range(2)), Out((rows, cols))

    if split == FITNESS:
        return {"32x128": case(32, 128), "20x200": case(20, 200)}
    return {"64x768": case(64, 768), "7x33": case(7, 33), "shifted": case(9, 65, 50.0)}


def softmax(x, out):
    """Exponentials of each row over their sum, less the largest before."""
    rows, cols = x.shape
    for r in range(rows):
        largest = x[r, 0]
        for c in range(cols):
            largest = max(largest, x[r, c])
        total = np.float32(0.0)
        for c in range(cols):
            out[r, c] = math.exp(x[r, c] - largest)
            total += out[r, c]
        for c in range(cols):
            out[r, c] = out[r, c] / total


def softmax_inputs(split):
    """Fitness: 16 rows of 128; held out: larger and odd ones, extremes."""
    draw = np.random.default_rng(43 if split == FITNESS else 44)

    def case(rows, cols, scale=1.0):
        return (draw.normal(size=(rows, cols)) * scale).astype(np.float32), Out((rows, cols))

    if split == FITNESS:
        return {"16x128": case(16, 128), "10x200": case(10, 200)}
    return {"64x1000": case(64, 1000), "5x33": case(5, 33), "extreme": case(8, 65, 80.0)}


def cross_entropy(x, target, loss):
    """Of each row: the logarithm of the sum of exponentials, less the target's value."""
    rows, cols = x.shape
    for r in range(rows):
        largest = x[r, 0]
        for c in range(cols):
            largest = max(largest, x[r, c])
        total = np.float32(0.0)
        for c in range(cols):
            total += np.float32(math.exp(x[r, c] - largest))
        loss[r] = math.log(total) + largest - x[r, target[r]]


def cross_entropy_inputs(split):
    """Fitness: 16 rows of 128; held out: larger and odd ones, extremes."""
    draw = np.random.default_rng(45 if split == FITNESS else 46)

    def case(rows, cols, scale=1.0):
        x = (draw.normal(size=(rows, cols)) * scale).astype(np.float32)
        return x, draw.integers(0, cols, rows), Out((rows,))

    if split == FITNESS:
        return {"16x128": case(16, 128), "10x200": case(10, 200)}
    return {"64x1000": case(64, 1000), "5x33": case(5, 33), "extreme": case(8, 65, 80.0)}
