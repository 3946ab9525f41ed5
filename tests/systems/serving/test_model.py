"""What neighbors cost, and how a batch is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_path
from tests.systems.serving.profiles import profiles
from tests.systems.serving.test_search import PUBLISHED
from windtunnel.errors import InputError
from windtunnel.systems.serving.model import Instance, Slowdown, Split, fit_slowdown
from windtunnel.systems.serving.profile import read_cells, read_profile
from windtunnel.systems.serving.search import best_split


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_a_batch_is_cut_in_order_and_nobody_is_left_without(batches, data):
    split = Split(tuple(Instance(1, one, 1.0) for one in batches), data.draw(st.integers(len(batches), sum(batches))))
    shares = split.shares()

    assert split.batch == sum(shares)
    assert all(1 <= share <= one for share, one in zip(shares, batches, strict=True))
    short = [at for at, (share, one) in enumerate(zip(shares, batches, strict=True)) if share < one]
    assert all(1 == share for share in shares[short[0] + 1 :]) if short else split.batch == sum(batches)


@given(profiles())
def test_a_slowdown_that_was_seen_is_found_again(profile):
    known = Slowdown((1, 2, 3, 4), (2.0, 1.5, 1.25, 1.0))
    found = fit_slowdown(profile, known.of(profile).cells.items())

    assert all(known.factor_at(one) == pytest.approx(found.factor_at(one)) for one in found.threads)
    assert list(found.of(profile).cells.values()) == pytest.approx(list(known.of(profile).cells.values()))


def test_what_was_not_seen_lies_between_by_the_logarithm_and_stays_beyond():
    known = Slowdown((2, 8), (1.6, 1.0))

    assert [1.6, 1.6, pytest.approx(1.3), 1.0, 1.0] == [known.factor_at(one) for one in (1, 2, 4, 8, 16)]


def test_runs_of_other_instances_say_nothing():
    path = shared_path("serve/packrat/profiles.csv.gz")
    profile = read_profile(path, {**PUBLISHED, "machine": "skylake2x", "model": "bert"})

    with pytest.raises(InputError, match="no instance that ran"):
        fit_slowdown(profile, [((5, 3), 1e6)])


@pytest.mark.parametrize(
    ("model", "batch", "alone", "beside_others"),
    [
        ("gpt2", 8, "2x<8,4>", "<16,8>"),
        ("bert", 128, "8x<2,16>", "4x<4,32>"),
        ("resnet", 32, "8x<2,4>", "4x<4,8>"),
    ],
)
def test_busy_neighbors_change_the_choice_as_they_did_in_the_published_runs(model, batch, alone, beside_others):
    path = shared_path("serve/packrat/profiles.csv.gz")
    runs = read_cells(path.parent / "concurrent_runs.csv.gz", {"series": "fat-vs-thin", "model": model})
    profile = read_profile(path, {**PUBLISHED, "machine": "skylake2x", "model": model})
    slowdown = fit_slowdown(profile, [(row.cell, row.latency_ns) for row in runs])

    assert alone == str(best_split(profile, 16, batch, "exact"))
    assert beside_others == str(best_split(slowdown.of(profile), 16, batch, "exact"))
