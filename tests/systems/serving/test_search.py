"""The search against every multiset of instances, and against what was published."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_path
from tests.systems.serving.profiles import plain_best, profiles
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.systems.serving.profile import Profile, read_profile
from windtunnel.systems.serving.search import RULES, best_split, equal_split, optimum_table, shortlist, soonest_ns

PUBLISHED = {"series": "large-batches", "mode": "graph", "core_mapping": "sequential", "allocator": "default"}
TABLE_2 = {  # of the paper, BERT: batch -> split and milliseconds, of 16 threads and of 14
    16: {
        8: ("2x<8,4>", 33.367), 16: ("4x<4,4>", 48.676), 32: ("4x<4,8>", 76.735), 64: ("4x<4,16>", 114.056),
        128: ("4x<4,32>", 201.025), 256: ("8x<2,32>", 343.933), 512: ("8x<2,64>", 621.074),
        1024: ("8x<2,128>", 1179.567),
    },
    14: {
        8: ("2x<7,4>", 36.506), 16: ("<6,8> + 2x<4,4>", 60.480), 32: ("<6,16> + 2x<4,8>", 97.003),
        64: ("<6,32> + 2x<4,16>", 168.570), 128: ("2x<7,64>", 278.276), 256: ("2x<3,64> + 4x<2,32>", 467.798),
        512: ("2x<3,128> + 4x<2,64>", 852.768), 1024: ("2x<3,256> + 4x<2,128>", 1621.821),
    },
}  # fmt: skip


@pytest.mark.parametrize("model", ["bert", "gpt2", "resnet"])
def test_every_cell_of_the_published_tables_comes_out(model):
    path = shared_path("serve/packrat/profiles.csv.gz")
    profile = read_profile(path, {**PUBLISHED, "machine": "skylake2x", "model": model})
    published = np.load(path.parent / f"published_opt_{model}.npz")["opt_latency_ms"]
    found = optimum_table(profile, 18, 1024, "exact") / 1e6

    assert np.array_equal(np.isfinite(published), np.isfinite(found))
    reached = np.isfinite(published)
    np.testing.assert_allclose(found[reached], published[reached], rtol=1e-12)


@pytest.mark.parametrize("threads", TABLE_2)
def test_the_published_splits_come_out(threads):
    path = shared_path("serve/packrat/profiles.csv.gz")
    profile = read_profile(path, {**PUBLISHED, "machine": "c6420", "model": "bert"})

    for batch, (words, milliseconds) in TABLE_2[threads].items():
        split = best_split(profile, threads, batch, "exact")
        assert (words, milliseconds) == (str(split), round(split.latency_ns / 1e6, 3))


@given(profiles(), st.integers(1, 4), st.integers(1, 10), st.sampled_from(sorted(RULES)))
def test_no_split_is_sooner(profile, threads, batch, rule):
    table = optimum_table(profile, 4, 10, rule)

    assert plain_best(profile, threads, batch, rule) == table[threads, batch]


@given(profiles(max_threads=6, most_batch=9))
def test_the_binary_search_says_what_the_table_says(profile):
    table = optimum_table(profile, 6, 20, "ragged")
    found = [[soonest_ns(profile, t, b) for b in range(1, 21)] for t in range(1, 7)]

    assert np.array_equal(table[1:, 1:], found)


@given(profiles())
def test_more_freedom_is_never_later(profile):
    exact, at_most, ragged = (optimum_table(profile, 4, 8, rule) for rule in ("exact", "at-most", "ragged"))

    assert (ragged <= at_most).all()
    assert (at_most <= exact).all()


@given(profiles(), st.integers(1, 4), st.integers(1, 10), st.sampled_from(sorted(RULES)))
def test_a_split_adds_up_and_its_rest_is_the_best_one_too(profile, threads, batch, rule):
    table = optimum_table(profile, 4, 10, rule)
    if not math.isfinite(table[threads, batch]):
        with pytest.raises(InfeasibleError):
            best_split(profile, threads, batch, rule)
        return
    split = best_split(profile, threads, batch, rule)

    assert split.latency_ns == table[threads, batch]
    assert split.threads == threads if rule == "exact" else split.threads <= threads
    assert sum(split.shares()) == batch
    assert all(0 < share <= one.batch for share, one in zip(split.shares(), split.instances, strict=True))
    assert all(profile.cells[one.threads, one.batch] == one.latency_ns for one in split.instances)
    latencies = [one.latency_ns for one in split.instances]
    assert latencies == sorted(latencies, reverse=True)
    if rule == "exact" and len(split.instances) > 1:
        first = split.instances[0]
        assert latencies[1] == table[threads - first.threads, batch - first.batch]


def test_of_splits_with_one_slowest_instance_the_one_with_the_quickest_rest_is_taken():
    profile = Profile.of({(2, 4): 10.0, (1, 4): 10.0, (1, 1): 3.0, (2, 1): 2.0, (4, 1): 99.0})

    assert "<1,4> + <2,1>" == str(best_split(profile, 3, 5, "exact"))  # not <2,4> + <1,1>
    assert "<2,4> + 2x<1,4>" == str(best_split(profile, 4, 12, "exact"))  # equal rests: most threads to the slowest


def test_an_unreachable_batch_names_the_nearest_ones():
    profile = Profile.of({(2, 4): 10.0})

    with pytest.raises(InfeasibleError, match="take 5 inputs at once") as refused:
        best_split(profile, 2, 5, "exact")
    assert "nearest batches are 4" in refused.value.fix.replace("batch is", "batches are")
    assert "<2,4>" == str(best_split(profile, 2, 3))


@pytest.mark.parametrize(
    ("threads", "batch", "rule", "message"),
    [
        (3, 1, "ragged", "up to 2 threads, the server 3"),
        (0, 1, "ragged", "0 threads and a batch of 1"),
        (1, 0, "ragged", "1 threads and a batch of 0"),
        (1, 1, "wild", "there is no rule 'wild'"),
    ],
)
def test_what_no_server_is_is_refused(threads, batch, rule, message):
    with pytest.raises(InputError, match=message):
        best_split(Profile.of({(1, 1): 2.0, (2, 1): 1.0}), threads, batch, rule)


@given(profiles(), st.integers(1, 10))
def test_the_shortlist_begins_with_the_best_and_has_the_usual_two(profile, batch):
    if not math.isfinite(soonest_ns(profile, 4, batch)):
        return
    found = shortlist(profile, 4, batch, most=2)
    latencies = [one.latency_ns for one in found]

    assert latencies[0] == soonest_ns(profile, 4, batch)
    assert latencies == sorted(latencies)
    assert len({one.cells for one in found}) == len(found)
    for count in {1, min(4, batch)}:
        usual = equal_split(profile, 4, count, batch)
        if usual is not None and count in (1, 4):
            assert usual.cells in [one.cells for one in found]
