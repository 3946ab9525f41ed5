"""How a device spends an iteration, in words.

In: what ``whatifs.device_use`` found. Out: lines, the answer first: does the device wait, and for what; how well does
it compute; what to change first. Not here: numbers.
"""

from __future__ import annotations

from windtunnel.reports.packing import shorten
from windtunnel.units import format_duration, format_rate, format_ratio
from windtunnel.whatifs.device_use import DeviceUse, DeviceWait, KernelUse

__all__ = ["cause_of", "device_lines", "efficiency_of"]

_MAX_WAITS, _MAX_KERNELS = 5, 4
_MIN_SHOWN = 0.005  # of an iteration
_MIN_MFU = 0.001
_WORDS = {
    "launches": "launches of the host",
    "synchronization": "synchronization",
    "blocking copy": "a blocking copy",
    "loader": "the next batch",
    "copies": "copies",
    "communication": "exposed communication",
    "between kernels": "the start of queued kernels",
    "unexplained": "what the trace does not show",
}


def device_lines(use: DeviceUse | None) -> list[str]:
    """The lines of a device; none where nothing runs on one."""
    if use is None:
        return []
    whose = "the device waits" if use.num_devices == 1 else f"each of {use.num_devices:,} devices waits"
    lines = []
    if use.host_ratio < 1.0:
        lines.append(
            f"without the profiler about {format_duration(use.step_ns)} per iteration: "
            f"the host takes {format_ratio(use.host_ratio)} of the recorded time, as is typical"
        )
    head = f"{whose} {format_duration(use.waiting_ns)} of {format_duration(use.step_ns)}"
    lines.append(f"{head} ({format_ratio(use.waiting_ratio)})" + (", for:" if use.waits else ""))
    shown = [wait for wait in use.waits if wait.ratio >= _MIN_SHOWN][:_MAX_WAITS]
    lines += [f"  {format_duration(wait.duration_ns)} ({format_ratio(wait.ratio)}) {cause_of(wait)}" for wait in shown]
    if use.kernels:
        mfu = f", MFU {format_ratio(use.mfu_ratio)}" if use.mfu_ratio and use.mfu_ratio >= _MIN_MFU else ""
        lines.append(f"it computes {format_duration(use.computing_ns)} ({format_ratio(1 - use.waiting_ratio)}){mfu}:")
        lines += [
            f"  {kernels.kernel_class} {format_ratio(kernels.ratio)} of the kernels' time{_with_comma(kernels)}"
            for kernels in use.kernels[:_MAX_KERNELS]
        ]
    if use.changes:
        changes = ", ".join(
            f"{change.whatif} {change.speedup:.2f}x (saves {format_duration(change.gain_ns)})" for change in use.changes
        )
        lines.append(f"change first, by `windtunnel whatif`: {changes}")
    return lines


def cause_of(wait: DeviceWait) -> str:
    """The cause of a wait, with what is known of the call."""
    words = _WORDS[wait.cause]
    by = f" in {wait.operator}" if wait.operator else ""
    line = f" at {shorten(wait.line, 60)}" if wait.line else ""
    layer = f" ({shorten(wait.layer, 40)})" if wait.layer and not wait.line else ""
    return f"{words}{by}{line}{layer}"


def efficiency_of(kernels: KernelUse) -> str:
    """Achieved rates and the share of the bound; empty where the graph does not say what kernels compute and move."""
    parts = []
    if kernels.bound_ratio:
        parts.append(f"{format_ratio(kernels.bound_ratio)} of what the data sheet allows")
    if kernels.flops_per_s:
        parts.append(format_rate(kernels.flops_per_s, "FLOP/s"))
    if kernels.bytes_per_s:
        parts.append(format_rate(kernels.bytes_per_s, "B/s"))
    return ", ".join(parts)


def _with_comma(kernels: KernelUse) -> str:
    text = efficiency_of(kernels)
    return f", {text}" if text else ""
