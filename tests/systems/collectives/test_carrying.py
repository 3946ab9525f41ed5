"""What messages take and cost computing: a line through sizes, and real processes of this host."""

from __future__ import annotations

import pytest

from windtunnel.cost.rerun import CarryingNeed, MessageCost, price_needs
from windtunnel.cost.rerun.carrying import carrying_cost
from windtunnel.measure import ProfileDatabase

WORKER = "windtunnel.systems.collectives.carrying_worker"
LINK_BYTES_PER_S, LATENCY_NS = 62.5e6, 1_500_000


def test_links_of_other_rates_are_other_needs():
    assert CarryingNeed(WORKER, 2, 1e8) == CarryingNeed(WORKER, 2, 1e8)
    needs = {(2,), (2, 1e8), (2, 1e8, 1000), (3, 1e8)}
    assert len(needs) == len({CarryingNeed(WORKER, *item) for item in needs})


def test_two_sizes_recover_the_latency_and_the_bandwidth_of_a_link():
    sizes = [1 << 20, 1 << 22]
    cost = MessageCost.fit(sizes, [LATENCY_NS + size / LINK_BYTES_PER_S * 1e9 for size in sizes])

    assert LATENCY_NS == pytest.approx(cost.latency_ns)
    assert 1e9 / LINK_BYTES_PER_S == pytest.approx(cost.ns_per_byte)
    assert LATENCY_NS + 16 * (1 << 21) == pytest.approx(cost.duration_ns(1 << 21))


def test_the_same_bytes_take_longer_in_more_messages():
    cost = MessageCost(LATENCY_NS, 16.0)

    assert 12 * LATENCY_NS == pytest.approx(16 * cost.duration_ns(1 << 20) - 4 * cost.duration_ns(1 << 22))


@pytest.mark.parametrize(("sizes", "durations"), [([5, 5], [10, 10]), ([1, 3], [9, 3]), ([1, 3], [1, 7])])
def test_no_part_of_a_message_is_below_zero(sizes, durations):
    assert MessageCost(0.0, sum(durations) / sum(sizes)) == MessageCost.fit(sizes, durations)


@pytest.mark.slow
def test_real_processes_lose_time_to_messages_and_a_second_asking_reads_the_database(tmp_path):
    pytest.importorskip("torch")
    database = ProfileDatabase(str(tmp_path / "profile.db"))
    need = CarryingNeed(WORKER, 2)
    cost = price_needs([need], database=database)[need]

    assert cost.lost_ratio >= 0
    assert cost.spread_ratio >= 0
    assert min(cost.reduce_scatter.duration_ns(1 << 20), cost.all_gather.duration_ns(1 << 20)) > 0
    assert 3 == len(database)
    assert cost == carrying_cost(2, worker=WORKER, database=database)
