"""Look at this host: processor, cores, memory, caches, instruction sets, GPUs; and stay on some of its cores.

In: /proc and /sys where there are any, the standard library elsewhere. Out: a ``Machine``; numbers of cores. Nothing is
measured here. Hosts without a scheduler's mask (macOS, Windows) have cores and no choice.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from windtunnel.base.reading import free_memory_bytes
from windtunnel.hardware.parts import Device
from windtunnel.hardware.systems import Machine

__all__ = [
    "available_bytes",
    "clock_hz",
    "cpu_quota_cores",
    "free_gpu_bytes",
    "matching",
    "num_sockets",
    "peak_own_bytes",
    "peak_resident_bytes",
    "plain_name",
    "processor_name",
    "socket_cores",
    "stay_on",
    "this_host",
    "usable_cores",
]

# what changes how fast deep learning runs on a CPU
_FLAGS = re.compile(
    r"sse4_2|avx|avx2|fma|f16c|avx512(f|bw|dq|vl|_bf16|_fp16|_vnni)|avx_vnni|amx_(bf16|int8|fp16|tile)"
    r"|asimd|asimdhp|asimddp|bf16|i8mm|sve2?"
)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
_DEFAULT_MEMORY_BYTES = 8 * 2**30
_GPU_QUERY_TIMEOUT_S = 10
_MIG_SLICE = re.compile(r"\bMIG (?:(\d+)c\.)?(\d+)g\.(\d+)gb", re.IGNORECASE)
_MIG_PARTS = 7  # of the units of a GPU


def usable_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def socket_cores(root: Path = Path("/")) -> tuple[tuple[int, ...], ...]:
    """The same by socket, one number for each physical core: two that share one are no two cores.

    Parameters
    ----------
    root : Path
        Where /sys lies (tests give another). A host that does not tell has one socket, and no core is shared.
    """
    sockets: dict[str, dict[str, int]] = {}
    for number in usable_cores():
        folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
        socket, core = (_read_text(folder / name) for name in ("physical_package_id", "core_id"))
        sockets.setdefault(socket, {}).setdefault(core or f"cpu{number}", number)
    return tuple(tuple(cores.values()) for cores in sockets.values())


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def stay_on(cores: Iterable[int]) -> None:
    """Keep the calling thread, and what it starts, on some cores; without any, or where there is no choice, nothing."""
    selected = set(cores)
    if selected and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, selected)


def this_host(known_devices: Mapping[str, Device], root: Path = Path("/")) -> Machine:
    """Describe the host that this process runs on.

    Parameters
    ----------
    known_devices : mapping
        The catalog, to recognize GPUs by their driver's name.
    root : Path
        Where /proc and /sys lie (tests give another).
    """
    info = _read(root / "proc/cpuinfo")
    # What this process may use: its cores, and no more than the quota of its container.
    affinity = len(usable_cores())
    quota = cpu_quota_cores(root)
    threads = max(1, affinity if quota is None else min(affinity, int(quota)))
    flags = (_field(info, "flags") or _field(info, "Features")).split()
    gpus = (_of_line(line, known_devices) for line in _ask_driver("name,memory.total"))
    return Machine(
        name=platform.node() or "host",
        cpu_name=_cpu_name(root),
        num_cores=max(1, min(threads, _num_cores(info, threads))),
        num_threads=threads,
        memory_bytes=_memory_bytes(root),
        cache_bytes=_cache_bytes(root / "sys/devices/system/cpu/cpu0/cache"),
        isa_flags=tuple(sorted({flag for flag in flags if _FLAGS.fullmatch(flag)})),
        devices=tuple([gpu for gpu in gpus if gpu is not None]),
        source="detected",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # a host without this file simply does not say
        return ""


def _field(text: str, name: str) -> str:
    match = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def processor_name(root: Path = Path("/")) -> str:
    """What the processor calls itself, as it does; empty where nothing tells."""
    return _field(_read(root / "proc/cpuinfo"), "model name") or platform.processor()


def clock_hz(root: Path = Path("/")) -> float | None:
    """The clock of the first core at this moment; None where the host does not tell."""
    mhz = _field(_read(root / "proc/cpuinfo"), "cpu MHz")
    return float(mhz) * 1e6 if mhz.replace(".", "", 1).isdigit() else None


def _cpu_name(root: Path) -> str:
    return plain_name(processor_name(root) or platform.machine() or "unknown processor")


def plain_name(processor: str) -> str:
    """A processor's name without marks, so that two spellings of it are equal.

    Examples
    --------
    >>> plain_name("Intel(R) Xeon(R)  Platinum 8480C")
    'Intel Xeon Platinum 8480C'
    """
    return re.sub(r"\s+", " ", re.sub(r"\((R|TM)\)", "", processor)).strip()


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """How many cores' time the control group (version 2, or 1) lets its processes use; None without a limit.

    Parameters
    ----------
    root : Path
        Where /sys lies (tests give another).
    """
    group = root / "sys/fs/cgroup"
    quota, _, period = _read(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_read(group / f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    is_limited = quota.isdigit() and period.isdigit() and int(period) > 0
    return int(quota) / int(period) if is_limited else None


def num_sockets(root: Path = Path("/")) -> int | None:
    """Processors that sit in sockets of their own; None where the host does not tell.

    Parameters
    ----------
    root : Path
        Where /proc lies (tests give another).
    """
    result = re.findall(r"^physical id\s*:\s*(\d+)", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return len(set(result)) or None


def _num_cores(info: str, num_threads: int) -> int:
    siblings, cores = _field(info, "siblings"), _field(info, "cpu cores")
    if siblings.isdigit() and cores.isdigit() and int(cores) > 0:
        return num_threads * int(cores) // max(int(siblings), int(cores))
    return num_threads


def _memory_bytes(root: Path) -> int:
    total = _field(_read(root / "proc/meminfo"), "MemTotal").split()
    if total and total[0].isdigit():
        return int(total[0]) * 1024
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _DEFAULT_MEMORY_BYTES


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that a new job can have without swapping: what the host and the control group leave.

    Parameters
    ----------
    root : Path
        Where /proc and /sys lie (tests give another).
    """
    free = free_memory_bytes(root)
    return _memory_bytes(root) if free is None else free


def peak_resident_bytes(root: Path = Path("/")) -> int | None:
    """Peak resident memory of this process in bytes, including libraries; None if the system does not report it."""
    return _status_bytes(root, "VmHWM")  # a child's ru_maxrss starts with its parent's


def peak_own_bytes(root: Path = Path("/")) -> int | None:
    """The same without what other processes may share: libraries and other files, and memory made to be shared."""
    result = [_status_bytes(root, name) for name in ("VmHWM", "RssFile", "RssShmem")]
    whole, *shared = (item for item in result if item is not None)
    return None if len(shared) < len(result) - 1 else max(0, whole - sum(shared))


def _status_bytes(root: Path, name: str) -> int | None:
    words = _field(_read(root / "proc/self/status"), name).split()
    return int(words[0]) * 1024 if words else None


def _cache_bytes(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size = (_read(index / name).strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and size[:-1].isdigit() and size[-1] in _UNITS:
            sizes[f"l{level}{'d' if kind == 'Data' else ''}"] = int(size[:-1]) * _UNITS[size[-1]]
    return sizes


def free_gpu_bytes() -> int | None:
    """Memory that no process holds on the first GPU that this process may use; None where its driver does not say."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    free_mib = _ask_driver("memory.free", *(["--id", visible] if visible else []))
    return int(free_mib[0]) * 2**20 if free_mib and free_mib[0].strip().isdigit() else None


def _ask_driver(fields: str, *options: str) -> list[str]:
    """One line per GPU; a driver that does not answer is a host without usable GPUs."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", *options]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_GPU_QUERY_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()


def _of_line(line: str, known: Mapping[str, Device]) -> Device | None:
    name, _, memory_mib = line.rpartition(",")
    return matching(name, int(memory_mib) * 2**20, known) if memory_mib.strip().isdigit() else None


def _slice_of(whole: Device, num_parts: int, memory_gib: int) -> Device:
    """A MIG slice: its sevenths of the units, its memory, and its share of the bandwidth."""
    share, size_bytes = num_parts / _MIG_PARTS, memory_gib * 2**30
    return replace(
        whole,
        name=f"{whole.name}-mig-{num_parts}g.{memory_gib}gb",
        memory_bytes=size_bytes,
        bandwidth_bytes_per_s=whole.bandwidth_bytes_per_s * min(1.0, size_bytes / whole.memory_bytes),
        peak_flops_per_s={dtype: peak * share for dtype, peak in whole.peak_flops_per_s.items()},
        num_units=max(1, round(whole.num_units * share)),
    )


def matching(name: str, memory_bytes: int, known: Mapping[str, Device]) -> Device | None:
    """The known device that a driver calls ``name``; None if there is none.

    Of several variants of a chip the one whose memory is nearest is taken; a name that tells no board means SXM, as in
    ``NVIDIA H100 80GB HBM3``. A MIG slice has its share of units and memory: ``... MIG 1g.10gb``.
    """
    part = _MIG_SLICE.search(name)
    if part:
        memory_bytes = int((re.findall(r"(\d+) ?GB", name[: part.start()]) or [0])[0]) * 2**30
        whole = matching(name[: part.start()], memory_bytes, known)
        return None if whole is None else _slice_of(whole, int(part[1] or part[2]), int(part[3]))
    joined = re.sub(r"\b([rg]tx|titan)\s*([0-9x]+p?)(\s+ti\b)?", lambda part: re.sub(r"\s", "", part[0]), name.lower())
    words = set(re.split(r"[^a-z0-9]+", joined))
    result = [device for device in known.values() if device.kind == "gpu" and device.name.split("-")[0] in words]
    form = next((form for form in ("pcie", "nvl") if form in words), "sxm")
    result = [device for device in result if f"-{form}" in device.name] or result
    return min(result, key=lambda device: abs(device.memory_bytes - memory_bytes), default=None)
