"""The batch of a captured step."""

import pytest

from tests.cost.rerun.programs import RELU, call_row, number, perceptron, tensor
from windtunnel.cost.rerun import Call, Program
from windtunnel.graph import Phase
from windtunnel.whatifs.samples_per_iteration import batch_size_of


def test_the_batch_size_is_what_the_inputs_share():
    assert 16 == batch_size_of(perceptron(batch=16))
    assert 48 == batch_size_of(perceptron(batch=48))


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

    assert 64 == batch_size_of(program_with(rows, {10: "weight"}))


def test_steps_of_time_that_come_first_are_not_the_batch():
    rows = [
        call_row(EMBED, [tensor(10, [500, 8]), tensor(1, [20, 16])], [tensor(2, [20, 16, 8])]),
        call_row(SELECT, [tensor(2, [20, 16, 8]), number(0), number(-1)], [tensor(3, [16, 8])]),
        call_row(LOSS, [tensor(3, [16, 8]), tensor(4, [16])], [tensor(5, [])]),
    ]

    assert 16 == batch_size_of(program_with(rows, {10: "table"}))


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

    assert batch == batch_size_of(program_with(rows, {10: "tokens", 11: "positions"}))


def test_two_sizes_that_may_both_be_the_batch_are_none():
    """The what-if then asks for it; a guess would be a receipt of something else."""
    rows = [
        call_row(LINEAR, [tensor(1, [6, 8]), tensor(10, [8, 8])], [tensor(2, [6, 8])]),
        call_row(LINEAR, [tensor(3, [9, 8]), tensor(10, [8, 8])], [tensor(4, [9, 8])]),
    ]

    assert 0 == batch_size_of(program_with(rows, {10: "weight"}))


def test_a_program_without_inputs_has_no_batch_size():
    assert 0 == batch_size_of(Program((), {}))


def test_data_that_the_step_draws_itself_are_inputs():
    draw = "aten::randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None) -> Tensor"
    rows = [
        call_row(draw, [number([24, 8], "GenericList[Int,Int]")], [tensor(1, [24, 8])]),
        call_row(RELU, [tensor(1, [24, 8])], [tensor(2, [24, 8])]),
    ]

    assert 24 == batch_size_of(Program(tuple(Call(**row, phase=Phase.FORWARD) for row in rows), {}))


def test_a_loss_that_balances_experts_says_nothing_of_the_batch():
    """It reduces means over the batch, one row of them."""
    rows = [
        call_row(EMBED, [tensor(10, [500, 8]), tensor(1, [4, 64])], [tensor(2, [4, 64, 8])]),
        call_row(ADD, [tensor(2, [4, 64, 8]), tensor(3, [1, 1, 8]), number(1)], [tensor(4, [4, 64, 8])]),
        call_row("aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
                 [tensor(4, [4, 64, 8]), number([256, 8], "GenericList[Int,Int]")], [tensor(5, [256, 8])]),
        call_row(LOSS, [tensor(5, [256, 8]), tensor(6, [256])], [tensor(7, [])]),
        call_row("aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False) -> Tensor",
                 [tensor(5, [256, 8]), number([0], "GenericList[Int]"), number(True, "Bool")], [tensor(8, [1, 8])]),
        call_row("aten::sum(Tensor self) -> Tensor", [tensor(8, [1, 8])], [tensor(9, [])]),
    ]  # fmt: skip

    assert 4 == batch_size_of(program_with(rows, {10: "tokens"}))
