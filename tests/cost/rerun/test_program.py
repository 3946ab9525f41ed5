"""A captured program says everything that is needed to run it again."""

from __future__ import annotations

import json

import pytest

from tests.cost.rerun.programs import FLOAT, call_row, number, perceptron, perceptron_graph, tensor
from windtunnel.cost.rerun import Call, Form, Program, program_of
from windtunnel.cost.rerun.program import argument_names, tensors_of
from windtunnel.errors import InputError, PriceError
from windtunnel.graph import GraphBuilder, Phase, load, save


def test_parameters_and_gradients_are_no_inputs():
    assert {1, 9} == set(perceptron().data_inputs())


def test_a_state_that_the_step_makes_itself_is_no_input():
    zeros = call_row(
        "aten::zeros(SymInt[] size, *, ScalarType? dtype=None) -> Tensor",
        [number([2, 24, 8], "GenericList[Int,Int,Int]")],
        [tensor(1, [2, 24, 8])],
        grad=False,
    )
    reads = call_row(
        "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        [tensor(1, [2, 24, 8]), tensor(2, [24, 8]), number(1)],
        [tensor(3, [2, 24, 8])],
    )
    calls = tuple(Call(**row, layer="recurrent", phase=Phase.FORWARD) for row in (zeros, reads))

    assert {2} == set(Program(calls, {}).data_inputs())


def test_a_tensor_that_was_not_given_is_none():
    missing = tensor(7, [0], "Tensor(nullptr (uninitialized))")

    assert [] == tensors_of([missing[0]], [missing[1]], [missing[2]])


def test_equal_programs_have_equal_fingerprints_and_others_do_not():
    assert perceptron().fingerprint == perceptron().fingerprint
    assert perceptron(batch=16).fingerprint != perceptron(batch=32).fingerprint


def test_a_graph_gives_its_program_with_layers_and_phases():
    program = program_of(perceptron_graph())

    assert ["0", "1", "2", "", "", ""] == [call.layer for call in program.calls]
    assert [Phase.FORWARD] * 4 == [call.phase for call in program.calls[:4]]
    assert 1 == program.threads


def test_a_stored_graph_keeps_its_program(tmp_path):
    graph = perceptron_graph()
    save(graph, tmp_path / "step.wt")

    assert program_of(graph).fingerprint == program_of(load(tmp_path / "step.wt")).fingerprint


def test_a_trace_of_others_has_no_program_and_says_so():
    builder = GraphBuilder()
    builder.task("kernel", duration_ns=5)
    with pytest.raises(PriceError, match="which operators were called"):
        program_of(builder.build({"source": "kineto"}))


def test_arguments_are_named_as_in_the_schema():
    schema = "aten::lstm.input(Tensor input, Tensor[] hx, bool first, Scalar s=(1, 2), *, int? k=None) -> (Tensor, int)"

    assert ["input", "hx", "first", "s", "k"] == argument_names(schema)


def test_tensors_within_lists_are_found_with_their_place():
    first, second = tensor(1, [2]), tensor(2, [3, 4])
    kinds = f"GenericList[{FLOAT},None,{FLOAT}]"
    found = tensors_of([[first[0], None, second[0]]], [[first[1], [], second[1]]], [kinds], [[[1], [], [4, 1]]])

    assert [((0, 0), (2,)), ((0, 2), (3, 4))] == [(spec.path, spec.shape) for spec in found]


def test_a_program_is_plain_json():
    graph = perceptron_graph()

    assert graph.meta.program == json.loads(json.dumps(graph.meta.program))


@pytest.mark.parametrize("wrong", [{"threads": -1}, {"num_passes": 0}, {"batch": (0, 1)}])
def test_a_form_that_nothing_can_run_in_is_refused(wrong):
    with pytest.raises(InputError, match="positive counts"):
        Form(**wrong)
