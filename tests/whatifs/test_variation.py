"""How sure every registered what-if is: what varied in captured iterations and in prices is in its interval."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from tests.whatifs.steps import Layer, cpu_step, gpu_step
from windtunnel import registry
from windtunnel.cost.rerun import AveragingNeed, Ratios, ReducingNeed
from windtunnel.errors import WindtunnelError
from windtunnel.graph import Graph, Phase
from windtunnel.simulate import replay
from windtunnel.whatifs import Answer, apply, parse_request, whatif
from windtunnel.whatifs.ask import pricer_of
from windtunnel.whatifs.data_parallel import data_parallel
from windtunnel.whatifs.measured import MEASURE, Unpriced, price_change

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
