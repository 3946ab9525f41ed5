"""Partial flights run the captured operators again, in their old and their new form."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.cost.rerun.programs import FLOAT, call_row, number, perceptron, perceptron_graph, tensor
from windtunnel.cost.rerun import (
    BASELINE,
    Call,
    Form,
    Program,
    UpdateForm,
    look_up_ratios,
    measure_ratios,
    measure_update,
)
from windtunnel.cost.rerun.optimizer import embedding_row_ratios, sparse_parameters, step_of
from windtunnel.errors import PriceError
from windtunnel.graph import Phase
from windtunnel.measure import ProfileDatabase, disturbance
from windtunnel.measure.devices import HostClock
from windtunnel.whatifs.samples_per_iteration import batch_size_of

torch = pytest.importorskip("torch")

from windtunnel.cost.rerun.interpreter import Interpreter  # noqa: E402
from windtunnel.cost.rerun.resize import scale_sizes  # noqa: E402


def rehearsed(program: Program, form: Form = BASELINE) -> Interpreter:
    interpreter = Interpreter(program, form)
    interpreter.rehearse()
    return interpreter


def test_a_program_runs_forward_and_backward():
    interpreter = rehearsed(perceptron())
    lap = interpreter.run(detail=True)

    assert {} == interpreter.failures
    assert (lap.forward_ns[:4] > 0).all()
    assert (lap.backward_ns[:4] > 0).all()
    assert 1 == len(lap.passes_ns)


def test_results_take_the_bytes_that_the_form_says():
    usual, half = rehearsed(perceptron()), rehearsed(perceptron(), Form(autocast="bfloat16"))

    assert [0.5, 0.5, 0.5] == (half.output_bytes[:3] / usual.output_bytes[:3]).tolist()
    # the loss lies outside of every module, so it is computed in full precision
    assert 1.0 == half.output_bytes[3] / usual.output_bytes[3]


class TickingClock(HostClock):
    """Each reading is one microsecond after the one before, so that every part of a run takes as long."""

    def __init__(self) -> None:
        self._readings = itertools.count(0, 1000)

    def stamp(self) -> int:
        return next(self._readings)


def test_the_way_into_an_operator_is_left_out_and_that_into_autocast_counts(monkeypatch):
    """The step enters autocast, too; but its operators are timed from within, as by a profiler."""
    usual, half = rehearsed(perceptron()), rehearsed(perceptron(), Form(autocast="bfloat16"))
    monkeypatch.setattr("windtunnel.cost.rerun.interpreter.HostClock", TickingClock)

    assert [100] * 4 == usual.run().forward_ns[:4].tolist()  # what is left of a call that takes as long as none
    # the first call enters autocast and leaves it; the loss reads results that are given back in float32
    assert [2000, 100, 100, 1000] == half.run().forward_ns[:4].tolist()


@pytest.mark.parametrize("batch", [8, 32, 48])
def test_another_batch_size_reaches_every_result(batch):
    interpreter = rehearsed(perceptron(batch=16), Form(batch=(16, batch)))
    usual = rehearsed(perceptron(batch=16))

    assert {} == interpreter.failures
    assert [batch / 16] * 3 == (interpreter.output_bytes[:3] / usual.output_bytes[:3]).tolist()


def test_a_frozen_layer_gets_no_gradient():
    interpreter = rehearsed(perceptron(), Form(frozen=("0.weight", "0.bias")))
    lap = interpreter.run(detail=True)

    assert 0 == lap.backward_ns[0]
    assert lap.backward_ns[2] > 0


def test_several_passes_accumulate():
    assert 3 == len(rehearsed(perceptron(), Form(num_passes=3)).run().passes_ns)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of what Inductor imports
def test_a_range_is_compiled_once_for_all_that_run_it_in_one_setting():
    """Tracing it again for the old form of each change, and for its memory, took most of the time."""
    form = Form(compiled=((0, 3),))
    first, again, passes, half, wide = (
        Interpreter(perceptron(), replace(form, **changed))._segments[0].function
        for changed in ({}, {}, {"num_passes": 2}, {"autocast": "bfloat16"}, {"threads": 2})
    )

    assert first is again is passes
    assert 3 == len({id(first), id(half), id(wide)})


@pytest.mark.slow
def test_a_checkpointed_block_runs_as_one():
    lap = rehearsed(perceptron(), Form(checkpointed=((0, 3),))).run(detail=True)

    assert lap.forward_ns[0] > 0
    assert [0.0, 0.0] == lap.forward_ns[1:3].tolist()
    assert lap.backward_ns[0] > 0


def test_what_cannot_be_run_is_replaced_by_fresh_tensors_and_named():
    rows = list(perceptron().calls)
    unknown = call_row("aten::no_such_operator(Tensor self) -> Tensor", [tensor(4, [16, 32])], [tensor(5, [16, 32])])
    rows[1] = Call(**unknown, layer="1", phase=Phase.FORWARD)
    ratios = measure_ratios(Program(tuple(rows), perceptron().parameters, threads=1), Form(num_passes=2), budget_s=0.01)

    assert [1] == list(ratios.failures)
    assert 1.0 == ratios.forward[1]


def test_a_state_that_does_not_fit_its_input_is_never_run():
    """A recurrent operator would read beyond the end of a smaller state."""
    schema = (
        "aten::lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, "
        "bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)"
    )
    states, weights = [tensor(2, [1, 7, 5]), tensor(3, [1, 7, 5])], [tensor(4, [20, 3]), tensor(5, [20, 5])]
    listed = [
        (
            [one[0] for one in items],
            [one[1] for one in items],
            f"GenericList[{FLOAT},{FLOAT}]",
            [one[3] for one in items],
        )
        for items in (states, weights)
    ]
    settings = [number(False, "Bool"), number(1), number(0.0, "Double")]
    flags = [number(value, "Bool") for value in (True, False, True)]
    row = call_row(
        schema,
        [tensor(1, [6, 4, 3]), *listed, *settings, *flags],
        [tensor(6, [6, 4, 5]), tensor(7, [1, 7, 5]), tensor(8, [1, 7, 5])],
    )
    interpreter = rehearsed(Program((Call(**row, phase=Phase.FORWARD),), {}), Form(batch=(6, 12)))

    assert "does not fit" in interpreter.failures[0]


@pytest.mark.parametrize(
    ("sizes", "scaled"), [((32, 10), (64, 10)), ((96, 10), (192, 10)), ((7, 5), (7, 5)), ((10, 32), (10, 64)), ((), ())]
)
def test_the_first_size_of_the_batch_is_scaled(sizes, scaled):
    assert scaled == scale_sizes(sizes, (32, 64))


def test_a_measurement_is_not_made_twice(tmp_path):
    database = ProfileDatabase(tmp_path / "profile.db")
    form = Form(num_passes=2)
    assert look_up_ratios(perceptron(), form, database=database) is None
    first = measure_ratios(perceptron(), form, database=database, budget_s=0.2)
    second = look_up_ratios(perceptron(), form, database=database)

    assert first.failures == second.failures
    assert np.array_equal(first.forward, second.forward)
    assert first.backward_total == second.backward_total


def test_ratios_are_one_where_there_is_nothing_to_run():
    ratios = measure_ratios(perceptron(), Form(threads=1), budget_s=0.01)

    assert [1.0, 1.0] == ratios.forward[4:].tolist()
    assert (ratios.forward > 0).all()


def test_an_update_is_flown_by_itself():
    optimizers = perceptron_graph(width=64).meta.optimizers
    measured = measure_update(optimizers, UpdateForm({"fused": True, "foreach": False}), threads=1, budget_s=0.05)

    assert measured.measurement.old_ns > 0
    assert measured.measurement.new_ns > 0
    assert measured.measurement.rounds >= 5


def test_parameters_of_another_shape_are_updated_in_it(monkeypatch):
    """What a circulant layer keeps of its weight still takes an update, and is another key of the database."""
    made = []
    monkeypatch.setattr(
        "windtunnel.cost.rerun.optimizer._make_parameter",
        lambda torch_module, shape, *_, **__: made.append(tuple(shape)) or torch_module.ones(shape, requires_grad=True),
    )
    (optimizer,) = perceptron_graph(width=64).meta.optimizers
    name = optimizer["groups"][0]["parameters"][0]
    form = UpdateForm(reshaped={name: (2, 3, 8)})
    step_of(optimizer, form)()

    assert (2, 3, 8) == made[0]
    assert [tuple(shape) for shape in optimizer["groups"][0]["shapes"][1:]] == made[
        1 : len(optimizer["groups"][0]["shapes"])
    ]
    assert form.label != UpdateForm().label


def described(*, is_sparse: bool, width: int = 3) -> list[dict]:
    """A table of ten rows and a bias, as a capture keeps them."""
    group = {
        "options": {"lr": 0.1},
        "parameters": ["table.weight", "bias"],
        "shapes": [[10, width], [width]],
        "dtypes": ["float32"] * 2,
        "sparse": [is_sparse, False],
    }
    return [{"class": "torch.optim.sgd.SGD", "groups": [group]}]


def test_an_update_is_flown_with_gradients_of_the_captured_layout(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: seen.extend(self.param_groups[0]["params"]))
    for is_sparse in (True, False):
        step_of(described(is_sparse=is_sparse)[0], UpdateForm(), {"table.weight": 1 - np.exp(-0.5)})()

    assert [True, False, False, False] == [one.grad.is_sparse for one in seen]
    assert 5 == seen[0].grad._nnz()  # so many reads touch this share of ten rows
    assert ["table.weight"] == sparse_parameters(described(is_sparse=True))
    assert [] == sparse_parameters(described(is_sparse=False))


def test_an_update_with_sparse_gradients_has_a_list_form_and_no_fused_one():
    measured = measure_update(described(is_sparse=True), UpdateForm({"foreach": True, "fused": False}), budget_s=0.01)

    assert measured.measurement.new_ns > 0
    with pytest.raises(RuntimeError, match="sparse gradients"):
        step_of(described(is_sparse=True)[0], UpdateForm({"fused": True, "foreach": False}))()


def test_fewer_parameters_take_less_of_an_update(tmp_path):
    optimizers = perceptron_graph(width=512).meta.optimizers
    form = UpdateForm(frozen=frozenset({"0.weight"}))
    database = ProfileDatabase(tmp_path / "profile.db")
    measured = measure_update(optimizers, form, threads=1, database=database, budget_s=0.05)

    assert measured < 0.9
    assert 1 == len(database)


class Waiting:
    """A host on which every thread waits for others for a share of the time."""

    def __init__(self, share):
        self.share = share

    def __call__(self):
        return {"1": int(time.perf_counter_ns() * self.share)}


@pytest.mark.parametrize(("share", "is_kept"), [(0.5, False), (0.001, True)])
def test_what_was_measured_beside_other_programs_is_used_and_not_kept(monkeypatch, tmp_path, share, is_kept):
    monkeypatch.setattr(disturbance, "_run_queue_wait_ns", Waiting(share))
    database = ProfileDatabase(tmp_path / "profile.db")
    ratios = measure_ratios(perceptron(), Form(threads=1), database=database, budget_s=0.01)
    optimizers = perceptron_graph(width=64).meta.optimizers
    factor = measure_update(optimizers, UpdateForm({"foreach": True}), threads=1, database=database, budget_s=0.01)

    assert is_kept is (len(database) > 0)
    assert pytest.approx(0.0 if is_kept else share, abs=0.05) == ratios.waited_ratio
    assert pytest.approx(0.0 if is_kept else share, abs=0.05) == factor.waited_ratio
    assert (ratios.forward > 0).all()


def test_rounds_that_were_left_alone_count_where_there_are_enough(monkeypatch):
    busy_until_ns = time.perf_counter_ns()  # each second stretch is disturbed
    calls = []

    def waited():
        calls.append(1)
        turn = (len(calls) - 1) // 2
        return {"1": time.perf_counter_ns() - busy_until_ns if turn % 2 else 0}

    monkeypatch.setattr(disturbance, "_run_queue_wait_ns", waited)
    ratios = measure_ratios(perceptron(), Form(threads=1), budget_s=0.2)

    assert 0.0 == ratios.waited_ratio
    assert ratios.rounds >= 3


def test_rounds_that_others_disturb_end_with_the_budget(monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr(disturbance, "_run_queue_wait_ns", Waiting(0.5))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    ratios = measure_ratios(perceptron(), Form(threads=1), budget_s=5.0)

    assert 6 == ratios.rounds


def test_rows_of_embeddings_that_nothing_reads_get_no_gradient():
    schema = "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1) -> Tensor"
    row = call_row(schema, [tensor(1, [100, 8]), tensor(2, [50], "Tensor(long int)"), number(-1)], [tensor(3, [50, 8])])
    program = Program((Call(**row), Call(mark="backward")), {1: "table.weight"})

    assert {"table.weight": pytest.approx(1 - np.exp(-0.5))} == embedding_row_ratios(program)
    assert {} == embedding_row_ratios(perceptron())


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"class": "mine.Lion", "groups": []}, "not one of torch.optim"),
        ({"class": "torch.optim.rprop.Rprop", "groups": []}, "no option 'fused'"),
    ],
)
def test_an_optimizer_that_cannot_be_flown_says_why(description, message):
    with pytest.raises(PriceError, match=message):
        measure_update([description], UpdateForm({"fused": True}))


@pytest.mark.slow
def test_a_captured_step_is_run_again_whole():
    """The program of a real step takes about as long as its operators do in the step."""
    from windtunnel.cost.rerun import program_of
    from windtunnel.sources.torch.step import capture

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(8, 3, 32, 32)

    def step():
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()

    program = program_of(capture(step, iterations=4))
    ratios = measure_ratios(program, Form(batch=(8, 16)), budget_s=1.0)

    assert 8 == batch_size_of(program)
    assert not ratios.failures
    assert {"backward", "update"} == {call.mark for call in program.calls if call.mark}
    assert 2.0 == ratios.output_bytes[next(row for row, call in enumerate(program.calls) if "conv" in call.operator)]
