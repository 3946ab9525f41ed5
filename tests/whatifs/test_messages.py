"""Messages whose size is known and whose time is not."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.errors import PriceError
from windtunnel.graph import GraphBuilder, Kind
from windtunnel.hardware import Fabric, Link, fabric_of, machine
from windtunnel.whatifs.forecast import forecast
from windtunnel.whatifs.messages import has_messages, price_messages, price_parts, select_untimed_messages

WIRE = Link("wire", bandwidth_bytes_per_s=50e9, latency_ns=0)


def reducing(duration_ns=0, size_bytes=100_000_000):
    """One all-reduce, as a trace of one rank states it: without its group."""
    builder = GraphBuilder()
    builder.task("all_reduce", op="all_reduce", kind=Kind.COMM, duration_ns=duration_ns, message_bytes=size_bytes)
    return builder.build()


def test_an_all_reduce_without_a_time_is_priced_among_all_ranks_of_the_job():
    """100 MB among 8 behind 50 GB/s took 0 ns."""
    priced = price_messages(reducing(), Fabric(WIRE, WIRE, num_ranks=8))

    assert [3_500_000] == priced.duration_ns.tolist()
    assert ["ring model"] == priced.tasks.strings("cost_source").to_numpy().tolist()
    assert forecast(reducing(), machine("dgx-h100")).makespan_ns > 100_000


def test_messages_with_a_time_or_without_a_size_stay():
    assert not has_messages(reducing(duration_ns=5))
    assert not has_messages(reducing(size_bytes=0))
    assert [True] == select_untimed_messages(reducing()).tolist()


def test_a_message_among_an_unknown_number_of_ranks_is_not_guessed():
    with pytest.raises(PriceError, match="nothing says how many ranks take part in all_reduce"):
        price_messages(reducing(), Fabric(WIRE, WIRE))
    assert 8 == fabric_of(machine("dgx-h100")).num_ranks


def test_links_that_a_user_names_carry_measured_messages_too():
    """``predict --link`` once ignored captured messages without a word."""
    captured = reducing(duration_ns=5_000_000)
    here, there = (Fabric(WIRE, WIRE, num_ranks=8, replaces_measured=named) for named in (False, True))

    assert [5_000_000] == price_messages(captured, here).duration_ns.tolist()
    assert [3_500_000] == price_messages(captured, there).duration_ns.tolist()
    assert 5_000_000 <= forecast(captured, machine("dgx-h100")).makespan_ns
    assert 3_500_000 <= forecast(captured, machine("dgx-h100"), fabric=there).makespan_ns < 5_000_000


def test_parts_of_an_all_reduce_are_priced_by_nccl_where_the_devices_are_known():
    """Among 1,024 GPUs small messages are all-reduced on trees, and no tree scatters or gathers."""
    rows, h100 = np.array([0]), {"devices": [{"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 80 << 30}]}
    parts = {}
    for size_bytes in (1 << 20, 1 << 30):
        graph = reducing(1_000_000, size_bytes).note({"world_size": 1024})
        assert [500_000] == price_parts(graph, "all_gather", rows).tolist()
        parts[size_bytes] = price_parts(graph.with_meta(hardware=h100), "all_gather", rows).item()

    assert parts[1 << 20] > 1_000_000
    assert 500_000 < parts[1 << 30] < 520_000
