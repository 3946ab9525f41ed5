"""What is read from a host's own files, on hosts that we know."""

from __future__ import annotations

import json
import os
import stat

import pytest

from windtunnel.hardware import devices, machine, recognize
from windtunnel.hardware.host import cpu_quota_cores, free_gpu_bytes, num_sockets, this_host

CPUINFO = """processor : 0
model name : Example(R) Xeon(R)  Gold 1
siblings : 64
cpu cores : 32
flags : fpu sse4_2 avx avx2 fma avx512f avx512_bf16 amx_bf16 rdrand
"""


def write_host(root, cpu_max="max 100000"):
    cache = root / "sys/devices/system/cpu/cpu0/cache"
    files = {
        root / "proc/cpuinfo": CPUINFO,
        root / "proc/meminfo": "MemTotal: 1048576 kB\n",
        root / "sys/fs/cgroup/cpu.max": cpu_max,
    }
    levels = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "36M")]
    for number, (level, kind, size) in enumerate(levels):
        for name, text in (("level", level), ("type", kind), ("size", size)):
            files[cache / f"index{number}" / name] = text
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_processor_memory_caches_and_instruction_sets_are_read(tmp_path):
    host = this_host(devices(), write_host(tmp_path))

    assert "Example Xeon Gold 1" == host.cpu_name
    assert 2**30 == host.memory_bytes
    assert {"l1d": 48 * 2**10, "l2": 2**21, "l3": 36 * 2**20} == host.cache_bytes
    assert ("amx_bf16", "avx", "avx2", "avx512_bf16", "avx512f", "fma", "sse4_2") == host.isa_flags


def test_a_container_with_a_quota_of_one_core_has_one_core(tmp_path):
    host = this_host(devices(), write_host(tmp_path, cpu_max="150000 100000"))

    assert (1, 1) == (host.num_cores, host.num_threads)


def test_the_quota_of_a_control_group_is_told_in_cores(tmp_path):
    assert 1.5 == cpu_quota_cores(write_host(tmp_path / "limited", cpu_max="150000 100000"))
    assert cpu_quota_cores(write_host(tmp_path / "free")) is None
    assert cpu_quota_cores(tmp_path / "nothing") is None
    older = tmp_path / "older/sys/fs/cgroup/cpu"
    older.mkdir(parents=True)
    for name, value in (("quota", "250000"), ("period", "100000")):
        (older / f"cpu.cfs_{name}_us").write_text(value)

    assert 2.5 == cpu_quota_cores(tmp_path / "older")
    (older / "cpu.cfs_quota_us").write_text("-1")
    assert cpu_quota_cores(tmp_path / "older") is None


def test_sockets_are_counted_where_the_host_tells_them(tmp_path):
    (tmp_path / "proc").mkdir()
    sockets = "".join(f"processor : {cpu}\nphysical id : {cpu % 2}\n\n" for cpu in range(8))
    (tmp_path / "proc/cpuinfo").write_text(sockets)

    assert 2 == num_sockets(tmp_path)
    assert num_sockets(tmp_path / "nothing") is None


def test_a_host_without_proc_and_sys_is_still_a_machine(tmp_path):
    host = this_host(devices(), tmp_path)

    assert host.num_cores >= 1
    assert host.memory_bytes > 0
    assert () == host.isa_flags


def test_this_host_keeps_its_fingerprint_and_serializes():
    host = machine("this host")

    assert machine().fingerprint() == host.fingerprint()
    assert host.num_cores == json.loads(json.dumps(host.json()))["num_cores"]


@pytest.mark.parametrize(
    ("driver_name", "memory_mib", "name"),
    [
        ("NVIDIA H200", 143_771, "h200-sxm5-141g"),
        ("NVIDIA H100 80GB HBM3", 81_559, "h100-sxm5-80g"),
        ("NVIDIA H100 PCIe", 81_559, "h100-pcie-80g"),
        ("NVIDIA H100 NVL", 95_830, "h100-nvl-94g"),
        ("NVIDIA A100-SXM4-40GB", 40_960, "a100-sxm4-40g"),
        ("NVIDIA A100-PG509-200", 40_337, "a100-sxm4-40g"),
        ("NVIDIA A100 80GB PCIe", 81_920, "a100-pcie-80g"),
        ("Tesla V100-SXM2-32GB", 32_501, "v100-sxm2-32g"),
        ("NVIDIA GeForce RTX 4090", 24_564, "rtx4090"),
    ],
)
def test_a_gpu_is_recognized_by_its_driver_name_and_memory(driver_name, memory_mib, name):
    assert name == recognize(driver_name, memory_mib * 2**20).name


@pytest.mark.parametrize("driver_name", ["", "Some Card", "AMD Radeon Graphics"])
def test_an_unknown_gpu_is_left_out(driver_name):
    assert recognize(driver_name, 2**34) is None


def test_the_free_memory_of_the_visible_gpu_is_asked_of_the_driver(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nprintf "%s\\n" "$*" > "$0.asked"\nprintf \'1024\\n\'\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")

    assert 2**30 == free_gpu_bytes()
    assert "--query-gpu=memory.free" in (tmp_path / "nvidia-smi.asked").read_text()
    assert (tmp_path / "nvidia-smi.asked").read_text().endswith("--id 3\n")
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert free_gpu_bytes() is None


@pytest.mark.parametrize(
    ("name", "parts", "memory_gib", "whole"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1, 10, "h100-sxm5-80g"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 3, 20, "a100-sxm4-40g"),
        ("NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb", 1, 40, "a100-sxm4-80g"),
    ],
)
def test_a_slice_of_a_gpu_has_its_share_of_it(name, parts, memory_gib, whole):
    found, chip = recognize(name, memory_gib * 2**30), devices()[whole]

    assert found.name.startswith(f"{whole}-mig-")
    assert memory_gib * 2**30 == found.memory_bytes
    assert parts / 7 == pytest.approx(found.flops_per_s("bf16") / chip.flops_per_s("bf16"))
    assert found.memory_bytes / chip.memory_bytes == pytest.approx(
        found.bandwidth_bytes_per_s / chip.bandwidth_bytes_per_s
    )
    assert found.num_units == round(chip.num_units * parts / 7)


def test_a_slice_of_an_unknown_gpu_is_unknown():
    assert recognize("NVIDIA Z9 MIG 1g.10gb", 10 * 2**30) is None
