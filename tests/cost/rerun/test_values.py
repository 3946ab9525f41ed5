"""Programs whose operators depend on what integers hold: lengths, places, experts, shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windtunnel as wt
from windtunnel.cost.rerun import BASELINE, Form, Program, RectifiedNorm, measure_ratios
from windtunnel.cost.rerun.memory import program_peaks
from windtunnel.cost.rerun.program import program_of
from windtunnel.errors import PriceError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from windtunnel.cost.rerun.interpreter import Interpreter  # noqa: E402
from windtunnel.cost.rerun.lengths import _lengths_of, _sizes_of  # noqa: E402


def test_names_that_need_torch_are_imported_where_they_are_used():
    from windtunnel.cost import rerun

    for name in rerun._LAZY:
        assert getattr(rerun, name) is not None


def program_of_step(model: nn.Module, loss_of) -> Program:
    """What one captured training step of the model calls."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    return program_of(wt.capture(step, iterations=2))


def rehearsed(program: Program, form: Form = BASELINE) -> Interpreter:
    interpreter = Interpreter(program, form)
    interpreter.rehearse()
    return interpreter


def operators(program: Program, places) -> set[str]:
    return {program.calls[place].operator.removeprefix("aten::") for place in places}


# --- lengths ----------------------------------------------------------------------------------------------


@given(longest=st.integers(1, 40), count=st.integers(1, 20), share=st.floats(0, 1))
def test_lengths_fit_their_shapes(longest, count, share):
    least, most = longest + count - 1, longest * count
    total = round(least + share * (most - least))
    lengths, sizes = _lengths_of(total, longest, count), _sizes_of(total, longest, count)

    assert (total, longest, count) == (int(lengths.sum()), int(lengths[0]), len(lengths))
    assert int(lengths.min()) >= 1
    assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)
    assert (total, longest, count) == (int(sizes.sum()), len(sizes), int(sizes[0]))


def test_lengths_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="no 3 sequences of 1 to 5 items have 16 items"):
        _lengths_of(16, 5, 3)


class Packed(nn.Module):
    """Takes sentences as the guide of packed sequences has it."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(50, 8), kind(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, sentences, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(sentences), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(nn.utils.rnn.pad_packed_sequence(self.inner(packed)[0], batch_first=True)[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch", [6, 12])
def test_packed_sequences_run_again_with_lengths_that_fit(kind, batch):
    """Kernels of packed sequences believe their lengths: with drawn ones the process would die."""
    lengths = torch.tensor([3, 9, 4, 7, 9, 1])
    program = program_of_step(Packed(kind), lambda model: model(torch.randint(0, 50, (6, 9)), lengths).square().mean())
    again = rehearsed(program, Form(batch=(6, batch)))
    lap = again.run(detail=True)
    place = next(place for place, call in enumerate(program.calls) if ".data(" in call.schema)

    assert {} == again.failures
    assert again.output_bytes[place] == batch / 6 * rehearsed(program).output_bytes[place] > 0
    assert lap.backward_ns[place] > 0


def test_connectionist_losses_run_again_on_what_their_tensors_hold():
    def loss_of(model):
        outputs = model(torch.randn(20, 4, 8)).log_softmax(-1)
        targets, lengths = torch.randint(1, 6, (11,)), torch.tensor([2, 3, 4, 2])
        return nn.functional.ctc_loss(outputs, targets, torch.tensor([20, 18, 20, 19]), lengths)

    program = program_of_step(nn.Linear(8, 6), loss_of)

    assert "ctc_loss" not in operators(program, rehearsed(program).failures)


# --- places -----------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Rows are put in the order of their experts by a sort and a division of what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.inner = nn.Linear(8, 4), nn.Linear(8, 8)

    def forward(self, x):
        chosen = self.router(x).topk(2, dim=-1).indices.reshape(-1)
        rows = torch.argsort(chosen) // torch.tensor(2)
        return self.inner(x[rows])


def test_an_index_stays_within_what_it_indexes_whatever_was_drawn():
    program = program_of_step(Experts(), lambda model: model(torch.randn(32, 8)).square().mean())
    failures = rehearsed(program).failures

    assert {"empty", "floor_divide"} == operators(program, failures)
    assert "index" in operators(program, range(len(program.calls)))


def test_a_call_that_cannot_be_run_stands_in_within_a_checkpoint_too():
    program = program_of_step(Experts(), lambda model: model(torch.randn(32, 8)).square().mean())
    inner = [place for place, call in enumerate(program.calls) if call.layer or call.operator == "aten::floor_divide"]
    form = Form(checkpointed=((inner[0], inner[-1] + 1),))
    ratios = measure_ratios(program, form, budget_s=0.01)

    assert ratios.backward_total > 0
    assert all(peak.peak_bytes > 0 for peak in program_peaks(program, BASELINE, form))


def test_a_result_whose_shape_depends_on_values_keeps_the_captured_one():
    def loss_of(model):
        x = model(torch.randn(16, 8))
        return x.masked_select(x > 50).square().mean()

    model = nn.Linear(8, 4)
    nn.init.constant_(model.bias, 100)
    program = program_of_step(model, loss_of)
    failures = rehearsed(program).failures

    assert {"masked_select"} == operators(program, failures)
    assert "has the shape (0,), and had (64,)" in next(iter(failures.values()))


def test_what_diverges_is_normalized_to_nothing_as_torch_does():
    norm = nn.BatchNorm1d(4)
    result, _, _ = RectifiedNorm.apply(torch.full((8, 4), float("nan")), norm.weight, norm.bias, 0.0, 0.0)

    assert (8, 4) == tuple(result.shape)


# --- another batch ----------------------------------------------------------------------------------------


def test_a_batch_that_is_stacked_from_samples_takes_more_of_them():
    text = torch.randn(100, 8)
    program = program_of_step(
        nn.Linear(8, 4), lambda model: model(torch.stack([text[begin] for begin in range(6)])).square().mean()
    )
    usual, doubled = rehearsed(program), rehearsed(program, Form(batch=(6, 12)))
    place = next(place for place, call in enumerate(program.calls) if call.operator == "aten::linear")

    assert 2 * usual.output_bytes[place] == doubled.output_bytes[place]


def test_a_batch_size_that_no_input_has_is_refused():
    program = program_of_step(nn.Linear(8, 4), lambda model: model(torch.randn(16, 8)).square().mean())

    with pytest.raises(PriceError, match=r"a batch of 10 instead of 5 .* only \+0%: where the batch lies"):
        measure_ratios(program, Form(batch=(5, 10)), budget_s=0.01)


# --- indices that follow from numbers ---------------------------------------------------------------------


class Counted(nn.Module):
    """Looks up a row by how many numbers of each sample are left: none are left in some runs, and row -1 is none."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        y = self.head(x)
        left = (nn.functional.dropout(torch.ones_like(y), 0.7) > 0).sum(dim=1, keepdim=True) - 1
        return y.gather(1, left)


def test_an_index_that_lies_below_zero_only_in_some_runs_stops_no_run():
    torch.manual_seed(1)
    model, batch = Counted(), torch.rand(1, 4)

    def loss(counted):
        torch.random.set_rng_state(state)  # here some are left
        return counted(batch).mean()

    while True:  # a state with which the step itself runs
        state = torch.random.get_rng_state()
        try:
            loss(model)
            break
        except RuntimeError:
            torch.rand(1)
    program = program_of_step(model, loss)
    interpreter = rehearsed(program)
    for _ in range(40):
        interpreter.run()

    assert operators(program, interpreter.opaque) <= {"sub", "gather"}
    assert interpreter.opaque

    ratios = measure_ratios(program, Form(autocast="bfloat16"), budget_s=0.2)

    assert operators(program, ratios.failures) & {"sub", "gather"}
    assert (ratios.forward > 0).all()
