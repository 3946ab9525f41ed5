"""Intervals of predictions from past receipts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whatifs.steps import Layer, cpu_step
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.flights import Ledger, Receipt, model_fingerprint, with_intervals
from windtunnel.flights.intervals import conformal_quantile, interval_of
from windtunnel.flights.ledger import Residual, read_shipped_residuals
from windtunnel.flights.receipt import conditions_of
from windtunnel.measure.fingerprint import machine
from windtunnel.measure.stats import Estimate
from windtunnel.simulate import replay
from windtunnel.whatifs import Answer, parse_request, whatif


def residuals(values, whatif="alpha", family="greek"):
    return [Residual(whatif, family, f"{whatif}{place}", float(value)) for place, value in enumerate(values)]


def test_the_truth_lies_inside_as_often_as_promised_whatever_the_errors_are_like():
    rng = np.random.default_rng(3)
    for draw in (rng.normal, rng.standard_cauchy, lambda size: rng.exponential(size=size)):
        hits = []
        for _ in range(1500):
            *past, future = np.clip(0.05 * draw(size=21), -300, 300)
            backing = interval_of("alpha", 1.5, residuals(past))
            hits.append(backing.low <= 1.5 * math.exp(-future) <= backing.high)

        # 20 receipts at 90 %: rank 19 of 21, so 19/21 = 0.905 exactly in expectation; Cauchy's tails meet the cap
        expected = 0.87 if draw == rng.standard_cauchy else 19 / 21
        assert pytest.approx(expected, abs=0.025) == np.mean(hits)


def minimum_receipts(confidence):
    """The fewest from which an interval can be had: one of n + 1 ranks has to lie at the confidence."""
    return math.ceil(confidence / (1 - confidence) - 1e-9)


@given(st.floats(0.5, 0.99), st.data())
def test_below_the_minimum_count_no_receipt_backs_a_number(confidence, data):
    number = data.draw(st.integers(0, minimum_receipts(confidence) - 1))
    backing = interval_of("alpha", 2.0, residuals([0.1] * number), confidence=confidence)

    assert not backing.is_backed
    assert "2.00x (no receipt backs this number)" == str(backing)
    assert interval_of("alpha", 2.0, residuals([0.1] * minimum_receipts(confidence)), confidence=confidence).is_backed


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(0.5, 0.99))
def test_the_conformal_quantile_leaves_enough_scores_below(scores, confidence):
    quantile = conformal_quantile(scores, confidence)

    below = sum(score <= quantile for score in scores)
    assert math.isinf(quantile) or below >= confidence * (len(scores) + 1) - 1e-6


def test_a_whatif_with_receipts_of_its_own_uses_no_others():
    own, others = residuals([0.01] * 9), residuals([1.0] * 90, whatif="beta")

    backing = interval_of("alpha", 1.0, own + others)

    assert ("what-if", 9) == (backing.scope, backing.num_receipts)
    assert pytest.approx((math.exp(-0.01), math.exp(0.01))) == (backing.low, backing.high)
    assert "1.00x (0.99-1.01, 90%, 9 receipts)" == str(backing)


def test_flights_of_other_families_back_nothing():
    """Two bad flights of another arithmetic once widened faster-cpu 2.00x to 0.56-7.18."""
    backing = interval_of("gamma", 2.0, residuals([0.1] * 20))

    assert not backing.is_backed


@pytest.mark.parametrize("num_bad", [1, 2, 3])
def test_a_few_bad_flights_do_not_widen_every_later_prediction(num_bad):
    """Simulated ledgers: errors of 2 %, and a few flights on a machine that was doing something else."""
    rng = np.random.default_rng(num_bad)
    spans, hits = [], []
    for _ in range(300):
        past = np.concatenate([rng.normal(0, 0.02, 12), rng.choice([-1, 1], num_bad) * rng.uniform(0.5, 1.3, num_bad)])
        backing = interval_of("alpha", 2.0, residuals(past))
        spans.append(backing.high / backing.low)
        hits.append(backing.low <= 2.0 * math.exp(rng.normal(0, 0.02)) <= backing.high)

    assert 1.3 > np.median(spans)
    assert 0.9 <= np.mean(hits)


def test_a_family_that_errs_often_has_wide_intervals():
    """The cap is on outliers: where most flights are far off, all of them count."""
    backing = interval_of("alpha", 1.0, residuals(np.linspace(-0.5, 0.5, 20)))

    assert 1.5 < backing.high


def test_flying_one_model_a_hundred_times_is_one_receipt():
    again = [Residual("alpha", "greek", "same", 0.1)] * 100

    assert not interval_of("alpha", 1.2, again).is_backed


def test_the_subject_itself_can_be_left_out():
    past = residuals([0.1] * 9)

    assert interval_of("alpha", 1.2, past).is_backed
    assert not interval_of("alpha", 1.2, past, subject="alpha3").is_backed


def test_flights_that_ship_are_taken_where_too_few_were_made_here():
    shipped = [Residual("alpha", "greek", f"shipped{place}", 0.2) for place in range(9)]
    few = interval_of("alpha", 1.0, residuals([0.1] * 3), shipped=shipped)
    enough = interval_of("alpha", 1.0, residuals([0.1] * 9), shipped=shipped)

    assert ("shipped", 12) == (few.scope, few.num_receipts)
    assert pytest.approx(math.exp(0.2)) == few.high
    assert "12 receipts that come with windtunnel" in str(few)
    assert ("what-if", 9) == (enough.scope, enough.num_receipts)
    assert not interval_of("beta", 1.0, [], shipped=shipped).is_backed


def test_every_shipped_flight_is_of_a_known_whatif():
    known = registry.all("whatif")

    assert len(read_shipped_residuals()) > 100
    assert all(name in known for one in read_shipped_residuals() for name in one.whatif.split("+"))
    assert all(abs(one.log_residual) < 1 for one in read_shipped_residuals())


STEP = cpu_step([Layer("a", 1000, 2000, 300, param_bytes=4000), Layer("b", 1000, 2000, 300, param_bytes=4000)])


def flown(answer, measured, graph=STEP):
    """A receipt of an answer that was measured to be so many times as fast."""
    return Receipt(
        whatif=answer.name,
        parameters=answer.given,
        predicted_baseline_ns=answer.baseline_ns,
        predicted_ns=answer.predicted_ns,
        samples_ratio=answer.samples_ratio,
        baseline=Estimate(100.0, 99.0, 101.0),
        changed=Estimate(100.0 / measured, 98.0 / measured, 102.0 / measured),
        speedup=Estimate(measured, measured * 0.99, measured * 1.01),
        model_fingerprint=model_fingerprint(graph),
        hardware_fingerprint=machine(),
        conditions=conditions_of(graph),
        num_rounds=9,
    )


@pytest.mark.parametrize(("source", "program", "is_backed"), [
    ("measured", True, True), ("paper", True, False), ("measured", False, False),
])  # fmt: skip
def test_only_what_was_captured_and_priced_here_errs_as_shipped_flights_did(ledger, source, program, is_backed):
    step = STEP.with_columns(cost_source=[source] * STEP.num_tasks)
    answer = Answer(parse_request("amp"), replay(step), 100.0)
    if program:
        answer = Answer(parse_request("amp"), replay(step.with_meta(program={"calls": [1]})), 100.0)
    (found,) = with_intervals([answer.keeping(step)], ledger)

    assert is_backed == (found.interval.scope == "shipped") == (found.span is not None)
    assert is_backed == ("that come with windtunnel" in str(found))


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "receipts.db")


def asked(name, graph=STEP):
    (answer,) = whatif(graph, [name], prices="paper")
    return answer


def test_what_was_refuted_on_this_job_is_not_said_again(ledger):
    answer = asked("amp")
    ledger.add(flown(answer, 1.17))
    (again,) = with_intervals([asked("amp")], ledger)

    assert pytest.approx(1.17) == again.speedup
    assert pytest.approx(answer.speedup) == again.graph_speedup
    assert pytest.approx(again.baseline_ns / 1.17) == again.predicted_ns
    assert again.interval.low < 1.17 < again.interval.high
    assert f"measured on this job; predicted {answer.speedup:.2f}x" in str(again)
    assert again.is_flown
    assert pytest.approx(answer.speedup) == again.to_dict()["graph_speedup"]


def test_a_flight_of_another_job_or_of_other_parameters_corrects_nothing(ledger):
    answer = asked("amp")
    other = cpu_step([Layer("c", 1000, 2000, 300, param_bytes=4000)])
    ledger.add(flown(answer, 1.17, graph=other))
    ledger.add(flown(asked("amp:dtype=float16"), 1.3))
    (again,) = with_intervals([asked("amp")], ledger)

    assert answer.speedup == again.speedup
    assert 1 == again.correction


def test_answers_are_ranked_by_what_was_flown(ledger):
    names = ["amp", "fused-optimizer"]
    first, second = whatif(STEP, names, prices="paper")
    ledger.add(flown(first, 0.5))

    assert [second.name, first.name] == [
        one.name for one in with_intervals(whatif(STEP, names, prices="paper"), ledger)
    ]


def test_flights_that_lie_apart_widen_what_they_correct(ledger):
    answer = asked("amp")
    ledger.add(flown(answer, 1.0))
    ledger.add(flown(answer, 1.44))
    (again,) = with_intervals([answer], ledger)

    assert pytest.approx(1.2) == again.speedup
    assert again.interval.low <= 1.0001
    assert again.interval.high >= 1.4399


def test_what_was_flown_is_the_answer_however_it_is_priced(ledger):
    """Published ratios say 2.07x where a flight of this very job measured 1.17x: the flight is right, and once."""
    answer = asked("amp")
    ledger.add(flown(answer, 1.17))
    moved = replace(answer, predicted_ns=0.7 * answer.predicted_ns, price_spread_ratio=0.8, price_waited_ratio=0.5)
    (again,) = with_intervals([moved], ledger)
    (twice,) = with_intervals([again], ledger)

    assert pytest.approx(1.17) == again.speedup == twice.speedup
    assert pytest.approx(moved.speedup) == again.graph_speedup == pytest.approx(twice.graph_speedup)
    assert again.span == twice.span == (again.interval.low, again.interval.high)
    assert 1.15 > again.span[1] / again.span[0]


def test_a_flight_that_measured_what_was_predicted_is_a_flight_too(ledger):
    answer = asked("amp")
    ledger.add(flown(answer, answer.speedup))
    (again,) = with_intervals([answer], ledger)

    assert again.is_flown


@pytest.mark.parametrize("conditions", [
    {"hardware": {"num_threads": 2}}, {"origin": {"ranks": {"num_ranks": 2, "bandwidth_bytes_per_s": 6e7}}},
])  # fmt: skip
def test_a_flight_under_other_conditions_says_nothing_of_this_job(ledger, conditions):
    """A receipt measured behind a slow link once corrected a capture over loopback to 2.16x."""
    answer, elsewhere = asked("amp"), STEP.with_meta(**conditions)
    ledger.add(replace(flown(answer, 2.16), conditions=conditions_of(elsewhere)))
    (here,) = with_intervals([answer], ledger)
    (there,) = with_intervals([asked("amp", elsewhere)], ledger)

    assert answer.speedup == here.speedup
    assert pytest.approx(2.16) == there.speedup


@given(st.floats(0, 1.5), st.lists(st.floats(-0.3, 0.3), min_size=9, max_size=30))
def test_no_interval_is_narrower_than_what_was_measured_for_it(reach, past):
    answer = asked("amp")
    answer.__dict__["reach"] = reach
    low, high = answer.with_flight_interval(interval_of("amp", answer.speedup, residuals(past, "amp"))).span

    assert math.log(high / low) >= 2 * reach - 1e-9
    assert low <= answer.speedup <= high


def test_a_receipt_that_is_dropped_backs_nothing(ledger):
    answer = asked("amp")
    ledger.add(flown(answer, 1.17))
    assert 1 == ledger.drop(ledger.receipts_by_number())

    assert answer.speedup == with_intervals([answer], ledger)[0].speedup
    with pytest.raises(InputError, match="there is no receipt 1"):
        ledger.drop([1])
