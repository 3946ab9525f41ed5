"""How sure every registered what-if is: what varied in captured iterations and in prices is in its interval."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from tests.whatifs.steps import Layer, cpu_step, gpu_step
from windtunnel import registry
from windtunnel.cost.host_times import HOST_TABLE
from windtunnel.cost.intervals import STEP_ENDS
from windtunnel.cost.rerun import AveragingNeed, Ratios, ReducingNeed
from windtunnel.cost.rerun.averaging import Added
from windtunnel.errors import WindtunnelError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.simulate import replay
from windtunnel.whatifs import Answer, apply, parse_request, whatif
from windtunnel.whatifs.ask import pricer_of
from windtunnel.whatifs.data_parallel import data_parallel
from windtunnel.whatifs.measured import MEASURE, SOURCE, Unpriced, price_change
from windtunnel.whatifs.reach import Z90

NAMES = sorted(registry.all("whatif"))
NUM_SAMPLES = 5
MIB = 2**20
LAYERS = [
    Layer(name, 3_000_000, 6_000_000, 900_000, param_bytes=size * MIB, output_bytes=4 * MIB)
    for name, size in (("stem.relu", 1), ("body.linear", 30), ("head", 2))
]


def with_samples(graph: Graph, factor) -> Graph:
    """Each task in each iteration by a factor [T, K] longer than the median one."""
    return graph.with_columns(samples_ns=np.rint(graph.duration_ns[:, None] * factor).astype(np.int64))


def varying(graph: Graph) -> Graph:
    """Every task varies by itself."""
    factors = np.random.default_rng(0).uniform(0.7, 1.4, (graph.num_tasks, NUM_SAMPLES))
    return with_samples(graph, factors)


@cache
def steps() -> dict[str, Graph]:
    """Steps of a thread, of a stream, of several workers, and one that really ran."""
    pytest.importorskip("torch")
    from windtunnel.sources.targets import WorkloadName

    small = WorkloadName("mlp", {"batch_size": 8, "width": 32, "depth": 2}).capture(2, None)
    return {
        "cpu": cpu_step(LAYERS, data_ns=400_000),
        "gpu": gpu_step(LAYERS, copy_ns=2000),
        "gpu, parallel": data_parallel(gpu_step(LAYERS), num_ranks=4),
        "cpu, twice": cpu_step(LAYERS, data_ns=400_000, gap_ns=7).concat(2),
        "captured": small,
    }


MEASURE_ONCE = pricer_of(":memory:", budget_s=0.01)


def quick(needs, is_run):
    """Operators and updates really run, once each; what needs other processes costs a millisecond."""
    alone = [need for need in needs if not isinstance(need, AveragingNeed | ReducingNeed)]
    return {**MEASURE_ONCE(alone, is_run), **{need: 10**6 for need in needs if need not in alone}}


def surely(needs, is_run):
    """The same as if no price had varied, nor been disturbed."""
    found = quick(needs, is_run)
    return {
        need: replace(price, spread_ratio=0.0, waited_ratio=0.0) if isinstance(price, Ratios) else price
        for need, price in found.items()
    }


def attempts(name: str, make, pricer=surely):
    """Graphs before and after, where a what-if applies."""
    for step in steps().values():
        before = make(step)
        try:
            yield before, apply(before, parse_request(name), pricer=pricer)
        except WindtunnelError:
            continue


@pytest.mark.parametrize("name", NAMES)
def test_samples_stay_those_of_their_tasks(name):
    """Where no iteration was other than the median one, none is afterwards."""
    for _, after in attempts(name, lambda step: with_samples(step, np.ones((step.num_tasks, NUM_SAMPLES)))):
        assert "samples_ns" in after.tasks
        assert after.tasks["samples_ns"].shape == (after.num_tasks, NUM_SAMPLES)
        np.testing.assert_allclose(
            after.tasks["samples_ns"], np.repeat(after.duration_ns[:, None], NUM_SAMPLES, axis=1), atol=20
        )


@pytest.mark.parametrize("name", NAMES)
def test_what_varied_in_captured_iterations_is_in_the_interval(name, monkeypatch):
    """However sure its prices are, and whether it asks for any or not."""
    monkeypatch.setattr("windtunnel.whatifs.ask.pricer_of", lambda *_: surely)
    for step in steps().values():
        before = varying(step)
        (answer,) = whatif(before, name)
        if not answer.is_applicable or answer.predicted_ns == answer.baseline_ns:
            continue
        changes = before.num_tasks != answer.graph.num_tasks or (before.duration_ns != answer.graph.duration_ns).any()
        assert not changes or (answer.span is not None and answer.span[0] < answer.speedup < answer.span[1])


def test_what_slows_both_sides_alike_is_not_in_the_interval():
    step = cpu_step(LAYERS)
    slower = np.linspace(0.5, 2.0, NUM_SAMPLES)[None, :]
    update = step.select(phase=Phase.UPDATE)[:, None]
    alike, unlike = (with_samples(step, factors) for factors in (slower, np.where(update, slower, 1.0)))

    def variation(before):
        after = before.scale(before.select(phase=Phase.FORWARD), 0.5)
        return Answer(parse_request("faster-cpu"), replay(before), 1.0).keeping(after).variation

    assert variation(alike) == pytest.approx(0.0, abs=1e-6)
    assert variation(unlike) > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_every_price_is_noted_with_how_sure_it_is(name):
    for step in steps().values():
        try:
            change = registry.get("whatif", name).function(step)
        except WindtunnelError:
            continue
        if not isinstance(change, Unpriced) or change.finish is None:
            continue
        found = quick(change.needs, change.way("auto") == MEASURE)
        unsure = {
            need: replace(one, spread_ratio=0.25, waited_ratio=0.5)
            for need, one in found.items()
            if isinstance(one, Ratios)
        }
        if not unsure:
            continue
        try:
            after = price_change(change, "measured", partial(lambda prices, *_: prices, {**found, **unsure}))
        except WindtunnelError:
            continue
        assert after.meta.price_spread_ratio >= 0.25
        assert after.meta.price_waited_ratio >= 0.5


def captured_step() -> Graph:
    """A step of which every task was measured, as captures say."""
    step = cpu_step(LAYERS, data_ns=400_000)
    return step.set_duration(step.all_tasks, step.duration_ns, cost_source="measured")


def test_a_message_that_varies_says_nothing_of_the_operators_around_it(monkeypatch):
    """Two small processes on a busy host: what is added to a pass varies by ten times itself, the pass does not."""
    added = Added.of(100_000, 1_000_000)
    monkeypatch.setattr("windtunnel.whatifs.ask.pricer_of", lambda *_: lambda needs, _: dict.fromkeys(needs, added))
    (answer,) = whatif(captured_step(), "data-parallel", prices="measured")

    assert 10.0 == answer.price_spread_ratio
    assert 0.0 < answer.reach <= math.log1p(Z90 * 1_000_000 / answer.predicted_ns) + 1e-9


def test_what_may_be_nothing_or_much_is_not_known_to_be_nothing():
    """A difference of long times can be below zero; how far it varied still counts."""
    nothing = Added.of(-30_000, 1_000_000)

    assert 1_000_000 == pytest.approx(nothing * nothing.spread_ratio, rel=0.01)


def test_each_price_of_a_combination_varies_for_itself(monkeypatch):
    """In both orders, and operators that ran again vary as their own rounds did."""
    added, steady = Added.of(100_000, 1_000_000), Added.of(100_000, 1_000)
    step = captured_step()

    def priced(name: str, before: Graph, price: Added) -> Graph:
        change = registry.get("whatif", name).function(before)
        return price_change(change, "measured", lambda needs, _: dict.fromkeys(needs, price), before)

    worker = priced("data-parallel", step, added)
    again = price_change(
        Unpriced((AveragingNeed(1, 2),), lambda _: worker.set_duration(forward(worker), 7_000, SOURCE)),
        "measured",
        lambda needs, _: dict.fromkeys(needs, steady),
        worker,
    )

    messages = worker.select(op="all_reduce")
    assert {10.0} == set(again.tasks["price_spread_ratio"][messages].tolist())
    assert {0.01} == set(again.tasks["price_spread_ratio"][forward(again)].tolist())


def forward(graph: Graph) -> np.ndarray:
    return graph.select(phase=Phase.FORWARD)


def test_a_step_that_was_never_run_is_known_as_well_as_such_steps_were():
    """Neither the host's times nor those of messages have intervals there: theirs must not be one without width."""
    step = gpu_step(LAYERS)
    host = step.select(kind=Kind.HOST)
    never_run = step.set_duration(host, step.duration_ns[host], HOST_TABLE).note({"priced_for": "h100"})
    (answer,) = whatif(never_run, "data-parallel:num_ranks=8+amp", prices="paper")

    assert answer.span is not None
    assert max(STEP_ENDS) - 1e-9 <= math.log(answer.span[1] / answer.speedup)


def test_where_nothing_says_how_sure_a_number_is_there_is_no_interval():
    """Not one without width: kernels that vary by a nanosecond do not tell that the host does not vary."""
    step = gpu_step(LAYERS)
    kernels = step.select(kind=Kind.COMPUTE)
    certain = step.with_columns(duration_std_ns=kernels.astype(np.int64)).note({"priced_for": "h100"})
    (answer,) = whatif(certain, "data-parallel:num_ranks=8", prices="paper")

    assert answer.span is None
