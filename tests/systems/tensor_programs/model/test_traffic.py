"""Bytes that pass a cache, against a cache that forgets what was used longest ago."""

from __future__ import annotations

from collections import OrderedDict
from itertools import product as places

import numpy as np
import pytest

from windtunnel.systems.tensor_programs.model.features import PackedNest
from windtunnel.systems.tensor_programs.model.nest import Buffer, For, Nest, Store
from windtunnel.systems.tensor_programs.model.traffic import CACHE_BYTES, traffic_bytes

LINE = 64


def load(name, *indices):
    return ("load", name, *indices)


def nest_of(order, extents, store, value, buffers):
    """Loops in this order around one store."""
    body = (Store(store[0], store[1:], value),)
    for name in reversed(order):
        body = (For(name, extents[name], body, "serial"),)
    return Nest(body, {name: Buffer(name, shape) for name, shape in buffers.items()}, "nest")


def matmul(order, m, n, k):
    value = ("add", load("C", "i", "j"), ("mul", load("A", "i", "k"), load("B", "k", "j")))
    sizes = {"A": (m, k), "B": (k, n), "C": (m, n)}
    return nest_of(order, {"i": m, "j": n, "k": k}, ("C", "i", "j"), value, sizes)


def copy(order, m, n, *, is_transposed):
    source = load("A", "j", "i") if is_transposed else load("A", "i", "j")
    sizes = {"A": (n, m) if is_transposed else (m, n), "B": (m, n)}
    return nest_of(order, {"i": m, "j": n}, ("B", "i", "j"), source, sizes)


def simulated_bytes(order, extents, accesses, cache_bytes):
    """Second of two runs: lines that were not among those used last."""
    cache, fetched = OrderedDict(), 0
    for _ in range(2):
        fetched = 0
        for place in places(*(range(extents[name]) for name in order)):
            at = dict(zip(order, place, strict=True))
            for name, row, column, width in accesses:
                line = (name, (at[row] * width + at[column]) * 4 // LINE)
                fetched += line not in cache
                cache[line] = None
                cache.move_to_end(line)
                if len(cache) > cache_bytes // LINE:
                    cache.popitem(last=False)
    return fetched * LINE


@pytest.mark.parametrize("order", ["ijk", "ikj", "kij", "jki"])
@pytest.mark.parametrize("cache_bytes", [1024, 4096])
def test_a_product_moves_about_what_a_cache_would_fetch(order, cache_bytes):
    m, n, k = 32, 48, 40
    accesses = [("A", "i", "k", k), ("B", "k", "j", n), ("C", "i", "j", n)]
    truth = simulated_bytes(order, {"i": m, "j": n, "k": k}, accesses, cache_bytes)
    (found,) = traffic_bytes(PackedNest(matmul(order, m, n, k), skip_constants=False), (cache_bytes,))[:, 0]
    assert truth / 2 <= found <= 2 * truth


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_copy_moves_every_line_once_where_lines_are_used_up(is_transposed):
    m, n, cache_bytes = 64, 64, 8192
    accesses = [("A", "j", "i", m) if is_transposed else ("A", "i", "j", n), ("B", "i", "j", n)]
    truth = simulated_bytes("ij", {"i": m, "j": n}, accesses, cache_bytes)
    nest = copy("ij", m, n, is_transposed=is_transposed)
    (found,) = traffic_bytes(PackedNest(nest, skip_constants=False), (cache_bytes,))[:, 0]
    assert truth / 2 <= found <= 2 * truth
    if not is_transposed:
        assert found == 2 * 4 * m * n


def test_what_fits_moves_nothing():
    nest = matmul("kij", 64, 64, 16)
    moved = traffic_bytes(PackedNest(nest, skip_constants=False))
    assert moved.shape == (1, len(CACHE_BYTES))
    np.testing.assert_array_equal(moved, 0.0)
    # the whole result passes the first cache in every step of the outermost loop, but not the second
    large = traffic_bytes(PackedNest(matmul("kij", 256, 256, 16), skip_constants=False))[0]
    assert large[0] == pytest.approx(16 * 4 * 256 * 256, rel=0.3)
    assert large[1] == 0
