import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers

from windtunnel.errors import InputError

torch = pytest.importorskip("torch")

from windtunnel.systems.layers.nn.dropout.keep import count_groups, draw, spans  # noqa: E402

SEEDS, UNITS, SHARES = integers(0, 2**62), integers(1, 80), floats(0, 1)


@given(SEEDS, UNITS, SHARES)
def test_a_set_has_the_size_that_the_share_gives_and_no_unit_twice(seed, num_units, dropout):
    _, kept = count_groups(num_units, dropout)

    for keep in draw(num_units, dropout, range(3), seed=seed):
        units = keep.index.tolist()
        assert sorted(set(units)) == units
        assert kept == keep.num_kept
        assert all(0 <= unit < num_units for unit in units)


@given(SEEDS, UNITS, SHARES)
def test_a_set_can_be_drawn_again_without_the_ones_before_it(seed, num_units, dropout):
    together = draw(num_units, dropout, range(5), seed=seed, layer=1, site=1)
    alone = [keep for step in range(5) for keep in draw(num_units, dropout, [step], seed=seed, layer=1, site=1)]

    assert [keep.index.tolist() for keep in alone] == [keep.index.tolist() for keep in together]


@given(SEEDS, integers(2, 60), floats(0.01, 0.99), integers(1, 20))
def test_runs_are_the_kept_units_in_neighbors(seed, num_units, dropout, group):
    for keep in draw(num_units, dropout, range(2), seed=seed, group=min(group, num_units)):
        units = [unit for first, last in keep.runs for unit in range(first, last)]
        ends = [last for _, last in keep.runs[:-1]]

        assert keep.index.tolist() == units
        assert all(end < first for end, (first, _) in zip(ends, keep.runs[1:], strict=True))


@pytest.mark.parametrize(("num_units", "group"), [(30, 1), (30, 4)])
def test_the_expectation_of_a_unit_stays_also_where_groups_do_not_divide(num_units, group):
    keeps = draw(num_units, 0.6, range(4000), seed=5, group=group)
    mean = torch.stack([keep.factors(torch.float64) for keep in keeps]).mean(0)

    assert np.allclose(1.0, mean, atol=0.12)  # 5 standard errors


def test_layers_places_steps_and_seeds_have_sets_of_their_own():
    sets = [
        draw(64, 0.5, [step], seed=seed, layer=layer, site=place)[0].index.tolist()
        for step in range(2)
        for seed in range(2)
        for layer in range(2)
        for place in range(2)
    ]

    assert len(sets) == len({tuple(one) for one in sets})


def test_nothing_and_everything_can_be_dropped():
    nothing, everything = draw(7, 0.0, [0], seed=1)[0], draw(7, 1.0, [0], seed=1)[0]

    assert (7, 1.0) == (nothing.num_kept, nothing.scale)
    assert (0, 0.0, ()) == (everything.num_kept, everything.scale, everything.runs)


def test_short_of_all_at_least_one_unit_is_kept():
    assert (3, 1) == count_groups(3, 0.99)


@pytest.mark.parametrize(("dropout", "group", "said"), [(1.5, 1, "1.5"), (-0.1, 1, "-0.1"), (0.5, 32, "groups of 32")])
def test_what_is_no_share_or_no_group_is_refused(dropout, group, said):
    with pytest.raises(InputError, match=said):
        count_groups(20, dropout, group)


def test_a_span_has_the_rows_of_its_steps():
    keeps = draw(4, 0.5, range(2), seed=0)

    assert [(0, 5), (5, 7)] == [(span.first, span.last) for span in spans([3, 2, 1, 1], keeps, period=2)]
