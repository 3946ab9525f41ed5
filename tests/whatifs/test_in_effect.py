"""What a program does already is not predicted; it is said, with the request that undoes it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.whatifs.steps import Layer, cpu_step, gpu_step
from windtunnel.cost.rerun import program_of
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.simulate import replay
from windtunnel.whatifs import whatif
from windtunnel.whatifs.answer import Answer, Status
from windtunnel.whatifs.data_parallel import data_parallel

torch = pytest.importorskip("torch", reason="needs the extra torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # noqa: E402

from windtunnel.sources.torch.step import capture  # noqa: E402

LAYERS = [Layer("a", output_bytes=1000), Layer("b", output_bytes=1000)]


class Block(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.second = torch.nn.LayerNorm(2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def inner(self, x):
        return torch.tanh(self.up(self.first(x)))

    def forward(self, x):
        return x + self.down(self.second(self.inner(x)))


class Net(torch.nn.Module):
    """Four equal blocks, run as ``run(block, inputs)``."""

    def __init__(self, run):
        super().__init__()
        self.enter = torch.nn.Linear(8, 16)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))
        self.run = run

    def forward(self, x):
        x = self.enter(x)
        for number, block in enumerate(self.blocks):
            x = self.run(number, block, x)
        return x


def again(number, block, x):
    return checkpoint(block, x, use_reentrant=False)


def again_reentrant(number, block, x):
    return checkpoint(block, x, use_reentrant=True)


def again_by_turns(number, block, x):
    return block(x) if number % 2 else checkpoint(block, x, use_reentrant=False)


def again_inside(number, block, x):
    return x + block.down(block.second(checkpoint(block.inner, x, use_reentrant=False)))


def once(number, block, x):
    return block(x)


def captured(model, *, passes=1, optimizer=None, inputs=None, autocast=False) -> Graph:
    """Two iterations of a small training step."""
    torch.manual_seed(0)
    updater = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(4, 8) if inputs is None else inputs

    def step():
        for _ in range(passes):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                output = model(inputs)
            output.float().square().mean().backward()
        updater.step()
        updater.zero_grad()

    return capture(step, iterations=2, warmup=2)


def asked(graph: Graph, request: str) -> Answer:
    """What comes of a request, with prices that are measured for a moment."""
    return whatif(graph, [request], database=":memory:", budget_s=0.01)[0]


@pytest.mark.parametrize("run", [again, again_reentrant])
def test_a_program_that_checkpoints_is_not_told_to(run):
    graph = captured(Net(run))

    answer = asked(graph, "activation-checkpointing")

    assert answer.status is Status.IN_EFFECT
    assert answer.reverse == "no-activation-checkpointing"
    assert 4 == len(program_of(graph).recomputed)


@pytest.mark.parametrize("run", [again, again_reentrant, again_by_turns, again_inside])
def test_the_reverse_saves_what_is_computed_again_and_no_more(run):
    graph = captured(Net(run))
    recomputed = graph.tasks["is_recomputed"]

    answer = asked(graph, "no-activation-checkpointing")

    saved_ns = graph.duration_ns[recomputed].sum()
    assert answer.status is Status.PREDICTED
    assert replay(graph).makespan_ns - saved_ns == pytest.approx(answer.predicted_ns, abs=2)
    assert {Phase.BACKWARD} == {Phase(phase) for phase in graph.tasks["phase"][recomputed].tolist()}


@pytest.mark.parametrize(("run", "layers"), [(again, 4), (again_reentrant, 4), (again_by_turns, 2), (again_inside, 4)])
def test_work_that_runs_again_is_found_with_its_calls(run, layers):
    graph = captured(Net(run))
    names = graph.tasks.strings("layer")
    products = graph.select(op="aten::addmm", kind=Kind.COMPUTE) & graph.tasks["is_recomputed"]

    upper = [names.decode(row) for row in np.flatnonzero(products) if names.decode(row).endswith(".up")]
    ranges = program_of(graph).recomputed

    assert layers == len(upper) == len(set(upper)) == len(ranges)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(ranges))


def test_a_step_that_computes_nothing_again_has_nothing_to_keep():
    graph = captured(Net(once))

    assert "is_recomputed" not in graph.tasks
    assert asked(graph, "no-activation-checkpointing").status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("run", [once, again_by_turns, again_inside])
def test_checkpointing_never_makes_a_step_faster_or_a_cycle(run):
    answer = asked(captured(Net(run)), "activation-checkpointing")

    assert answer.status is Status.PREDICTED or run is again_inside
    assert not answer.speedup > 1.0
    assert answer.graph.validate()


def test_checkpoints_over_several_passes_make_no_cycle():
    for run in (once, again_by_turns):
        answer = asked(captured(Net(run), passes=2), "activation-checkpointing")

        assert answer.status is Status.PREDICTED
        assert answer.graph.validate()


def test_a_sequence_of_blocks_is_checkpointed_but_for_its_last_part():
    class Sequence(Net):
        def forward(self, x):
            return checkpoint_sequential(list(self.blocks), 2, self.enter(x), use_reentrant=False)

    ((first, last),) = program_of(captured(Sequence(once))).recomputed
    program = program_of(captured(Sequence(once)))

    assert program.calls[first].layer.startswith("blocks.0")
    assert program.calls[last - 1].layer.startswith("blocks.1")


def test_passes_that_accumulate_already_are_counted():
    graph = captured(Net(once), passes=4)

    assert "4 passes accumulate" in asked(graph, "gradient-accumulation").reason
    assert asked(graph, "gradient-accumulation:passes=4").status is Status.IN_EFFECT
    assert 2 == asked(graph, "gradient-accumulation:passes=8").samples_ratio


def test_accumulation_gains_at_most_what_runs_once_per_update():
    answer = asked(captured(Net(once)), "gradient-accumulation:passes=3")

    assert answer.status is Status.PREDICTED
    assert answer.speedup <= answer.limits.max_speedup * 1.011


@pytest.mark.parametrize(("options", "name"), [({"fused": True}, "fused"), ({"foreach": True}, "foreach")])
def test_an_optimizer_that_is_implemented_so_already(options, name):
    model = Net(once)
    graph = captured(model, optimizer=torch.optim.AdamW(model.parameters(), **options))

    assert asked(graph, f"{name}-optimizer").status is Status.IN_EFFECT


def test_a_model_that_runs_under_autocast_already():
    assert asked(captured(Net(once), autocast=True), "amp").status is Status.IN_EFFECT
    assert asked(captured(Net(once)), "amp").status is Status.PREDICTED


@pytest.mark.parametrize(("layout", "status"), [("channels_last", Status.IN_EFFECT), ("contiguous_format", None)])
def test_images_that_lie_with_their_channels_innermost_already(layout, status):
    format_ = getattr(torch, layout)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3)).to(
        memory_format=format_
    )
    graph = captured(model, inputs=torch.randn(2, 3, 8, 8).contiguous(memory_format=format_))

    answer = asked(graph, "channels-last")

    assert answer.status is (status or Status.PREDICTED)


def test_the_number_of_threads_that_the_capture_had():
    assert asked(captured(Net(once)), f"threads:threads={torch.get_num_threads()}").status is Status.IN_EFFECT


def test_updates_that_run_within_the_backward_pass_already():
    model = Net(once)
    updaters = {parameter: torch.optim.SGD([parameter], lr=0.01, foreach=False) for parameter in model.parameters()}

    def update(parameter):
        updaters[parameter].step()
        updaters[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    inputs = torch.randn(4, 8)

    def step():
        F.relu(model(inputs)).mean().backward()

    graph = capture(step, iterations=2, warmup=2)

    assert asked(graph, "optimizer-in-backward").status is not Status.PREDICTED


def test_frozen_layers_are_frozen():
    model = Net(once)
    model.enter.requires_grad_(False)

    assert asked(captured(model), "freeze-layers:layer=enter").status is Status.IN_EFFECT


def test_a_job_of_several_workers_is_distributed_already():
    parallel = data_parallel(gpu_step(LAYERS), num_ranks=4)

    assert asked(parallel, "data-parallel").status is Status.IN_EFFECT


def test_a_loader_that_has_workers_gets_more_only_where_there_are_more_cores():
    two = cpu_step(LAYERS, data_ns=400_000, meta={"loader": {"num_workers": 2}, "hardware": {"num_cores": 16}})
    loads = two.with_columns(op=two.tasks.strings("op").assign(np.flatnonzero(two.select(phase=Phase.DATA)), "load"))

    assert asked(loads, "loader-workers").status is Status.IN_EFFECT
    assert asked(loads, "prefetch").status is Status.IN_EFFECT
    assert 200_660 == asked(loads, "loader-workers:num_workers=4").predicted_ns
    assert "no free core" in asked(loads, "loader-workers:num_workers=4,num_cores=3").reason


def test_a_trace_that_waits_for_workers_has_workers():
    traced = cpu_step(LAYERS, data_ns=400_000)
    rows = np.flatnonzero(traced.select(phase=Phase.DATA))
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

    answer = asked(traced.with_columns(name=traced.tasks.strings("name").assign(rows, name)), "loader-workers")

    assert answer.status is Status.IN_EFFECT
    assert not answer.advice
