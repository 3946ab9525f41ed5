"""Fronts and hypervolume against what is obvious and slow."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.base.pareto import fronts, hypervolume, is_best
from windtunnel.errors import InputError

GOALS = st.integers(1, 3)
TABLES = GOALS.flatmap(
    lambda goals: st.lists(st.tuples(*[st.integers(0, 6)] * goals), min_size=1, max_size=14)
).map(lambda rows: np.array(rows, dtype=float))  # fmt: skip


def beats(one, other):
    return (one <= other).all() and (one < other).any()


def peeled(points):
    """Front by front: take out who is beaten by none of the rest."""
    found, left, number = np.zeros(len(points), int), list(range(len(points))), 0
    while left:
        best = [row for row in left if not any(beats(points[other], points[row]) for other in left)]
        found[best] = number
        left = [row for row in left if row not in best]
        number += 1
    return found


def counted(points, corner):
    """Unit cells that some point covers."""
    cells = itertools.product(*(range(int(side)) for side in corner))
    return sum(any((point <= np.array(cell)).all() for point in points) for cell in cells)


@given(TABLES)
def test_fronts_are_those_of_peeling(points):
    assert peeled(points).tolist() == fronts(points).tolist()
    assert (peeled(points) == 0).tolist() == is_best(points).tolist()


@given(TABLES)
def test_hypervolume_is_the_count_of_cells(points):
    corner = np.full(points.shape[1], 5.0)

    assert counted(points, corner) == pytest.approx(hypervolume(points, corner))


@given(TABLES)
def test_a_beaten_point_adds_no_volume(points):
    corner = np.full(points.shape[1], 7.0)

    assert hypervolume(points[is_best(points)], corner) == pytest.approx(hypervolume(points, corner))


def test_ten_thousand_points_are_ranked_as_a_sample_of_pairs_says():
    points = np.random.default_rng(0).random((10_000, 2))
    found = fronts(points)
    for row in range(0, 10_000, 997):
        before = found[[other for other in range(10_000) if beats(points[other], points[row])]]

        assert found[row] == (before.max() + 1 if len(before) else 0)


@pytest.mark.parametrize(
    ("points", "message"), [([1, 2], "no table"), ([[1, float("nan")]], "point 0 has no number for goal 1")]
)
def test_points_that_are_none_are_refused(points, message):
    with pytest.raises(InputError, match=message):
        fronts(points)


def test_a_reference_of_other_goals_is_refused():
    with pytest.raises(InputError, match="is no point of 2 goals"):
        hypervolume([[1, 2]], [3])
