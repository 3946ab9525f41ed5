"""Every operator knows the line of the program that calls it."""

import inspect
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack  # noqa: E402

from windtunnel.graph import Phase  # noqa: E402
from windtunnel.reports import explain  # noqa: E402
from windtunnel.sources.torch import recorder  # noqa: E402
from windtunnel.sources.torch.lines import mark_lines  # noqa: E402
from windtunnel.sources.torch.step import capture  # noqa: E402


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        context.save_for_backward(values)
        return values * values  # squared

    @staticmethod
    def backward(context, gradient):
        (values,) = context.saved_tensors
        return gradient.mul(2).mul(values)  # its gradient


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
        self.last = torch.nn.Linear(16, 4)

    def forward(self, inputs):
        hidden = self.inner(inputs)  # a module of torch calls the operators
        return self.last(Squared.apply(torch.softmax(hidden, dim=1)))  # and again


def training_step():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    inputs = torch.randn(4, 8)

    def step():
        optimizer.zero_grad()
        loss = model(inputs).sum()  # loss
        loss.backward()  # backward
        optimizer.step()  # update

    return step


def line(comment):
    source = inspect.getsource(inspect.getmodule(line)).splitlines()
    return 1 + next(row for row, text in enumerate(source) if text.endswith(f"# {comment}"))


@pytest.fixture(scope="module")
def graph():
    return capture(training_step(), iterations=4, warmup=2)


def lines_of(graph, *, phase, op):
    rows = np.flatnonzero(graph.select(phase=phase, op=op))
    texts = {graph.tasks["line"].decode(row) for row in rows.tolist()}
    assert all(Path(text.rpartition(":")[0]).name == Path(__file__).name for text in texts)
    return {int(text.rpartition(":")[2]) for text in texts}


def test_forward_backward_and_update_have_the_lines_that_call_them(graph):
    inner, again = line("a module of torch calls the operators"), line("and again")

    assert lines_of(graph, phase=Phase.FORWARD, op="aten::addmm") == {inner, again}
    assert lines_of(graph, phase=Phase.FORWARD, op="aten::relu") <= {inner}
    assert lines_of(graph, phase=Phase.FORWARD, op="aten::_softmax") == {again}
    assert lines_of(graph, phase=Phase.FORWARD, op="aten::sum") == {line("loss")}
    assert lines_of(graph, phase=Phase.FORWARD, op="aten::mul") == {line("squared")}
    assert lines_of(graph, phase=Phase.UPDATE, op="aten::addcdiv_") == {line("update")}


def test_a_backward_operator_has_the_line_of_its_forward(graph):
    inner, again = line("a module of torch calls the operators"), line("and again")

    assert lines_of(graph, phase=Phase.BACKWARD, op="aten::mm") == {inner, again}
    assert lines_of(graph, phase=Phase.BACKWARD, op="aten::_softmax_backward_data") == {again}
    assert lines_of(graph, phase=Phase.BACKWARD, op="aten::mul") == {line("its gradient")}


def test_marks_of_lines_change_nothing_else(graph, monkeypatch):
    monkeypatch.setattr(recorder, "mark_lines", nullcontext)
    plain = capture(training_step(), iterations=4, warmup=2)

    assert "line" not in plain.tasks
    for column in ("op", "layer", "phase", "call", "input_shapes"):
        computes = [each.select(kind=1) for each in (graph, plain)]
        values = [each.tasks[column] for each in (graph, plain)]
        texts = [
            [value.decode(row) for row in np.flatnonzero(mask)] if hasattr(value, "decode") else value[mask].tolist()
            for value, mask in zip(values, computes, strict=True)
        ]
        assert sorted(texts[0]) == sorted(texts[1]), column
    assert len(graph.meta.program["calls"]) == len(plain.meta.program["calls"])


def test_explain_divides_the_time_by_line(graph):
    parts = explain(graph).parts("line")

    # what Python does between operators has no line, and takes longer on a busy machine
    assert sum(part[1] for part in parts) >= 0.6 * explain(graph).replayed_ns
    assert f"{Path(__file__).name}:{line('update')}" in {Path(part[0]).name for part in parts}


def test_marks_end_also_below_a_mode_that_the_program_turned_on():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    before = list(_get_current_function_mode_stack())
    marks, mode = mark_lines(), Mode()
    marks.__enter__()
    with mode:
        torch.ones(2) + 1
        marks.__exit__(None, None, None)

        assert _get_current_function_mode_stack() == [*before, mode]
    assert _get_current_function_mode_stack() == before


def test_an_update_within_a_backward_pass_may_end_the_iteration():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()}

    def update(weight):
        optimizers[weight].step()
        weight.grad = None

    for weight in optimizers:
        weight.register_post_accumulate_grad_hook(update)
    inputs = torch.randn(4, 8)
    found = capture(lambda: model(inputs).sum().backward(), iterations=4, warmup=2)

    assert found.num_tasks
