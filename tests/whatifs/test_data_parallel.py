"""Data parallelism and priority propagation, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.whatifs.prices import measured, published
from tests.whatifs.steps import Layer, cpu_step, finish_of, gpu_step, start_of
from windtunnel.cost.rerun.averaging import _NUM_PARAMETERS, _SIZES_BYTES, _job, _key
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.measure import ProfileDatabase
from windtunnel.measure.database import Measurement
from windtunnel.simulate import replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.whatifs.compression import powersgd
from windtunnel.whatifs.data_parallel import data_parallel
from windtunnel.whatifs.insert_tasks import computes_on_host
from windtunnel.whatifs.layer_gradients import buckets_of
from windtunnel.whatifs.p3 import p3

THREE = [Layer("a", param_bytes=4000), Layer("b", param_bytes=2000), Layer("c", param_bytes=1000)]
# 1 byte per ns and no latency: a ring of two ranks takes as many ns as there are bytes
WIRE = {"bandwidth_bytes_per_s": 1e9, "latency_ns": 0}


def test_buckets_fill_in_reverse_order_and_the_first_is_small():
    graph = published(data_parallel(gpu_step(THREE), first_bucket_bytes=1000, bucket_bytes=5000, **WIRE))

    assert [1000, 6000] == graph.tasks["message_bytes"][graph.select(kind=Kind.COMM)].tolist()


def test_the_last_bucket_holds_what_is_left():
    graph = published(data_parallel(gpu_step(THREE), first_bucket_bytes=3000, bucket_bytes=10**9, **WIRE))

    assert [3000, 4000] == graph.tasks["message_bytes"][graph.select(kind=Kind.COMM)].tolist()


def test_parameters_fill_buckets_in_the_order_in_which_the_capture_registered_them():
    graph = cpu_step(THREE).with_meta(parameters={"b.w": 100, "b.b": 10, "a.w": 50, "c.w": 7})
    parallel = published(data_parallel(graph, first_bucket_bytes=57, bucket_bytes=110, num_cores=64, **WIRE))

    assert [57, 110] == parallel.tasks["message_bytes"][parallel.select(kind=Kind.COMM)].tolist()


def test_all_reduces_overlap_the_backward_pass_and_delay_the_update():
    """Backward of c ends at 500, of b at 700, of a at 900; buckets take 1000, 2000 and 4000 ns one after the other."""
    graph = cpu_step(THREE)
    timeline = replay(published(data_parallel(graph, first_bucket_bytes=1, bucket_bytes=1, num_cores=64, **WIRE)))

    assert [1500, 3500, 7500] == finish_of(timeline, "all-reduce bucket .*")
    assert 7500 == min(start_of(timeline, "update"))
    assert 7500 + 90 == timeline.makespan_ns


def test_on_a_device_only_the_update_kernel_waits_not_its_launch():
    timeline = replay(published(data_parallel(gpu_step(THREE), first_bucket_bytes=1, bucket_bytes=10**9, **WIRE)))
    launches = start_of(timeline, "launch update")

    assert max(finish_of(timeline, "all-reduce.*")) == min(start_of(timeline, "update"))
    assert max(launches) < min(start_of(timeline, "update"))


def test_a_counter_on_the_host_makes_no_job_of_the_processor():
    """Eight GPUs once shared the two cores of this host, for the sake of the steps that an optimizer counts."""
    graph = gpu_step([Layer("a", 100, 200, 30, param_bytes=4000)])
    host = int(graph.tasks["resource"][graph.select(kind=Kind.HOST)][0])
    counter = {"name": ["count"], "kind": int(Kind.COMPUTE), "phase": int(Phase.UPDATE), "resource": host}
    counting = graph.insert({**counter, "duration_ns": [1]}, [[]], [[]]).with_meta(hardware={"num_cores": 1})

    assert computes_on_host(cpu_step([Layer("a", 100, 200, 30, param_bytes=4000)]))
    assert not computes_on_host(counting)
    assert isinstance(data_parallel(counting, num_ranks=8), Graph)  # by the formula: nothing is measured here


def test_more_processes_than_cores_take_turns():
    """Two workers with one thread each on one core: every task takes twice as long; the one message takes 1 ns."""
    graph = cpu_step(THREE)
    wire = {"bandwidth_bytes_per_s": 1e15, "latency_ns": 0}
    alone = replay(published(data_parallel(graph, num_cores=2, **wire))).makespan_ns
    crowded = replay(published(data_parallel(graph, num_cores=1, **wire)))

    assert 2 == crowded.graph.num_ranks
    assert replay(graph).makespan_ns + 1 == alone
    assert 2 * alone == crowded.makespan_ns


def test_messages_within_a_host_take_cores_from_the_workers():
    """Two workers on two cores: from 500 on each computes and sends, at half speed, until the backward ends at 1300.

    The message of c has 600 ns left then, and those of b and a take 2000 and 4000; the updates take 90.
    """
    timeline = replay(
        published(data_parallel(cpu_step(THREE), first_bucket_bytes=1, bucket_bytes=1, num_cores=2, **WIRE))
    )

    assert [1300, 1300] == sorted(finish_of(timeline, "backward"))[-2:]
    assert 1300 + 600 + 2000 + 4000 + 90 == timeline.makespan_ns


def test_a_throttled_link_takes_no_cores():
    """A tenth of the rate: the messages of 10, 20 and 40 µs are waited for while the cores compute on."""
    wire = {"bandwidth_bytes_per_s": 1e8, "latency_ns": 0}
    graph = published(data_parallel(cpu_step(THREE), first_bucket_bytes=1, bucket_bytes=1, num_cores=2, **wire))

    assert 1 == graph.num_ranks
    assert 500 + 70_000 + 90 == replay(graph).makespan_ns


def test_the_zeroing_of_gradients_before_the_forward_pass_waits_for_no_all_reduce():
    graph = cpu_step(THREE, data_ns=50)
    phases = graph.tasks["phase"].copy()
    phases[0] = 3

    assert published(data_parallel(graph.with_columns(phase=phases), num_cores=64, **WIRE)).num_tasks > graph.num_tasks


def test_two_iterations_have_their_own_all_reduces():
    graph = cpu_step(THREE).concat(2)
    timeline = replay(published(data_parallel(graph, num_cores=64, **WIRE)))

    assert 2 * (900 + 7000 + 90) == timeline.makespan_ns


def test_a_graph_without_layers_says_why_not():
    graph = cpu_step(THREE)
    bare = graph.with_columns(layer=[""] * graph.num_tasks)

    with pytest.raises(NotApplicableError, match=r"no layer with parameters|no layers"):
        published(data_parallel(bare.with_columns(param_bytes=np.zeros(graph.num_tasks, dtype=int))))
    with pytest.raises(NotApplicableError, match="distributed already: 1 ranks, 1 communication"):
        published(data_parallel(published(data_parallel(graph, num_cores=64))))
    with pytest.raises(InputError, match="at least 2 ranks"):
        published(data_parallel(graph, num_ranks=1))


def test_priority_lets_the_first_layer_start_before_all_has_arrived():
    """a: 4000 bytes, needed first and ready last; its pulls overtake those of b and c."""
    graph = gpu_step(THREE, launch_ns=1)
    options = {"slice_parameters": 250, "num_iterations": 3, **WIRE}
    first_come = replay(p3(graph, by_priority=False, **options))
    urgent = replay(p3(graph, by_priority=True, **options))

    assert iteration_ns(urgent, 1) < iteration_ns(first_come, 1)


def test_p3_of_one_layer_is_its_whole_round_trip():
    """One slice of 1000 bytes between two ranks: 500 ns each way, 30 ns to serve, then the next forward pass."""
    graph = cpu_step([Layer("a")])
    timeline = replay(p3(graph, num_cores=64, **WIRE))

    assert 100 + 200 + 500 + 30 + 500 == iteration_ns(timeline, 1)
    assert [0, 1330, 2660] == start_of(timeline, "forward")


def test_slices_hold_the_stated_number_of_parameters():
    graph = p3(cpu_step([Layer("a", param_bytes=900)]), slice_parameters=100, num_iterations=2, num_cores=64, **WIRE)
    pushed = graph.tasks["message_bytes"][graph.select(op="push", iteration=0)]

    assert [400, 400, 100] == pushed.tolist()


def test_workers_of_one_host_need_cores_for_sending_and_serving():
    with pytest.raises(NotApplicableError, match="keep 6 cores busy, the host has 2"):
        p3(cpu_step(THREE), num_cores=2)


def test_each_model_of_a_step_waits_for_its_own_gradients():
    """A discriminator is trained, then a generator: the update of the first does not wait for the second."""
    discriminator, generator = cpu_step([Layer("D", param_bytes=500)]), Layer("G", param_bytes=700)
    both = join_in_turn(discriminator, cpu_step([generator]))
    timeline = replay(published(data_parallel(both, num_cores=64, **WIRE)))

    assert [800, 1830] == finish_of(timeline, "all-reduce.*")
    assert [800, 1830] == start_of(timeline, "update")


def test_models_of_one_backward_pass_average_for_themselves():
    """A generator is trained through its critic: each fills buckets of its own, the critic's are there first."""
    layers = [Layer("G.a", param_bytes=400), Layer("D.a", param_bytes=300), Layer("D.b", param_bytes=200)]
    graph = cpu_step(layers).with_meta(models=["G", "D"])

    together = buckets_of(cpu_step(layers), 10**6, 10**6)
    apart = buckets_of(graph, 10**6, 10**6)

    assert [(900, 0)] == [(one.size_bytes, one.reducer) for one in together]
    assert [(500, 0), (400, 1)] == [(one.size_bytes, one.reducer) for one in apart]
    assert ("D.b", "D.a") == apart[0].layers


def flown_step(database, *flown):
    """A captured step of a 64 x 64 matrix and a vector, on a host whose flights are known."""
    group = {"parameters": ["a.w", "b.w"], "shapes": [[64, 64], [64]], "dtypes": ["float32"] * 2}
    layers = [Layer("a", param_bytes=4 * 64 * 64), Layer("b", param_bytes=4 * 64)]
    for num_ranks, sender, options, added in flown:
        key = _key(_job([[64, 64], [64]], sender, options), num_ranks)
        database.add([Measurement(*key, old_ns=10.0, new_ns=10.0 + added)])
    program = {"calls": [], "frozen": []}
    return cpu_step(layers).with_meta(optimizers=[{"groups": [group]}], program=program)


def test_averaging_that_was_measured_on_too_few_cores_is_not_slowed_by_them_again(tmp_path):
    """Four workers of 600 ns on two cores, then the 8000 ns that four took on these cores to average."""
    database = ProfileDatabase(str(tmp_path / "profile.db"))
    for size in _SIZES_BYTES:
        key = _key(_job([[size // 4 // _NUM_PARAMETERS]] * _NUM_PARAMETERS), 4)
        database.add([Measurement(*key, old_ns=10.0, new_ns=8010.0)])
    graph = flown_step(database)

    timeline = replay(measured(data_parallel(graph, num_ranks=4, num_cores=2), database=database.path))

    begun, ended = start_of(timeline, "all-reduce.*"), finish_of(timeline, "all-reduce.*")
    assert pytest.approx(8000, abs=2) == max(ended) - min(begun)


def test_over_a_slow_link_the_reducer_works_before_the_message(tmp_path):
    """Its 5000 ns come behind the backward pass of 100 + 100 + 200 + 200 ns; 16,640 bytes take ten times as many ns."""
    database = ProfileDatabase(str(tmp_path / "profile.db"))
    graph = flown_step(database, (1, "", {}, 5000.0))
    wire = {"bandwidth_bytes_per_s": 1e8, "latency_ns": 0}
    timeline = replay(measured(data_parallel(graph, num_cores=64, **wire), database=database.path))

    assert [600 + 5000 + 166_400] == finish_of(timeline, "all-reduce.*")
    assert 600 + 5000 == min(start_of(timeline, "all-reduce.*"))


def test_a_thousand_workers_of_one_host_are_not_started_unless_asked_for(tmp_path):
    graph = flown_step(ProfileDatabase(str(tmp_path / "profile.db")))
    few, many = (data_parallel(graph, num_ranks=count, num_cores=64) for count in (2, 1000))

    assert ("measure", "published") == (few.way("auto"), many.way("auto"))
    assert "measure" == many.way("measured")


def test_powersgd_takes_what_its_hook_took_here(tmp_path):
    """9000 ns of hook in place of 5000 of reducer; 64 + 64 numbers and the vector's 64 travel: 768 bytes."""
    database = ProfileDatabase(str(tmp_path / "profile.db"))
    graph = flown_step(database, (1, "", {}, 5000.0), (2, "powersgd", {"rank": 1}, 9000.0))
    wire = {"bandwidth_bytes_per_s": 1e8, "latency_ns": 100}
    parallel = measured(data_parallel(graph, num_cores=64, **wire), database=database.path)
    timeline = replay(measured(powersgd(parallel, rank=1), database=database.path))

    # three messages of two steps of 100 ns each
    assert [600 + 9000 + 7680 + 600] == finish_of(timeline, "all-reduce.*")
    paper = replay(published(powersgd(parallel, rank=1, bandwidth_bytes_per_s=1e9)))
    assert 5 * 16_640 == sum(paper.graph.duration_ns[paper.graph.select(name="compress")])


def join_in_turn(first, second):
    """Two steps on one thread, one after the other, as one iteration."""
    offset = first.num_tasks
    tasks = {name: [*columns_of(first, name), *columns_of(second, name)] for name in first.tasks}
    edges = {
        name: np.concatenate([first.edges[name], second.edges[name] + (offset if name in ("src", "dst") else 0)])
        for name in ("src", "dst", "kind")
    }
    joined = Graph.from_columns(tasks, edges, first.resources)
    return joined.connect(offset - 1, offset, EdgeKind.ORDER)


def columns_of(graph, name):
    """A column as a list."""
    column = graph.tasks[name]
    return column.tolist() if isinstance(column, np.ndarray) else column.to_numpy().tolist()
