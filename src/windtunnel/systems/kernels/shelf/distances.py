"""Kernels that compare points: nearest neighbors, assignment to centers, a row of a kernel matrix."""

# mypy: ignore-errors
# the loops below are for numba, which has types of its own

from __future__ import annotations

import math

import numpy as np

from windtunnel.systems.kernels.cases import FITNESS, Out

__all__ = ["kmeans", "kmeans_inputs", "nn", "nn_inputs", "svm_rbf", "svm_rbf_inputs"]


def nn(latitude, longitude, distance, nearest, lat, lng):
    """Distances of all records to a place, and the ten nearest in order."""
    num_records, num_nearest = latitude.shape[0], nearest.shape[0]
    for i in range(num_records):
        x, y = latitude[i] - lat, longitude[i] - lng
        distance[i] = math.sqrt(x * x + y * y)
    for k in range(num_nearest):
        best = np.int64(-1)
        for i in range(num_records):
            is_taken = False
            for before in range(k):
                if nearest[before] == i:
                    is_taken = True
            if not is_taken and (best < 0 or distance[i] < distance[best]):
                best = i
        nearest[k] = best


def nn_inputs(split):
    """Fitness: 400 records; held out: the published places, other numbers of records."""
    draw = np.random.default_rng(31 if split == FITNESS else 32)

    def case(num_records, lat, lng):
        records = (draw.uniform(0, high, num_records).astype(np.float32) for high in (63.0, 180.0))
        return *records, Out((num_records,)), np.zeros(10, np.int64), np.float32(lat), np.float32(lng)

    if split == FITNESS:
        return {"400": case(400, 30, 90), "333": case(333, 30, 90)}
    return {f"{lat} {lng}": case(2003, lat, lng) for lat in (30, 300) for lng in (90, 900)} | {"12": case(12, 1, 1)}


def kmeans(points, centers, member):
    """The nearest of some centers for each point."""
    num_points, num_features = points.shape
    for i in range(num_points):
        nearest, index = np.float32(3.4e38), 0
        for k in range(centers.shape[0]):
            total = np.float32(0.0)
            for f in range(num_features):
                gap = points[i, f] - centers[k, f]
                total += gap * gap
            if total < nearest:
                nearest, index = total, k
        member[i] = index


def kmeans_inputs(split):
    """Fitness: 256 points of the published 34 features, 5 centers; held out: more points, odd sizes."""
    draw = np.random.default_rng(33 if split == FITNESS else 34)

    def case(num_points, num_features, num_centers):
        points = draw.normal(size=(num_points, num_features)).astype(np.float32)
        centers = draw.normal(size=(num_centers, num_features)).astype(np.float32)
        return points, centers, Out((num_points,), "int64")

    if split == FITNESS:
        return {"256": case(256, 34, 5), "150": case(150, 34, 5)}
    return {"4096": case(4096, 34, 5), "77x33": case(77, 33, 5), "50x7": case(50, 7, 3)}


def svm_rbf(points, row, out, gamma):
    """One row of the matrix of a radial kernel."""
    num_points, num_features = points.shape
    for i in range(num_points):
        total = np.float32(0.0)
        for f in range(num_features):
            gap = points[i, f] - row[f]
            total += gap * gap
        out[i] = math.exp(-gamma * total)


def svm_rbf_inputs(split):
    """Fitness: 256 points of 64 features; held out: other sizes, points far apart."""
    draw = np.random.default_rng(35 if split == FITNESS else 36)

    def case(num_points, num_features, scale=1.0):
        points = (draw.normal(size=(num_points, num_features)) * scale).astype(np.float32)
        return points, points[0].copy(), Out((num_points,)), np.float32(0.05)

    if split == FITNESS:
        return {"256": case(256, 64), "100": case(100, 123)}
    return {"1000": case(1000, 64), "77x31": case(77, 31), "far": case(60, 64, 30.0)}
