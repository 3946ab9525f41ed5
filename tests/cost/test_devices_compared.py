"""A device that is at least as fast in every known limit never gets the longer answer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from windtunnel.cost import price
from windtunnel.cost.pricing import AUTO, comparable, tiers_of
from windtunnel.graph import GraphBuilder, Kind
from windtunnel.hardware import Device, device, devices, efficiency_ratios

TYPES = {"fp64": "double", "fp32": "float", "bf16": "c10::BFloat16", "fp16": "c10::Half", "int8": "signed char"}
OPERATORS = (
    ("aten::mm", 10**12, 10**7),
    ("aten::mm", 10**6, 10**4),
    ("aten::_scaled_dot_product_flash_attention", 10**11, 10**7),
    ("aten::add", 10**4, 10**5),
    ("aten::add", 10**7, 10**8),
    ("aten::copy_", 0, 3 * 10**7),
)
CHIPS = [one for one in devices().values() if one.kind != "cpu"]


def step(dtype: str):
    builder = GraphBuilder()
    for op, flops, moved in OPERATORS:
        builder.task(
            op, op=op, kind=Kind.COMPUTE, duration_ns=1, flops=flops, bytes_read=moved,
            input_dtypes=f'["Tensor({TYPES[dtype]})"]',
        )  # fmt: skip
    return builder.build()


def limits(chip: Device) -> dict[object, float]:
    """Every limit of a device that its sheet or a publication states, larger is faster."""
    peaks = dict(chip.peak_flops_per_s)
    reached = {
        (kind, dtype): share * peaks[dtype]
        for (kind, dtype), share in efficiency_ratios(chip).items()
        if dtype in peaks
    }
    return {"bandwidth": chip.bandwidth_bytes_per_s, **peaks, **reached}


def is_as_fast(chip: Device, other: Device) -> bool:
    mine, theirs = limits(chip), limits(other)
    return all(mine[name] >= theirs[name] for name in mine.keys() & theirs.keys())


@pytest.mark.parametrize("dtype", TYPES)
def test_no_device_is_slower_than_one_that_it_matches_in_every_known_limit(dtype):
    """An A100 answered 25.0 µs and an H100 44.1, since only one of them states the rate of its L2."""
    graph, tiers = step(dtype), tiers_of(AUTO)
    chips = [one for one in CHIPS if dtype in one.peak_flops_per_s]
    pairs = [pair for pair in itertools.permutations(chips, 2) if is_as_fast(*pair)]

    def took(chip: Device, pair: tuple[Device, ...]):
        return price(graph, chip, comparable(tiers, pair)).duration_ns

    assert len(pairs) > 5
    assert [] == [(chip.name, other.name) for chip, other in pairs
                  if (took(chip, (chip, other)) > took(other, (chip, other))).any()]  # fmt: skip


def test_a_share_of_the_peak_that_is_published_for_one_device_alone_is_used_for_none():
    chips = device("h100"), device("l40s")

    def sources_of(chip, model):
        return set(price(step("bf16"), chip, model).tasks.strings("cost_source").to_numpy())

    assert [{"published", "roofline"}, {"roofline"}] == [sources_of(chip, AUTO) for chip in chips]
    assert [{"roofline"}, {"roofline"}] == [sources_of(chip, comparable(AUTO, chips)) for chip in chips]
    assert "published" in sources_of(chips[0], comparable(AUTO, (chips[0], chips[0])))


def test_no_kernel_of_a_device_takes_next_to_nothing():
    assert {2000} == {int(np.min(price(step("bf16"), chip).duration_ns)) for chip in CHIPS
                      if "bf16" in chip.peak_flops_per_s}  # fmt: skip


def test_the_rate_of_doubles_is_stated_for_every_gpu():
    """A GPU without it took doubles at the rate of fp32, which is up to 64 times too fast."""
    assert [] == [chip.name for chip in CHIPS if chip.kind == "gpu" and "fp64" not in chip.peak_flops_per_s]
