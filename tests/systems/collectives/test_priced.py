"""What schedules take on a cluster of GPUs, against times worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.cost.nccl import nccl_p2p_ns, nccl_price
from windtunnel.errors import InputError
from windtunnel.graph import Kind
from windtunnel.hardware import Device, Link, Topology
from windtunnel.simulate import replay
from windtunnel.systems.collectives.priced import GpuCluster, build_graph, read_cluster
from windtunnel.systems.collectives.schedules import Step as Move
from windtunnel.systems.collectives.schedules import apply_steps, closure
from windtunnel.systems.collectives.workloads import adam, lamb, pipeline, sgd, tensor_parallel

# 1 TFLOP/s, 1 GB/s of memory, kernels that start in 1 µs
DEVICE = Device("toy", 2**30, 1e9, {"fp32": 1e12}, kind="cpu", launch_overhead_ns=1000)
TOY = GpuCluster("toy", DEVICE, Topology((4, 2), (Link("nvlink2", 10e9), Link("infiniband-edr", 1e9)), (1, 2)))
N = 1 << 20


def price_ns(program, *arguments):
    """What a step takes."""
    return replay(build_graph(program, *arguments)).makespan_ns


def schedule(program, label):
    """The fastest of a label: the one with states in slices."""
    return min((item.program for item in closure(program) if item.label == label), key=lambda item: price_ns(item, TOY))


def of_op(graph, op):
    rows = np.flatnonzero(graph.tasks.strings("op").to_numpy() == op)
    return graph.duration_ns[rows]


def test_an_optimizer_alone_costs_its_all_reduce_and_the_traffic_of_each_kernel():
    graph = build_graph(sgd(4, N), TOY)
    reduced = nccl_price("all_reduce", 4 * N, TOY.of_group(4)).duration_ns

    # 4 MiB each: g_sum·(1/4) and u·0.9 read one and write one, their sum reads two; u's update reads one, writes one
    mib4 = round(1e9 * 4 * N / 1e9)
    assert [2 * mib4 + 1000] * 2 == of_op(graph, "update").tolist()
    assert [3 * mib4 + 1000] == of_op(graph, "add").tolist()
    assert reduced == of_op(graph, "all_reduce")[0]
    # one after the other; u·0.9 does not wait for the all-reduce
    assert replay(graph).makespan_ns == graph.duration_ns.sum() - reduced


def test_a_fused_pass_reads_what_comes_from_outside_and_writes_what_is_needed_outside():
    program = schedule(sgd(4, N), "AR - fuse(C)")
    graph = build_graph(program, TOY)

    # reads g_sum, u, w and the rate; writes u and w
    expected = round(5 * 4 * N + 4) + 1000
    assert [expected] == of_op(graph, "fused").tolist()


def test_a_fused_collective_costs_an_all_reduce_and_its_last_chunk_of_computation():
    program = schedule(sgd(4, N), "fuse(RS-C-AG)")
    graph = build_graph(program, TOY, 8)
    price = nccl_price("all_reduce", 4 * N, TOY.of_group(4))

    # a quarter of u and w is read and written: less per chunk than sending, so that only chunks at the end count
    computed_ns = 1e9 * (4 * N + 4) / 1e9
    assert computed_ns == pytest.approx(of_op(graph, "fused").sum(), abs=2)
    sent_ns = of_op(graph, "reduce_scatter").sum() + of_op(graph, "all_gather").sum()
    assert price.duration_ns == pytest.approx(sent_ns, abs=2)
    total = replay(graph).makespan_ns
    assert price.duration_ns <= total
    assert total <= max(price.duration_ns, price.latency_ns + price.sending_ns / 2 + computed_ns) + computed_ns / 8 + (
        price.sending_ns / 16
    )


def test_overlap_comes_within_one_chunk_of_the_longer_part():
    program = tensor_parallel(4, 2, 64, 256)
    labels = ("MM - AR - fuse(C)", "MM - fuse(RS-C-AG)", "overlap(MM, fuse(RS-C-AG))")
    separate, fused, overlapped = (build_graph(schedule(program, label), TOY, 16) for label in labels)

    product, comm = of_op(overlapped, "matmul").sum(), of_op(overlapped, "reduce_scatter").sum()
    comm += of_op(overlapped, "all_gather").sum()
    lower = max(product, comm)
    chunks = (product + comm + of_op(overlapped, "fused").sum()) / 16
    took = replay(overlapped).makespan_ns
    assert lower <= took <= lower + chunks + 5000
    assert took < replay(fused).makespan_ns < replay(separate).makespan_ns


def test_a_product_costs_its_roofline():
    graph = build_graph(tensor_parallel(4, 2, 64, 256), TOY)

    # [128, 64] x [64, 256]: 4.2 MFLOP at 1 TFLOP/s take 4 µs, 4 · (128·64 + 64·256 + 128·256) bytes 229 µs
    assert [4 * (128 * 64 + 64 * 256 + 128 * 256) + 1000] == of_op(graph, "matmul").tolist()


def test_chunks_in_natural_order_lose_the_overlap():
    ring = schedule(tensor_parallel(4, 2, 64, 256), "overlap(MM, fuse(RS-C-AG))")
    natural = apply_steps(
        schedule(tensor_parallel(4, 2, 64, 256), "MM - fuse(RS-C-AG)"),
        [Move("overlap", (ring.overlaps[0].items, "natural"))],
    )
    plain = schedule(tensor_parallel(4, 2, 64, 256), "MM - fuse(RS-C-AG)")

    assert price_ns(natural, TOY) == price_ns(plain, TOY) > price_ns(ring, TOY)


def test_a_message_of_slices_takes_its_share_of_the_bytes():
    program = pipeline(4, 2, 64, 256)
    whole, sliced = schedule(program, "AR - fuse(C) - P2P"), schedule(program, "RS - fuse(C) - P2P - AG")
    size = 4 * 2 * 64 * 256

    sent = of_op(build_graph(whole, TOY), "send"), of_op(build_graph(sliced, TOY), "send")
    assert [nccl_p2p_ns(size, TOY.network), nccl_p2p_ns(size // 4, TOY.network)] == [item[0] for item in sent]


def test_parts_of_a_ring_that_hands_them_on_pay_its_hops_each():
    program = schedule(pipeline(4, 2, 64, 256), "overlap(RS, fuse(C-P2P), AG)")
    graph = build_graph(program, TOY, 4)
    price = nccl_price("reduce_scatter", 4 * 2 * 64 * 256, TOY.of_group(4))

    hops_ns = price.latency_ns - TOY.release.launch_ns(price)
    expected = [price.latency_ns, hops_ns, hops_ns, hops_ns]
    assert hops_ns > 0
    for op in ("reduce_scatter", "all_gather"):
        assert of_op(graph, op) == pytest.approx([item + price.sending_ns / 4 for item in expected], abs=1), op
    # the message of slices is one message, however many parts it has
    sent_ns = nccl_p2p_ns(2 * 64 * 256, TOY.network)
    assert sent_ns == pytest.approx(of_op(graph, "send").sum(), abs=2)


def test_parts_that_go_around_a_ring_are_as_many_as_pay():
    program = schedule(pipeline(4, 2, 64, 256), "overlap(RS, fuse(C-P2P), AG)")
    times = [price_ns(program, TOY, num) for num in (1, 2, 4, 8, 16)]

    assert min(times) == price_ns(program, TOY)
    assert times[-1] > min(times)  # hops of the ring cost more than the overlap gains


def test_norms_wait_for_all_ranks_inside_a_fused_collective():
    program = next(
        item.program for item in closure(lamb(4, N)) if "fuse(RS-C-AG)" in item.label and not item.program.overlaps
    )
    graph = build_graph(program, TOY, 4)
    timeline = replay(graph)
    names = graph.tasks.strings("name").to_numpy().tolist()
    total = next(i for i, name in enumerate(names) if name.endswith(" total"))
    gathers = [i for i, name in enumerate(names) if " gather " in name]
    sums = [i for i, name in enumerate(names) if " sums " in name]

    assert max(timeline.finish_ns[sums]) <= timeline.start_ns[total]
    assert min(timeline.start_ns[gathers]) >= timeline.finish_ns[total]


@pytest.mark.parametrize("num_parameters", [1 << 12, 1001])
@pytest.mark.parametrize("make", [sgd, adam, lamb])
def test_one_rank_stands_for_all_of_an_optimizer(make, num_parameters):
    for item in closure(make(4, num_parameters))[::7]:
        folded, every = (build_graph(item.program, TOY, 4, is_folded=is_folded) for is_folded in (True, False))
        assert replay(folded).makespan_ns == replay(every).makespan_ns, item.label


@pytest.mark.parametrize("make", [tensor_parallel, pipeline])
def test_one_rank_stands_for_all_of_a_layer(make):
    for item in closure(make(3, 1, 7, 10)):
        folded, every = (build_graph(item.program, TOY, 4, is_folded=is_folded) for is_folded in (True, False))
        assert replay(folded).makespan_ns == replay(every).makespan_ns, item.label
        assert every.num_tasks == 3 * folded.num_tasks


def test_splitting_alone_never_helps_and_the_paper_s_schedules_win():
    cluster = read_cluster("16xdgx-2")
    program = adam(256, 1 << 26)
    times: dict[str, int] = {}
    for item in closure(program):
        times[item.label] = min(price_ns(item.program, cluster), times.get(item.label, 10**18))

    assert times["AR - fuse(C)"] <= times["RS - AG - fuse(C)"]
    assert times["AR - fuse(C)"] <= times["RD - BC - fuse(C)"]
    assert times["fuse(RS-C-AG)"] < times["RS - fuse(C) - AG"] < times["AR - fuse(C)"]


def test_groups_have_to_fill_nodes():
    with pytest.raises(InputError, match="6 ranks do not fill nodes of 4"):
        price_ns(adam(6, N), TOY)
    assert Kind.COMM in build_graph(adam(8, N), TOY).tasks["kind"]


def test_clusters_are_read_by_name():
    assert read_cluster("1xdgx-2") == read_cluster("dgx-2")
    assert 64 == read_cluster("4xDGX-2").network.num_members
    for text in ("16xdgx-h100", "0xdgx-2", "many nodes"):
        with pytest.raises(InputError):
            read_cluster(text)
