"""Requests as text, answers as lines, tables and JSON, ranked and in pairs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.whatifs.steps import Layer, cpu_step, gpu_step
from windtunnel.errors import InputError
from windtunnel.graph import GraphBuilder
from windtunnel.measure.disturbance import disturbance_log_error
from windtunnel.simulate import replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.whatifs import apply, parse_request, parse_requests, whatif
from windtunnel.whatifs.answer import Answer, table_of
from windtunnel.whatifs.peak_memory import change_peak, peak_of_replay

LAYERS = [Layer("a", 1000, 2000, 300, param_bytes=4000), Layer("b", 1000, 2000, 300, param_bytes=4000)]


@dataclass(frozen=True)
class Backing:
    """What past flights say, as the ledger gives it."""

    low: float = 1.80
    high: float = 1.23
    confidence: float = 0.9
    num_receipts: int = 14
    scope: str = "what-if"
    correction: float = 1.0


def test_values_are_read_in_their_units():
    request = parse_request("data-parallel:num_ranks=4,latency_ns=2us,bucket_bytes=1MiB,bandwidth_bytes_per_s=25GB/s")
    expected = {"num_ranks": 4, "latency_ns": 2000, "bucket_bytes": 2**20, "bandwidth_bytes_per_s": 25 * 10**9}

    assert expected == request.steps[0].parameters


def test_a_request_reads_what_it_prints():
    text = "data-parallel:num_ranks=4,link=nvlink4+top-k:density_ratio=0.05"

    assert text == str(parse_request(text))
    assert [0.05] == list(parse_request("top-k:density_ratio=5%").steps[0].parameters.values())


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("faster-cpu", {}),
        ("faster-cpu:factor=3", {"factor": 3.0}),
        ("faster-cpu:factor=3+overlap", {"faster-cpu.factor": 3.0}),
    ],
)
def test_receipts_keep_what_was_given_behind_the_name_only_where_several_were_asked(text, given):
    """Receipts of one change and one job are found by it."""
    assert given == Answer(parse_request(text), replay(cpu_step(LAYERS))).given


def test_commas_separate_names_and_parameters_of_one_name():
    requests = parse_requests("data-parallel:num_ranks=4,link=nvlink4,faster-cpu,p3:by_priority=no")

    assert ["data-parallel:num_ranks=4,link=nvlink4", "faster-cpu", "p3:by_priority=False"] == list(map(str, requests))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data-paralel", r"no whatif is called 'data-paralel'[\s\S]*data-parallel"),
        ("data-parallel:ranks=2", r"no parameter 'ranks'[\s\S]*num_ranks"),
        ("data-parallel:num_ranks=many", r"num_ranks cannot be 'many'"),
        ("data-parallel:num_ranks", r"'num_ranks' gives no value"),
        ("data-parallel:latency_ns=2parsec", r"no known unit of duration"),
        ("p3:by_priority=perhaps", r"by_priority cannot be 'perhaps'"),
        ("", r"no whatif is called ''"),
    ],
)
def test_a_wrong_request_is_answered_with_what_would_be_right(text, message):
    with pytest.raises(InputError, match=message):
        parse_request(text)


def test_answers_are_ranked_and_those_without_work_say_why():
    answers = whatif(cpu_step(LAYERS), ["faster-device", "faster-cpu:factor=4", "faster-cpu"])

    assert ["faster-cpu:factor=4", "faster-cpu", "faster-device"] == [str(answer.request) for answer in answers]
    assert [4.0, 2.0] == [answer.speedup for answer in answers[:2]]
    assert "faster-device  not applicable: no task runs on a device" == str(answers[2])


def test_all_asks_every_registered_what_if_and_keeps_its_order():
    graph = gpu_step(LAYERS)
    first, second = (whatif(graph, "all") for _ in range(2))

    assert list(map(str, first)) == list(map(str, second))
    assert {"vdnn", "data-parallel", "cuda-graphs"} <= {answer.name for answer in first}


def test_what_changes_only_durations_is_replayed_in_one_batch_with_the_same_result():
    graph = gpu_step(LAYERS)
    requests = ["faster-device", "faster-device:factor=3"]

    for answer in whatif(graph, requests):
        assert replay(apply(graph, answer.request)).makespan_ns == answer.predicted_ns == answer.timeline.makespan_ns


def test_pairs_of_different_families_are_asked_in_the_order_in_which_they_apply():
    """Compression alone has nothing to compress; behind data parallelism it has."""
    answers = whatif(gpu_step(LAYERS), ["data-parallel", "cuda-graphs", "faster-cpu", "faster-device"], pairs=True)
    names = {answer.name for answer in answers}

    assert "data-parallel+cuda-graphs" in names or "cuda-graphs+data-parallel" in names
    assert "faster-cpu+faster-device" not in names
    assert all(answer.is_applicable for answer in answers if "+" in answer.name)


def test_more_samples_per_iteration_count():
    (answer,) = whatif(
        cpu_step(LAYERS), "data-parallel:num_ranks=2,num_cores=64,bandwidth_bytes_per_s=1e12,latency_ns=0"
    )

    assert 2 == answer.samples_ratio
    assert 1.9 < answer.speedup <= 2.0


def test_an_answer_prints_as_one_useful_line():
    (answer,) = whatif(cpu_step(LAYERS), "faster-cpu")
    backed = answer.with_flight_interval(Backing())

    assert str(answer).startswith("faster-cpu  2.00x (no receipt backs this number); 3.30 µs")
    assert str(backed).startswith("faster-cpu  2.00x (1.80-2.00, 90 %, 14 receipts); 3.30 µs")


def test_an_answer_is_json_with_raw_units_and_a_row():
    answers = whatif(cpu_step(LAYERS), ["faster-cpu", "faster-device"])
    document = json.loads(answers[0].json())

    assert "windtunnel.answer/1" == document["schema"]
    assert (6600, 3300, 2.0) == (document["baseline_ns"], document["predicted_ns"], document["speedup"])
    assert {"assumed factor": 1.0} == document["cost_shares"]
    assert json.loads(answers[1].json())["predicted_ns"] is None
    assert [True, False] == table_of(answers)["is_applicable"].to_pylist()


def test_a_graph_too_large_to_keep_is_made_again_when_it_is_looked_at(monkeypatch):
    monkeypatch.setattr("windtunnel.whatifs.ask._KEPT_TASKS", 0)
    for answer in whatif(cpu_step(LAYERS), ["faster-cpu", "data-parallel:num_cores=64"]):
        assert "graph" not in vars(answer)
        assert iteration_ns(answer.timeline, 1) == answer.predicted_ns


def test_progress_is_told():
    told = []
    whatif(cpu_step(LAYERS), "faster-cpu", progress=lambda what, done, total: told.append((what, done, total)))

    assert ("editing faster-cpu", 85, 100) in told


def test_an_empty_graph_is_answered_not_refused():
    (answer,) = whatif(GraphBuilder().build(), "faster-cpu")

    assert "the graph has no tasks" == answer.reason


def test_prices_carry_their_spread_before_any_receipt():
    (answer,) = whatif(cpu_step(LAYERS), ["amp"], prices="paper")
    measured = cpu_step(LAYERS).with_columns(price_spread_ratio=np.full(cpu_step(LAYERS).num_tasks, 0.1))
    sure = replace(answer, price_spread_ratio=0.1).keeping(measured)
    disturbed = replace(answer, price_spread_ratio=0.1, price_waited_ratio=0.5).keeping(measured)

    assert answer.span is None
    assert "no receipt backs" in str(answer)
    assert sure.span[0] < sure.speedup < sure.span[1]
    assert sure.span[1] / sure.span[0] == pytest.approx((1 + 0.1 * 1.645 / 1.349) ** 2, rel=1e-3)
    assert math.log(disturbed.span[1] / disturbed.speedup) == pytest.approx(
        math.hypot(math.log(sure.span[1] / sure.speedup), disturbance_log_error(0.5))
    )
    assert disturbed.span[0] * disturbed.span[1] == pytest.approx(disturbed.speedup**2)


def test_a_change_saves_no_more_than_the_real_step_held():
    """A replay holds outputs longer than a real step: half of it was once taken from a smaller real peak."""
    graph = cpu_step(LAYERS)
    bytes_T = np.full(graph.num_tasks, 1000, dtype=np.int64)
    base = graph.set_columns({"output_bytes": bytes_T, "freed_bytes": 0 * bytes_T}).note({"memory_base_bytes": 500})
    half = base.set_columns({"output_bytes": bytes_T // 2})
    before, after = replay(base), replay(half)
    transient_bytes = peak_of_replay(before) - 500

    assert 500 + transient_bytes // 4 == change_peak(500 + transient_bytes // 2, before, after)
    assert 500 + transient_bytes // 2 == change_peak(500 + transient_bytes, before, after)
    assert 500 + transient_bytes == change_peak(500 + transient_bytes // 2, after, before)  # what is added is added
    fewer = replay(base.note({"memory_base_bytes": 100}))
    assert 100 + transient_bytes // 2 == change_peak(500 + transient_bytes // 2, before, fewer)  # and so is state


def test_an_answer_that_the_device_cannot_hold_says_so():
    """ "163 GiB on an 80 GB card" once passed without a word."""
    graph = cpu_step(LAYERS).with_meta(memory={"peak_bytes": 20 << 30})
    (unplaced,) = whatif(graph, ["faster-cpu"])
    (small,) = whatif(graph.with_meta(priced_for="t4"), ["faster-cpu"])
    (large,) = whatif(graph.with_meta(priced_for="h100-sxm5-80g"), ["faster-cpu"])
    (here,) = whatif(graph.with_meta(priced_for="this host"), ["faster-cpu"])

    assert [False, True, False, False] == [answer.exceeds_memory for answer in (unplaced, small, large, here)]
    assert json.loads(small.json())["exceeds_memory"]
