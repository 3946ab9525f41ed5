"""Traces of several ranks as one graph, joined at their collectives."""

import numpy as np
import pytest

from tests.shared_data import shared_path
from tests.sources.kineto_traces import call, kernel, op, write
from windtunnel.errors import TraceError
from windtunnel.graph import Kind
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.timeline.explain import explain_device_tasks


def rank_events(compute, arrive, finish, name="ncclKernel_AllReduce_RING", nelems=100):
    """A rank that computes, then joins a collective that ends at ``finish``, then works on."""
    told = {"Collective name": "allreduce", "In msg nelems": nelems, "Out msg nelems": nelems, "dtype": "Float"}
    return [
        op("aten::mm", 0, 8),
        call("cudaLaunchKernel", 2, 5, 1),
        kernel("gemm", 10, compute, 1),
        call("cudaLaunchKernel", 10, 5, 2),
        kernel(name, arrive, finish - arrive, 2, **told),
        call("cudaLaunchKernel", 20, 5, 3),
        kernel("update", finish, 10, 3),
    ]


@pytest.fixture
def traces_of(tmp_path):
    def make(*ranks, world_size=0):
        info = {"world_size": world_size} if world_size else {}
        return [
            write(tmp_path / f"trace{place}.json", events, distributedInfo={"rank": rank, **info})
            for place, (rank, events) in enumerate(ranks)
        ]

    return make


def test_a_faster_straggler_frees_everyone(traces_of):
    """Rank 1 computes 400 µs longer; rank 0 waits for it inside of its kernel."""
    paths = traces_of((0, rank_events(100, 112, 560)), (1, rank_events(500, 512, 560)))

    graph = load_kineto(paths)
    straggler = graph.select(name="gemm", rank=1)
    faster = replay(graph.set_duration(straggler, 100_000))

    assert 570_000 == replay(graph).makespan_ns
    assert 2 == graph.num_ranks
    assert 170_000 == faster.makespan_ns
    assert 570_000 == replay(graph.scale(graph.select(name="gemm", rank=0), 0.5)).makespan_ns


def test_the_wait_for_a_peer_is_told_apart_from_the_transfer(traces_of):
    paths = traces_of((0, rank_events(100, 112, 560)), (1, rank_events(500, 512, 560)))

    graph = load_kineto(paths)
    comm = graph.select(kind=Kind.COMM)

    assert [48_000, 48_000] == graph.duration_ns[comm].tolist()
    assert [512_000, 512_000] == graph.tasks["start_ns"][comm].tolist()
    assert 1 == explain_device_tasks(graph).count()["collective-peer"]


def test_every_rank_keeps_its_own_clock_origin(traces_of):
    late = [{**event, "ts": event["ts"] + 1000} for event in rank_events(100, 112, 560)]

    graph = load_kineto(traces_of((1, late), (0, rank_events(500, 1512, 1560))))

    assert [0, 1_000_000] == [int(graph.tasks["start_ns"][graph.select(rank=rank)].min()) for rank in (0, 1)]
    assert 0 == np.abs(replay(graph).start_ns - graph.tasks["start_ns"]).max()


def test_ranks_that_disagree_about_a_collective_are_named(traces_of):
    fewer = rank_events(100, 112, 560)[:3]

    with pytest.raises(
        TraceError,
        match=r"collective 0 of all ranks: rank 0 has all_reduce of 400 bytes and rank 1 has all_reduce of 800",
    ):
        load_kineto(traces_of((0, rank_events(1, 112, 560)), (1, rank_events(1, 112, 560, nelems=200))))
    # a rank without any collective takes no part in them
    assert 0 == (load_kineto(traces_of((0, rank_events(1, 112, 560)), (1, fewer))).tasks["kind"] == Kind.VIRTUAL).sum()


def test_a_missing_or_a_doubled_rank_is_named(traces_of):
    three = traces_of(*((rank, rank_events(1, 112, 560)) for rank in (0, 1, 3)), world_size=4)

    with pytest.raises(TraceError, match="1 of 4 ranks are missing: 2"):
        load_kineto(three)
    assert 3 == load_kineto(three, allow_missing=True).num_ranks
    with pytest.raises(TraceError, match="two traces claim to be rank 0"):
        load_kineto([three[0], three[0]])


def test_two_traces_of_one_process_each_are_not_taken_for_ranks(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.json", [op("aten::mm", 0, 8)])

    with pytest.raises(TraceError, match=r"nothing says that these 2 traces are of one job"):
        load_kineto(tmp_path)


def test_ranks_that_do_not_say_so_are_one_job_by_their_collectives(tmp_path):
    for place in range(2):
        write(tmp_path / f"trace{place}.json", rank_events(100, 112, 560))

    assert 2 == load_kineto(tmp_path).num_ranks


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"rank": 1, "world_size": 4}, "different jobs: world_size 2 and 4"),
        ({"rank": 1, "world_size": 2, "backend": "gloo"}, "different jobs: backend nccl and gloo"),
        ({}, "1 of 2 traces do not say which rank they are"),
    ],
)
def test_traces_of_different_jobs_are_told(tmp_path, info, says):
    first = {"rank": 0, "world_size": 2, "backend": "nccl"}
    for name, told in (("a", first), ("b", info)):
        write(tmp_path / f"{name}.json", rank_events(100, 112, 560), **({"distributedInfo": told} if told else {}))

    with pytest.raises(TraceError, match=says):
        load_kineto(tmp_path)


def test_ranks_of_two_runs_are_told_by_the_time_between_them(tmp_path):
    for rank in range(2):
        events = [{**event, "ts": event["ts"] + 1_000_000 * rank} for event in rank_events(100, 112, 560)]
        write(tmp_path / f"{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})

    with pytest.raises(TraceError, match=r"not recorded at one time: 999 ms lie between them"):
        load_kineto(tmp_path)


def test_no_traces_are_no_graph():
    with pytest.raises(TraceError, match="no traces are given"):
        load_kineto([])


def test_eight_recorded_ranks_replay_their_steps_and_collectives():
    """Steps within 0.5 %, ends of collectives within 60 µs, with the shortest kernel as the transfer."""
    paths = [shared_path(f"replay/kineto_dlrm_8ranks/rank{rank}.json.gz") for rank in range(8)]

    graph = load_kineto(paths)
    timeline = replay(graph)
    rank, end = graph.tasks["rank"], graph.tasks["start_ns"] + graph.duration_ns
    comm = graph.select(kind=Kind.COMM)

    for one in range(8):
        mine = rank == one
        first = graph.tasks["start_ns"][mine].min()
        assert 0.005 > abs((timeline.finish_ns[mine].max() - first) / (end[mine].max() - first) - 1)
    assert 64 == comm.sum()
    assert 60_000 >= np.abs(timeline.finish_ns - end)[comm].max()
