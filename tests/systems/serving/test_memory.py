"""Splits within a limit of memory, beside every multiset of instances."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.systems.serving.profiles import plain_splits, profiles
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.systems.serving.profile import Profile, read_profile, write_profile
from windtunnel.systems.serving.search import best_split, shortlist
from windtunnel.systems.serving.tables import RULES

sizes = st.lists(st.integers(1, 9), min_size=40, max_size=40)
SMALL_AND_LARGE = Profile.of({(1, 4): 10.0, (2, 8): 15.0}, {(1, 4): 60, (2, 8): 80})


def with_memory(profile, sizes):
    return Profile.of(profile.cells, dict(zip(profile.cells, sizes, strict=False)))


@given(profiles(), sizes, st.integers(1, 4), st.integers(1, 8), st.integers(1, 30), st.sampled_from(sorted(RULES)))
def test_no_split_that_fits_is_sooner(profile, sizes, threads, batch, max_bytes, rule):
    profile = with_memory(profile, sizes)
    fitting = [
        value for value, cells in plain_splits(profile, threads, batch, rule) if profile.bytes_of(cells) <= max_bytes
    ]
    if not fitting:
        with pytest.raises(InfeasibleError):
            best_split(profile, threads, batch, rule, max_bytes)
        return
    split = best_split(profile, threads, batch, rule, max_bytes)

    assert min(fitting) == split.latency_ns
    assert profile.bytes_of(split.cells) <= max_bytes
    assert sum(split.shares()) == batch
    assert split.threads == threads if rule == "exact" else split.threads <= threads


@given(profiles(), sizes, st.integers(1, 8), st.sampled_from(sorted(RULES)))
def test_with_room_for_all_memory_changes_nothing(profile, sizes, batch, rule):
    try:
        free = best_split(profile, 4, batch, rule)
    except InfeasibleError:
        return
    assert free == best_split(with_memory(profile, sizes), 4, batch, rule, 1e9)


def test_one_instance_is_taken_where_two_do_not_fit():
    assert ["2x<1,4>", "<2,8>"] == [str(best_split(SMALL_AND_LARGE, 2, 8, max_bytes=one)) for one in (120, 119)]
    assert ["<2,8>"] == [str(one) for one in shortlist(SMALL_AND_LARGE, 2, 8, max_bytes=119)]
    with pytest.raises(InfeasibleError, match="fit into 79 B") as refused:
        best_split(SMALL_AND_LARGE, 2, 8, max_bytes=79)
    assert "80 B or more" in refused.value.fix


def test_a_profile_without_memory_cannot_be_limited():
    with pytest.raises(InputError, match="nothing of memory"):
        best_split(Profile.of({(1, 1): 1.0}), 1, 1, max_bytes=5)
    assert "<1,1>" == str(best_split(Profile.of({(1, 1): 1.0}), 1, 1, max_bytes=math.inf))


def test_memory_is_read_back(tmp_path):
    path = tmp_path / "p.csv"
    write_profile(path, SMALL_AND_LARGE.cells.items(), SMALL_AND_LARGE.own_bytes)

    assert SMALL_AND_LARGE.own_bytes == read_profile(path).own_bytes
