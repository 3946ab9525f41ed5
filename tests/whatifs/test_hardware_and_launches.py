"""Faster hardware, fewer launches, other update orders, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.whatifs.prices import published
from tests.whatifs.steps import Layer, cpu_step, gpu_step, start_of
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.simulate import replay
from windtunnel.whatifs.cuda_graphs import cuda_graphs
from windtunnel.whatifs.data_parallel import data_parallel
from windtunnel.whatifs.faster import faster_cpu, faster_device
from windtunnel.whatifs.loading import pinned_memory
from windtunnel.whatifs.optimizer_in_backward import optimizer_in_backward
from windtunnel.whatifs.tf32 import tf32

TWO = [Layer("a"), Layer("b")]


def speedup(change, graph):
    """Makespan before over after."""
    return replay(graph).makespan_ns / replay(change(graph)).makespan_ns


def test_a_processor_twice_as_fast_halves_work_and_gaps():
    assert 2.0 == speedup(faster_cpu, cpu_step(TWO, gap_ns=4))


def test_a_faster_device_gains_little_where_launching_is_the_bottleneck():
    """Daydream, claim (a): what a change buys depends on whether the launches or the kernels are critical."""
    launch_bound, device_bound = gpu_step(TWO, launch_ns=500), gpu_step(TWO, launch_ns=1)

    assert speedup(faster_device, launch_bound) < 1.01
    assert speedup(faster_device, device_bound) > 1.9
    assert speedup(faster_cpu, launch_bound) > 1.9


def test_a_step_on_the_cpu_has_no_device_to_make_faster():
    with pytest.raises(NotApplicableError, match="no task runs on a device"):
        faster_device(cpu_step(TWO))
    with pytest.raises(InputError, match="cannot be -1 times as fast"):
        faster_cpu(cpu_step(TWO), factor=-1)


def test_one_launch_leaves_only_the_kernels():
    """First kernel 5 ns after the launch begins, then 2 * (100 + 200 + 30) ns without a gap."""
    graph = gpu_step(TWO, launch_ns=500)
    changed = cuda_graphs(graph, launch_ns=40)

    assert 5 + 660 == replay(changed).makespan_ns
    assert 1 == changed.select(name="launch graph").sum()
    assert 0 == changed.select(name="launch .*ward").sum()


def test_calls_that_wait_for_the_device_cut_the_graph():
    """A wait in the middle of the step stays on the host, and what comes after it still comes after it."""
    graph = gpu_step(TWO, launch_ns=500)
    forward, call = (
        np.flatnonzero(graph.select(name="forward"))[-1],
        np.flatnonzero(graph.select(name="launch backward"))[0],
    )
    waiting = graph.connect(forward, call, EdgeKind.SYNC)
    changed = cuda_graphs(waiting, launch_ns=40)
    timeline = replay(changed)

    assert 1 == changed.select(name="launch backward").sum()
    assert timeline.finish_ns[changed.select(name="forward")].max() <= start_of(timeline, "launch backward")[0]


def test_nothing_is_launched_on_a_cpu():
    with pytest.raises(NotApplicableError, match="launch work on a device: 0; iterations: 1"):
        cuda_graphs(cpu_step(TWO))


def test_messages_that_a_cpu_begins_are_no_launches():
    """Ranks on CPUs begin their collectives by a call, and no graph of a device can hold these."""
    builder = GraphBuilder()
    thread = builder.resource("main thread", ResourceKind.HOST_THREAD)
    network = builder.resource("network", ResourceKind.LINK)
    for number in range(3):
        call = builder.task("begin", kind=Kind.HOST, phase=Phase.BACKWARD, resource=thread, duration_ns=5)
        sent = builder.task(f"all_reduce {number}", kind=Kind.COMM, resource=network, duration_ns=50)
        builder.edge(call, sent, kind=EdgeKind.LAUNCH)

    with pytest.raises(NotApplicableError, match="launch work on a device: 0; iterations: 1"):
        cuda_graphs(builder.build({"source": "torch step"}))


def test_updates_move_right_behind_the_gradients_of_their_layer():
    graph = optimizer_in_backward(cpu_step(TWO))
    timeline = replay(graph)
    layer = graph.tasks.strings("layer").to_numpy()
    order = [(graph.tasks.strings("name").decode(row), layer[row]) for row in np.argsort(timeline.start_ns)]
    expected = ["forward a", "forward b", "backward b", "update b", "backward a", "update a"]

    assert expected == [" ".join(pair) for pair in order]
    assert replay(cpu_step(TWO)).makespan_ns == timeline.makespan_ns


def test_on_a_device_the_launches_of_the_updates_move_along():
    before, after = gpu_step(TWO, launch_ns=1), optimizer_in_backward(gpu_step(TWO, launch_ns=1))
    timeline = replay(after)

    assert replay(before).makespan_ns == timeline.makespan_ns
    assert start_of(timeline, "launch update")[1] < start_of(timeline, "launch backward")[1]


def test_gradients_that_are_used_at_once_are_not_held():
    """Two gradients of 500 bytes: one after the other instead of both until the updates."""
    graph = cpu_step(TWO)
    sizes = np.where(graph.select(name="backward"), 500, 0)
    graph = graph.with_columns(output_bytes=sizes)

    assert 1000 == replay(graph).memory().peak_bytes
    assert 500 == replay(optimizer_in_backward(graph)).memory().peak_bytes


def test_of_what_an_operator_makes_only_the_gradient_goes_with_its_update():
    """Of 500 bytes 20 are the gradient: what the other 480 are held for is not the update."""
    graph = with_gradients(20)

    assert 1000 == replay(graph).memory().peak_bytes
    assert 980 == replay(optimizer_in_backward(graph)).memory().peak_bytes


@pytest.mark.parametrize(("held_bytes", "saved_bytes"), [(0, 0), (200, 100), (1000, 500)])
def test_no_more_gradients_go_than_the_recorded_peak_held(held_bytes, saved_bytes):
    held = {"peak_bytes": 5000, "by_category": {"gradient": held_bytes}}
    graph = with_gradients(500).note({"memory": {**held, "passes": held, "update": {"peak_bytes": 0}}})

    assert 1000 - saved_bytes == replay(optimizer_in_backward(graph)).memory().peak_bytes


def with_gradients(size_bytes):
    """Two operators of the backward pass make 500 bytes each, of which their updates read some."""
    graph = cpu_step(TWO)
    makers, updates = np.flatnonzero(graph.select(name="backward")), np.flatnonzero(graph.select(name="update"))
    layer = graph.tasks.strings("layer").to_numpy()
    readers = [updates[layer[updates] == layer[row]][0] for row in makers]
    graph = graph.with_columns(output_bytes=np.where(graph.select(name="backward"), 500, 0))
    return graph.disconnect(graph.edges["kind"] == EdgeKind.DATA).connect(makers, readers, size_bytes=size_bytes)


def test_updates_that_need_all_gradients_stay_where_they_are():
    graph = cpu_step(TWO)
    first_update = np.flatnonzero(graph.select(name="update"))[0]
    clipped = {"name": "aten::linalg_vector_norm", "duration_ns": 5, "resource": 0, "phase": Phase.UPDATE}
    before = np.flatnonzero(graph.select(name="backward"))[-1]

    with pytest.raises(NotApplicableError, match="clipped by their norm"):
        optimizer_in_backward(graph.insert(clipped, after=[before], before=[first_update]))
    with pytest.raises(NotApplicableError, match="gradients travel"):
        optimizer_in_backward(published(data_parallel(cpu_step(TWO), num_cores=64)))


def test_memory_that_one_update_leaves_to_the_next_does_not_order_them():
    """Updates of a, then b; b takes over memory of a, but comes first when gradients are used at once."""
    graph = cpu_step(TWO)
    updates = np.flatnonzero(graph.select(name="update"))
    timeline = replay(optimizer_in_backward(graph.connect(updates[0], updates[1], EdgeKind.DATA)))

    assert timeline.start_ns[updates[1]] < timeline.start_ns[updates[0]]


def test_one_update_for_all_layers_cannot_be_spread():
    graph = cpu_step(TWO)
    fused = graph.fuse(graph.select(name="update"), by=())

    with pytest.raises(NotApplicableError, match="one task updates all"):
        optimizer_in_backward(fused)


def test_pinned_copies_run_at_the_rate_of_the_link_and_do_not_block():
    """31,500 bytes at half of 31.5 GB/s are 2,000 ns instead of 9,000; the copying call no longer waits for them."""
    graph = gpu_step(TWO, copy_ns=9000)
    copy, call = (
        np.flatnonzero(graph.select(name="memcpy HtoD"))[0],
        np.flatnonzero(graph.select(name="launch memcpy.*"))[0],
    )
    following = np.flatnonzero(graph.select(name="launch forward"))[0]
    moved = np.where(graph.select(name="memcpy HtoD"), 31_500, 0)
    blocking = graph.with_columns(bytes_read=moved).connect(copy, following, EdgeKind.SYNC)
    pinned = pinned_memory(blocking, bandwidth_ratio=0.5)

    assert 2000 == pinned.duration_ns[copy]
    assert replay(pinned).start_ns[following] == pinned.duration_ns[call]
    # kernels wait for the copy as before, launches no longer: a shorter copy, and 5 ns of launching that overlap it
    assert replay(blocking).makespan_ns - 7000 - 5 == replay(pinned).makespan_ns


def test_pinning_needs_copies_that_are_not_pinned():
    graph = gpu_step(TWO, copy_ns=9000)
    names = graph.tasks.strings("name").assign(graph.select(name="memcpy HtoD"), "Memcpy HtoD (Pinned -> Device)")

    with pytest.raises(NotApplicableError, match="pinned already"):
        pinned_memory(graph.with_columns(name=names))
    with pytest.raises(NotApplicableError, match="nothing is copied"):
        pinned_memory(cpu_step(TWO))


def named(graph, *names):
    """The kernels of a step on a device, called by other names in turn."""
    rows, texts = np.flatnonzero(graph.select(name="forward|backward")), graph.tasks.strings("name")
    for turn, name in enumerate(names):
        texts = texts.assign(rows[turn :: len(names)], name)
    return graph.with_columns(name=texts)


def test_float32_products_take_a_third_on_matrix_units():
    """All passes are products: 2 * (100 + 200) become 2 * 100, updates stay."""
    graph = named(gpu_step(TWO, launch_ns=1), "ampere_sgemm_128x64")
    changed = tf32(graph)

    assert 400 == replay(graph).makespan_ns - replay(changed).makespan_ns


def test_a_known_gpu_rounds_long_products_at_the_ratio_of_its_peaks_as_far_as_tf32_reaches_its_own():
    graph = named(gpu_step([Layer("a", 10**9, 10**9)], launch_ns=1), "ampere_sgemm_128x64")
    a100 = {"devices": [{"name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_017_493_504}]}
    changed = tf32(graph.with_meta(hardware=a100))
    products = graph.select(name="ampere.*")

    assert 0.65 * 156 / 19.5 == pytest.approx(
        graph.duration_ns[products].sum() / changed.duration_ns[products].sum(), rel=0.02
    )


def test_products_that_are_rounded_already_stay():
    half = named(gpu_step(TWO), "ampere_bf16_s16816gemm")
    mixed = named(gpu_step(TWO), "sm80_xmma_gemm_f32f32_tf32f32", "ampere_sgemm_128x64")

    with pytest.raises(NotApplicableError, match="no product runs in float32 on a device"):
        tf32(half)
    with pytest.raises(NotApplicableError, match="no product runs in float32 on a device"):
        tf32(cpu_step(TWO))
    assert replay(tf32(mixed)).makespan_ns < replay(mixed).makespan_ns
