"""Cuts that people and chance make."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rustworkx", reason="needs the extra plan")

from tests.planning.problems import chain
from windtunnel.planning.placement import baselines
from windtunnel.planning.placement import search as placing


def test_an_even_cut_has_as_many_layers_everywhere():
    plan = baselines.even(chain(8, accelerators=4))

    assert [2, 2, 2, 2] == np.bincount(plan.device).tolist()
    assert plan.value_ns >= placing.place(chain(8, accelerators=4)).value_ns


@pytest.mark.parametrize("seed", range(10))
def test_a_random_cut_uses_every_device_and_keeps_the_order(seed):
    one = chain(9, accelerators=3)
    plan = baselines.random_cut(one, seed)

    assert 3 == len(plan.kind)
    assert (plan.device[one.src] <= plan.device[one.dst]).all()
    assert plan.value_ns >= placing.place(one).value_ns
    assert (plan.device == baselines.random_cut(one, seed).device).all()
