"""Records of a Kineto trace that cannot be true are left out or clipped, and it is said."""

from __future__ import annotations

import json

from windtunnel.reports import explain
from windtunnel.simulate import replay
from windtunnel.sources.kineto import load_kineto

BASE_US = 1_615_207_264_000_000


def launched(number, start_us, duration_us=8.0, launch_us=None):
    """A call and the kernel that it launches, on stream 7."""
    at = start_us - 5 if launch_us is None else launch_us
    return [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at, "dur": 2,
         "args": {"correlation": number}},
        {"ph": "X", "cat": "kernel", "name": f"kernel{number}", "pid": 0, "tid": 7, "ts": start_us, "dur": duration_us,
         "args": {"stream": 7, "device": 0, "correlation": number}},
    ]  # fmt: skip


def loaded(tmp_path, *events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event for pair in events for event in pair]}))
    return load_kineto(path)


def steps(count=6):
    return [launched(number, BASE_US + 10 * number) for number in range(1, count + 1)]


def test_records_that_the_profiler_lost_are_left_out_and_counted(tmp_path):
    """Kernels of time 0 made an iteration of 1,615,207,264 s."""
    lost = [launched(9, 0, 0, launch_us=BASE_US + 3), launched(10, 0, 0, launch_us=BASE_US + 4)]
    graph = loaded(tmp_path, *lost, *steps())

    assert replay(graph).makespan_ns < 100_000
    (warning,) = graph.meta.trace["warnings"]
    assert "2 records of device work were lost by the profiler" in warning
    assert "event 1" in warning
    assert warning in str(explain(graph))


def test_a_record_that_runs_past_later_ones_of_its_stream_ends_at_the_next(tmp_path):
    """Seven durations of seconds made a step of 29 ms one of 1.15 s."""
    kernels = steps()
    kernels[1][1]["dur"] = 3_400_000.0
    kernels[2][1]["dur"] = 200_000.0
    graph = loaded(tmp_path, *kernels)

    assert replay(graph).makespan_ns < 100_000
    (warning,) = graph.meta.trace["warnings"]
    assert "2 records run past later ones of their stream" in warning
    assert "event 3 (kernel2) on GPU 0 stream 7, which claims 3.40 s" in warning


def test_a_kernel_that_overlaps_the_next_one_alone_keeps_its_time(tmp_path):
    """Programmatic launches do that."""
    kernels = steps()
    kernels[1][1]["dur"] = 17.0
    graph = loaded(tmp_path, *kernels)

    assert "warnings" not in graph.meta.trace
    assert 17_000 == graph.duration_ns.max()


def test_kernels_that_start_before_their_launch_tell_of_clocks_that_differ(tmp_path):
    graph = loaded(tmp_path, *steps(), launched(8, BASE_US + 200, launch_us=BASE_US + 200.5))

    (warning,) = graph.meta.trace["warnings"]
    assert "1 device tasks start before the call that launches them, by up to 500 ns" in warning
