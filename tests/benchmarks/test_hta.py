"""The critical path by another tool's rules: to the unit what that tool says."""

import gzip
import json

import pytest
from benchmarks.peers.hta import hta_critical_path

from tests.shared_data import shared_path
from tests.sources.kineto_traces import annotation, call, kernel, op, write
from windtunnel.errors import TraceError

FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"


def test_the_path_of_the_published_window_has_the_published_counts():
    path = hta_critical_path(
        shared_path("replay/critical_path/alexnet_fwd_two_streams.json.gz"), window=FORWARD, occurrence=1
    )

    assert (458, 440) == (len(path.node_event), len(path.edges))
    assert {"operator": 350, "dependency": 23, "launch": 40, "kernel-kernel": 25, "sync": 2} == path.count()
    assert (315, 314, 159) == (len(path.path_nodes), len(path.path), len(path.events))
    assert (241_724_000, 243_351_000) == (path.length_ns, path.window_ns)
    assert 27_000 == path.weight((1053, False), (1051, False))
    assert pytest.approx(1) == sum(path.shares.values())


def test_the_whole_trace_has_the_events_that_the_tool_painted():
    painted = shared_path("replay/critical_path/alexnet_fwd_two_streams.hta_overlay.json.gz")
    events = json.loads(gzip.decompress(painted.read_bytes()))["traceEvents"]
    critical = [i for i, event in enumerate(events) if event.get("ph") == "X" and event["args"].get("critical") == 1]

    path = hta_critical_path(
        shared_path("replay/critical_path/alexnet_fwd_two_streams.json.gz"), zero_weight_launch_edges=False
    )

    assert critical == path.events.tolist()
    assert (158, 17, 17) == tuple(path.count(path.path)[kind] for kind in ("dependency", "sync", "launch"))
    assert 41_435_012_000 == path.length_ns


def test_event_synchronization_joins_the_kernel_to_the_waiting_call():
    path = hta_critical_path(
        shared_path("replay/critical_path/cuda_event_sync.json.gz"), window="ProfilerStep", occurrence=0
    )

    assert (56, 57, 4) == (len(path.node_event), len(path.edges), path.count()["sync"])
    assert (38, 20, 2_411_000) == (len(path.path_nodes), len(path.events), path.length_ns)
    assert 0 == path.weight((33, True), (41, True)) == path.weight((33, True), (51, True))


def test_the_path_runs_over_a_kernel_that_a_call_waits_for(tmp_path):
    events = [
        op("aten::mm", 0, 20),
        call("cudaLaunchKernel", 5, 5, 1),
        kernel("gemm", 12, 50, 1),
        call("cudaDeviceSynchronize", 30, 40, 2),
        {**kernel("Context Sync", 31, 38, 2, -1, "cuda_sync")},
    ]

    path = hta_critical_path(write(tmp_path / "t.json", events))

    # start of the operator -> launch call 5 -> kernel 7 -> its end 50; the waiting call adds nothing
    assert 62_000 == path.length_ns
    assert [0, 1, 2] == path.events.tolist()
    assert 0 == path.weight((2, True), (3, True))
    assert 50 / 62 == pytest.approx(path.shares["gpu_compute_bound"])
    assert "62 of" in repr(path)


def test_no_edges_give_an_empty_path(tmp_path):
    path = hta_critical_path(write(tmp_path / "t.json", [annotation("nothing inside", 0, 5)]))

    assert (0, 0) == (path.length_ns, len(path.events))


def test_an_absent_window_is_told(tmp_path):
    with pytest.raises(TraceError, match="no annotation 'train' number 2"):
        hta_critical_path(write(tmp_path / "t.json", [op("a", 0, 1)]), window="train", occurrence=2)


def test_events_that_wait_for_each_other_are_named(tmp_path):
    """The kernel whose end a call awaits is awaited by the kernel that is launched after that call."""
    wait = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 5}
    events = [
        call("cudaStreamSynchronize", 0, 2, 8),
        call("cudaLaunchKernel", 3, 2, 1),
        call("cudaEventRecord", 10, 5, 5),
        call("cudaStreamWaitEvent", 20, 5, 6, tid=2),
        call("cudaLaunchKernel", 30, 5, 7, tid=2),
        kernel("late", 100, 10, 1, 7),
        kernel("early", 40, 10, 7, 8),
        kernel("Stream Wait Event", 20, 1, 6, 8, "cuda_sync", **wait),
        kernel("Stream Sync", 55, 5, 8, 8, "cuda_sync"),
    ]

    with pytest.raises(TraceError, match="wait for each other in a circle") as caught:
        hta_critical_path(write(tmp_path / "t.json", events))

    assert "event 5 ('late')" in caught.value.where
    assert "event 6 ('early')" in caught.value.where
