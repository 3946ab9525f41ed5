"""What no answer can be is reported as a defect of ours."""

from __future__ import annotations

import pytest

from windtunnel.base.plausible import is_plausible_step, require_plausible, require_plausible_document
from windtunnel.cli.console import show
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


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"answers": [{"whatif": "amp", "baseline_ns": 12e6, "predicted_ns": 0}]}, "amp, predicted_ns, takes 0 ns"),
        ({"plan": {"step_ns": 9e13}}, "takes 90000 s"),
        ({"step_ns": -1}, "and no step is outside of"),
        ({"speed": {"mfu": 1.4}}, "computes at 140 % of the peak"),
        ({"by_rank": [{"peak_bytes": -4096}]}, "is -4,096 bytes"),
    ],
)
def test_every_verb_is_refused_a_document_with_a_number_that_cannot_be_true(document, message, capsys):
    """In ``show``, through which all answers go, so that no verb has to ask."""
    with pytest.raises(ImplausibleError, match="defect of windtunnel") as caught:
        show(document, ["never shown"], as_json=False)

    assert message in caught.value.message
    assert not capsys.readouterr().out


def test_documents_that_can_be_true_are_shown():
    require_plausible_document({"answers": [{"baseline_ns": 400, "predicted_ns": 200}]})  # so was the capture
    require_plausible_document({"step_ns": 0, "mfu": None, "peak_bytes": 2**40, "is_flown": True})


def test_a_factor_that_the_user_gives_may_be_any():
    answer = {"whatif": "faster-cpu:factor=1e9", "baseline_ns": 12e6, "predicted_ns": 0.012}

    require_plausible_document({"answers": [answer | {"parameters": {"factor": 1e9}}]})
    with pytest.raises(ImplausibleError):
        require_plausible_document({"answers": [answer | {"parameters": {}}]})
