"""What no answer can be is reported as a defect of ours."""

from __future__ import annotations

import pytest

from windtunnel.base.plausible import is_plausible_step, require_plausible
from windtunnel.errors import ImplausibleError


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"step_ns": 0}, "takes 0 ns, and no step is outside of 1.00 µs to 86400 s"),
        ({"step_ns": 1_615_207_264 * 10**9}, "takes 1615207264 s"),
        ({"step_ns": 0, "captured_ns": 10**6}, "takes 0 ns"),
        ({"mfu_ratio": 2.42}, "computes at 242 % of the peak"),
        ({"memory_bytes": 163 * 2**30, "capacity_bytes": 80 * 2**30}, "held 163 GiB, and there are only 80.0 GiB"),
    ],
)
def test_an_answer_that_cannot_be_true_is_ours(numbers, message):
    with pytest.raises(ImplausibleError, match="defect of windtunnel") as caught:
        require_plausible("the step predicted for h100", **numbers)

    assert message in caught.value.message


def test_answers_that_can_be_true_pass():
    require_plausible("x", step_ns=12e6, mfu_ratio=0.6, memory_bytes=1, capacity_bytes=2)
    require_plausible("x", step_ns=500, captured_ns=400)  # the input has such times itself
    require_plausible("x", memory_bytes=10, capacity_bytes=0)  # what there is is not known


def test_a_step_is_at_least_a_microsecond_and_at_most_a_day():
    assert [False, True, True, False] == [is_plausible_step(ns) for ns in (999, 1000, 86400e9, 86401e9)]
