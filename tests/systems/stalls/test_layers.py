"""Who waits for the network, by replay."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from windtunnel.cli import main
from windtunnel.systems.stalls.job import job_of
from windtunnel.systems.stalls.layers import network_forecast, overlap_ns

JOB = "mlp:batch_size=8,width=250,depth=4"
spans = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=8)


@given(spans=spans, begin=st.integers(0, 60), length=st.integers(0, 40))
def test_what_is_covered_is_counted_once(spans, begin, length):
    start = np.array([one for one, _ in spans])
    finish = start + [one for _, one in spans]
    slow = sum(any(first <= at < last for first, last in zip(start, finish, strict=True))
               for at in range(begin, begin + length))  # fmt: skip

    assert [slow] == overlap_ns(start, finish, np.array([begin]), np.array([begin + length])).tolist()


@pytest.fixture(scope="module")
def forecasts():
    return [network_forecast(JOB, 2, rate, remedies=("fp16-gradients",)) for rate in (2e6, 1e6)]


def test_waits_grow_as_the_link_gets_slower(forecasts):
    fast, slow = forecasts
    size_bytes = 4 * sum(one.numel() for one in job_of(JOB).model.parameters())
    more_ns = size_bytes * (1 / 1e6 - 1 / 2e6) * 1e9

    assert sum(one.size_bytes for one in slow.buckets) == size_bytes
    assert slow.stall_ns - fast.stall_ns == pytest.approx(more_ns, rel=0.15)
    assert sum(one.exposed_ns for one in slow.buckets) == pytest.approx(slow.stall_ns, rel=0.15)


def test_every_layer_with_gradients_is_in_one_bucket(forecasts):
    layers = [layer for one in forecasts[0].buckets for layer in one.layers]
    with_weights = [name for name, one in job_of(JOB).model.named_modules() if list(one.parameters(recurse=False))]

    assert sorted(with_weights) == sorted(layers)


def test_half_the_bytes_are_offered_and_take_half(forecasts):
    (remedy,) = forecasts[1].remedies

    assert remedy.request.endswith("+fp16-gradients")
    assert remedy.iteration_ns == pytest.approx(forecasts[1].iteration_ns - forecasts[1].stall_ns / 2, rel=0.25)


def test_layers_without_a_network_are_refused(capsys):
    assert main(["stalls", JOB, "--no-files", "--layers", "--batches", "1", "--rounds", "2"]) == 2
    assert "add --bandwidth" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_says_what_the_replay_says(capsys):
    asked = [
        "stalls",
        JOB,
        "--no-files",
        "--layers",
        "--bandwidth",
        "5MB/s",
        "--batches",
        "2",
        "--rounds",
        "2",
        "--json",
    ]

    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert 1 == len(found["forecasts"])
    assert found["forecasts"][0]["request"].startswith("data-parallel:num_ranks=2")
