"""Wires of unequal rates that the kernel shapes, and the sockets over them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from tests.systems.uneven.small import fleet_of
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.measure import spaces as spaces_module
from windtunnel.measure.spaces import can_shape, shape_wires
from windtunnel.measure.workers import Workers
from windtunnel.systems.uneven.goal import Goal
from windtunnel.systems.uneven.jobs import train_job
from windtunnel.systems.uneven.model import train_virtually
from windtunnel.systems.uneven.run import train_really

needs_namespaces = pytest.mark.skipif(not can_shape(), reason="this process may make no network namespaces")
MB = 1e6
# Two cards each (out and in) and a wire of its own from 0 to 2.
ROUTES = {(0, 1): (0, 1), (2, 1): (4, 1), (0, 2): (6,), (1, 2): (2, 3)}
RATES = [20 * MB, 4 * MB, 20 * MB, 20 * MB, 20 * MB, 20 * MB, 1 * MB]


def _took_s(sends, *, before=None):
    with shape_wires(3, ROUTES, RATES) as wires:
        if before is not None:
            before(wires)
        config = (wires.addresses, sends)
        with Workers(
            "tests.systems.uneven.exchanging", config, num_ranks=3, prefixes=wires.prefixes, patience_s=60
        ) as workers:
            assert ["ready"] * 3 == [workers.receive(rank) for rank in range(3)]
            begun_ns = time.monotonic_ns() + 500_000_000
            for rank in range(3):
                workers.send(begun_ns, rank)
            took = [workers.receive(rank) for rank in range(3)]
            for rank in range(3):
                workers.send("close", rank)
            ends = workers.gather()
    assert all(one is None for end in ends for one in end)
    assert not any(str(os.getpid()) in one.name for one in Path("/run/netns").glob("windtunnel-*"))
    return took


@needs_namespaces
def test_each_wire_has_its_rate_and_shared_ones_are_shared():
    """Two senders share what one node hears at 4 MB/s; a link of its own has 1 MB/s; headers cost 4 %."""
    took = _took_s([(0, 1, 2_000_000), (2, 1, 2_000_000), (0, 2, 1_000_000)])

    assert max(took[1].values()) > 0.95  # how much later they come is the host's affair
    assert min(took[1].values()) > 0.7  # neither waits for the other to end
    assert took[2][0] > 0.95


@needs_namespaces
@pytest.mark.slow  # only a time tells that the rate is higher
def test_a_rate_can_change_and_what_is_no_message_is_not_held_up():
    took = _took_s([(0, 2, 1_000_000)], before=lambda wires: wires.set_rate(6, 4 * MB))

    assert 0.22 < took[2][0] < 0.6


@needs_namespaces
def test_weights_over_shaped_links_are_those_of_virtual_time(tmp_path):
    """Messages take as long as in virtual time, headers and a busy machine aside."""
    fleet_of(tmp_path, [1.0, 0.5], rate="2 MB/s", server="20 MB/s")
    text = (tmp_path / "cluster.toml").read_text(encoding="utf-8").replace('"10 ms"', '"100 ms"', 1)
    (tmp_path / "cluster.toml").write_text(text, encoding="utf-8")
    from windtunnel.systems.uneven.fleet import read_fleet

    fleet, goal = read_fleet(tmp_path / "cluster.toml"), Goal(3 * 10**9, every_ns=10**9)
    real = train_really("mlp", fleet, "bsp", {}, goal, is_in_kernel=True)
    virtual = train_virtually(train_job("mlp"), fleet, "bsp", registry.get("strategy", "bsp").function(), goal)
    took = [np.median(run.messages[:, 3] - run.messages[:, 2]) for run in (real, virtual)]

    assert real.bytes_by_pair().keys() == virtual.bytes_by_pair().keys()
    assert set(real.messages[:, 4]) == set(virtual.messages[:, 4])
    assert took[0] > 0.5 * took[1]


@needs_namespaces
@pytest.mark.parametrize(
    ("routes", "rates", "message"),
    [
        ({(0, 1): (0,)}, [0.0], "at least a byte per second"),
        ({(0, 1): (0,)}, [float("nan")], "at least a byte per second"),
        ({(0, 1): (0, 1, 2)}, [1e6, 1e6, 1e6], "three wires"),
        ({(0, 1): (0,), (1, 0): (0,)}, [1e6], "two ends"),
    ],
)
def test_wires_that_mean_nothing_are_refused(routes, rates, message):
    with pytest.raises(InputError, match=message), shape_wires(2, routes, rates):
        pass


def test_without_namespaces_it_says_what_is_needed(monkeypatch):
    monkeypatch.setattr(spaces_module, "can_shape", lambda: False)
    with pytest.raises(InputError, match="no network namespaces"), shape_wires(2, {(0, 1): (0,)}, [1e6]):
        pass
