"""Formulas of collectives, checked by hand and by their laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost import collective
from windtunnel.errors import InputError, PriceError
from windtunnel.flights.data_parallel import SlowLink
from windtunnel.hardware import Link, Topology
from windtunnel.search.shapes import all_reduce_ns
from windtunnel.search.work import DeviceType
from windtunnel.systems.pipelines.replayed import ring_ns_per_byte

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


# --- who else prices a collective does so by these formulas --------------------------------------------------------


@given(st.integers(1, 10**9), st.integers(2, 64))
def test_planners_and_flights_price_a_ring_alike(size_bytes, num_ranks):
    free = Link("wire", bandwidth_bytes_per_s=1e9)
    expected_ns = collective.ring_all_reduce_ns(size_bytes, num_ranks, free)
    slow = SlowLink(num_ranks, 1e9, 0)
    fleet_ns = DeviceType("gpu", num_ranks, sync_ns_per_byte=2.0).agree_ns_per_byte(num_ranks) * num_ranks * size_bytes

    assert expected_ns == pytest.approx(ring_ns_per_byte(num_ranks, 1e9) * size_bytes, abs=1)
    assert expected_ns == pytest.approx(slow.due_ns(size_bytes, 0), abs=2)
    assert expected_ns == pytest.approx(fleet_ns, abs=1)
    assert expected_ns == all_reduce_ns(size_bytes, ((num_ranks,),), (free, free, free))


def test_a_planner_counts_the_bytes_of_a_ring_once_or_twice():
    """PipeDream's 4 (r - 1) / r is twice the 2 (r - 1) / r of a ring, and so are Piper's and PHAZE's."""
    degrees = np.array([1, 2, 3, 8])

    assert [0, 1, 4 / 3, 1.75] == pytest.approx(collective.ring_ratio(degrees).tolist())
    assert [0, 2, 8 / 3, 3.5] == pytest.approx(
        (collective.SYNC_RATIOS["pipedream"] * collective.ring_ratio(degrees)).tolist()
    )


def test_messages_are_priced_by_the_name_that_a_program_gave_them():
    few, many = (collective.message_ns("all_reduce", 8, num_ranks, WIRE) for num_ranks in (2, 64))

    assert collective.ring_all_reduce_ns(8, 2, WIRE) == few
    assert collective.tree_all_reduce_ns(8, 64, WIRE) == many
    assert collective.p2p_ns(8, WIRE) == collective.message_ns("recv", 8, 2, WIRE)
    with pytest.raises(PriceError, match="no collective is called 'gossip'"):
        collective.message_ns("gossip", 8, 2, WIRE)
