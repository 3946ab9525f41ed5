"""A graph captured on one device, priced on another at the same efficiency."""

import numpy as np
import pytest

from windtunnel.cost.operators.elsewhere import measured_elsewhere
from windtunnel.cost.pricing import price
from windtunnel.errors import PriceError
from windtunnel.graph import GraphBuilder, Kind
from windtunnel.hardware import Device

ORIGIN = Device("origin", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e12})
TARGET = Device("target", 2**30, bandwidth_bytes_per_s=4e9, peak_flops_per_s={"fp32": 2e12})


def graph(flops=2_000_000):
    """Two equal products (bound 2 us there, took 4 and 6) and a copy of 8,000 bytes (bound 8 us, took 10)."""
    builder = GraphBuilder()
    for duration in (4_000, 6_000):
        builder.task("mm", op="mm", kind=Kind.COMPUTE, duration_ns=duration, flops=flops, bytes_read=flops and 16)
    builder.task("add", op="add", kind=Kind.COMPUTE, duration_ns=10_000, flops=0, bytes_read=flops and 8_000)
    return builder.build()


def test_work_keeps_its_efficiency():
    """Products reach 2 / 5 of 1 us, the copy 8 / 10 of 2 us."""
    priced = price(graph(), TARGET, [measured_elsewhere(graph(), ORIGIN)])

    assert priced.duration_ns.tolist() == [2_500, 2_500, 2_500]
    np.testing.assert_allclose(priced.tasks["efficiency"], [0.4, 0.4, 0.8])
    assert {"elsewhere"} == set(priced.tasks.strings("cost_source").to_numpy().tolist())


def test_other_work_is_not_covered():
    other = graph(flops=3_000_000)

    with pytest.raises(PriceError, match="no cost model has a price"):
        price(other, TARGET, [measured_elsewhere(graph(), ORIGIN)])


def test_nothing_measured_teaches_nothing():
    with pytest.raises(PriceError, match="nothing that computes was measured"):
        measured_elsewhere(graph(flops=0), ORIGIN)
