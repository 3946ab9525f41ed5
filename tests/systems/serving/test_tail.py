"""Requests that come to a server, beside a reference that goes through time in ticks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.systems.serving.profiles import profiles
from windtunnel.errors import InputError
from windtunnel.systems.serving.model import Instance, Slowdown, Split
from windtunnel.systems.serving.profile import Profile
from windtunnel.systems.serving.requests import requests_of
from windtunnel.systems.serving.search import best_split
from windtunnel.systems.serving.sizing import size_servers
from windtunnel.systems.serving.tail import Server, answer, batch_latencies

moments = st.lists(st.integers(0, 60), min_size=1, max_size=30).map(sorted)


def ticked(arrivals, most, wait, durations):
    """A tick at a time: who waits, and whether the server is free."""
    answered, waiting, free, now, come = {}, [], 0, 0, 0
    while len(answered) < len(arrivals):
        while come < len(arrivals) and arrivals[come] <= now:
            waiting.append(come)
            come += 1
        is_due = waiting and (len(waiting) >= most or now - arrivals[waiting[0]] >= wait)
        if free <= now and is_due:
            batch, waiting = waiting[:most], waiting[most:]
            free = now + durations[len(batch)]
            answered |= dict.fromkeys(batch, free)
        now += 1
    return [answered[one] for one in range(len(arrivals))]


@given(moments, st.integers(1, 5), st.integers(0, 9), st.lists(st.integers(1, 12), min_size=5, max_size=5))
def test_answers_are_those_of_a_clock_that_ticks(arrivals, most, wait, times):
    durations = [0, *times][: most + 1]
    server = Server(Split((Instance(1, most, 1.0),), most), wait)
    found = answer(np.array(arrivals), server, np.array(durations, dtype=float))

    assert ticked(arrivals, most, wait, durations) == found.answered_ns_R.tolist()


@given(moments, st.integers(1, 5))
def test_no_request_is_answered_before_its_batch_could_be(arrivals, most):
    server = Server(Split((Instance(1, most, 1.0),), most), 3)
    found = answer(np.array(arrivals), server, np.arange(most + 1) * 2.0)

    assert (found.latencies_ns >= 2).all()
    assert -(-len(arrivals) // most) <= found.num_batches <= len(arrivals)
    assert (np.diff(found.answered_ns_R) >= 0).all()


@given(profiles(), st.integers(1, 6))
def test_every_batch_is_dealt_out_and_a_full_one_takes_as_long_as_its_split(profile, batch):
    split = best_split(profile, profile.max_threads, int(min(batch, profile.batch_C.max())))
    latencies = batch_latencies(profile, split)

    assert split.batch + 1 == len(latencies)
    for inputs in range(1, split.batch + 1):
        parts = split.parts(inputs)
        assert inputs == sum(parts)
        assert all(part <= one.batch for part, one in zip(parts, split.instances, strict=True))
    if split.batch == sum(one.batch for one in split.instances):
        assert split.latency_ns == pytest.approx(latencies[-1])


def test_between_batches_latency_is_linear_and_neighbors_count_by_their_share():
    profile = Profile.of({(1, 1): 10.0, (1, 3): 30.0, (2, 4): 18.0})
    split = Split((Instance(1, 3, 30.0), Instance(1, 3, 30.0)), 6)

    assert [0, 10, 10, 20, 20, 30, 30] == batch_latencies(profile, split).tolist()
    slowed = batch_latencies(profile, split, Slowdown((1, 2), (1.5, 1.0))).tolist()
    assert [0, 10, 15, 30, 30, 45, 45] == slowed


def test_what_the_profile_does_not_have_is_said():
    profile = Profile.of({(1, 1): 10.0})

    with pytest.raises(InputError, match="no instance of 2 threads"):
        batch_latencies(profile, Split((Instance(2, 1, 1.0),), 1))
    with pytest.raises(InputError, match="1 threads with a batch of 4"):
        batch_latencies(profile, Split((Instance(1, 4, 1.0),), 4))
    with pytest.raises(InputError, match="is no aim"):
        size_servers(profile, np.array([0]), 0)


def test_more_threads_are_taken_only_where_fewer_are_late():
    profile = Profile.of({(1, 1): 10e6, (2, 1): 6e6, (1, 4): 30e6, (2, 4): 17e6})
    slow, fast = (requests_of(f"constant:rate={rate},seconds=2") for rate in (20, 120))
    limit = 25_000_000
    by_load = [[one.latency_ns <= limit for one in size_servers(profile, some, limit)] for some in (slow, fast)]

    assert [[True, True], [False, True]] == by_load


def test_half_the_batch_is_dealt_evenly():
    assert (2, 2) == Split((Instance(1, 4, 1.0), Instance(1, 4, 1.0)), 8).parts(4)
    assert (0, 1) == Split((Instance(1, 4, 1.0), Instance(1, 4, 1.0)), 8).parts(1)


def test_patterns_have_the_rate_they_say():
    steady, drawn, bursts = (requests_of(f"{name}:rate=100,seconds=100") for name in ("constant", "poisson", "bursts"))

    assert 10_000 == len(steady)
    assert len(drawn) == pytest.approx(10_000, rel=0.05)
    assert (np.diff(drawn) >= 0).all()
    assert np.diff(drawn).std() == pytest.approx(np.diff(drawn).mean(), rel=0.1)  # as of a Poisson process
    late = bursts % 10_000_000_000 >= 9_000_000_000
    assert late.mean() == pytest.approx(0.4 / 1.3, rel=0.1)
    assert requests_of("poisson:seed=1").tolist() != requests_of("poisson").tolist()


def test_a_file_has_moments(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("arrival_ms,who\n5,a\n5.5,b\n9,a\n")

    assert [0, 500_000, 4_000_000] == requests_of(str(path)).tolist()
    path.write_text("arrival_ms\n5\n4\n")
    with pytest.raises(InputError, match="before the one above"):
        requests_of(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poison", "there is no pattern 'poison'"),
        ("poisson:rat=3", "there is no 'rat'"),
        ("poisson:rate=-1", "'-1' is no rate"),
        ("poisson:rate=nan", "'nan' is no rate"),
        ("constant:rate=1e9", "more than 10,000,000 requests"),
        ("constant:rate=0.1,seconds=1", "no request arrives"),
    ],
)
def test_what_is_no_pattern_is_said(text, message):
    with pytest.raises(InputError, match=message):
        requests_of(text)
