"""Throughput, utilization and energy, against numbers worked out by hand."""

import os
import stat
import time

import numpy as np
import pytest

from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, ResourceKind
from windtunnel.systems.suite import metrics
from windtunnel.systems.suite.metrics import (
    EnergyMeter,
    arithmetic_utilization,
    compute_utilization,
    cpu_seconds,
    cpu_utilization,
    throughput,
)
from windtunnel.systems.suite.stable import stable_phase


def test_throughput_of_unequal_steps_is_units_over_time():
    units = np.tile([10, 20, 40], 20)
    durations_ns = units * 50_000_000.0  # 20 units per second, whatever a step holds
    rate = throughput(durations_ns, units, stable_phase(durations_ns))

    assert rate.value == pytest.approx(20)
    assert rate.low == pytest.approx(20)
    assert rate.high == pytest.approx(20)


def test_a_step_without_units_is_refused():
    with pytest.raises(InputError, match="no units"):
        throughput([1e9] * 10, [0] * 10, stable_phase([1e9] * 10))


def test_compute_utilization_counts_overlapping_operators_once():
    builder = GraphBuilder()
    first, second = (builder.resource(name, ResourceKind.HOST_THREAD) for name in ("one", "two"))
    host = builder.task("host", kind=Kind.HOST, duration_ns=40, resource=first)
    left = builder.task("left", kind=Kind.COMPUTE, duration_ns=60, resource=first)
    right = builder.task("right", kind=Kind.COMPUTE, duration_ns=30, resource=second)
    builder.edge(host, left, kind=EdgeKind.DATA)
    builder.edge(host, right, kind=EdgeKind.DATA)

    assert compute_utilization(builder.build()) == pytest.approx(0.6)


def test_arithmetic_utilization_leaves_out_what_has_no_peak():
    used = arithmetic_utilization({"float32": 10**9, "int64": 5}, {"float32": 4e9}, 5e8)

    assert used == {"float32": 0.5}


def test_cpu_utilization_of_a_busy_and_an_idle_stretch():
    before_s, begun_s = cpu_seconds(), time.monotonic()
    while time.monotonic() - begun_s < 0.05:
        pass
    busy_s = cpu_seconds() - before_s

    assert 0 < busy_s <= 0.05 * (os.cpu_count() or 1) + 1
    assert cpu_utilization(1.0, 4.0, 2) == 0.125
    assert cpu_utilization(1.0, 0.0, 2) == 0.0


def _zone(root, name, kind, energy_uj):
    zone = root / name
    zone.mkdir()
    (zone / "name").write_text(f"{kind}\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    (zone / "max_energy_range_uj").write_text("9999999\n")
    return zone / "energy_uj"


def test_energy_sums_packages_over_wraps_and_leaves_their_parts_out(tmp_path):
    first = _zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    part = _zone(tmp_path, "intel-rapl:0:0", "core", 0)
    second = _zone(tmp_path, "intel-rapl:1", "package-1", 1_000_000)
    meter = EnergyMeter(tmp_path, use_gpu=False)
    first.write_text("1000000\n")  # wrapped: 2 J
    second.write_text("1500000\n")  # 0.5 J
    part.write_text("5000000\n")

    assert meter.source == "rapl"
    assert meter.joules() == pytest.approx(2.5)
    assert meter.joules() == pytest.approx(2.5)


def test_energy_of_gpus_is_their_power_over_time(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '100.00\\n50.50\\n'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    moments = iter([10.0, 12.0, 12.0])
    monkeypatch.setattr(metrics.time, "monotonic", lambda: next(moments))
    meter = EnergyMeter(tmp_path / "none")

    assert meter.source == "nvidia-smi"
    assert meter.joules() == pytest.approx(301)


def test_a_host_that_tells_no_energy_says_so(tmp_path):
    meter = EnergyMeter(tmp_path, use_gpu=False)

    assert meter.joules() is None
    assert "no readable RAPL counter" in meter.reason
