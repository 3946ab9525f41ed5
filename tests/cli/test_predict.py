"""``windtunnel predict``: what is printed, and what is refused."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import windtunnel
from tests.whatifs.test_forecast import step
from windtunnel.graph import save


@pytest.fixture
def stored(tmp_path):
    return save(step(), tmp_path / "train.wt")


def test_a_prediction_says_time_pricers_bounds_and_changes(stored):
    outcome = windtunnel("predict", stored, "--on", "h100", "--model", "roofline")

    assert 0 == outcome.code
    assert "per iteration on h100-sxm5-80g, as captured" in outcome.stdout
    assert "the host is the limit" in outcome.stdout
    for word in ("priced by", "roofline", "assumed launch", "bound by", "memory", "bf16"):
        assert word in outcome.stdout
    assert outcome.stderr.startswith("next: windtunnel ")
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_the_document_has_raw_units(stored):
    outcome = windtunnel("predict", stored, "--on", "h100", "--launch", "2us", "--json")
    document = json.loads(outcome.stdout)

    assert "windtunnel.forecast/1" == document["schema"]
    assert document["low_ns"] <= document["makespan_ns"] <= document["high_ns"]
    assert document["makespan_ns"] == pytest.approx(sum(one["duration_ns"] for one in document["sources"]))
    assert 2000 == document["launch_ns"]
    assert {"tf32", "bf16", "fp16", "fp8"} == {one["dtype"] for one in document["changes"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on", "h10000"), "no device is called 'h10000'"),
        (("--on", "tpu-v4"), "tpu-v4 has no peak rate for 'fp32'"),
        (("--on", "h100", "--dtype", "fp3"), "no type is called 'fp3'"),
        (("--on", "h100", "--batch", "4"), "does not show its batch size"),
        (("--on", "none.json"), "sheet cannot be read"),
        (("--on", "h100", "--model", "oracle"), "no cost_model is called 'oracle'"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_words(stored, arguments, message):
    outcome = windtunnel("predict", stored, *arguments)

    assert 2 == outcome.code
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
