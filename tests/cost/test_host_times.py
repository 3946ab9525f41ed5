"""What calls of operators take on the thread of a GPU's host, in graphs that were never run."""

from __future__ import annotations

import numpy as np

from windtunnel.cost.host_times import CALL_NS, OTHER_NS, PYTHON_NS, TENSOR_NS, host_times_ns
from windtunnel.graph import GraphBuilder, Kind, ResourceKind
from windtunnel.hardware import device
from windtunnel.whatifs.placing import LAUNCH_NS, place_on


def step(cost_source="not run"):
    builder = GraphBuilder()
    thread = builder.resource("main", ResourceKind.HOST_THREAD)
    common = {"resource": thread, "duration_ns": 0, "cost_source": cost_source, "input_shapes": "[[4,4]]"}
    builder.task("python", op="python", kind=Kind.HOST, **common)
    builder.task("view", op="aten::view", kind=Kind.HOST, **common)
    builder.task("mm", op="aten::mm", kind=Kind.COMPUTE, flops=128, bytes_read=128, **common)
    builder.task("other", op="aten::never_timed", kind=Kind.COMPUTE, flops=1, bytes_read=8, **common)
    lists = common | {"input_shapes": "[[[4,4],[4],[4]],[]]"}
    builder.task("foreach", op="aten::_foreach_mul_", kind=Kind.COMPUTE, flops=1, bytes_read=8, **lists)
    return builder.build()


def test_python_calls_and_operators_have_their_own_times():
    python, view, product, other, lists = host_times_ns(step()).tolist()
    assert [PYTHON_NS, CALL_NS, OTHER_NS] == [python, view, other]
    assert CALL_NS < product < 100_000
    assert 3 * TENSOR_NS < lists


def test_a_graph_that_never_ran_gets_them_and_a_given_launch_goes_before():
    chip = device("h200")
    timed, given = place_on(step(), chip), place_on(step(), chip, 700)
    assert "host table" in timed.tasks.strings("cost_source").values
    launches = given.select(op="launch")
    assert {700} == set(given.duration_ns[launches].tolist())
    captured = place_on(step("measured"), chip)
    assert {LAUNCH_NS} == set(captured.duration_ns[captured.select(op="launch")].tolist())
    assert np.array_equal(timed.select(op="launch"), launches)
