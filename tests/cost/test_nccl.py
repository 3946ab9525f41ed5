"""The library's prices, worked out by hand from its published tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost.nccl import NCCL_V100, bus_bytes_per_s, nccl_p2p_ns, nccl_price, nccl_prices
from windtunnel.errors import PriceError
from windtunnel.hardware import Link, Topology, link

NVLINK, EDR = link("nvlink2"), link("infiniband-edr")
NODE = Topology((16,), (NVLINK,))
CLUSTER = Topology((16, 8), (NVLINK, EDR), (1, 2))  # eight ports for the sixteen devices of a node
OPS = sorted(NCCL_V100.ring_caps_gb_per_s)


def price(op, size_bytes, topology, algorithm, protocol):
    return nccl_price(op, size_bytes, topology, algorithm=algorithm, protocol=protocol).duration_ns


def test_the_bus_is_six_links_of_a_device_or_all_ports_of_a_node():
    assert (126e9, 96e9) == pytest.approx((bus_bytes_per_s(NODE), bus_bytes_per_s(CLUSTER)))
    assert 12e9 == pytest.approx(bus_bytes_per_s(Topology((1, 4), (NVLINK, EDR))))


@pytest.mark.parametrize(
    ("op", "algorithm", "protocol", "expected_us"),
    [
        # 3.6 + 30 · 0.4 + 1 MB / (126 / 4 · 16 / 30 = 16.8 GB/s)
        ("all_reduce", "ring", "LL", 15.6 + 59.5238),
        # 3.6 + 30 · 2.5 + 1 MB / (min(118.1, 100) · 16 / 30 = 53.33 GB/s)
        ("all_reduce", "ring", "LL128", 78.6 + 18.75),
        # 8.4 + 30 · 5.7 + 1 MB / (126 · 16 / 30 = 67.2 GB/s)
        ("all_reduce", "ring", "Simple", 179.4 + 14.8810),
        # 1 MB is between 2^19 and 2^20 bytes: entry 13 of the corrections
        # 4.4 + 2 · 15 · 0.5 + 1 MB / (min(113.4, 110) / 3 / 2 · 0.5 = 9.1667 GB/s)
        ("all_reduce", "tree", "LL", 19.4 + 109.0909),
        # 4.4 + 2 · 15 · 1.9 + 1 MB / (110 · 7 / 9 / 2 · 0.6 = 25.6667 GB/s)
        ("all_reduce", "tree", "LL128", 61.4 + 38.9610),
        # 2 · 15 · 28 + 1 MB / (55 · 0.5 = 27.5 GB/s)
        ("all_reduce", "tree", "Simple", 840 + 36.3636),
        # 3.6 + 15 · 2.5 + 1 MB / (91 · 16 / 15 = 97.0667 GB/s)
        ("reduce_scatter", "ring", "LL128", 41.1 + 10.3022),
        # 8.4 + 15 · 5.7 + 1 MB / (126 · 16 / 15 = 134.4 GB/s)
        ("all_gather", "ring", "Simple", 93.9 + 7.4405),
        # 3.6 + 16 · 0.4 + 1 MB / 31.5 GB/s
        ("broadcast", "ring", "LL", 10.0 + 31.7460),
        # 3.6 + 16 · 2.5 + 1 MB / 72 GB/s
        ("reduce", "ring", "LL128", 43.6 + 13.8889),
        # 8.4 + 16 · 28 + 1 MB / 126 GB/s: chunks hop as on trees
        ("broadcast", "ring", "Simple", 456.4 + 7.9365),
    ],
)
def test_a_megabyte_on_one_node(op, algorithm, protocol, expected_us):
    assert expected_us == pytest.approx(price(op, 1e6, NODE, algorithm, protocol) / 1e3, abs=1e-3)


@pytest.mark.parametrize(
    ("algorithm", "protocol", "expected_us"),
    [
        # 3.6 + 254 · 2.5 + 2^30 / (96 · 120 / 128 · 128 / 254 = 45.3543 GB/s)
        ("ring", "LL128", 638.6 + 23674.4881),
        # 8.4 + 254 · 6.6 + 2^30 / (96 · 128 / 254 = 48.3780 GB/s)
        ("ring", "Simple", 1684.8 + 22194.8326),
        # 4.4 + 2 · (15 · 1.9 + 3 · 7.5) + 2^30 / (80 · 7 / 9 / 2 = 31.1111 GB/s), beyond the table of corrections
        ("tree", "LL128", 106.4 + 34513.1300),
    ],
)
def test_a_gibibyte_on_eight_nodes(algorithm, protocol, expected_us):
    found = price("all_reduce", 2**30, CLUSTER, algorithm, protocol) / 1e3

    assert expected_us == pytest.approx(found, rel=1e-4)


def test_short_messages_take_low_latencies_and_long_ones_the_bandwidth():
    choices = [nccl_price("all_reduce", size, CLUSTER) for size in (2**12, 2**22, 2**28, 2**32)]

    assert [("tree", "LL"), ("tree", "LL128"), ("ring", "LL128"), ("ring", "Simple")] == [
        (item.algorithm, item.protocol) for item in choices
    ]


def test_without_nvlink_no_flags_go_with_128_bytes():
    prices = nccl_prices("all_reduce", 1e6, Topology((8,), (link("pcie3-x16"),)))

    assert {"LL", "Simple"} == {item.protocol for item in prices}


@given(st.sampled_from(OPS), st.integers(1, 2**32), st.sampled_from([NODE, CLUSTER]))
def test_the_choice_is_the_least_and_no_faster_than_the_bus(op, size_bytes, topology):
    prices = nccl_prices(op, size_bytes, topology)
    least = nccl_price(op, size_bytes, topology)

    assert least.duration_ns == min(item.duration_ns for item in prices)
    num_ranks = topology.num_members
    passes = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}.get(op)
    sent = size_bytes if passes is None else passes * size_bytes * (num_ranks - 1) / num_ranks
    assert least.sending_ns >= 1e9 * sent / bus_bytes_per_s(topology) - 2


@given(st.integers(1, 2**32), st.sampled_from([NODE, CLUSTER]))
def test_two_collectives_in_place_of_an_all_reduce_hardly_ever_help(size_bytes, topology):
    """Each chooses its protocol for itself, which is worth up to 2.9 %, at 26 MB on a node."""

    def total(*ops):
        return sum(nccl_price(op, size_bytes, topology).duration_ns for op in ops)

    assert 0.97 * total("all_reduce") <= total("reduce_scatter", "all_gather") + 2
    assert 0.97 * total("all_reduce") <= total("reduce", "broadcast") + 2


def test_a_message_shares_the_ports_of_its_node():
    # 8.4 + 6.6 + 1 MB / (12 GB/s for two ranks)
    assert 15_000 + round(1e15 / 6e9) == nccl_p2p_ns(1e6, CLUSTER)
    # 8.4 + 5.7 + 1 MB / 126 GB/s
    assert 14_100 + round(1e15 / 126e9) == nccl_p2p_ns(1e6, NODE)


def test_one_rank_pays_nothing_and_what_the_library_lacks_is_refused():
    assert 0 == nccl_price("all_reduce", 1e6, Topology((1,), (NVLINK,))).duration_ns
    with pytest.raises(PriceError, match="no collective 'gossip'"):
        nccl_prices("gossip", 1e6, NODE)
    with pytest.raises(PriceError, match="no tree does broadcast"):
        nccl_price("broadcast", 1e6, NODE, algorithm="tree")
    with pytest.raises(PriceError, match="3 dimensions"):
        nccl_prices("all_reduce", 1e6, Topology((2, 2, 2), (Link("wire", 1e9),) * 3))
