"""Input from workers, and results that leave between forward and backward, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.whatifs.steps import Layer, cpu_step, finish_of, gpu_step, start_of
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind
from windtunnel.simulate import replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.whatifs.loading import loader_workers, prefetch
from windtunnel.whatifs.stashing import gist, vdnn

TWO = [Layer("a", output_bytes=1000), Layer("b", output_bytes=1000)]  # 660 ns of work
WIRE = {"bandwidth_bytes_per_s": 1e9, "latency_ns": 0}


@pytest.mark.parametrize(("num_workers", "expected"), [(1, 3000), (2, 1500), (4, 750), (8, 670)])
def test_the_slower_of_loading_and_training_sets_the_pace(num_workers, expected):
    """3000 ns to load, 660 to train, 10 to hand over."""
    graph = cpu_step(TWO, data_ns=3000)
    loaded = loader_workers(graph, num_workers=num_workers, handover_ns=10, num_cores=64)

    assert expected == iteration_ns(replay(loaded), 1)


def test_workers_beside_training_on_one_core_win_nothing():
    graph = cpu_step(TWO, data_ns=3000)
    loaded = loader_workers(graph, num_workers=1, handover_ns=0, num_cores=1)

    assert 3660 == iteration_ns(replay(loaded), 1)


def test_a_background_thread_is_one_worker():
    graph = cpu_step(TWO, data_ns=300)

    assert 670 == iteration_ns(replay(prefetch(graph, handover_ns=10, num_cores=64)), 1)


def test_workers_do_not_load_more_than_they_may():
    """One batch ahead: the second is begun only when the first was taken."""
    graph = cpu_step(TWO, data_ns=300)
    timeline = replay(loader_workers(graph, num_workers=1, prefetch_factor=1, handover_ns=10, num_cores=64))

    assert finish_of(timeline, "take batch")[0] == start_of(timeline, "load batch")[1]


def test_loading_that_costs_less_than_handing_over_stays():
    with pytest.raises(NotApplicableError, match="loading takes 300 ns"):
        loader_workers(cpu_step(TWO, data_ns=300))
    with pytest.raises(NotApplicableError, match="no task loads data"):
        loader_workers(cpu_step(TWO))
    with pytest.raises(InputError, match="0 workers"):
        loader_workers(cpu_step(TWO, data_ns=300), num_workers=0)


def test_a_result_is_copied_out_after_its_forward_and_back_before_its_backward():
    """Forward 5-105-205; backward of b begins at 205, but the prefetch of a waits for its offload until 1105."""
    timeline = replay(vdnn(gpu_step(TWO, launch_ns=1), minimum_bytes=1, **WIRE))

    assert [105] == start_of(timeline, "offload a")
    assert [1105] == start_of(timeline, "prefetch a")
    assert [205, 2105] == start_of(timeline, "backward")


def test_results_that_one_task_reads_first_come_back_together():
    """The backward pass of b reads the results of a and b, so that neither prefetch may wait for its start."""
    layers = [Layer(name, output_bytes=1000) for name in "abc"]
    graph = gpu_step(layers, launch_ns=1)
    a = int(np.flatnonzero(graph.select(name="forward", layer="a"))[0])
    b = int(np.flatnonzero(graph.select(name="backward", layer="b"))[0])
    timeline = replay(vdnn(graph.connect([a], [b], EdgeKind.DATA, size_bytes=1000), minimum_bytes=1, **WIRE))
    of_c = start_of(timeline, "backward")[0]

    assert min(start_of(timeline, "prefetch a") + start_of(timeline, "prefetch b")) >= of_c
    assert [] == start_of(timeline, "prefetch c")


def test_a_fast_link_hides_the_copies():
    graph = gpu_step(TWO, launch_ns=1)
    hidden = vdnn(graph, minimum_bytes=1, bandwidth_bytes_per_s=1e11, latency_ns=0)

    assert replay(graph).makespan_ns == replay(hidden).makespan_ns


def test_offloading_needs_a_device_and_results_worth_the_way():
    with pytest.raises(NotApplicableError, match="nowhere to offload to"):
        vdnn(cpu_step(TWO), minimum_bytes=1)
    with pytest.raises(NotApplicableError, match=r"result of 1048576 bytes"):
        vdnn(gpu_step(TWO))


def test_what_is_offloaded_is_not_held_between_forward_and_backward():
    """Three results of 1000 bytes; of the lower two each is in use only around its own forward and backward pass."""
    graph = gpu_step([*TWO, Layer("c", output_bytes=1000)], launch_ns=1)
    offloaded = vdnn(graph, minimum_bytes=1, bandwidth_bytes_per_s=1e11, latency_ns=0)

    assert 3000 == replay(graph).memory().peak_bytes
    assert 2000 == replay(offloaded).memory().peak_bytes


def test_what_is_encoded_takes_its_share_until_it_is_decoded():
    """Encoded a is held (500) while b is made, encoded and decoded; b is decoded (1000) from its own 500 bytes."""
    graph = cpu_step([Layer("a", output_bytes=4000), Layer("b", output_bytes=4000), Layer("c", output_bytes=4000)])
    encoded = gist(graph, minimum_bytes=1, other_ratio=0.25, bandwidth_bytes_per_s=1e9)

    assert 12_000 == replay(graph).memory().peak_bytes
    assert 4000 + 3 * 1000 == replay(encoded).memory().peak_bytes


def test_encoding_reads_one_form_and_writes_the_other():
    """1000 + 500 ns to encode and as many to decode, for each of two results, all on the one thread."""
    graph = cpu_step(TWO)
    encoded = gist(graph, minimum_bytes=1, bandwidth_bytes_per_s=1e9)

    assert replay(graph).makespan_ns + 4 * 1500 == replay(encoded).makespan_ns


def test_results_of_rectifiers_take_one_bit():
    graph = cpu_step([Layer("a", output_bytes=3200)])
    renamed = graph.with_columns(op=["relu_", "threshold_backward", "update"])
    encoded = gist(renamed, minimum_bytes=1, bandwidth_bytes_per_s=1e9)

    assert [100] == encoded.tasks["output_bytes"][encoded.select(name="encode")].tolist()
    assert [3300] == encoded.duration_ns[encoded.select(name="decode")].tolist()


def test_encoding_on_a_device_brings_its_own_launches():
    graph = gpu_step(TWO, launch_ns=7)
    encoded = gist(graph, minimum_bytes=1, bandwidth_bytes_per_s=1e9)

    assert [7, 7, 7, 7] == encoded.duration_ns[encoded.select(name="launch")].tolist()


def test_without_any_traffic_new_work_has_no_price():
    with pytest.raises(NotApplicableError, match="no task says how many bytes it moves"):
        gist(cpu_step(TWO), minimum_bytes=1)
