"""A launch waits where the device's queue is full: that is no work of the host."""

import pytest

from tests.sources.kineto_traces import call, kernel, op, write
from windtunnel.graph import Kind
from windtunnel.simulate import replay
from windtunnel.sources.kineto import load_kineto
from windtunnel.sources.timeline import TimelineRules

ROOM = 3


def queued_trace(tmp_path, *, num=8, kernel_us=100.0):
    """A host that launches every 10 us, of a device that takes 100: the fourth launch waits for the first's end."""
    events, free_at, now, ends = [], 20.0, 0.0, []
    for at in range(num):
        begin = now
        room_at = ends[at - ROOM] + 4 if at >= ROOM else 0.0
        finish = max(begin + 8, room_at)
        events += [
            op("aten::mm", begin - 0.5, finish - begin + 1.0),
            call("cudaLaunchKernel", begin, finish - begin, at),
        ]
        free_at = max(free_at, begin + 6)
        events.append(kernel("sgemm", free_at, kernel_us, at))
        free_at += kernel_us
        ends.append(free_at)
        now = finish + 2
    return write(tmp_path / "queue.json", events), ends


def loaded(path, **rules):
    return load_kineto(path, rules=TimelineRules(queued_tasks=ROOM, **rules))


def test_the_wait_for_room_is_an_edge_and_the_replay_is_what_was_measured(tmp_path):
    path, ends = queued_trace(tmp_path)
    graph = loaded(path)
    hosts = graph.select(kind=Kind.HOST)

    assert graph.duration_ns[hosts].max() <= 9_000
    assert 1e3 * (ends[-1] + 0.5) == pytest.approx(replay(graph).makespan_ns, abs=1_000)


def test_a_faster_device_makes_room_earlier(tmp_path):
    graph = loaded(queued_trace(tmp_path)[0])
    kernels = graph.select(kind=Kind.COMPUTE)
    faster = graph.set_duration(kernels, graph.duration_ns[kernels] // 10)
    blind = load_kineto(queued_trace(tmp_path)[0])
    as_work = blind.set_duration(kernels_of := blind.select(kind=Kind.COMPUTE), blind.duration_ns[kernels_of] // 10)

    assert replay(faster).makespan_ns < 0.25 * replay(graph).makespan_ns
    assert replay(as_work).makespan_ns > 2 * replay(faster).makespan_ns  # what a wait that counts as work would say


def test_a_long_launch_beside_an_empty_queue_is_work(tmp_path):
    events = [op("aten::mm", 0, 300), call("cudaLaunchKernel", 1, 290, 0), kernel("sgemm", 295, 10, 0)]
    graph = loaded(write(tmp_path / "slow.json", events))

    assert 290_000 == graph.duration_ns[graph.select(name="cudaLaunchKernel")].sum()
