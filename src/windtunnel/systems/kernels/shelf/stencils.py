"""Kernels in which a point looks at its neighbors: heat on a chip, despeckling, a convolution."""

# mypy: ignore-errors
# the loops below are for numba, which has types of its own

from __future__ import annotations

import numpy as np

from windtunnel.systems.kernels.cases import FITNESS, Out

__all__ = ["conv3x3", "conv3x3_inputs", "hotspot", "hotspot_inputs", "srad", "srad_inputs"]


def hotspot(old, power, new, steps):
    """Temperatures of a chip of 16 x 16 mm after some steps; the last one lies in ``new`` if steps is odd."""
    rows, cols = old.shape
    height, width = 0.016 / rows, 0.016 / cols
    capacity = 0.5 * 1.75e6 * 5e-4 * width * height
    r_x = width / (2.0 * 100.0 * 5e-4 * height)
    r_y = height / (2.0 * 100.0 * 5e-4 * width)
    r_z = 5e-4 / (100.0 * height * width)
    step = 0.001 / (3e6 / (0.5 * 5e-4 * 1.75e6))
    scale = np.float32(step / capacity)
    one_x, one_y, one_z = np.float32(1.0 / r_x), np.float32(1.0 / r_y), np.float32(1.0 / r_z)
    for turn in range(steps):
        source, target = (old, new) if turn % 2 == 0 else (new, old)
        for r in range(rows):
            for c in range(cols):
                # beyond the edge as at the edge: no heat flows there
                here = source[r, c]
                north = source[r - 1, c] if r > 0 else here
                south = source[r + 1, c] if r < rows - 1 else here
                west = source[r, c - 1] if c > 0 else here
                east = source[r, c + 1] if c < cols - 1 else here
                change = power[r, c] + (south + north - np.float32(2.0) * here) * one_y
                change += (east + west - np.float32(2.0) * here) * one_x + (np.float32(80.0) - here) * one_z
                target[r, c] = here + scale * change


def hotspot_inputs(split):
    """Fitness: small grids; held out: the published 512 with 1, 3 and 7 steps, odd sizes, a cold chip."""
    draw = np.random.default_rng(1 if split == FITNESS else 2)

    def chip(rows, cols, steps, low=323.0, high=341.0):
        heat = draw.uniform(low, high, (rows, cols)).astype(np.float32)
        return heat, draw.uniform(0, 0.02, (rows, cols)).astype(np.float32), np.zeros_like(heat), steps

    if split == FITNESS:
        return {"96x96": chip(96, 96, 1), "64x80": chip(64, 80, 3)}
    return {"512x512": chip(512, 512, 1), "512x512 3": chip(512, 512, 3), "512x512 7": chip(512, 512, 7),
            "33x17": chip(33, 17, 2), "1x5": chip(1, 5, 1), "cold": chip(40, 41, 1, -3.0, 5.0)}  # fmt: skip


def srad(image, north, south, west, east, strength, q0, rate):
    """One iteration of speckle-reducing anisotropic diffusion, in place."""
    rows, cols = image.shape
    for r in range(rows):
        for c in range(cols):
            here = image[r, c]
            north[r, c] = image[max(r - 1, 0), c] - here
            south[r, c] = image[min(r + 1, rows - 1), c] - here
            west[r, c] = image[r, max(c - 1, 0)] - here
            east[r, c] = image[r, min(c + 1, cols - 1)] - here
            squares = north[r, c] * north[r, c] + south[r, c] * south[r, c]
            squares = (squares + west[r, c] * west[r, c] + east[r, c] * east[r, c]) / (here * here)
            curve = (north[r, c] + south[r, c] + west[r, c] + east[r, c]) / here
            top = np.float32(0.5) * squares - np.float32(0.0625) * (curve * curve)
            bottom = np.float32(1.0) + np.float32(0.25) * curve
            q = top / (bottom * bottom)
            value = np.float32(1.0) / (np.float32(1.0) + (q - q0) / (q0 * (np.float32(1.0) + q0)))
            strength[r, c] = min(max(value, np.float32(0.0)), np.float32(1.0))
    # only now: all strengths must be those of the old image
    for r in range(rows):
        for c in range(cols):
            below = strength[min(r + 1, rows - 1), c]
            right = strength[r, min(c + 1, cols - 1)]
            flow = strength[r, c] * (north[r, c] + west[r, c]) + below * south[r, c] + right * east[r, c]
            image[r, c] = image[r, c] + np.float32(0.25) * rate * flow


def srad_inputs(split):
    """Fitness: 64 x 64; held out: the published 256 with both rates, odd sizes, a flat image."""
    draw = np.random.default_rng(3 if split == FITNESS else 4)

    def case(rows, cols, rate, low=0.5, high=2.0):
        image = np.exp(draw.uniform(low, high, (rows, cols)) / 2).astype(np.float32)
        window = image[: max(rows // 2, 1), : max(cols // 2, 1)]
        q0 = np.float32(max(float(window.var() / window.mean() ** 2), 1e-3))
        return image, *(Out(image.shape) for _ in range(5)), q0, np.float32(rate)

    if split == FITNESS:
        return {"64x64": case(64, 64, 0.5), "40x72": case(40, 72, 0.7)}
    return {"256x256": case(256, 256, 0.5), "256x256 0.7": case(256, 256, 0.7), "31x33": case(31, 33, 0.5),
            "flat": case(20, 24, 0.5, 1.0, 1.001)}  # fmt: skip


def conv3x3(image, weights, out):
    """A convolution of one channel with edges that repeat."""
    rows, cols = image.shape
    for r in range(rows):
        for c in range(cols):
            total = np.float32(0.0)
            for i in range(3):
                for j in range(3):
                    y = min(max(r + i - 1, 0), rows - 1)
                    x = min(max(c + j - 1, 0), cols - 1)
                    total += weights[i, j] * image[y, x]
            out[r, c] = total


def conv3x3_inputs(split):
    """Fitness: 48 x 64; held out: larger and odd ones, negative values."""
    draw = np.random.default_rng(5 if split == FITNESS else 6)

    def case(rows, cols):
        image = draw.normal(size=(rows, cols)).astype(np.float32)
        return image, draw.normal(size=(3, 3)).astype(np.float32), Out((rows, cols))

    if split == FITNESS:
        return {"48x64": case(48, 64), "30x50": case(30, 50)}
    return {"128x128": case(128, 128), "17x19": case(17, 19), "3x65": case(3, 65)}
