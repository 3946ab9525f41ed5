"""``windtunnel predict``: what is printed, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.cli.command import windtunnel
from tests.whatifs.test_forecast import step, with_size
from windtunnel.cli.predict import _how_sure
from windtunnel.graph import load, save
from windtunnel.hardware import device
from windtunnel.whatifs.forecast import forecast


@pytest.fixture
def stored(tmp_path):
    return save(step(), tmp_path / "train.wt")


def test_a_prediction_says_time_pricers_bounds_and_changes(stored):
    outcome = windtunnel("predict", stored, "--on", "h100", "--model", "roofline")

    assert 0 == outcome.code
    assert "one iteration on h100-sxm5-80g, as captured" in outcome.stdout
    assert "host-bound: the device is idle for" in outcome.stdout
    assert "no measured or learned price covers 100 % of the device time" in outcome.stdout
    assert "31 % for single operators, 25 %" in " ".join(outcome.stdout.split())
    for word in ("priced by", "roofline", "assumed launch", "bound by", "overhead", "bf16"):
        assert word in outcome.stdout
    assert outcome.stderr.startswith("next: windtunnel ")
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_the_document_has_raw_units(stored):
    outcome = windtunnel("predict", stored, "--on", "h100", "--launch", "2us", "--json")
    document = json.loads(outcome.stdout)

    assert "windtunnel.forecast/2" == document["schema"]
    assert document["low_ns"] <= document["makespan_ns"] <= document["high_ns"]
    assert document["makespan_ns"] == pytest.approx(sum(one["duration_ns"] for one in document["sources"]))
    assert 2000 == document["launch_ns"]
    assert document["device_low_ns"] <= document["device_ns"] <= document["device_high_ns"]
    assert 25_000 == document["host_ns"]  # 21 of Python, two launches
    assert ("host", 1.0) == (document["limit"], document["unsure_ratio"])
    assert {"operators", "models"} == set(document["bound_error"])
    assert {"tf32", "bf16", "fp16", "fp8"} == {one["dtype"] for one in document["changes"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on", "h10000"), "no device is called 'h10000'"),
        (("--on", "tpu-v4"), "tpu-v4 has no peak rate for 'fp32'"),
        (("--on", "h100", "--dtype", "fp3"), "no type is called 'fp3'"),
        (("--on", "h100", "--batch-size", "4"), "does not show its batch size"),
        (("--on", "h100", "--host-factor", "-1"), "a host cannot take -1.0 times as long"),
        (("--on", "h100,h10000"), "no device is called 'h10000'"),
        (("--on", "none.json"), "sheet cannot be read"),
        (("--on", "h100", "--model", "oracle"), "no cost_model is called 'oracle'"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_words(stored, arguments, message):
    outcome = windtunnel("predict", stored, *arguments)

    assert 2 == outcome.code
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_several_devices_are_ranked_by_what_tells_them_apart(stored):
    outcome = windtunnel("predict", stored, "--on", "l4,h100, a100", "--launch", "10ms")
    rows = [line.split()[0] for line in outcome.stdout.splitlines()[3:6]]

    assert 0 == outcome.code
    assert ["h100-sxm5-80g", "l4", "a100-sxm4-80g"] == rows  # an L4 has more fp32 than an A100
    assert "ranked by the device's time" in outcome.stdout
    document = json.loads(windtunnel("predict", stored, "--on", "l4,h100", "--host-factor", "0", "--json").stdout)
    assert ("windtunnel.forecasts/1", "makespan_ns") == (document["schema"], document["ranked_by"])
    assert ["h100-sxm5-80g", "l4"] == [one["device"] for one in document["forecasts"]]
    assert [0, 0] == [one["host_ns"] for one in document["forecasts"]]


def test_a_priced_graph_is_kept_to_be_asked(stored, tmp_path):
    kept = tmp_path / "priced.wt"
    outcome = windtunnel("predict", stored, "--on", "h100", "--out", kept)
    asked = windtunnel("whatif", kept, "faster-device")

    assert (0, 0) == (outcome.code, asked.code)
    assert "h100-sxm5-80g" == load(kept).meta.priced_for
    assert "faster-device" in asked.stdout
    again = windtunnel("predict", stored, "--on", "h100", "--out", kept)
    assert (2, True) == (again.code, "is there already" in again.stderr)
    several = windtunnel("predict", stored, "--on", "h100,l4", "--out", tmp_path / "two.wt")
    assert (2, True) == (several.code, "name one device" in several.stderr)


def test_the_batch_is_taken_from_the_dimension_that_is_named(tmp_path):
    path = save(with_size(step(), 8), tmp_path / "sized.wt")
    sizes = [
        json.loads(windtunnel("predict", path, "--on", "h100", *given, "--json").stdout)["batch_size"]
        for given in ((), ("--batch-dim", "1"), ("--batch-size", "32"))
    ]

    assert [8, 4, 32] == sizes
    refused = windtunnel("predict", path, "--on", "h100", "--batch-dim", "5")
    assert (2, True) == (refused.code, "no size in dimension 5" in refused.stderr)


def test_several_devices_are_spelled_as_a_number_and_a_name(stored):
    """``8xh100`` was answered with "did you mean hl-100"; a machine answered for one GPU without saying so."""
    for name in ("8xh100", "dgx-h100"):
        outcome = windtunnel("predict", stored, "--on", name, "--model", "roofline")

        assert 0 == outcome.code
        assert f"one iteration on h100-sxm5-80g (1 of 8 of {name})" in outcome.stdout
        assert "no prediction for all of them" in " ".join(outcome.stdout.split())  # it has no layers
    document = json.loads(windtunnel("predict", stored, "--on", "4xh100", "--json").stdout)
    assert ("4xh100", 4) == (document["target"]["name"], document["target"]["num_devices"])
    assert "0xh100 is no device" in windtunnel("predict", stored, "--on", "0xh100").stderr
    assert "did you mean h100-" in windtunnel("predict", stored, "--on", "8xh10").stderr


def test_of_several_devices_one_that_lacks_the_type_is_left_out_and_named(stored):
    outcome = windtunnel("predict", stored, "--on", "h100,k80", "--dtype", "bf16")

    assert 0 == outcome.code
    assert "note: k80 is skipped: k80-12g has no peak rate for bf16" in outcome.stderr
    assert "h100-sxm5-80g" in outcome.stdout
    outcome = windtunnel("predict", stored, "--on", "k80,v100", "--dtype", "bf16")
    assert 2 == outcome.code
    assert "none of the devices has a peak rate" in outcome.stderr


def test_a_prediction_says_samples_per_second(tmp_path):
    graph = save(with_size(step(), 8), tmp_path / "sized.wt")
    outcome = windtunnel("predict", graph, "--on", "h100", "--model", "roofline")
    document = json.loads(windtunnel("predict", graph, "--on", "h100", "--model", "roofline", "--json").stdout)

    assert "samples/s" in outcome.stdout
    assert 8e9 / document["makespan_ns"] == pytest.approx(document["speed"]["samples_per_s"])


def test_a_link_that_no_message_uses_is_refused(stored):
    outcome = windtunnel("predict", stored, "--on", "h100", "--link", "pcie4-x16")

    assert outcome.code
    assert "no message of a known size that could use this link" in outcome.stderr
    assert "--on 8xh100" in outcome.stderr


def test_bounds_that_price_next_to_nothing_are_not_mentioned():
    """ "No price covers 0.0 % of the device time; the real step takes longer" was once a sentence."""
    bounded = replace(forecast(step(), device("h100-sxm5-80g"), model="roofline"), unsure_ratio=0.02)
    texts = [list(_how_sure(replace(bounded, at_bound_ratio=ratio))) for ratio in (0.0004, 0.02)]

    assert ["  2.0 % of the device time is priced by a model without an error estimate"] == texts[0]
    assert "covers 2.0 % of the device time" in texts[1][0]


def test_a_job_whose_ranks_share_nothing_is_not_multiplied_by_the_devices_again(tmp_path):
    """One rank stands for all 8: MFU was stated as that of 64 devices."""
    job = step().with_meta(distributed={"world_size": 8, "stands_for": {"0": 8}})
    outcome = windtunnel("predict", save(job, tmp_path / "job.wt"), "--on", "8xh100")

    assert outcome.stdout.startswith("8 ranks on h100-sxm5-80g,")
    assert "all ranks of the job, on hosts of 8 h100-sxm5-80g" in outcome.stdout
    assert "64 x" not in outcome.stdout


def test_prices_of_two_devices_are_compared_without_an_interval_of_iterations(stored, tmp_path):
    """Draws from a price's interval were called 64 iterations."""
    paths = [tmp_path / f"{name}.wt" for name in ("h100", "l4")]
    for path in paths:
        assert 0 == windtunnel("predict", stored, "--on", path.stem, "--out", path).code
    outcome = windtunnel("diff", *paths)

    assert 0 == outcome.code
    assert "iterations)" not in outcome.stdout
