"""Graphs priced as compiled programs: the fastest program of each task, against its bound."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from benchmarks.peers.network import chain

from tests.systems.tensor_programs.model.small_set import small_set
from windtunnel.cost import price
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.pricing import AUTO, tiers_of
from windtunnel.errors import PriceError
from windtunnel.graph import GraphBuilder, ResourceKind, Strings
from windtunnel.hardware import Device
from windtunnel.simulate import replay
from windtunnel.systems.tensor_programs.model.predictor import shrinkage
from windtunnel.systems.tensor_programs.pricer import AstPricer, ast, cold_s
from windtunnel.systems.tensor_programs.run.captured import TENSOR
from windtunnel.systems.tensor_programs.run.tasks import Task

TASKS = (
    Task("matmul", {"m": 32, "n": 64, "k": 128}, ("bias",)),
    Task("elementwise", {"b": 1, "c": 64, "s": 4096}, ("relu",)),
)
CHIP = Device("toy", 2**30, 1e10, {"fp32": 1e11}, kind="cpu", num_threads=2, simd_bits=256)


class Formula:
    """Seconds that follow from a program's first statement alone."""

    header: ClassVar = {
        "intervals": ConformalIntervals.fit(["matmul"] * 50, np.log(np.linspace(0.8, 1.25, 50)), level=0.9).to_dict()
    }

    def predict(self, programs, samples):
        assert [device["name"] for device in programs.devices] == ["toy"]
        assert np.isnan(programs.mean_s).all() or programs.mean_s.shape[1] != 1
        return 1e-6 * (1.0 + programs.features[programs.leaf_offset[samples[:, 0]]].astype(float).sum(axis=1))


def library():
    programs = small_set(num_tasks=2, per_task=3)
    flops = np.array([TASKS[task].flops for task in programs.task])
    return replace(programs, tasks=tuple(task.to_dict() for task in TASKS), flops=flops)


def test_a_task_takes_as_long_as_the_fastest_of_its_programs():
    pricer = AstPricer(Formula(), library())
    graph = price(chain([TASKS[0], TASKS[1], TASKS[0]], call_ns=1000), CHIP, [pricer])

    computing = graph.duration_ns[graph.duration_ns != 1000].tolist()
    row, seconds = pricer.choose([TASKS[0].name], pricer.sheet(CHIP))[TASKS[0].name]
    arriving_s = TASKS[0].size_bytes / 1e10  # no cache of a core holds the whole chain
    assert computing[0] == computing[2] == round(1e9 * (seconds + arriving_s))
    assert library().task[row] == 0
    assert replay(graph).makespan_ns == sum(computing) + 3000


@pytest.mark.parametrize(("spread", "error"), [(0.8, 0.3), (0.3, 0.3), (0.1, 0.3)])
def test_the_least_of_many_predictions_is_not_too_low(spread, error):
    generator = np.random.default_rng(0)
    tasks = [Task("matmul", {"m": 8 + number, "n": 8, "k": 8}) for number in range(60)]
    programs = small_set(num_tasks=60, per_task=32)
    programs = replace(programs, tasks=tuple(task.to_dict() for task in tasks))
    truth = np.exp(generator.normal(0, spread, programs.num_programs))
    predicted = truth * np.exp(generator.normal(0, error, programs.num_programs))

    class Noisy:
        header: ClassVar = {"shrinkage": shrinkage(np.log(predicted), np.log(truth), programs.task)}

        def predict(self, _, samples):
            return predicted[samples[:, 0]]

    sheet = AstPricer(Formula(), programs).sheet(CHIP)
    bias = []
    for header in (Noisy.header, {}):
        Noisy.header = header
        # rows of the selection are those of the library, for tasks stand one after another
        chosen = AstPricer(Noisy(), programs).choose([task.name for task in tasks], sheet)
        bias.append(np.mean([np.log(seconds / truth[row]) for row, seconds in chosen.values()]))
    assert abs(bias[0]) < 0.08
    assert bias[1] < -0.15


def test_a_prediction_without_noise_keeps_all_of_its_gain_and_small_groups_say_nothing():
    logs, group = np.random.default_rng(1).normal(size=64), np.repeat(np.arange(4), 16)

    assert shrinkage(logs, logs, group) == pytest.approx(1.0)
    assert shrinkage(logs, np.zeros(64) + logs.mean(), group) < 0.3
    assert shrinkage(logs, logs + 0.2 * group, group) == pytest.approx(1.0)  # whole groups are off, no choice was luck
    assert shrinkage(logs[:6], -logs[:6], group[:6]) == 1.0


def test_a_graph_that_no_cache_holds_waits_for_its_tensors():
    near = Task("matmul", {"m": 512, "n": 512, "k": 512})  # 3 MiB
    streams = {"bandwidth_bytes_per_s": 1e10, "cache_bandwidth_bytes_per_s": 4e10, "last_cache_bytes": 2**25}
    sheet = streams | {"page_bandwidth_bytes_per_s": 5e9, "cache_page_bandwidth_bytes_per_s": 3e10}
    own, rest = 2**21, near.size_bytes - 2**21

    assert cold_s(near, sheet, own) == 0
    assert cold_s(near, sheet, 2**25) == pytest.approx(own / 3e10)
    half = own * (0.5 / 5e9 + 0.5 / 3e10) + rest * 0.5 * (1 / 1e10 - 1 / 4e10)  # half is still in the shared cache
    assert cold_s(near, sheet, 2**26) == pytest.approx(half)
    assert cold_s(near, sheet, 2**55) == pytest.approx(own / 5e9 + rest * (1 / 1e10 - 1 / 4e10))
    smaller = sheet | {"cache_bytes": {"l2": own // 2}}
    expected = own / 2 / 5e9 + (rest + own / 2) * (1 / 1e10 - 1 / 4e10)
    assert cold_s(near, smaller, 2**55) == pytest.approx(expected)
    assert cold_s(near, streams, 2**55) == pytest.approx(own / 1e10 + rest * (1 / 1e10 - 1 / 4e10))
    assert cold_s(near, {"bandwidth_bytes_per_s": 1e10}, 2**26) == pytest.approx(own / 1e10)


def test_what_others_put_into_a_shared_cache_takes_from_what_a_step_finds_there():
    near = Task("matmul", {"m": 256, "n": 256, "k": 256})
    sheet = {"bandwidth_bytes_per_s": 1e10, "cache_bandwidth_bytes_per_s": 4e10, "last_cache_bytes": 2**25}
    shared = sheet | {"others_bandwidth_bytes_per_s": 2**33}

    assert cold_s(near, shared, 2**24, step_s=0.0) == cold_s(near, sheet, 2**24, step_s=1.0)
    assert cold_s(near, shared, 2**24, step_s=2**-9) == cold_s(near, sheet, 2**25)  # 16 MiB in 2 ms
    assert cold_s(near, shared, 2**24, step_s=6 * 2**-10) == pytest.approx(cold_s(near, sheet, 2**26))


def test_a_price_is_an_efficiency_with_an_interval():
    graph = price(chain([TASKS[0]], call_ns=10), CHIP, [AstPricer(Formula(), library())])
    low, mean, high = (graph.tasks[name][1] for name in ("efficiency_low", "efficiency", "efficiency_high"))

    assert low < mean < high
    bound_ns = 1e9 * max(TASKS[0].flops / 1e11, TASKS[0].size_bytes / 1e10)
    assert graph.duration_ns[1] == pytest.approx(bound_ns / mean, abs=1)
    assert graph.tasks.strings("cost_source").to_numpy()[1] == "ast"


def test_what_torch_called_is_priced_as_the_same_task():
    graph = chain([TASKS[0]], call_ns=10)
    captured = {
        "input_shapes": "[[64], [32, 128], [128, 64], [], []]",
        "input_strides": "[[1], [128, 1], [64, 1], [], []]",
        "input_args": "[null, null, null, 1, 1]",
    }
    builder = GraphBuilder()
    thread = builder.resource("thread", ResourceKind.HOST_THREAD)
    builder.task("addmm", resource=thread, duration_ns=5, op="aten::addmm", flops=round(TASKS[0].flops), bytes_read=1)
    called = builder.build().with_columns(**{name: Strings.of([text]) for name, text in captured.items()})
    pricer = AstPricer(Formula(), library())

    mine, compiled = price(called, CHIP, [pricer]), price(graph, CHIP, [pricer])
    assert mine.duration_ns[0] == compiled.duration_ns[1]


def test_a_task_outside_of_the_library_is_named_with_its_share():
    other = Task("softmax", {"m": 8, "n": 8})
    with pytest.raises(PriceError, match="1 of 1 tasks"):
        price(chain([other], call_ns=10), CHIP, [AstPricer(Formula(), library())])


def test_it_prices_a_compilers_code_only_where_it_is_asked_for():
    names = [pricer.name for tier in tiers_of(AUTO) for pricer in tier]
    assert "ast" not in names
    assert ast().name == "ast"


def test_a_gpu_has_no_sheet_for_it():
    chip = Device("gpu", 2**30, 1e12, {"fp32": 1e13})
    pricer = AstPricer(Formula(), library())
    assert pricer.sheet(chip) is None


def test_a_chain_keeps_what_a_task_is():
    graph = chain(TASKS, call_ns=7)
    texts = graph.tasks.strings("input_args").to_numpy()
    assert [Task.from_dict(json.loads(text)) for text in texts if text] == list(TASKS)
    assert graph.tasks.strings("op").to_numpy()[1] == f"{TENSOR}matmul"
