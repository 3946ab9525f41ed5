"""One description of a network: what-ifs, planners and simulated fleets read the same links."""

import math

import pytest

from windtunnel.cost.collective import p2p_ns
from windtunnel.hardware import Fabric, fabric_of, machine
from windtunnel.systems.pipelines.two_bw import Job
from windtunnel.systems.uneven.fleet import Wire
from windtunnel.systems.uneven.trace import Trace

DGX = machine("dgx-h100")


def test_ranks_of_a_host_use_its_own_link_and_others_as_many_networks_as_there_are_ranks_beside_each_other():
    fabric = fabric_of(DGX)

    assert DGX.device_link.name == fabric.between(range(8)).name
    assert DGX.network_link.bandwidth_bytes_per_s == fabric.between([0, 8]).bandwidth_bytes_per_s
    assert 2 * DGX.network_link.bandwidth_bytes_per_s == fabric.between([0, 1, 8, 9]).bandwidth_bytes_per_s


def test_planners_choose_between_the_same_two_links():
    job = Job(16, math.inf, 16, fabric_of(DGX))

    assert isinstance(job.links, Fabric)
    assert job.links.inner == job.links.among(job.links.devices_per_host - 1)
    assert job.links.outer == job.links.among(job.links.devices_per_host)
    assert DGX.network_link.bandwidth_bytes_per_s == job.links.among(16).bandwidth_bytes_per_s


def test_a_wire_of_a_fleet_is_a_link_until_its_rate_changes():
    wire = Wire.of("w0 up", Trace((0, 5_000_000), (1e6, 5e5)), latency_ns=2000)

    assert 1_002_000 == p2p_ns(1000, wire.link) == wire.link.transfer_ns(1000)
    assert wire.latency_ns + 1_000_000 == wire.link.transfer_ns(1000)
    assert wire.link.bandwidth_bytes_per_s == pytest.approx(2 * wire.bytes_per_s.value_at(6_000_000))
