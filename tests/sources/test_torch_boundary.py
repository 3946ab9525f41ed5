"""Finding the iterations of a loop that says nothing but `next` and `step`."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windtunnel.sources.torch.boundary import BoundaryFinder, Found, Token

N, S, D, G = Token("next", "loader"), Token("step", "sgd"), Token("step", "critic"), Token("step", "generator")


def boundaries(tokens, known=()):
    finder = BoundaryFinder()
    finder.known_optimizers |= set(known)
    found = [finder.feed(token) for token in tokens]
    return finder, [place for place, what in enumerate(found) if what is Found.REGULAR]


def distances(places):
    return {after - before for before, after in pairwise(places)}


@pytest.mark.parametrize(
    ("iteration", "known"),
    [
        ([S], []),
        ([N, S], []),
        ([N, N, N, N, S], []),
        ([D, G], ["critic", "generator"]),
        ([N, D, G], ["critic", "generator"]),
        ([N, D] * 5 + [G], ["critic", "generator"]),
        ([D] * 3 + [G], ["critic", "generator"]),
    ],
)
def test_every_common_loop_is_cut_into_its_iterations(iteration, known):
    finder, found = boundaries(iteration * 8, known)

    assert len(iteration) == len(finder.pattern)
    assert len(found) >= 4
    assert {len(iteration)} == distances(found)


def test_an_iteration_begins_where_data_are_fetched():
    finder, found = boundaries([N, N, S] * 6)

    assert (N, N, S) == finder.pattern
    assert all(([N, N, S] * 6)[place] == N for place in found)


def test_the_generator_ends_the_iteration_of_a_gan():
    finder, _ = boundaries(([N, D] * 5 + [G]) * 4, ["critic", "generator"])

    assert G == finder.pattern[-1]


def test_a_known_optimizer_that_has_not_stepped_yet_is_waited_for():
    finder, _ = boundaries([D, D, D, D], ["critic", "generator"])

    assert not finder.is_locked


def test_an_optimizer_that_never_steps_is_not_waited_for_for_ever():
    finder, found = boundaries([N, S] * 30, ["sgd", "unused"])

    assert finder.is_locked
    assert found


def test_an_epoch_that_ends_costs_one_irregular_iteration():
    finder = BoundaryFinder()
    found = []
    for _ in range(4):
        for _ in range(3):
            found += [finder.feed(N), finder.feed(S)]
        found.append(finder.feed(N))  # the loader is empty
        finder.retract()

    assert 4 <= found.count(Found.REGULAR)
    assert (N, S) == finder.pattern


def test_a_validation_pass_does_not_make_an_iteration_regular():
    other = Token("next", "validation")
    _, found = boundaries([N, S] * 4 + [other] * 3 + [N, S] * 4)

    assert not any(8 <= place <= 12 for place in found)
    assert any(place > 12 for place in found)


def test_a_loop_that_changes_its_form_is_learnt_anew():
    finder, found = boundaries([N, S] * 5 + [N, N, N, S] * 12)

    assert (N, N, N, S) == finder.pattern
    assert {4} == distances(found[-4:])


@given(st.lists(st.sampled_from([N, S, D, G]), max_size=60))
def test_any_noise_is_survived(tokens):
    finder, found = boundaries(tokens)

    assert len(found) <= len(tokens)
    assert not finder.pattern or any(token.kind == "step" for token in finder.pattern)


@given(
    st.lists(st.sampled_from([N, S, D, G]), max_size=12),
    st.lists(st.sampled_from([N, D]), max_size=4),
)
@example([D, S, D, S, S, S, S], [])  # once learnt as two iterations in one, then as three, for ever
def test_a_regular_loop_is_found_after_any_beginning(prologue, middle):
    iteration = [N, *middle, G]
    finder, found = boundaries(prologue + iteration * 30)

    assert finder.is_locked
    assert len(found) >= 2
