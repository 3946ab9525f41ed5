"""What calls of operators take on the thread of a GPU's host, in graphs that were never run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from windtunnel.cost.host_times import COSTS, OTHER_NS, START_BACKWARD_NS, STEP_NS, host_times_ns
from windtunnel.graph import GraphBuilder, Kind, Phase, ResourceKind
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
    assert [COSTS.python_ns, COSTS.call_ns, COSTS.call_ratio * OTHER_NS + COSTS.cold_ns] == [python, view, other]
    assert COSTS.cold_ns < product < 100_000
    assert 3 * COSTS.tensor_ns < lists


def tasks(*rows):
    """A thread with the given (operator, kind, phase, shapes)."""
    builder = GraphBuilder()
    thread = builder.resource("main", ResourceKind.HOST_THREAD)
    for op, kind, phase, shapes in rows:
        work = {"flops": 8, "bytes_read": 8} if kind is Kind.COMPUTE else {}
        common = {"duration_ns": 0, "cost_source": "not run", "input_shapes": shapes, "input_args": "[]"}
        builder.task(op, op=op, kind=kind, phase=phase, resource=thread, **common, **work)
    return builder.build()


def test_no_python_runs_between_nodes_of_the_backward_pass_which_starts_once():
    found = host_times_ns(
        tasks(
            ("python", Kind.HOST, Phase.FORWARD, ""),
            ("python", Kind.HOST, Phase.BACKWARD, ""),
            ("AddmmBackward0", Kind.HOST, Phase.BACKWARD, ""),
            ("python", Kind.HOST, Phase.BACKWARD, ""),
        )
    )
    assert [COSTS.python_ns, START_BACKWARD_NS + COSTS.engine_ns, COSTS.engine_ns, COSTS.engine_ns] == found.tolist()


def test_an_optimizer_that_loops_over_tensors_calls_the_same_operators_in_a_row():
    call = ("aten::lerp_", Kind.COMPUTE)
    forward, update = host_times_ns(tasks((*call, Phase.FORWARD, "[[4]]"), (*call, Phase.UPDATE, "[[4]]")))
    assert COSTS.cold_ns - COSTS.tensor_ns == forward - update


def test_a_recurrent_layer_launches_kernels_for_each_time_step():
    name = "aten::mkldnn_rnn_layer"
    shapes = [f"[[{steps},2,8],[32,8],[32,8]]" for steps in (10, 30)]
    short, long = host_times_ns(tasks(*[(name, Kind.COMPUTE, Phase.FORWARD, text) for text in shapes]))
    assert 20 * STEP_NS[False] == long - short


def test_a_default_device_costs_time_in_python_and_where_counters_are_read():
    rows = [(name, Kind.HOST, Phase.UPDATE, "") for name in ("python", "aten::_local_scalar_dense", "aten::view")]
    graph = tasks(*rows)
    added = host_times_ns(graph.with_meta(has_default_device=True)) - host_times_ns(graph)
    assert [COSTS.mode_ns, COSTS.read_ns, 0] == added.tolist()


def test_a_graph_that_never_ran_gets_them_and_a_given_launch_goes_before():
    chip = device("h200")
    timed, given = place_on(step(), chip), place_on(step(), chip, 700)
    assert "host table" in timed.tasks.strings("cost_source").values
    launches = given.select(op="launch")
    assert {700} == set(given.duration_ns[launches].tolist())
    captured = place_on(step("measured"), chip)
    assert {LAUNCH_NS} == set(captured.duration_ns[captured.select(op="launch")].tolist())
    assert np.array_equal(timed.select(op="launch"), launches)


def test_convolutions_of_channels_first_launch_kernels_that_turn_their_layout():
    builder = GraphBuilder()
    thread = builder.resource("main", ResourceKind.HOST_THREAD)
    common = {"kind": Kind.COMPUTE, "resource": thread, "duration_ns": 0, "cost_source": "not run",
              "flops": 8, "bytes_read": 8, "input_dtypes": json.dumps(["Tensor(float)"] * 3)}  # fmt: skip
    ends = "[1,1],[1,1],[1,1],false,[0,0],"
    for side, groups, strides in ((3, 1, [512, 64, 8, 1]), (1, 1, [512, 64, 8, 1]), (3, 8, [512, 64, 8, 1]),
                                  (3, 1, [512, 1, 64, 8])):  # fmt: skip
        builder.task(
            "convolution", op="aten::convolution", input_shapes=f"[[2,8,8,8],[8,{8 // groups},{side},{side}],[]]",
            input_strides=f"[{strides},[72,9,3,1],[]]", input_args=f"[null,null,null,{ends}{groups}]", **common
        )  # fmt: skip
    for results in ("[false,true,false]", "[true,true,false]"):
        builder.task(
            "backward", op="aten::convolution_backward", input_shapes="[[2,8,8,8],[2,8,8,8],[8,8,3,3],[]]",
            input_strides="[[512,64,8,1],[512,64,8,1],[72,9,3,1],[]]",
            input_args=f"[null,null,null,[0],{ends}1,{results}]", **common
        )  # fmt: skip
    windows, single, apart, last, weights, both = host_times_ns(builder.build()).tolist()
    assert single == apart == last == pytest.approx(windows - 3 * COSTS.kernel_ns)
    assert both - weights == pytest.approx(3 * COSTS.kernel_ns)


def test_python_in_an_update_is_a_loop_over_parameters():
    found = host_times_ns(tasks(("python", Kind.HOST, Phase.UPDATE, "")))
    assert [COSTS.tensor_ns] == found.tolist()
