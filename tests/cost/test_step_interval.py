"""Steps that were never run have the interval of what recorded steps were off by."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.cost.test_host_times import step
from windtunnel.cost.intervals import STEP_ENDS, step_ends
from windtunnel.hardware import device
from windtunnel.whatifs.forecast import forecast

RECEIPTS = Path(__file__).parents[2] / "docs" / "receipts" / "bars.json"


def test_measured_gpus_have_the_ends_themselves_and_others_wider_ones():
    assert step_ends(device("h200-sxm5-141g")) == pytest.approx(STEP_ENDS)
    low, high = step_ends(device("mi210"))
    assert low < STEP_ENDS[0]
    assert high > STEP_ENDS[1]


def test_the_ends_are_those_of_the_recorded_steps():
    (row,) = [row for row in json.loads(RECEIPTS.read_text(encoding="utf-8")) if row["bar"] == "gpu_predict"]

    assert row["log_ends"] == pytest.approx(STEP_ENDS, abs=0.01)  # else: copy them


@pytest.mark.parametrize("chip", ["h100-sxm5-80g", "a100-sxm4-80g"])
def test_a_step_that_was_never_run_is_as_unsure_as_the_recorded_ones(chip):
    found = forecast(step(), device(chip))
    low, high = step_ends(device(chip))

    assert found.low_ns <= max(found.bound_ns, math.ceil(found.makespan_ns * math.exp(low)))
    assert found.high_ns >= math.floor(found.makespan_ns * math.exp(high))
