"""Devices, links, machines and clusters check themselves and answer simple questions."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from windtunnel.errors import InputError
from windtunnel.hardware import Device, Link, Machine, Topology, device, devices, link, links, machine
from windtunnel.hardware import machines as all_machines


def test_a_transfer_takes_the_latency_and_the_bytes_at_the_rate():
    assert 1_030_000 == link("ethernet-10g").transfer_ns(1_250_000)


@pytest.mark.parametrize("bandwidth", [0, -1, float("nan"), float("inf")])
def test_a_link_without_a_usable_rate_is_refused(bandwidth):
    with pytest.raises(InputError, match="bandwidth_bytes_per_s must be above zero"):
        Link("broken", bandwidth)


def test_a_device_says_which_dtypes_it_has_a_rate_for():
    with pytest.raises(InputError, match=r"v100-sxm2-32g has no peak rate for 'bf16'[\s\S]*fp64, fp32, fp16"):
        device("v100-sxm2-32g").flops_per_s("bf16")


def test_every_entry_of_the_catalog_states_its_source():
    entries = [*devices().values(), *links().values(), *all_machines().values()]

    assert all(entry.source for entry in entries)
    assert len(devices()) >= 12


def test_newer_generations_of_a_link_are_faster():
    for family in ("nvlink", "pcie"):
        rates = [one.bandwidth_bytes_per_s for name, one in sorted(links().items()) if name.startswith(family)]

        assert sorted(rates) == rates


def test_a_misspelt_device_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="did you mean h100-pcie-80g, h100-sxm5-80g"):
        device("H10")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("h1000", "h100, h200"),
        ("h100-sxm-80g", "h100-sxm5-80g"),
        ("rtx4900", "rtx4090"),
        ("mi300", "mi300x"),
    ],
)
def test_names_are_near_by_the_characters_that_differ(name, nearest):
    """``h1000`` was answered with ``hl-100``."""
    with pytest.raises(InputError, match=f"did you mean {nearest}"):
        device(name)


def test_values_survive_pickling_between_processes():
    for value in (device("t4"), link("loopback"), machine("dgx-a100"), Topology((2,), (link("loopback"),))):
        assert value == pickle.loads(pickle.dumps(value))


def test_more_cores_than_threads_is_refused():
    with pytest.raises(InputError, match="1 threads on 2 cores"):
        Machine("m", "cpu", num_cores=2, num_threads=1, memory_bytes=1)


def test_a_topology_needs_one_link_per_dimension():
    with pytest.raises(InputError, match="2 dimensions and 1 links"):
        Topology((2, 2), (link("loopback"),))


def test_a_device_of_ones_own_needs_only_three_numbers():
    mine = Device("mine", memory_bytes=2**30, bandwidth_bytes_per_s=1e11, peak_flops_per_s={"fp32": 1e12})

    assert 1e12 == mine.flops_per_s()


def test_the_fingerprint_ignores_names_and_sees_what_sets_the_speed():
    one = machine("dgx-a100")

    assert one.fingerprint() == replace(one, name="other", memory_bytes=one.memory_bytes + 1).fingerprint()
    assert one.fingerprint() != replace(one, num_cores=64).fingerprint()
