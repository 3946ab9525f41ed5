"""What-ifs about operators: edits that can be worked out by hand, and prices that come from partial flights."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.cost.rerun.programs import perceptron_graph
from tests.whatifs.prices import measured, published
from tests.whatifs.steps import Layer, cpu_step, gpu_step
from windtunnel.cost.rerun import Ratios
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.simulate import replay
from windtunnel.whatifs import whatif
from windtunnel.whatifs.amp import amp
from windtunnel.whatifs.batch import batch_size, gradient_accumulation
from windtunnel.whatifs.block_patterns import block_ranges
from windtunnel.whatifs.checkpointing import activation_checkpointing
from windtunnel.whatifs.compilation import compile_block
from windtunnel.whatifs.freezing import freeze_layers
from windtunnel.whatifs.fusion import fuse_kernels
from windtunnel.whatifs.insert_tasks import insert_ahead
from windtunnel.whatifs.layers import metaflow
from windtunnel.whatifs.layout import channels_last
from windtunnel.whatifs.measured import apply_ratios, require_program, update_steps
from windtunnel.whatifs.normalization import reconstructed_batchnorm
from windtunnel.whatifs.optimizers import foreach_optimizer, fused_optimizer
from windtunnel.whatifs.pauses import allocator_warmup, gc_pauses
from windtunnel.whatifs.threads import threads


def line(*tasks: tuple[str, int], kind: Kind = Kind.COMPUTE, meta: dict | None = None, **columns: list) -> Graph:
    """Tasks one after the other on a thread, each reading what the one before wrote."""
    builder = GraphBuilder()
    cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)
    rows = [
        builder.task(
            name,
            kind=kind,
            resource=cpu,
            duration_ns=duration_ns,
            op=name,
            **{key: columns[key][at] for key in columns},
        )
        for at, (name, duration_ns) in enumerate(tasks)
    ]
    for src, dst in itertools.pairwise(rows):
        builder.edge(src, dst, kind=EdgeKind.ORDER)
        builder.edge(src, dst, kind=EdgeKind.DATA, size_bytes=100)
    return builder.build(meta)


def factor_of(graph: Graph, changed: Graph, **criteria) -> float:
    """New over old duration of the selected tasks."""
    chosen = graph.select(**criteria)
    return float(changed.duration_ns[chosen].sum() / graph.duration_ns[chosen].sum())


def sources_of(graph, **conditions):
    """Where the durations of the selected tasks came from."""
    return set(graph.tasks.strings("cost_source").to_numpy()[graph.select(**conditions)])


# --- published ratios -------------------------------------------------------------------------------------


def test_published_amp_divides_products_by_three_and_other_kernels_by_two():
    graph = gpu_step([Layer("a", forward_ns=600, backward_ns=600, update_ns=600)])
    named = graph.with_columns(op=["sgemm" if row == 1 else "other" for row in range(graph.num_tasks)])
    changed = published(amp(named))
    kernels = named.select(kind=Kind.COMPUTE)

    assert [200, 300, 300] == changed.duration_ns[kernels].tolist()
    assert named.duration_ns[~kernels].tolist() == changed.duration_ns[~kernels].tolist()


def test_published_amp_on_a_known_gpu_goes_by_the_peaks_of_its_types_and_leaves_updates():
    names = iter(["ampere_sgemm_128x64", "sm80_xmma_gemm_tf32f32", "dgrad2d_c1_k1", "multi_tensor_apply"])
    long_ns = 14_800_000_000  # long kernels reach what their type does
    layers = [Layer("a", long_ns, long_ns), Layer("b", long_ns, long_ns, 14_800)]
    graph = gpu_step(layers)
    kernels = np.flatnonzero(graph.select(kind=Kind.COMPUTE))
    texts = graph.tasks.strings("name").assign(kernels, "sgemm_f16s16816")
    for row, name in zip([*kernels[:3], *np.flatnonzero(graph.select(kind=Kind.COMPUTE, phase=Phase.UPDATE))], names,
                         strict=False):  # fmt: skip
        texts = texts.assign([row], name)
    chip = {"devices": [{"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_017_493_504}]}
    named = graph.with_columns(name=texts).with_meta(hardware=chip)
    ratio = published(amp(named)).duration_ns / np.maximum(named.duration_ns, 1)

    assert [67 / 989.5, 0.65 * 494.5 / 989.5, 0.5, 1.0] == pytest.approx(ratio[kernels[:4]].tolist(), abs=1e-4)
    assert 1.0 == ratio[graph.select(kind=Kind.COMPUTE, phase=Phase.UPDATE)].min()


def test_published_amp_gains_nothing_where_launching_is_the_bottleneck():
    graph = gpu_step([Layer("a", 10, 10, 10)] * 3, launch_ns=1000)

    assert replay(graph).makespan_ns - 5 <= replay(published(amp(graph))).makespan_ns


def test_one_published_update_is_as_long_as_all_it_replaces():
    graph = gpu_step([Layer(name, update_ns=30) for name in "abc"], launch_ns=500)
    changed = published(fused_optimizer(graph))
    updates = changed.select(phase=Phase.UPDATE)

    assert 90 == changed.duration_ns[updates & changed.select(kind=Kind.COMPUTE)].sum()
    assert 1 == (updates & changed.select(kind=Kind.COMPUTE)).sum()
    assert 1 == (updates & changed.select(kind=Kind.HOST)).sum()
    assert 7 * 500 + 5 + 90 == replay(changed).makespan_ns


def test_a_fused_update_on_a_device_takes_the_counters_that_the_host_kept():
    """Each launch waits for its counter, and the next counter for that launch: two tasks would wait for each other."""
    graph = gpu_step([Layer(name, update_ns=30) for name in "abc"], launch_ns=500)
    counter = {"name": "count", "kind": int(Kind.COMPUTE), "phase": int(Phase.UPDATE), "duration_ns": 7}
    counted, _ = insert_ahead(graph, np.flatnonzero(graph.select(name="launch update")), counter)
    changed = published(fused_optimizer(counted))

    assert [90] == changed.duration_ns[changed.select(phase=Phase.UPDATE, kind=Kind.COMPUTE)].tolist()
    assert replay(counted).makespan_ns > replay(changed).makespan_ns


def test_two_optimizers_keep_two_updates():
    """A GAN updates its two models at different times: fusing them into one would be wrong."""
    graph = line(
        *[(name, 10) for name in ("up", "up", "forward", "up", "up")],
        phase=[Phase.UPDATE, Phase.UPDATE, Phase.FORWARD, Phase.UPDATE, Phase.UPDATE],
    )
    changed = published(foreach_optimizer(graph))

    assert 2 == changed.select(phase=Phase.UPDATE).sum()
    assert replay(graph).makespan_ns == replay(changed).makespan_ns


def test_reconstructed_norms_take_half_and_their_relu_goes():
    graph = line(("conv", 100), ("batch_norm", 40), ("relu", 20), ("conv", 100), ("relu", 20))
    changed = published(reconstructed_batchnorm(graph))

    assert ["conv", "batch_norm", "conv", "relu"] == changed.tasks.strings("name").to_numpy().tolist()
    assert [100, 20, 100, 20] == changed.duration_ns.tolist()


def test_replaced_layers_go_or_are_scaled():
    graph = cpu_step([Layer("a", 100, 200, 30), Layer("b", 100, 200, 30)])

    assert 300 == replay(graph).makespan_ns - replay(metaflow(graph, layer="a")).makespan_ns
    assert 150 == replay(graph).makespan_ns - replay(metaflow(graph, layer="a", factor=0.5)).makespan_ns


def test_a_warm_allocator_asks_the_driver_for_nothing():
    graph = line(("cudaMalloc", 900), ("kernel", 10), ("cudaFree", 90), ("hipHostMalloc", 5), ("cuMemMap", 5))

    assert 10 == replay(allocator_warmup(graph)).makespan_ns


# --- edits by hand ----------------------------------------------------------------------------------------


def test_fused_kernels_move_no_bytes_between_each_other():
    """Each moves 200 bytes, 100 of them from or to its neighbor: of 600 bytes 200 are left."""
    graph = line(("add", 30), ("mul", 30), ("relu", 30), ("conv", 100), bytes_read=[100] * 4, bytes_written=[100] * 4)
    changed = fuse_kernels(graph)

    assert ["relu", "conv"] == changed.tasks.strings("name").to_numpy().tolist()
    assert [15 + 0 + 15, 100] == changed.duration_ns.tolist()


def test_a_result_that_others_read_too_is_written_all_the_same():
    graph = line(("add", 30), ("conv", 30), ("mul", 30), bytes_read=[100] * 3, bytes_written=[100] * 3)
    shared = graph.connect([0], [2], EdgeKind.DATA, size_bytes=100)
    with pytest.raises(NotApplicableError, match="feed each other"):
        fuse_kernels(shared)


def held_line(*tasks, reads=()):
    """Operators of 10 ns in program order, each with the bytes of its result; pairs (result, reader)."""
    builder = GraphBuilder()
    cpu = builder.resource("main thread", ResourceKind.HOST_THREAD)
    rows = [
        builder.task(
            name, op=name, kind=Kind.COMPUTE, resource=cpu, duration_ns=10, output_bytes=size, freed_bytes=0,
            phase=Phase.FORWARD,
        )
        for name, size in tasks
    ]  # fmt: skip
    for src, dst in itertools.pairwise(rows):
        builder.edge(src, dst, kind=EdgeKind.ORDER)
    for src, dst in reads:
        builder.edge(src, dst, kind=EdgeKind.DATA, size_bytes=tasks[src][1])
    return builder.build()


def test_what_a_fused_chain_passes_on_is_not_held():
    """What the addition frees is not held for the convolution behind it, either, and what it passes on never."""
    graph = held_line(("conv", 100), ("add", 100), ("relu", 100), ("conv", 100), reads=[(0, 1), (1, 2), (2, 3)])
    fused = fuse_kernels(graph)

    assert ["conv", "relu", "conv"] == fused.tasks.strings("name").to_numpy().tolist()
    assert [100, 100, 100] == fused.tasks["output_bytes"].tolist()
    assert (200, 200) == tuple(replay(one).memory().peak_bytes for one in (graph, fused))


def test_what_only_ran_before_a_fused_task_is_not_held_for_it():
    graph = held_line(("conv", 500), ("add", 100), ("conv", 500), ("relu", 100), reads=[(1, 3)])
    fused = fuse_kernels(graph)

    assert ["conv", "conv", "relu"] == fused.tasks.strings("name").to_numpy().tolist()
    assert replay(fused).memory().peak_bytes <= replay(graph).memory().peak_bytes


def test_operators_are_not_fused_where_that_holds_more_memory():
    """Inputs of 300 bytes go with the addition now; fused with what runs later, both would be held until then."""
    reads = [(0, 2), (1, 2), (2, 4), (3, 5), (4, 5)]
    apart = held_line(
        ("conv", 150), ("conv", 150), ("add", 100), ("conv", 900), ("relu", 100), ("conv", 1), reads=reads
    )
    adjacent = held_line(("conv", 150), ("conv", 150), ("add", 100), ("relu", 100), reads=[(0, 2), (1, 2), (2, 3)])

    with pytest.raises(NotApplicableError, match="more memory"):
        fuse_kernels(apart)
    assert 400 == replay(fuse_kernels(adjacent)).memory().peak_bytes == replay(adjacent).memory().peak_bytes


def test_sums_of_gradients_of_several_passes_are_not_fused():
    """The gradient of a pass would be held until the next pass, although another operator is its last reader now."""
    reads = [(0, 1), (0, 2), (1, 4), (3, 4)]
    graph = held_line(("conv", 500), ("add", 0), ("norm", 8), ("conv", 500), ("add", 0), reads=reads)

    with pytest.raises(NotApplicableError, match="more memory"):
        fuse_kernels(graph)


def test_the_collectors_pauses_go_from_the_host():
    graph = line(("python", 100_000), ("python", 300_000), kind=Kind.HOST, meta={"gc_pause_ns": 40_000})

    assert [90_000, 270_000] == gc_pauses(graph).duration_ns.tolist()
    with pytest.raises(NotApplicableError, match="next to nothing"):
        gc_pauses(graph.note({"gc_pause_ns": 10}))


# --- ratios of partial flights ------------------------------------------------------------------------------


def test_ratios_change_the_calls_that_they_belong_to_and_nothing_else():
    graph = perceptron_graph()
    bytes_ratio = np.array([0.5, 1, 1, 1, 1, 1])
    ratios = Ratios(np.array([2.0, 1, 1, 1, 1, 1]), np.array([1, 0.5, 1, 1, 1, 1]), bytes_ratio, 500 / 400, 350 / 400)
    changed = apply_ratios(graph, ratios)
    touched = changed.duration_ns != graph.duration_ns

    assert [200, 50] == changed.duration_ns[touched].tolist()
    assert {"measured:partial"} == set(changed.tasks.strings("cost_source").to_numpy()[touched])
    assert 3500 == changed.tasks["output_bytes"].sum()
    assert 3500 == changed.tasks["freed_bytes"].sum()


def test_the_ratio_of_a_whole_pass_is_kept_whatever_its_calls_weigh_in_the_step():
    graph = perceptron_graph()
    ratios = Ratios(np.array([2.0, 1, 1, 1, 1, 1]), np.ones(6), np.ones(6), forward_total=1.5)
    chosen = graph.select(name="aten::forward")

    assert 600 == apply_ratios(graph, ratios).duration_ns[chosen].sum()


def test_what_the_engine_does_before_a_node_takes_the_ratio_of_that_node():
    """A backward pass that is run again is timed as a whole, with what lies between its nodes."""
    graph = perceptron_graph()
    call, backward = graph.tasks["call"].copy(), graph.select(phase=Phase.BACKWARD)
    call[backward & (call == 2)] = -1
    ratios = Ratios(np.ones(6), np.array([1, 3.0, 1, 1, 1, 1]), np.ones(6), backward_total=float("nan"))

    assert [100, 300, 300, 100] == apply_ratios(graph.with_columns(call=call), ratios).duration_ns[backward].tolist()


def test_a_forward_pass_that_was_held_up_between_its_operators_changes_by_as_much_time_as_when_it_ran_again():
    graph = perceptron_graph()  # 400 ns forward, 400 ns backward
    forward, ones = graph.select(name="aten::forward"), np.ones(6)

    def forward_ns(total: float, old_forward_ns: float, old_backward_ns: float) -> int:
        times = {"old_forward_ns": old_forward_ns, "old_backward_ns": old_backward_ns}
        ratios = Ratios(total * ones, ones, ones, forward_total=total, **times)
        return int(apply_ratios(graph, ratios).duration_ns[forward].sum())

    assert 400 + 400 == forward_ns(1.5, 800, 400)  # from 800 to 1200 ns
    assert 400 // 4 == forward_ns(0.5, 800, 400)
    assert 600 == forward_ns(1.5, 800, 800)  # all of it ran at half the pace
    assert 600 == forward_ns(1.5, 400, 200) == forward_ns(1.5, 0, 400)


def test_the_work_of_an_update_is_that_of_the_optimizer_alone():
    graph = perceptron_graph()

    assert ["Optimizer.step#SGD.step", "aten::add_", "aten::add_"] == (
        graph.tasks.strings("name").to_numpy()[update_steps(graph)].tolist()
    )


def test_blocks_are_uninterrupted_ranges_of_calls():
    program = require_program(perceptron_graph())

    assert ((0, 1), (2, 3)) == block_ranges(program, "")
    assert ((0, 3),) == block_ranges(program, "[0-9]")[:1] or ((0, 1), (1, 2), (2, 3)) == block_ranges(program, "[0-9]")
    with pytest.raises(NotApplicableError, match="no block matches"):
        block_ranges(program, "nothing")
    with pytest.raises(InputError, match="no regular expression"):
        block_ranges(program, "(")


class TestFlown:
    """Each needs torch and really runs the operators, for a moment."""

    @pytest.fixture(autouse=True)
    def _torch(self):
        pytest.importorskip("torch")

    def test_python_and_updates_keep_their_time_under_autocast(self):
        graph = perceptron_graph()
        changed = measured(amp(graph))

        assert 1.0 == factor_of(graph, changed, name="python")
        assert 1.0 == factor_of(graph, changed, phase=Phase.UPDATE)
        assert changed.tasks["output_bytes"].sum() < graph.tasks["output_bytes"].sum()

    def test_accumulation_repeats_all_but_the_update(self):
        graph = perceptron_graph()
        changed = measured(gradient_accumulation(graph, passes=3))

        assert 3.0 == factor_of(graph, changed, phase=Phase.FORWARD)
        assert 1.0 == factor_of(graph, changed, phase=Phase.UPDATE)
        assert 3.0 == changed.meta.samples_ratio

    def test_a_larger_batch_trains_on_more_samples_and_keeps_more(self):
        graph = perceptron_graph()
        changed = measured(batch_size(graph, factor=2.0))

        assert 2.0 == changed.meta.samples_ratio
        assert changed.tasks["output_bytes"].sum() > 1.5 * graph.tasks["output_bytes"].sum()

    def test_frozen_layers_need_neither_gradients_nor_updates(self):
        """The update is measured with all 256 * 256 + ... parameters, and with those of the last layer alone."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        graph, stepped = perceptron_graph(width=256), set()
        watch = register_optimizer_step_pre_hook(
            lambda optimizer, *_: stepped.add(sum(one.numel() for one in optimizer.param_groups[0]["params"]))
        )
        changed = measured(freeze_layers(graph, layer="0"), budget_s=0.05)
        watch.remove()

        assert 0.0 == factor_of(graph, changed, phase=Phase.BACKWARD, layer="0")
        assert {257 * 256 + 257 * 4, 257 * 4} == stepped
        assert {"measured:partial"} == sources_of(changed, phase=Phase.UPDATE)

    def test_checkpointed_blocks_hold_nothing_until_their_backward_pass(self):
        """All three results of 1000 bytes live until backward; of a block only what enters it does."""
        graph = perceptron_graph()
        call, phase = graph.tasks["call"], graph.tasks["phase"]
        forward = [int(np.flatnonzero((call == place) & (phase == Phase.FORWARD))[0]) for place in range(4)]
        backward = [int(np.flatnonzero((call == place) & (phase == Phase.BACKWARD))[0]) for place in range(4)]
        graph = graph.connect(forward, backward).connect(forward[:-1], forward[1:])
        changed = measured(activation_checkpointing(graph, layer="[0-9]"))
        again = changed.select(name="recompute")

        assert 4000 == replay(graph).memory().peak_bytes
        assert factor_of(graph, changed.remove(again), phase=(Phase.FORWARD, Phase.UPDATE)) > 0
        assert replay(changed).memory().peak_bytes <= 4000

    def test_a_block_that_runs_again_waits_for_what_enters_it_and_feeds_its_backward_pass(self):
        graph = perceptron_graph(width=128)
        call, phase = graph.tasks["call"], graph.tasks["phase"]
        forward, backward = (
            [int(np.flatnonzero((call == place) & (phase == one))[0]) for place in range(4)]
            for one in (Phase.FORWARD, Phase.BACKWARD)
        )
        graph = graph.connect(forward, backward).connect(forward[:-1], forward[1:])
        changed = measured(activation_checkpointing(graph, layer="2"))
        names = changed.tasks.strings("name").to_numpy()
        (again,) = np.flatnonzero(names == "recompute").tolist()
        feeds = changed.edges["src"][(changed.edges["dst"] == again) & (changed.edges["kind"] == EdgeKind.DATA)]
        block = graph.tasks.strings("layer").to_numpy() == "2"
        first = min(row for row in forward if block[row])

        assert [call[forward[forward.index(first) - 1]]] == changed.tasks["call"][feeds].tolist()
        assert [Phase.FORWARD] == changed.tasks["phase"][feeds].tolist()

    def test_a_fused_update_is_measured(self):
        graph = perceptron_graph()
        changed = measured(fused_optimizer(graph))

        assert 1.0 == factor_of(graph, changed, phase=(Phase.FORWARD, Phase.BACKWARD))
        assert {"measured:partial"} == sources_of(changed, phase=Phase.UPDATE)

    def test_other_threads_change_operators_and_updates_but_not_python(self):
        graph = perceptron_graph()
        changed = measured(threads(graph, threads=2))
        updates = changed.tasks.strings("cost_source").to_numpy()[changed.select(phase=Phase.UPDATE)]

        assert 1.0 == factor_of(graph, changed, name="python")
        assert "measured:partial" in updates

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda graph: measured(threads(graph, threads=1)), "1 thread already"),
            (lambda graph: measured(channels_last(graph)), "no 2-D convolution"),
            (lambda graph: measured(batch_size(graph, factor=1.01)), "16 already"),
            (lambda graph: measured(freeze_layers(graph, layer="nothing")), "no trained parameter"),
            (lambda graph: measured(freeze_layers(graph, layer="[0-9]")), "nothing would be left"),
            (lambda graph: published(compile_block(graph)), "feed each other"),
        ],
    )
    def test_what_changes_nothing_says_why(self, change, message):
        with pytest.raises(NotApplicableError, match=message):
            change(perceptron_graph())


def test_unknown_prices_are_refused():
    with pytest.raises(InputError, match="prices cannot be 'best'"):
        whatif(perceptron_graph(), "amp", prices="best")


def test_prices_that_nobody_published_are_not_made_up():
    (answer,) = whatif(perceptron_graph(), "threads:threads=2", prices="paper")

    assert "no published ratios" in answer.reason


def test_what_a_graph_does_not_know_cannot_be_measured():
    (answer,) = whatif(gpu_step([Layer("a")]), "amp", prices="measured")

    assert "does not say which operators were called" in answer.reason


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: measured(batch_size(graph, factor=0.0)),
        lambda graph: measured(gradient_accumulation(graph, passes=1)),
        lambda graph: measured(threads(graph, threads=0)),
        lambda graph: metaflow(graph, layer="a", factor=-1.0),
    ],
)
def test_a_parameter_that_means_nothing_is_refused(change):
    with pytest.raises(InputError):
        change(perceptron_graph())


def test_progress_moves_forward_once_although_the_second_step_is_priced_while_it_edits():
    calls = []
    requests = ["faster-cpu+fused-optimizer", "foreach-optimizer"]
    whatif(perceptron_graph(), requests, database=":memory:", budget_s=0.01, progress=lambda *call: calls.append(call))
    texts, percents, totals = zip(*calls, strict=True)

    assert sorted(percents) == list(percents)
    assert {100} == set(totals)
    assert texts.index("editing faster-cpu+fused-optimizer") < len(texts) - 1 - texts[::-1].index(
        "measuring updates of the optimizer"
    )


def test_a_graph_of_prices_of_a_gpu_says_that_nothing_can_be_measured_there():
    graph = perceptron_graph().with_meta(priced_for="h100-sxm5-80g")
    answers = {answer.name: answer for answer in whatif(graph, ["amp", "activation-checkpointing"], prices="measured")}
    expected = "the times of this graph are prices of h100-sxm5-80g, and what {} gains there cannot be measured here"

    assert {name: expected.format(name) for name in answers} == {name: item.reason for name, item in answers.items()}
    assert "take published ratios (prices='paper')" in answers["amp"].advice
    assert "run the changed script" in answers["activation-checkpointing"].advice
