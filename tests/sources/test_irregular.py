"""Validation, checkpoints and logging: seen, kept out of the graph, counted and costed."""

import logging
import textwrap

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from windtunnel.errors import InputError
from windtunnel.graph import GraphBuilder, Kind, load, save
from windtunnel.reports import explain
from windtunnel.sources.torch.boundary import BoundaryFinder, Token
from windtunnel.sources.torch.hooks import steps_per_epoch
from windtunnel.sources.torch.irregular import IrregularWatch
from windtunnel.sources.torch.script import capture_script

SCRIPT = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_set = torch.utils.data.TensorDataset(torch.randn(240, 8))
    eval_set = torch.utils.data.TensorDataset(torch.randn(12, 8))
    step = 0

    def evaluate():
        model.eval()
        with torch.no_grad():
            {validation}
        model.train()

    for epoch in range(100):
        for (x,) in torch.utils.data.DataLoader(train_set, batch_size=4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            step += 1
            if step % 7 == 0:
                evaluate()
            if step % 11 == 0:
                torch.save(model.state_dict(), "checkpoint.pt")
            if step % 5 == 0:
                print("step", step)
"""
WITH_LOADER = "sum(model(x).sum() for (x,) in torch.utils.data.DataLoader(eval_set, batch_size=4))"
WITHOUT_LOADER = "[model(torch.randn(4, 8)).tanh().sum() for _ in range(3)]"


class Clock:
    """Nanoseconds that pass only where the test says so."""

    def __init__(self):
        self.now_ns = 1

    def __call__(self):
        return self.now_ns


class Hooks:
    """As much of ``StepHooks`` as a watch looks at."""

    def __init__(self):
        self.num_steps = self.num_epochs_ended = 0
        self.is_home = True
        self.loaders = []
        self.finder = BoundaryFinder()
        for _ in range(3):
            self.finder.feed(Token("step", "sgd"))


@pytest.fixture
def watch():
    clock, hooks = Clock(), Hooks()
    watch = IrregularWatch(clock)
    watch.follow(hooks)
    watch.install()
    yield watch, clock, hooks
    watch.remove()


def iterate(watch, clock, hooks, *, takes=100, more=lambda: None, instrument="bare"):
    """One iteration, with what comes after its step."""
    watch.begin()
    clock.now_ns += takes
    hooks.num_steps += 1
    more()
    return watch.end(instrument)


def spend(clock, duration):
    clock.now_ns += duration


def test_a_validation_costs_what_its_iteration_takes_above_the_others(watch):
    watch, clock, hooks = watch
    model = torch.nn.Linear(2, 2)

    def validate():
        model.eval()
        spend(clock, 250)
        model.train()

    regular = [iterate(watch, clock, hooks, more=validate if step % 4 == 0 else lambda: None) for step in range(1, 13)]

    (event,) = watch.as_meta()["events"]
    assert {"kind": "validation", "num_seen": 3, "every": 4, "cost_ns": 250} == event
    assert [4, 8, 12] == [step for step, is_rare in enumerate(regular, 1) if is_rare]


def test_a_checkpoint_is_timed_where_it_is_saved_and_not_counted_as_validation(watch, tmp_path, monkeypatch):
    watch, clock, hooks = watch
    model = torch.nn.Linear(2, 2)

    def validate_and_save():
        model.eval()
        spend(clock, 30)
        model.train()
        torch.save(Slow(clock, 500), tmp_path / "checkpoint.pt")

    for step in range(1, 11):
        iterate(watch, clock, hooks, more=validate_and_save if step % 5 == 0 else lambda: None)

    costs = {event["kind"]: event["cost_ns"] for event in watch.as_meta()["events"]}
    assert {"validation": 30, "checkpoint": 500} == costs


class Slow:
    """Takes its time to be pickled."""

    def __init__(self, clock, duration):
        self.clock, self.duration = clock, duration

    def __reduce__(self):
        spend(self.clock, self.duration)
        return (int, ())


def test_logging_in_every_iteration_is_part_of_the_step_and_now_and_then_is_not(watch, capsys):
    watch, clock, hooks = watch
    log = logging.getLogger("irregular")
    for _ in range(1, 9):
        iterate(watch, clock, hooks, more=lambda: print("loss"))
    assert {} == watch.as_meta()

    for step in range(1, 31):
        iterate(watch, clock, hooks, more=(lambda: log.warning("slow")) if step % 10 == 0 else lambda: None)
    (event,) = watch.as_meta()["events"]
    assert ("logging", 0) == (event["kind"], event["cost_ns"])
    assert 8 == capsys.readouterr().out.count("loss")


def test_iterations_are_compared_under_the_same_instrument_and_the_least_disturbed_tell_the_cost(watch):
    watch, clock, hooks = watch
    model = torch.nn.Linear(2, 2)

    def validate(duration):
        model.eval()
        spend(clock, duration)
        model.train()

    for instrument, takes, extra in (("bare", 100, 250), ("light", 200, 900), ("memory", 3000, 9000)):
        for step in range(1, 9):
            more = (lambda extra=extra: validate(extra)) if step == 4 else lambda: None
            iterate(watch, clock, hooks, takes=takes, more=more, instrument=instrument)

    (event,) = watch.as_meta()["events"]
    assert (250, 8) == (event["cost_ns"], event["every"])


def test_what_was_seen_only_under_a_profiler_is_scaled_as_the_step_is(watch):
    watch, clock, hooks = watch
    model = torch.nn.Linear(2, 2)

    def validate():
        model.eval()
        spend(clock, 600)
        model.train()

    for _ in range(4):
        iterate(watch, clock, hooks)
    for step in range(1, 9):
        iterate(watch, clock, hooks, takes=200, more=validate if step == 4 else lambda: None, instrument="light")

    (event,) = watch.as_meta()["events"]
    assert (300, None) == (event["cost_ns"], event["every"])


def test_a_model_that_is_frozen_in_every_iteration_is_no_validation(watch):
    """A teacher, or norms that keep their statistics."""
    watch, clock, hooks = watch
    teacher = torch.nn.Linear(2, 2)

    def freeze():
        teacher.train()
        teacher.eval()

    regular = [iterate(watch, clock, hooks, more=freeze) for _ in range(8)]

    assert not any(regular)
    assert {} == watch.as_meta()


def test_everything_is_put_back():
    before = torch.save, print, logging.Logger.handle, torch.nn.Module.eval
    watch = IrregularWatch()
    watch.install()
    watch.remove()

    assert before == (torch.save, print, logging.Logger.handle, torch.nn.Module.eval)


@pytest.mark.parametrize("validation", [WITH_LOADER, WITHOUT_LOADER])
def test_a_script_shows_what_it_does_now_and_then_and_the_graph_is_without_it(tmp_path, monkeypatch, validation):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT).replace("{validation}", validation))
    monkeypatch.chdir(tmp_path)
    graph = capture_script(path, iterations=8)

    events = {event["kind"]: event for event in graph.meta.irregular["events"]}
    assert 60 == graph.meta.irregular["iterations_per_epoch"]
    assert {"validation": 7, "checkpoint": 11, "logging": 5}.items() <= {
        kind: event["every"] for kind, event in events.items()
    }.items()
    assert all(event["num_seen"] > 0 for event in events.values())
    assert not (graph.tasks.strings("op").to_numpy() == "aten::tanh").any()
    assert 1 == sum(graph.tasks.strings("op").to_numpy() == "aten::mse_loss") + sum(
        graph.select(kind=Kind.COMPUTE, op="aten::addmm")
    )


def graph_with(irregular):
    builder = GraphBuilder()
    builder.task("step", duration_ns=1_000_000, resource=builder.resource("cpu"))
    return builder.build().with_meta(irregular=irregular)


def test_an_explanation_says_what_each_kind_costs_on_average_and_per_epoch(tmp_path):
    events = [
        {"kind": "validation", "num_seen": 3, "every": 20, "cost_ns": 2_000_000},
        {"kind": "checkpoint", "num_seen": 1, "every": None, "cost_ns": 5_000_000},
        {"kind": "logging", "num_seen": 8, "every": 10, "cost_ns": 10},
        {"kind": "end of epoch", "num_seen": 1, "every": None, "cost_ns": 4_000_000},
    ]
    graph = graph_with({"num_iterations": 80, "iterations_per_epoch": 200, "events": events})
    explanation = explain(load(save(graph, tmp_path / "train.wt")))

    lines = [line.strip() for line in str(explanation).splitlines()]
    assert "validation: 2.00 ms every 20 iterations, 100 µs per iteration on average, 20.0 ms per epoch of 200" in lines
    assert "checkpoint: 5.00 ms, seen once in 80 iterations" in lines
    assert (
        "end of epoch: 4.00 ms every 200 iterations, 20.0 µs per iteration on average, 4.00 ms per epoch of 200"
        in lines
    )
    assert not any(line.startswith("logging") for line in lines)
    assert "this comes on top of the iteration above and makes a run 12 % longer" in lines
    assert 100_000 == explanation.to_dict()["irregular"][0]["per_iteration_ns"]


def test_a_graph_whose_events_are_no_events_is_refused(tmp_path):
    graph = graph_with({"events": [{"kind": "validation", "every": "often", "cost_ns": 1}]})
    with pytest.raises(InputError, match="irregular"):
        load(save(graph, tmp_path / "train.wt"))


def test_an_epoch_of_unknown_length_is_none():
    assert steps_per_epoch(Hooks()) is None
