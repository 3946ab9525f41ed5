"""Kernels over dense matrices: a factorization in place, a layer forward and its update."""

# mypy: ignore-errors
# the loops below are for numba, which has types of its own

from __future__ import annotations

import math

import numpy as np

from windtunnel.systems.kernels.cases import FITNESS, Out

__all__ = ["backprop", "backprop_inputs", "lud", "lud_inputs"]


def lud(a):
    """A = L U in place, without pivoting."""
    size = a.shape[0]
    for k in range(size):
        for j in range(k, size):
            total = a[k, j]
            for p in range(k):
                total -= a[k, p] * a[p, j]
            a[k, j] = total
        for i in range(k + 1, size):
            total = a[i, k]
            for p in range(k):
                total -= a[i, p] * a[p, k]
            a[i, k] = total / a[k, k]


def lud_inputs(split):
    """Fitness: 48; held out: the published 256, odd sizes, one element."""
    draw = np.random.default_rng(21 if split == FITNESS else 22)

    def case(size):
        lower = np.tril(draw.uniform(-1, 1, (size, size)), -1) + np.eye(size)
        upper = np.triu(draw.uniform(-1, 1, (size, size)), 1) + np.diag(draw.uniform(1, 2, size))
        return (np.ascontiguousarray(lower @ upper, dtype=np.float32),)

    if split == FITNESS:
        return {"48": case(48), "37": case(37)}
    return {"256": case(256), "51": case(51), "1": case(1)}


def backprop(inputs, weights, hidden, delta, before, rate, momentum):
    """A layer forward through a sigmoid, then the update of its weights with momentum."""
    num_in, num_out = weights.shape
    for j in range(num_out):
        hidden[j] = np.float32(0.0)
    for i in range(num_in):
        for j in range(num_out):
            hidden[j] += inputs[i] * weights[i, j]
    for j in range(num_out):
        hidden[j] = np.float32(1.0) / (np.float32(1.0) + np.float32(math.exp(-hidden[j])))
    for i in range(num_in):
        for j in range(num_out):
            change = rate * delta[j] * inputs[i] + momentum * before[i, j]
            weights[i, j] += change
            before[i, j] = change


def backprop_inputs(split):
    """Fitness: 2048 to 16; held out: the published 65,536 to 16, odd sizes."""
    draw = np.random.default_rng(23 if split == FITNESS else 24)

    def case(num_in, num_out):
        weights = draw.uniform(-0.1, 0.1, (num_in, num_out)).astype(np.float32)
        return (draw.uniform(0, 1, num_in).astype(np.float32), weights, Out((num_out,)),
                draw.normal(size=num_out).astype(np.float32), np.zeros_like(weights), np.float32(0.3),
                np.float32(0.3))  # fmt: skip

    if split == FITNESS:
        return {"2048x16": case(2048, 16), "500x16": case(500, 16)}
    return {"65536x16": case(65536, 16), "77x16": case(77, 16), "100x7": case(100, 7)}
