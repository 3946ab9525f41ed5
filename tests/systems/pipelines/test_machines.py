"""The cheapest machines against trying everything."""

from __future__ import annotations

import pytest

from tests.systems.pipelines.block_models import block_graph
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.hardware import Instance, device, instance, instances, link
from windtunnel.systems.pipelines.machines import cheapest_machines, links_between
from windtunnel.systems.pipelines.profiles import profiles_of
from windtunnel.systems.pipelines.replayed import batch_ns, stage_times
from windtunnel.systems.pipelines.two_bw import Job, plan_2bw

BATCH, SIZES = 16, [2, 4, 8]
SPEED = {"t4": 1.0, "a10g": 2.0, "l4": 1.6}


def rented(name, chip, number, price, network=1e7):
    return Instance(
        name, device(chip), number, 8, 1 << 36, link("pcie3-x16") if number > 1 else None, network, price, "2024-06", ""
    )


OFFERED = [
    rented("one", "t4", 1, 0.5), rented("two", "t4", 2, 1.1), rented("quick", "a10g", 1, 1.05, network=1e10),
    rented("wide", "l4", 4, 3.2),
]  # fmt: skip


def profiles(chip):
    graph = block_graph(4, 1_000_000)
    return profiles_of(graph.scale(graph.all_tasks, 1 / SPEED[chip.name]), 4, SIZES)


def best_rate(one, count):
    """Of every plan, replayed."""
    blocks, links = profiles(one.device), links_between(one, count)
    job = Job(count * one.num_devices, float(one.device.memory_bytes), BATCH, links)
    rows = plan_2bw(blocks, job).feasible
    steps = [batch_ns(row, stage_times(row, blocks[row.microbatch], links)) for row in rows]
    return BATCH / min(steps) * 1e9


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 1.0])
def test_nothing_cheaper_is_fast_enough(share):
    rates = {(one.name, count): best_rate(one, count) for one in OFFERED for count in (1, 2, 3)}
    prices = {(one.name, count): count * one.price_usd_per_h for one in OFFERED for count in (1, 2, 3)}
    goal = share * max(rates.values()) * (1 - 1e-9)
    found = cheapest_machines(
        block_graph(4), 4, BATCH, SIZES, goal, OFFERED, max_machines=3, num_replayed=1000, profiles=profiles
    )

    assert min(prices[key] for key, rate in rates.items() if rate >= goal) == found.best.usd_per_h
    assert found.is_proven
    assert BATCH / found.best.played.step_ns * 1e9 >= goal
    assert all(one.usd_per_h <= found.best.usd_per_h and one.reason for one in found.cheaper)
    assert all(rates[one.instance.name, one.count] < goal for one in found.cheaper)


def test_nothing_is_proven_where_plans_were_left_out():
    """One plan of each offer: the best by the cost functions may not be the best when replayed."""
    offered = [OFFERED[3], rented("dear", "a10g", 12, 50.0, network=1e12)]
    goal = 1.001 * best_rate(offered[0], 2)
    given = {"max_machines": 2, "profiles": profiles}
    one = cheapest_machines(block_graph(4), 4, BATCH, SIZES, goal, offered, num_replayed=1, **given)
    whole = cheapest_machines(block_graph(4), 4, BATCH, SIZES, goal, offered, num_replayed=1000, **given)

    assert "dear" == one.best.instance.name == whole.best.instance.name
    assert "at best" in one.cheaper[-1].reason
    assert not one.is_proven
    assert whole.is_proven


def test_a_rate_that_nothing_yields_is_infeasible():
    with pytest.raises(InfeasibleError, match="no 2 machines of a kind yield"):
        cheapest_machines(block_graph(4), 4, BATCH, SIZES, 1e12, OFFERED, max_machines=2, profiles=profiles)
    with pytest.raises(InputError, match="samples per s"):
        cheapest_machines(block_graph(4), 4, BATCH, SIZES, 0.0, OFFERED, profiles=profiles)


def test_devices_share_the_network_of_their_instance():
    one = instance("g5.12xlarge")

    assert 40e9 / 8 / 4 == links_between(one, 2).outer.bandwidth_bytes_per_s
    assert links_between(one, 1).among(4).bandwidth_bytes_per_s == one.device_link.bandwidth_bytes_per_s
    assert links_between(one, 2).among(8).bandwidth_bytes_per_s == links_between(one, 2).outer.bandwidth_bytes_per_s


def test_every_instance_says_what_it_costs_when_and_where_that_is_from():
    for one in instances().values():
        assert one.price_usd_per_h > 0
        assert one.price_date
        assert one.source
        assert (one.num_devices > 1) == (one.device_link is not None)
