"""The first lines of an explanation and of a report: speed, bottleneck, best safe change."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.cli.graphs import step_graph
from tests.whatifs.test_forecast import step, with_size
from windtunnel.reports import explain
from windtunnel.reports.answers import safest_change
from windtunnel.reports.explanation import Share, roll_up


def test_an_explanation_begins_with_speed_and_bottleneck():
    found = explain(with_size(step(), 8))

    assert f"{8e9 / found.iteration_ns:,.0f}"[:2] == str(found).splitlines()[1].strip()[:2]
    assert "samples/s" in str(found).splitlines()[1]
    assert pytest.approx(8e9 / found.iteration_ns) == found.to_dict()["speed"]["samples_per_s"]
    assert "bottleneck: the forward phase, 60 % of the iteration" == explain(step_graph()).bottleneck


def test_layers_are_added_up_to_a_depth():
    shares = [Share("h.0.attn", 3.0, 0.3, 1), Share("h.0.mlp", 4.0, 0.4, 2), Share("wte", 3.0, 0.3, 1)]

    assert [("h.0", 7.0, 3), ("wte", 3.0, 1)] == [
        (one.label, one.duration_ns, one.num_tasks) for one in roll_up(shares, 2)
    ]


def test_the_best_safe_change_is_sure_to_be_one():
    def answer(request, speedup, span):
        return SimpleNamespace(request=request, speedup=speedup, span=span, is_applicable=True)

    answers = [answer("amp", 2.0, (0.9, 3.0)), answer("fused-optimizer", 1.08, (1.05, 1.12)), answer("tf32", 3.0, None)]

    assert "best safe change: fused-optimizer, 1.08x (1.05-1.12, 90 %)" == safest_change(answers)
    assert "" == safest_change(answers[:1])
