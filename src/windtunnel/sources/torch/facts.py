"""What ``meta`` says of a capture: times, overhead, memory, the host.

In: a ``Recording`` and how its profiles were corrected. Out: plain values. Not here: tasks (``build``).
"""

from __future__ import annotations

import math
import platform
from typing import Any

import numpy as np
import torch

from windtunnel import hardware
from windtunnel.hardware.host import processor_name
from windtunnel.measure.disturbance import disturbance_log_error
from windtunnel.sources.torch.overhead import Correction, select_validation_iterations
from windtunnel.sources.torch.precision import precision
from windtunnel.sources.torch.recording import Recording

__all__ = ["facts_of", "host_facts", "summary_ns"]


def summary_ns(samples: list[int]) -> dict[str, Any]:
    """Median, quartiles and every sample, for ``meta``."""
    if not samples:
        return {}
    low, median, high = np.percentile(samples, [25, 50, 75])
    return {"median": int(median), "low": int(low), "high": int(high), "samples": list(samples)}


def facts_of(
    recording: Recording,
    settled: Recording,
    correction: Correction,
    disturbance: dict[str, Any],
    replayed_ns: int,
    num_unlike: int,
    num_samples: int,
) -> dict[str, Any]:
    """All of it; ``settled`` holds the bare iterations as a training loop has them."""
    bare = settled.bare_ns
    aside = [elapsed for elapsed, unseen in zip(bare, select_validation_iterations(len(bare)), strict=True) if unseen]
    profiled = summary_ns(recording.light_ns or [recording.rich_ns])
    overhead: dict[str, Any] = correction.as_meta()
    overhead["num_profiled_iterations"] = num_samples
    overhead["num_unlike_iterations"] = num_unlike
    overhead["num_irregular_iterations"] = recording.num_dropped
    overhead["rich_iteration_ns"] = recording.rich_ns
    if bare:
        overhead["profiled_ratio"] = profiled["median"] / float(np.median(recording.bare_ns))
        overhead["rich_ratio"] = recording.rich_ns / float(np.median(bare))
        overhead |= precision(bare)
    if aside and "lost_ratio" not in disturbance:
        overhead["held_out_ns"] = aside
        overhead["held_out_error_ratio"] = replayed_ns / float(np.median(aside)) - 1.0
    measured = summary_ns(bare) or profiled
    if missing := disturbance.get(
        "lost_ratio"
    ):  # what a quiet machine is estimated to take, and how well that is known
        factor = math.exp(disturbance_log_error(missing))
        ends = {"low": int(replayed_ns / factor), "high": int(replayed_ns * factor)}
        measured = {**measured, "median": replayed_ns, **ends}
    return {
        "source": "torch step",
        "hardware": host_facts(),
        "disturbance": disturbance,
        "iteration_ns": measured,
        "profiled_iteration_ns": profiled,
        "overhead": overhead,
        "allocator": _allocator(recording),
        "shapes": recording.shapes,
        "gc_pause_ns": _median(settled.bare_pauses_ns),
        "memory_base_bytes": recording.discovery.resident_bytes(),
        "memory": {} if recording.memory is None else recording.memory.summary(),
        "is_complete": recording.is_complete,
    }


def _allocator(recording: Recording) -> dict[str, Any]:
    """What holding the heap changed: before it, and with it."""
    return {
        "is_held": recording.is_heap_held,
        "page_faults": _median(recording.bare_faults),
        "page_faults_before": _median(recording.as_is_faults),
        "iteration_before_ns": summary_ns(recording.as_is_ns),
    }


def _median(counts: list[int]) -> int:
    return int(np.median(counts)) if counts else 0


def host_facts() -> dict[str, Any]:
    """What ``meta`` says of this host."""
    return {
        "machine": platform.machine(),
        "processor": processor_name(),
        "num_cores": hardware.machine().num_cores,
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
