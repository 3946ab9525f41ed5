"""Formulas of collectives, checked by hand and by their laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost import collective
from windtunnel.errors import InputError
from windtunnel.hardware import Link, Topology

WIRE = Link("wire", bandwidth_bytes_per_s=1e9, latency_ns=1000)


def test_a_ring_sends_each_byte_almost_twice():
    assert 6_006_000 == collective.ring_all_reduce_ns(4_000_000, 4, WIRE)


def test_a_tree_pays_few_latencies_and_every_byte_twice():
    assert 8_000_000 + 2 * 2 * 1000 == collective.tree_all_reduce_ns(4_000_000, 4, WIRE)


def test_blueconnect_adds_up_its_dimensions():
    slow = Link("slow", bandwidth_bytes_per_s=1e8, latency_ns=5000)
    # 2 * (1/2 * 4 MB at 1 GB/s + 1 us) + 2 * (3/4 * 2 MB at 0.1 GB/s + 15 us)
    expected = 2 * (2_000_000 + 1000) + 2 * (15_000_000 + 15_000)

    assert expected == collective.hierarchical_all_reduce_ns(4_000_000, Topology((2, 4), (WIRE, slow)))


@given(st.integers(0, 10**9), st.integers(1, 64))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(size_bytes, num_ranks):
    both = collective.reduce_scatter_ns(size_bytes, num_ranks, WIRE) + collective.all_gather_ns(
        size_bytes, num_ranks, WIRE
    )

    assert abs(both - collective.ring_all_reduce_ns(size_bytes, num_ranks, WIRE)) <= 1


@given(st.sampled_from(sorted(collective.COLLECTIVES)), st.integers(0, 10**9), st.integers(2, 64))
def test_more_bytes_never_cost_less(op, size_bytes, num_ranks):
    price = collective.collective_ns(op, size_bytes, num_ranks, WIRE)

    assert price <= collective.collective_ns(op, 2 * size_bytes, num_ranks, WIRE)
    assert price >= WIRE.latency_ns


@pytest.mark.parametrize("op", sorted(set(collective.COLLECTIVES) - {"p2p"}))
def test_one_rank_alone_pays_nothing(op):
    assert 0 == collective.collective_ns(op, 10**6, 1, WIRE)


def test_no_ranks_and_unknown_collectives_are_refused():
    with pytest.raises(InputError, match="among 0 ranks"):
        collective.ring_all_reduce_ns(1, 0, WIRE)
    with pytest.raises(InputError, match="no collective is called 'gossip'"):
        collective.collective_ns("gossip", 1, 2, WIRE)


@pytest.mark.parametrize("op", sorted(collective.COLLECTIVES))
def test_no_message_of_known_size_costs_nothing(op):
    assert collective.collective_ns(op, 1, 2, Link("instant", 1e12, latency_ns=0)) > 0
