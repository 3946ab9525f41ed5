"""A captured program says everything that is needed to run it again."""

from __future__ import annotations

import json

import pytest

from tests.cost.rerun.programs import FLOAT, RELU, call_row, number, perceptron, perceptron_graph, tensor
from windtunnel.cost.rerun import Call, Form, Program, program_of
from windtunnel.cost.rerun.program import argument_names, tensors_of
from windtunnel.errors import InputError, PriceError
from windtunnel.graph import GraphBuilder, Phase, load, save


def test_the_batch_size_is_what_the_inputs_share():
    assert 16 == perceptron(batch=16).batch_size
    assert 48 == perceptron(batch=48).batch_size


INDEX = "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor"
EMBED = "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1) -> Tensor"
LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
SELECT = "aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)"
LOSS = "aten::nll_loss(Tensor self, Tensor target, Tensor? weight=None) -> Tensor"
ADD = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"


def program_with(rows, parameters):
    return Program(tuple(Call(**row, phase=Phase.FORWARD) for row in rows), parameters)


def test_a_data_set_from_which_the_step_draws_is_not_its_batch():
    rows = [
        call_row(INDEX, [tensor(1, [4096, 32]), tensor(2, [64])], [tensor(3, [64, 32])]),
        call_row(LINEAR, [tensor(3, [64, 32]), tensor(10, [8, 32])], [tensor(4, [64, 8])]),
        call_row(INDEX, [tensor(5, [4096]), tensor(2, [64])], [tensor(6, [64])]),
        call_row(LOSS, [tensor(4, [64, 8]), tensor(6, [64])], [tensor(7, [])]),
    ]

    assert 64 == program_with(rows, {10: "weight"}).batch_size


def test_steps_of_time_that_come_first_are_not_the_batch():
    rows = [
        call_row(EMBED, [tensor(10, [500, 8]), tensor(1, [20, 16])], [tensor(2, [20, 16, 8])]),
        call_row(SELECT, [tensor(2, [20, 16, 8]), number(0), number(-1)], [tensor(3, [16, 8])]),
        call_row(LOSS, [tensor(3, [16, 8]), tensor(4, [16])], [tensor(5, [])]),
    ]

    assert 16 == program_with(rows, {10: "table"}).batch_size


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_batch_of_token_ids_is_found_beside_positions_and_flat_labels(batch):
    length = 64
    rows = [
        call_row(EMBED, [tensor(10, [500, 8]), tensor(1, [batch, length])], [tensor(2, [batch, length, 8])]),
        call_row(EMBED, [tensor(11, [length, 8]), tensor(3, [1, length])], [tensor(4, [1, length, 8])]),
        call_row(ADD, [tensor(2, [batch, length, 8]), tensor(4, [1, length, 8]), number(1)],
                 [tensor(5, [batch, length, 8])]),
        call_row("aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
                 [tensor(5, [batch, length, 8]), number([batch * length, 8], "GenericList[Int,Int]")],
                 [tensor(6, [batch * length, 8])]),
        call_row(LOSS, [tensor(6, [batch * length, 8]), tensor(7, [batch * length])], [tensor(8, [])]),
    ]  # fmt: skip

    assert batch == program_with(rows, {10: "tokens", 11: "positions"}).batch_size


def test_two_sizes_that_may_both_be_the_batch_are_none():
    """The what-if then asks for it; a guess would be a receipt of something else."""
    rows = [
        call_row(LINEAR, [tensor(1, [6, 8]), tensor(10, [8, 8])], [tensor(2, [6, 8])]),
        call_row(LINEAR, [tensor(3, [9, 8]), tensor(10, [8, 8])], [tensor(4, [9, 8])]),
    ]

    assert 0 == program_with(rows, {10: "weight"}).batch_size


def test_parameters_and_gradients_are_no_inputs():
    assert {1, 9} == set(perceptron().data_inputs())


def test_a_program_without_inputs_has_no_batch_size():
    assert 0 == Program((), {}).batch_size


def test_data_that_the_step_draws_itself_are_inputs():
    draw = "aten::randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None) -> Tensor"
    rows = [
        call_row(draw, [number([24, 8], "GenericList[Int,Int]")], [tensor(1, [24, 8])]),
        call_row(RELU, [tensor(1, [24, 8])], [tensor(2, [24, 8])]),
    ]

    assert 24 == Program(tuple(Call(**row, phase=Phase.FORWARD) for row in rows), {}).batch_size


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
