"""The chain view of a strategy: recurrences, theorems 1 to 3, and searches beside trying everything."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.systems.strategy import search
from windtunnel.systems.strategy.model import Chain, best_parts, schedule
from windtunnel.systems.strategy.search import SEARCHES, Plan, worth_of

MIB = 2**20


def linear(latency_ns: float, ns_per_byte: float, per_part_ns: float = 0.0):
    """Latency and bandwidth; parts go through two hops one behind the other, each part with a cost of its own."""

    def sync_ns(size_bytes: float, parts: int) -> float:
        return latency_ns + size_bytes * ns_per_byte * (1 + 1 / parts) / 2 + (parts - 1) * per_part_ns

    return sync_ns


@st.composite
def chains(draw, most=8, fuses=False):
    count = draw(st.integers(1, most))
    compute = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))
    sync = linear(draw(st.integers(0, 2000)), draw(st.floats(0.01, 5)), draw(st.integers(0, 500)))
    saving = draw(st.integers(0, 300)) if fuses else 0

    def fused(first: int, last: int) -> float:
        return max(1.0, sum(compute[first : last + 1]) - saving * (last - first))

    return Chain(np.array(compute), np.array(sizes), sync, fused if fuses else None, draw(st.integers(0, 500)))


def value(chain: Chain, plan: Plan) -> float:
    return schedule(chain, plan.operators, plan.gradients).makespan_ns


def test_recurrences_by_hand():
    chain = Chain(np.array([10, 20, 30]), np.array([100, 0, 50]), lambda size, parts: 5 + size, begin_ns=7)
    played = schedule(chain, (0, 1, 2), (0, 1, 2))
    assert played.compute_ends_ns == [17, 37, 67]
    assert played.sync_ends_ns == [122, 122, 177]  # the second has nothing to send
    assert schedule(chain, (0, 1, 2), (0,)).makespan_ns == 67 + 155


@settings(max_examples=150, deadline=None)
@given(chains())
def test_the_exact_search_finds_what_trying_all_groups_finds(chain):
    assert value(chain, search.exact(chain, worth_of(chain))) == pytest.approx(value(chain, _best_by_trying(chain)))


def exhaustive(chain: Chain) -> Plan:
    """The best of all plans: 4^(N-1) of them."""
    plans = itertools.product(search._all_groups(chain.num_operators), repeat=2)
    worth = worth_of(chain, budget=4**chain.num_operators)
    return min((Plan(*groups) for groups in plans), key=worth)


def _best_by_trying(chain: Chain) -> Plan:
    operators = Plan.apart(chain.num_operators).operators
    return min((Plan(operators, groups) for groups in search._all_groups(chain.num_operators)), key=worth_of(chain))


@settings(max_examples=25, deadline=None)
@given(chains(most=5, fuses=True))
def test_the_exact_search_finds_the_best_fusion_of_operators_too(chain):
    assert value(chain, search.exact(chain, worth_of(chain))) == pytest.approx(value(chain, exhaustive(chain)))


@settings(max_examples=100, deadline=None)
@given(chains(fuses=True), st.sampled_from(sorted(SEARCHES)))
def test_no_search_is_worse_than_nothing(chain, name):
    found = SEARCHES[name](chain, worth_of(chain, budget=60))
    assert value(chain, found) <= value(chain, Plan.apart(chain.num_operators))


@settings(max_examples=200, deadline=None)
@given(chains(most=8))
def test_theorem_2_says_when_the_last_two_gradients_go_together(chain):
    count = chain.num_operators
    if count < 2 or not chain.size_bytes[-1] or not chain.size_bytes[-2]:
        return
    apart = Plan.apart(count)
    together = Plan(apart.operators, apart.gradients[:-1])
    before, compute_end = schedule(chain, *_groups(apart)).sync_ends_ns[-2], chain.begin_ns + chain.compute_ns.sum()
    last = int(chain.size_bytes[-1])
    both = last + int(chain.size_bytes[-2])
    gain = chain.sync_ns(both, best_parts(chain, both)) - chain.sync_ns(last, best_parts(chain, last))
    if before > compute_end + gain:
        # the gradient before those two may be what is waited for: then both are as good
        joined, alone = (schedule(chain, *_groups(plan)).sync_ends_ns[-1] for plan in (together, apart))
        assert joined <= alone + 1e-6  # sums of ns in another order differ in the last digit


@settings(max_examples=200, deadline=None)
@given(chains(most=8, fuses=True))
def test_theorem_3_what_is_fused_sends_its_gradients_together_where_parts_cost(chain):
    """Two messages that are ready at once: one is never worse, as both orders of parts are open to it."""
    count = chain.num_operators
    if count < 2:
        return
    fused = (*range(count - 1),)
    one, two = Plan(fused, fused), Plan(fused, tuple(range(count)))
    assert value(chain, one) <= value(chain, two) + 1e-6


def _groups(plan: Plan):
    return plan.operators, plan.gradients


def test_scan_fuses_small_gradients_of_a_slow_link():
    chain = Chain(np.full(8, 100.0), np.full(8, 10), linear(latency_ns=1000, ns_per_byte=1))
    plan = search.scan(chain, worth_of(chain))
    assert len(plan.gradients) < 8
    assert value(chain, plan) < 0.5 * value(chain, Plan.apart(8))


def test_scan_leaves_large_gradients_of_a_fast_link_apart():
    chain = Chain(np.full(4, 1000.0), np.full(4, 900), linear(latency_ns=1, ns_per_byte=1))
    assert search.scan(chain, worth_of(chain)).gradients == (0, 1, 2, 3)


def test_parts_are_few_where_each_costs():
    chain = Chain(np.ones(1), np.array([MIB]), linear(0, 1, per_part_ns=1000))
    parts = best_parts(chain, MIB)
    assert all(chain.sync_ns(MIB, parts) <= chain.sync_ns(MIB, other) for other in range(1, 65))


def test_a_spent_budget_ends_the_search():
    chain = Chain(np.full(12, 100.0), np.full(12, 10), linear(1000, 1))
    worth = worth_of(chain, budget=20)
    search.beam(chain, worth)
    assert worth.num_asked <= 20


@pytest.mark.parametrize(
    ("compute", "size", "told"),
    [([1.0], [1, 2], "make no chain"), ([], [], "make no chain"), ([-1.0], [1], "from 0"), ([np.nan], [1], "from 0")],
)
def test_chains_that_are_none_are_refused(compute, size, told):
    with pytest.raises(InputError, match=told):
        Chain(np.array(compute), np.array(size), linear(0, 1))
