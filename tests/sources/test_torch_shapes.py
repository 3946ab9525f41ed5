"""One graph is one form of the step, however many lengths its data have."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch

from windtunnel.graph import Kind
from windtunnel.reports import explain
from windtunnel.sources.torch.shapes import ShapeSorter, shapes_of
from windtunnel.sources.torch.step import capture


def stepping(lengths):
    """A step over sequences of the given lengths in turn, and the model."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    turns = iter(lengths)

    def step():
        length = next(turns)
        optimizer.zero_grad()
        sum(model(torch.ones(4, 8)) for _ in range(length)).sum().backward()
        optimizer.step()

    return step, model


def endless(*lengths):
    while True:
        yield from lengths


def test_shapes_are_found_in_nested_arguments():
    assert [(1,), (2, 3), (4,)] == list(shapes_of(([torch.zeros(1)], {"x": torch.zeros(2, 3)}, (torch.zeros(4), 5))))


def test_only_the_commonest_form_is_captured():
    step, model = stepping(endless(2, 2, 7, 2, 2, 5, 2))
    graph = capture(step, iterations=6, model=model)
    shapes = graph.meta.shapes

    assert [[4, 8]] * 2 == shapes["inputs"]
    assert {5, 7} == {len(other["inputs"]) for other in shapes["others"]}
    assert 0.5 < shapes["share"] < 0.9
    assert not shapes["is_mixed"]
    assert 0 == graph.meta.overhead["num_unlike_iterations"]
    assert 2 == graph.select(op="aten::addmm", kind=Kind.COMPUTE).sum()
    assert any("3 forms" in note for note in explain(graph).notes)


def test_a_step_without_a_common_form_is_still_captured_and_says_so():
    step, model = stepping(iter(range(1, 10_000)))
    graph = capture(step, iterations=2, model=model, warmup=1)

    assert graph.meta.shapes["is_mixed"]
    assert any("mixed" in note for note in explain(graph).notes)


def test_equal_steps_have_no_forms_to_tell():
    step, model = stepping(endless(3))

    assert {} == capture(step, iterations=2, model=model).meta.shapes
    assert not model._forward_pre_hooks


def test_the_first_accepted_form_stays():
    sorter = ShapeSorter(iterations=1)
    sorter.watch([])

    assert sorter.is_common(())
    assert not sorter.is_common(((1,),))
    assert sorter.is_common(())


def seen(sorter, *lengths):
    """Let iterations of these lengths pass; whether each would count."""
    counted = []
    for length in lengths:
        sorter.begin()
        sorter._note(None, (torch.zeros(length),), {})
        counted.append(sorter.is_common(sorter.end()))
    return counted


def watching():
    sorter = ShapeSorter(iterations=4)
    sorter.watch([torch.nn.Identity()])
    return sorter


def test_a_form_is_not_chosen_before_enough_was_seen():
    """Of the first few lengths any may come twice; the one that most iterations have is another."""
    sorter = watching()

    assert not any(seen(sorter, 3, 4, 5, 6, 3))
    assert any(seen(sorter, *[7] * 8))
    assert [[7]] == sorter.as_meta()["inputs"]


def test_a_clear_form_is_chosen_as_soon_as_it_repeats_and_others_wait_for_it():
    assert [False, True, False, True] == seen(watching(), 3, 3, 4, 3)


def test_one_iteration_that_is_not_measured_waits_for_few_others():
    """On fake tensors packed sequences of any length once took minutes, as no length came again."""
    sorter = ShapeSorter(iterations=0)
    sorter.watch([torch.nn.Identity()])
    counted = seen(sorter, 3, 4, 5, 6, 7, 8)

    assert [False] * 5 + [True] == counted
    assert ([[8]], 1 / 6, False) == tuple(sorter.as_meta()[name] for name in ("inputs", "share", "is_mixed"))


def test_iterations_that_are_all_unlike_are_mixed_without_waiting():
    sorter = watching()
    counted = seen(sorter, *range(2, 40))

    assert all(counted[12:])
    assert sorter.as_meta()["is_mixed"]


def test_what_lies_in_rare_and_long_iterations_is_said():
    """As rollouts between the updates of a policy: one iteration of twenty, and half of the time."""
    turn = {"count": 0}
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        turn["count"] += 1
        optimizer.zero_grad()
        if turn["count"] % 6 == 0:
            for _ in range(400):
                model(torch.ones(1, 8))
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    notes = explain(capture(step, iterations=12, model=model)).notes
    said = next(note for note in notes if "2 forms" in note)

    assert said.startswith("warning: iterations have 2 forms")
    assert "of all time, which is not in this graph" in said


def test_a_row_of_short_steps_does_not_wait_for_one_form():
    """Rows of hundreds of iterations would use up the patience that a choice of a form has."""
    step, model = stepping(endless(2, 2, 7, 2))
    graph = capture(step, iterations=4, model=model)

    assert not graph.meta.shapes["is_mixed"]
    assert 0.5 < graph.meta.shapes["share"] < 0.9
