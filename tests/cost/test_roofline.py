"""The roofline: no device computes or moves faster than it can."""

from __future__ import annotations

import pytest

from windtunnel.cost import price
from windtunnel.errors import InputError, PriceError
from windtunnel.graph import GraphBuilder, Kind
from windtunnel.hardware import Device, machine

CHIP = Device("toy", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e12})


def step(**columns):
    builder = GraphBuilder()
    builder.task("gemm", op="gemm", kind=Kind.COMPUTE, duration_ns=1, **columns)
    builder.task("python", op="python", kind=Kind.HOST, duration_ns=7, **columns)
    return builder.build()


def test_the_slower_of_computing_and_moving_sets_the_time():
    assert [5000, 7] == price(step(flops=5_000_000, bytes_read=100), CHIP).duration_ns.tolist()
    assert [9000, 7] == price(step(flops=5_000_000, bytes_read=4000, bytes_written=5000), CHIP).duration_ns.tolist()


def test_what_was_priced_says_by_whom():
    assert ["roofline", ""] == price(step(flops=1), CHIP).tasks.strings("cost_source").to_numpy().tolist()


def test_a_machine_is_priced_by_its_first_device():
    assert price(step(flops=10**12), machine("dgx-a100")).duration_ns[0] > 1


def test_tasks_without_work_have_no_price_and_their_operators_are_listed():
    with pytest.raises(PriceError, match="states its flops") as caught:
        price(step(), CHIP)

    assert "gemm" in str(caught.value)


def test_an_unknown_type_is_refused():
    with pytest.raises(InputError, match="no type is called 'int4'"):
        price(step(flops=1), CHIP, dtype="int4")
    with pytest.raises(InputError, match="no peak rate"):
        price(step(flops=1), CHIP, dtype="bf16")
