"""What every registered what-if keeps, whoever wrote it."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.strategies import graphs
from tests.whatifs.prices import published
from tests.whatifs.steps import Layer, cpu_step, gpu_step
from windtunnel import registry
from windtunnel.cost.rerun import AveragingNeed, ReducingNeed
from windtunnel.errors import WindtunnelError
from windtunnel.graph import Graph
from windtunnel.testing import WhatIfContract
from windtunnel.whatifs import apply, parse_request
from windtunnel.whatifs.ask import pricer_of
from windtunnel.whatifs.data_parallel import data_parallel

NAMES = sorted(registry.all("whatif"))
MIB = 2**20
LAYERS = [
    Layer(name, 3000, 6000, 900, param_bytes=size * MIB, output_bytes=4 * MIB)
    for name, size in (("stem.relu", 1), ("body.linear", 30), ("head", 2))
]
WIDE = Layer("wide", 3_000_000, 6_000_000, 900_000, param_bytes=3 * MIB, output_bytes=4 * MIB)


def samples() -> Iterator[tuple[str, Graph]]:
    """Steps of many kinds: on a thread, on a stream, with several workers, with several iterations."""
    yield "cpu", cpu_step([*LAYERS, WIDE], data_ns=400_000)
    yield "gpu", gpu_step(LAYERS, copy_ns=2000)
    yield "gpu, parallel", data_parallel(gpu_step(LAYERS), num_ranks=4)
    yield "cpu, parallel", published(data_parallel(cpu_step(LAYERS), num_cores=1))
    yield "cpu, twice", cpu_step(LAYERS, data_ns=400_000, gap_ns=7).concat(2)


def captured() -> Iterator[tuple[str, Graph]]:
    """Steps that really ran, with all their operators."""
    from tests.sources.watched import watched
    from windtunnel.sources.targets import WorkloadName, build_workload

    for name, parameters in CAPTURES.items():
        yield f"captured {name}", WorkloadName(name, parameters).capture(2, None)
    built = build_workload("mlp", CAPTURES["mlp"])
    zeros = watched(built.step, built.models, [1]).summary()
    yield (
        "captured mlp with zeros",
        WorkloadName("mlp", CAPTURES["mlp"]).capture(2, None).with_meta(own={"zeros": zeros}),
    )


CAPTURES: dict[str, dict[str, int]] = {
    "mlp": {"batch_size": 8, "width": 32, "depth": 2},
    "cnn": {"batch_size": 2},
    "transformer": {"batch_size": 2, "length": 16, "width": 32, "depth": 2, "vocabulary": 100},
}
MEASURE_ONCE = pricer_of(":memory:", budget_s=0.01)


@functools.cache
def all_samples() -> dict[str, Graph]:
    """Made when the first test wants them: whoever collects tests wants none."""
    return dict(samples()) | (dict(captured()) if importlib.util.find_spec("torch") else {})


def price(needs, is_run):
    """Operators and updates really run, once each; what needs other processes costs a millisecond."""
    alone = [need for need in needs if not isinstance(need, AveragingNeed | ReducingNeed)]
    return {**MEASURE_ONCE(alone, is_run), **{need: 10**6 for need in needs if need not in alone}}


def attempt(name: str, graph: Graph) -> Graph | WindtunnelError:
    """Apply a what-if, or say why not."""
    try:
        return apply(graph, parse_request(name), pricer=price)
    except WindtunnelError as error:
        return error


@functools.cache
def outcomes(name: str) -> dict[str, Graph | WindtunnelError]:
    """What comes of each sample."""
    return {sample: attempt(name, graph) for sample, graph in all_samples().items()}


def applicable(name: str) -> list[Graph]:
    """The samples to which it applies."""
    return [all_samples()[sample] for sample, outcome in outcomes(name).items() if isinstance(outcome, Graph)]


def contract_of(name: str) -> type:
    """The contract that every what-if inherits, on the samples to which it applies."""
    methods = {"graphs": lambda _: applicable(name), "price": lambda _, needs, is_run: price(needs, is_run)}
    return type(f"Test {name}", (WhatIfContract,), {"name": name, "prices": "auto", **methods})


globals().update({f"Test_{name}": contract_of(name) for name in NAMES})


@pytest.mark.parametrize("name", NAMES)
class TestEveryRegistration:
    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(graph=graphs())
    def test_makes_of_any_graph_a_valid_one_or_says_why_not(self, name, graph):
        outcome = attempt(name, graph)

        assert outcome.message if isinstance(outcome, WindtunnelError) else outcome.validate().num_tasks >= 0

    def test_says_in_words_why_it_does_not_apply(self, name):
        reasons = [outcome for outcome in outcomes(name).values() if isinstance(outcome, WindtunnelError)]

        assert all(len(reason.message) > 10 for reason in reasons)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")
def test_no_capture_lacks_what_a_what_if_asks_of_it():
    """A what-if may have nothing to act on; a step that was captured here says all that is known of this host."""
    lacking = {
        (name, sample): str(one)
        for name in NAMES
        for sample, one in outcomes(name).items()
        if "captured" in sample and "not recorded" in str(one)
    }

    assert {} == lacking
    assert {"captured mlp", "captured cnn", "captured transformer"} <= {
        sample for sample, outcome in outcomes("data-parallel").items() if isinstance(outcome, Graph)
    }
