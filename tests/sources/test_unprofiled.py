"""A profiler's cost is taken out of a trace: by the step time without it, or in the typical share."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import windtunnel
from tests.sources.kineto_traces import call, kernel, op, write
from tests.whatifs.steps import Layer, gpu_step
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Kind, ResourceKind, load
from windtunnel.simulate import replay
from windtunnel.sources.kineto import load_kineto
from windtunnel.sources.kineto.unprofiled import TYPICAL_SHARE, without_profiler

H100 = Path(__file__).parents[2] / "benchmarks" / "gpu" / "h100" / "traces"


@pytest.fixture(scope="module")
def decoder():
    return load_kineto(H100 / "decoder-lm.json.gz")


def step_ns(graph):
    return replay(graph).makespan_ns / graph.num_iterations


def test_a_known_step_time_is_met(decoder):
    found = without_profiler(decoder, 15.9e6)
    kernels = decoder.select(kind=Kind.COMPUTE) & (
        decoder.resources["kind"][decoder.tasks["resource"]] == ResourceKind.STREAM
    )

    assert 15.9e6 == pytest.approx(step_ns(found), rel=0.03)
    assert 0.4 < found.meta.overhead["host_ratio"] < 0.7
    assert 15.9e6 == found.meta.iteration_ns["median"]
    assert step_ns(decoder) == pytest.approx(found.meta.profiled_iteration_ns["median"])
    np.testing.assert_array_equal(decoder.duration_ns[kernels], found.duration_ns[kernels])


def test_the_typical_share_is_nearer_to_the_truth_than_the_trace(decoder):
    assert abs(step_ns(without_profiler(decoder)) / 15.87e6 - 1) < 0.15 < abs(step_ns(decoder) / 15.87e6 - 1)


def test_where_the_device_decides_the_share_is_typical(tmp_path):
    events = [op("aten::mm", 0, 20), call("cudaLaunchKernel", 1, 10, 0), kernel("sgemm", 12, 5_000, 0)]
    graph = load_kineto(write(tmp_path / "device.json", events))

    assert TYPICAL_SHARE == without_profiler(graph, 5_010e3).meta.overhead["host_ratio"]


@pytest.mark.parametrize(("step", "said"), [(1e6, "at least, and 1.00 ms was said"), (80e6, "without it?")])
def test_a_step_time_of_another_job_is_refused(decoder, step, said):
    with pytest.raises(InputError, match=said):
        without_profiler(decoder, step)


def test_other_sources_take_out_what_they_cost():
    graph = gpu_step([Layer("a")])

    with pytest.raises(NotApplicableError, match=r"torch\.profiler"):
        without_profiler(graph)


def test_slice_keeps_the_trace_without_its_profiler(tmp_path):
    out = tmp_path / "bare.wt"
    done = windtunnel("slice", H100 / "decoder-lm.json.gz", "--step-time", "15.9ms", "--out", out)
    told, before = windtunnel("explain", out), windtunnel("explain", H100 / "decoder-lm.json.gz")

    assert 0 == done.code, done.stderr
    assert "slice --step-time" in before.stdout + before.stderr
    assert "slice --step-time" not in told.stdout + told.stderr
    assert 15.9e6 == pytest.approx(step_ns(load(out)), rel=0.03)
    assert "recorded under the profiler" in told.stdout + told.stderr
