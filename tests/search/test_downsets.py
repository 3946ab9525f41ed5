"""The lattice of downsets, against trying every set."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import GraphError
from windtunnel.search.downsets import TooManyDownsets, chain, downsets


@st.composite
def graphs(draw):
    num = draw(st.integers(1, 8))
    pairs = list(itertools.combinations(range(num), 2))
    return num, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


def closed(num, edges, closed_under="predecessors"):
    edges = edges if closed_under == "predecessors" else [(b, a) for a, b in edges]
    every = (frozenset(some) for size in range(num + 1) for some in itertools.combinations(range(num), size))
    return {some for some in every if all(a in some for a, b in edges if b in some)}


def sets(lattice):
    return [frozenset(np.flatnonzero(lattice.members(one)).tolist()) for one in range(lattice.num_downsets)]


@given(graphs(), st.sampled_from(["predecessors", "successors"]))
def test_every_downset_is_found_once_smallest_first(graph, closed_under):
    num, edges = graph
    lattice = downsets(num, *zip(*edges, strict=True), closed_under=closed_under) if edges else downsets(num, [], [])
    found = sets(lattice)

    assert closed(num, edges, closed_under) == set(found)
    assert len(set(found)) == len(found)
    assert sorted(map(len, found)) == [len(one) for one in found]
    for row in range(1, len(found)):
        assert found[lattice.parent_I[row]] | {int(lattice.added_I[row])} == found[row]
    assert sum(small <= large for small in found for large in found) == lattice.num_pairs


@given(graphs(), st.integers(0, 99))
def test_what_adds_up_over_nodes_adds_up_over_downsets(graph, seed):
    num, edges = graph
    lattice = downsets(num, [a for a, _ in edges], [b for _, b in edges])
    values = np.random.default_rng(seed).integers(0, 9, (num, 2))

    expected = [values[sorted(one)].sum(axis=0).tolist() for one in sets(lattice)]
    assert expected == lattice.sums(values).tolist()


def test_more_nodes_than_one_word_holds():
    num = 130
    lattice = downsets(num, range(num - 1), range(1, num))

    assert (num + 1, (num + 1) * (num + 2) // 2) == (lattice.num_downsets, lattice.num_pairs)
    assert lattice.members(70).tolist() == [node < 70 for node in range(num)]
    same = chain(range(num))
    np.testing.assert_array_equal(lattice.words_IW, same.words_IW)
    np.testing.assert_array_equal(lattice.parent_I, same.parent_I)
    np.testing.assert_array_equal(lattice.level_ptr, same.level_ptr)


def test_a_chain_follows_its_order():
    lattice = chain([2, 0, 1])

    assert [set(), {2}, {0, 2}, {0, 1, 2}] == [set(one) for one in sets(lattice)]


def test_too_many_are_told_and_not_stored():
    with pytest.raises(TooManyDownsets, match=r"more than 1,000 downsets, seen up to \d+ of 20 nodes"):
        downsets(20, [], [], cap=1000)
    assert 2**10 == downsets(10, [], [], cap=1024).num_downsets


def test_a_cycle_is_an_error():
    with pytest.raises(GraphError, match="a cycle holds 2 nodes back"):
        downsets(3, [0, 1, 2], [1, 2, 1])


def test_progress_is_told():
    told = []
    downsets(3, [0], [1], progress=lambda *one: told.append(one))

    assert [("downsets", size, 3) for size in (1, 2, 3)] == told
