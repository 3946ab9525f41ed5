"""Prices by what kernels were published to reach."""

from __future__ import annotations

import pytest

from windtunnel.cost import price
from windtunnel.graph import GraphBuilder, Kind
from windtunnel.hardware import device, devices, efficiency_ratios


def step(*operators, flops=10**12, bytes_read=0):
    builder = GraphBuilder()
    for operator in operators:
        builder.task(operator, op=operator, kind=Kind.COMPUTE, duration_ns=1, flops=flops, bytes_read=bytes_read)
    return builder.build()


def sources(graph, chip, **how):
    return price(graph, chip, **how).tasks.strings("cost_source").to_numpy().tolist()


def test_every_published_share_is_below_one():
    shares = {chip.name: efficiency_ratios(chip) for chip in devices().values()}

    assert all(0.3 < share < 1 for known in shares.values() for share in known.values())
    assert not shares[device("t4").name]
    assert pytest.approx(794.5 / 989.5) == shares["h200-sxm5-141g"]["product", "fp16"]


def test_products_and_attention_in_16_bits_take_their_share_and_all_else_its_bound():
    graph = step("aten::mm", "aten::_scaled_dot_product_flash_attention", "aten::relu")
    chip = device("h100")

    priced = price(graph, chip, dtype="bf16")

    assert ["published", "published", "roofline"] == sources(graph, chip, dtype="bf16")
    peak_ns = 1e21 / 989.5e12
    expected = [peak_ns * 989.5 / 794.5, peak_ns * 989.5 / 346.0, peak_ns]
    assert pytest.approx(expected, rel=1e-5) == priced.duration_ns.tolist()


def test_what_memory_binds_stays_bound_by_memory():
    graph = step("aten::mm", flops=10**6, bytes_read=10**9)
    chip = device("h100")

    at_bound = price(graph, chip, "roofline", dtype="bf16").duration_ns

    assert at_bound.tolist() == price(graph, chip, dtype="bf16").duration_ns.tolist()


def test_nothing_was_published_of_fp32_or_of_other_families():
    assert ["roofline"] == sources(step("aten::mm"), device("h100"))
    assert ["roofline"] == sources(step("aten::mm"), device("t4"), dtype="fp16")
