"""What a device waits for, what it computes and what to change first, worked out by hand and on recorded steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.whatifs.steps import Layer, cpu_step, gpu_step
from tests.whatifs.test_host_waits import synchronous_step
from windtunnel.reports import explain
from windtunnel.reports.device_use import device_lines
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.whatifs.device_use import find_device_use

PAIRS = Path(__file__).parents[2] / "benchmarks" / "gpu" / "h200" / "pairs"


def by_cause(use):
    return {(wait.cause, wait.operator): wait.duration_ns for wait in use.waits}


def test_each_wait_of_the_device_has_its_cause():
    """Idle: 10 before the copy, 310 behind it since the host waited for it; 200 + 2 in which only copies run."""
    use = find_device_use(synchronous_step())

    assert (1000, 522, 1) == (use.computing_ns, use.waiting_ns, use.host_ratio)
    assert {("launches", ""): 10, ("copies", ""): 202, ("blocking copy", "aten::copy_"): 310} == by_cause(use)
    assert "train.py(8)" == next(wait.line for wait in use.waits if wait.cause == "blocking copy")


def test_a_value_that_is_read_keeps_the_host_from_running_ahead():
    """In the second iteration 10 go by until its copy begins, since the loss of the first was read."""
    use = find_device_use(synchronous_step().concat(2))

    assert (1000, 522) == (use.computing_ns, use.waiting_ns)
    assert 5 == by_cause(use)["synchronization", "aten::_local_scalar_dense"]


def test_a_device_that_waits_for_launches():
    use = find_device_use(gpu_step([Layer("a", 100_000, 200_000, 30_000)], launch_ns=500_000))

    assert 330_000 == use.computing_ns
    assert [("launches", "")] == list(by_cause(use))
    assert "cuda-graphs" == use.changes[0].whatif


def test_a_processor_is_no_device():
    assert find_device_use(cpu_step([Layer("a")])) is None
    assert explain(cpu_step([Layer("a")])).device is None


def test_the_answer_comes_first_and_in_words():
    lines = device_lines(find_device_use(synchronous_step()))

    assert "the device waits 522 ns of 1.52 µs (34 %), for:" == lines[0]
    assert "  310 ns (20 %) a blocking copy in aten::copy_ at train.py(8)" == lines[1]
    assert lines[-1].startswith("change first, by `windtunnel whatif`: ")
    assert "no-sync 1.27x (saves 320 ns)" in lines[-1]


@pytest.mark.parametrize("name", ["residual_net-plain", "residual_net-rich", "streams_net-plain", "perceptron-plain"])
def test_recorded_steps_are_divided_without_a_rest(name):
    """The host without its profiler brings steps near to what the scripts took alone: 13.0, 6.8 and 2.3 ms."""
    use = find_device_use(load_kineto(PAIRS / f"{name}.json.gz"), asks=False)
    alone_ns = {"residual_net": 13.0e6, "streams_net": 6.8e6, "perceptron": 2.27e6}[name.partition("-")[0]]

    assert use.waiting_ns == pytest.approx(sum(wait.duration_ns for wait in use.waits))
    assert use.step_ns == pytest.approx(use.computing_ns + use.waiting_ns)
    assert use.step_ns == pytest.approx(alone_ns, rel=0.25)
    assert use.host_ratio < 1
    assert 1 == pytest.approx(sum(kernels.ratio for kernels in use.kernels))
