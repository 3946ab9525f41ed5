"""Recurrent layers are priced as the kernels that cuDNN runs for them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from windtunnel.cost.operators.learned import LearnedPricer
from windtunnel.cost.operators.recurrent import split_recurrent
from windtunnel.cost.work import Work
from windtunnel.hardware import device

CHIP = device("h100-sxm5-80g")


def layer(*, num_steps=16, batch=128, inner=512, hidden=512, is_backward=False, dtype="fp32"):
    """Work of one LSTM layer."""
    name = "aten::mkldnn_rnn_layer" + "_backward" * is_backward
    shapes = [[num_steps, batch, inner], [4 * hidden, inner], [4 * hidden, hidden], [4 * hidden], [4 * hidden]]
    flops = 2.0 * num_steps * batch * 4 * hidden * (inner + hidden) * (1 + is_backward)
    texts = [np.array([text], dtype=object) for text in (name, json.dumps(shapes), "", "", "", dtype)]
    return Work(*texts, np.array([flops]), np.array([1e6]), np.ones(1, dtype=np.int64))


def product(rows, inner, columns, dtype="tf32"):
    shapes = json.dumps([[rows, inner], [inner, columns]])
    texts = [np.array([text], dtype=object) for text in ("aten::mm", shapes, "", "", "", dtype)]
    return Work(*texts, np.array([2.0 * rows * inner * columns]), np.array([4.0]), np.ones(1, dtype=np.int64))


def price_ns(work):
    return LearnedPricer().price(work, CHIP).duration_ns[0]


@pytest.mark.parametrize("is_backward", [False, True])
def test_parts_do_the_operations_of_the_layer(is_backward):
    work = layer(is_backward=is_backward)
    parts = split_recurrent(work, CHIP.peak_flops_per_s)

    products = parts.work.operator == "aten::mm"
    assert work.flops[0] == pytest.approx((parts.count * parts.work.flops)[products].sum())
    assert {"tf32"} == set(parts.work.dtype.tolist())


def test_a_time_step_waits_for_the_one_before_it():
    """Each of the steps costs a small product and its gates: far more than the operations of one large product."""
    short, long = price_ns(layer(num_steps=16)), price_ns(layer(num_steps=64))
    assert 3 < long / short < 4.1
    assert long > 64 * price_ns(product(128, 512, 2048))
    # recorded on an H100: 16 steps of such a layer kept it busy for 180 us, and for 470 us in the backward pass
    assert short == pytest.approx(180e3, rel=0.3)
    assert price_ns(layer(is_backward=True)) == pytest.approx(470e3, rel=0.5)


def test_other_work_is_its_own_part_and_keeps_its_price():
    one = product(64, 64, 64, "bf16")
    both = Work(*[np.concatenate([getattr(layer(), name), getattr(one, name)]) for name in one.__dataclass_fields__])
    alone, mixed = LearnedPricer().price(one, CHIP), LearnedPricer().price(both, CHIP)
    assert alone.duration_ns[0] == mixed.duration_ns[1]
    assert LearnedPricer().covers(both, CHIP).all()
    assert (mixed.efficiency_low <= mixed.efficiency).all()
    assert (mixed.efficiency <= mixed.efficiency_high).all()
