"""What-ifs about communication, worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.whatifs.steps import Layer, cpu_step, finish_of, gpu_step, start_of
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.graph.collectives import all_reduces
from windtunnel.simulate import replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.whatifs.compression import dgc, fp16_gradients, powersgd, top_k
from windtunnel.whatifs.data_parallel import data_parallel
from windtunnel.whatifs.faster import faster_link
from windtunnel.whatifs.fully_sharded import zero_3
from windtunnel.whatifs.workers import rank_count, straggler
from windtunnel.whatifs.zero import zero_1, zero_2

TWO = [Layer("a", param_bytes=4000), Layer("b", param_bytes=4000)]
WIRE = {"bandwidth_bytes_per_s": 1e9, "latency_ns": 0}


def parallel(num_ranks=4, **wire):
    """Two buckets of 4000 bytes; of four ranks each all-reduce takes 2 * 3/4 * 4000 = 6000 ns."""
    options = {**WIRE, "first_bucket_bytes": 1, "bucket_bytes": 1, **wire}
    return data_parallel(gpu_step(TWO, launch_ns=1), num_ranks=num_ranks, **options)


def messages(graph):
    """Durations of all communication, by row."""
    return graph.duration_ns[graph.select(kind=Kind.COMM)].tolist()


@pytest.mark.parametrize(
    ("compress", "ratio"),
    [
        (fp16_gradients, 0.5),
        (lambda graph, **given: top_k(graph, density_ratio=0.1, **given), 0.2),
        (lambda graph, **given: dgc(graph, density_ratio=0.1, sends_indices=False, **given), 0.1),
        (lambda graph, **given: powersgd(graph, rank=1, matrix_rows=8, **given), 0.25),
    ],
)
def test_compression_shortens_messages_by_its_ratio(compress, ratio):
    graph = compress(parallel(), bandwidth_bytes_per_s=1e12)

    assert [ratio * 6000, ratio * 6000] == messages(graph)
    assert [ratio * 4000] * 2 == graph.tasks["message_bytes"][graph.select(kind=Kind.COMM)].tolist()


def test_factors_are_counted_from_the_shapes_that_the_capture_knows():
    """64 x 64 becomes 1 x (64 + 64), 2 x 2 and a vector stay: 128 + 4 + 8 of 4108 numbers."""
    group = {"parameters": ["a.w", "b.w", "b.b"], "shapes": [[64, 64], [2, 2], [8]], "dtypes": ["float32"] * 3}
    graph = powersgd(parallel().with_meta(optimizers=[{"groups": [group]}]), rank=1, bandwidth_bytes_per_s=1e12)

    assert [round(6000 * 140 / 4108)] * 2 == messages(graph)


def test_compression_leaves_the_latency_of_messages():
    """2 * 3 steps of 100 ns each stay; the 6000 ns of bytes are halved."""
    graph = fp16_gradients(parallel(latency_ns=100), bandwidth_bytes_per_s=1e12)

    assert [3600, 3600] == messages(graph)


def test_compressing_delays_the_next_backward_task_and_restoring_delays_the_update():
    """1.5 passes over 4000 bytes at 1 byte per ns: 6000 ns each."""
    before = replay(parallel())
    after = replay(fp16_gradients(parallel(), bandwidth_bytes_per_s=1e9))

    assert 6000 == start_of(after, "backward")[1] - start_of(before, "backward")[1]
    assert max(finish_of(after, "restore")) == min(start_of(after, "update"))


def test_compression_keeps_what_it_does_not_send():
    base = parallel().meta.memory_base_bytes

    assert base + 8000 == top_k(parallel(), bandwidth_bytes_per_s=1e9).meta.memory_base_bytes
    assert base + 16_000 == dgc(parallel(), bandwidth_bytes_per_s=1e9).meta.memory_base_bytes


def test_sharded_updates_take_a_share_and_parameters_are_gathered_after_them():
    """Updates of 30 ns become 8 (rounded); two all-gathers of half an all-reduce follow the last."""
    timeline = replay(zero_1(parallel()))

    assert [8, 8] == timeline.graph.duration_ns[timeline.graph.select(name="update")].tolist()
    assert max(finish_of(timeline, "update")) + 3000 + 3000 == timeline.makespan_ns


def test_each_iteration_gathers_behind_its_own_updates():
    timeline = replay(zero_1(parallel().concat(3)))
    gathered = timeline.graph.select(name="all-gather parameters")
    iteration = timeline.graph.tasks["iteration"]

    assert [0, 0, 1, 1, 2, 2] == sorted(iteration[gathered].tolist())
    for number in range(3):
        updated = timeline.graph.select(name="update", iteration=number)
        begins = timeline.start_ns[gathered & (iteration == number)]
        assert timeline.finish_ns[updated].max() == begins.min()


def test_sharded_gradients_are_scattered_in_half_the_time():
    graph = zero_2(parallel())

    assert [3000, 3000, 3000, 3000] == messages(graph)


def test_sharding_saves_all_but_one_share_of_what_is_sharded():
    graph = parallel().with_meta(memory_base_bytes=100_000)

    assert 100_000 - 2 * 8000 * 3 // 4 == zero_1(graph).meta.memory_base_bytes
    assert 100_000 - 3 * 8000 * 3 // 4 == zero_2(graph).meta.memory_base_bytes


@pytest.mark.parametrize(("state_bytes", "saved_bytes"), [(0, 0), (8000, 6000), (16_000, 12_000)])
def test_what_is_saved_of_the_state_is_what_the_optimizer_keeps(state_bytes, saved_bytes):
    """Plain descent keeps nothing, momentum one number of each parameter, Adam two."""
    facts = {"memory_base_bytes": 100_000, "parameters": {"a.weight": 4000, "b.weight": 4000}}
    graph = parallel().with_meta(**facts, optimizers=[{"groups": [], "state_bytes": state_bytes}])

    assert 100_000 - saved_bytes == zero_1(graph).meta.memory_base_bytes
    assert 100_000 - saved_bytes - 6000 == zero_2(graph).meta.memory_base_bytes
    assert 100_000 - saved_bytes - 2 * 6000 + 2 * 4000 == zero_3(graph).meta.memory_base_bytes
    assert 100_000 - 6000 == zero_1(graph, state_ratio=1.0).meta.memory_base_bytes


def test_no_more_units_are_whole_at_once_than_there_are():
    graph = parallel().with_meta(memory_base_bytes=100_000)
    held_bytes = [zero_3(graph, prefetch=prefetch).meta.memory_base_bytes for prefetch in (0, 1, 5)]

    assert [100_000 - 4 * 6000 + units * 4000 for units in (1, 2, 2)] == held_bytes


def test_parameters_are_gathered_ahead_of_the_passes_that_read_them():
    """Half an all-reduce is 3000 ns: a, b, then a again for its backward pass; b stays whole in between."""
    timeline = replay(zero_3(parallel()))

    assert [0, 3000, 6100] == start_of(timeline, "all-gather parameters")
    assert [3000, 6000] == start_of(timeline, "forward")
    assert [6100, 9100] == start_of(timeline, "backward")
    assert [9100, 12_100] == start_of(timeline, "all-reduce.*")  # each the first half of one
    assert [8, 8] == timeline.graph.duration_ns[timeline.graph.select(name="update")].tolist()


def test_without_prefetch_a_unit_is_gathered_when_the_one_before_is_given_up():
    timeline = replay(zero_3(parallel(), prefetch=0))

    assert [0, 3100, 6200] == start_of(timeline, "all-gather parameters")


def test_next_iterations_gather_what_was_updated():
    timeline = replay(zero_3(parallel().concat(2)))
    begins, updated = start_of(timeline, "all-gather parameters"), finish_of(timeline, "update")

    assert [0, 3000, 6100] == begins[:3]
    assert max(updated[:2]) == begins[3]


def test_ranks_that_meet_gather_together():
    """A straggler's peers wait for it, and gather when it does."""
    late = zero_3(straggler(parallel(), factor=1.5))
    timeline = replay(late)
    gathers = late.select(name="all-gather parameters", kind=Kind.COMM)
    ranks, begins = late.tasks["rank"][gathers], timeline.start_ns[gathers]

    assert begins[ranks == 0].tolist() == begins[ranks == 1].tolist()
    assert 3 == (ranks == 0).sum()


def test_all_is_sharded_but_the_units_that_are_whole():
    """State, parameters and the reducer's buckets, and two units of 4000 bytes."""
    graph = parallel().with_meta(memory_base_bytes=100_000)

    assert 100_000 - 4 * 8000 * 3 // 4 + 2 * 4000 == zero_3(graph).meta.memory_base_bytes
    with pytest.raises(InputError, match="cannot be gathered ahead"):
        zero_3(graph, prefetch=-1)


def test_what_a_layer_goes_on_computing_with_is_no_gradient_of_a_weight():
    """Tensor parallelism reduces activations in the backward pass; the graph says who reads them."""
    builder = GraphBuilder()
    stream, wire = builder.resource("stream", ResourceKind.STREAM), builder.resource("wire", ResourceKind.LINK)
    rows = [
        builder.task(name, kind=kind, duration_ns=10, resource=where, phase=phase, layer=layer, message_bytes=size)
        for name, kind, where, phase, layer, size in (
            ("mm", Kind.COMPUTE, stream, Phase.BACKWARD, "up", 0),
            ("all_reduce", Kind.COMM, wire, Phase.BACKWARD, "up", 100),
            ("norm backward", Kind.COMPUTE, stream, Phase.BACKWARD, "norm", 0),
            ("all_reduce", Kind.COMM, wire, Phase.BACKWARD, "norm", 100),
            ("copy out of the bucket", Kind.COMPUTE, stream, Phase.BACKWARD, "", 0),
        )
    ]
    for before, after in itertools.pairwise(rows):
        builder.edge(before, after, kind=EdgeKind.DATA)
    graph = builder.build({"world_size": 2})

    assert [rows[3]] == np.flatnonzero(all_reduces(graph)).tolist()


def test_another_number_of_ranks_is_priced_by_the_ring():
    """From 4 to 8 ranks: 2 * 7/8 * 4000."""
    graph = rank_count(parallel(), num_ranks=8)

    assert [7000, 7000] == messages(graph)
    assert 8 == graph.meta.world_size == graph.meta.samples_ratio


def test_a_straggler_holds_up_the_others_where_they_meet():
    """Slow worker: backward of b ends later by half of 100 + 100 + 200; every rank waits for it."""
    before = replay(parallel())
    after = replay(straggler(parallel(), factor=1.5))
    late = min(start_of(after, "all-reduce.*")) - min(start_of(before, "all-reduce.*"))

    assert 2 == after.graph.num_ranks
    assert 200 <= late <= 210
    assert 1 == len({min(start_of(after, "update"))})


def test_a_faster_link_carries_more_bytes_per_second():
    builder = GraphBuilder()
    builder.resource("wire", ResourceKind.LINK, rate=1e9)
    builder.task("send", kind=Kind.COMM, duration_ns=10, route=0, message_bytes=1000)
    graph = builder.build({"routes": [[0]]})

    assert (1010, 505) == (replay(graph).makespan_ns, replay(faster_link(graph, factor=2)).makespan_ns)


def test_faster_links_need_something_that_is_sent():
    assert [3000, 3000] == messages(faster_link(parallel(), factor=2))
    with pytest.raises(NotApplicableError, match="nothing is sent"):
        faster_link(cpu_step(TWO))


def test_compression_gains_little_where_communication_hides_behind_computation():
    """Daydream's point: a what-if is worth what it takes off the critical path, not what it takes off a task."""
    hidden = data_parallel(gpu_step(TWO, launch_ns=1), num_ranks=4, bandwidth_bytes_per_s=1e12, latency_ns=0)
    bare, smaller = replay(hidden), replay(fp16_gradients(hidden, bandwidth_bytes_per_s=1e15))

    assert np.isclose(iteration_ns(bare, 1), iteration_ns(smaller, 1), rtol=0.02)
