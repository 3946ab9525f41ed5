"""Cores that this process may run on, and staying on some of them.

In: nothing, or cores. Out: their numbers. Hosts without a scheduler's mask (macOS, Windows) have cores and no choice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["socket_cores", "stay_on", "usable_cores"]


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
