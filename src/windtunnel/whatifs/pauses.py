"""Pauses that a program can do without (what-if family "pauses").

In: a graph. Out: the same work without the garbage collector, or without the first touches of an allocator.
"""

from __future__ import annotations

import numpy as np

from windtunnel import registry
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph, Kind
from windtunnel.simulate.limits import Baseline, all_work, less_work, up_to
from windtunnel.units import format_duration

__all__ = ["allocator_warmup", "gc_pauses"]

_ALLOCATES = (
    r"(?i)(cuda|hip)(malloc|free|hostalloc|hostregister|hostunregister|hostmalloc|hostfree)\w*|"
    r"cumem(alloc|free|map|create|addressreserve|setaccess|unmap|release)\w*"
)
_MIN_SHARE = 0.0005


def _without_pauses(baseline: Baseline) -> float:
    pause_ns = baseline.graph.meta.gc_pause_ns or 0
    return baseline.iteration_ns / max(baseline.iteration_ns - pause_ns, 1.0)


@registry.whatif(
    "gc-pauses",
    source="CPython garbage collector",
    limits=up_to(_without_pauses, "no more than the collector's time is saved", max_added_bytes=0, max_saved_bytes=0),
)
def gc_pauses(graph: Graph) -> Graph:
    """Keep the garbage collector from running within iterations.

    The capture notes how long the collector ran in unprofiled iterations; that time goes from the host's own tasks.

    Raises
    ------
    NotApplicableError
        The capture does not know, or the collector took next to nothing.
    """
    pause_ns = graph.meta.gc_pause_ns
    if pause_ns is None:
        raise NotApplicableError("this graph does not know how long the garbage collector ran", fix="capture the step")
    hosts = graph.select(kind=Kind.HOST)
    host_ns = int(graph.duration_ns[hosts].sum())
    if pause_ns <= _MIN_SHARE * float(graph.duration_ns.sum()) or not host_ns:
        raise NotApplicableError(
            f"the garbage collector takes {format_duration(pause_ns)} per iteration, next to nothing"
        )
    left = max(0.0, 1.0 - pause_ns * graph.num_iterations / host_ns)
    duration = np.rint(graph.duration_ns[hosts] * left).astype(np.int64)
    return graph.set_duration(hosts, duration, cost_source="measured:collector")


@registry.whatif(
    "allocator-warmup",
    source="PyTorch caching allocator",
    limits=less_work(all_work, "no more than the allocator's calls are saved", max_added_bytes=0, max_saved_bytes=0),
)
def allocator_warmup(graph: Graph) -> Graph:
    """Take out calls that get memory from the driver or give it back, as a warm caching allocator does.

    Raises
    ------
    NotApplicableError
        There are none.
    """
    calls = graph.select(name=_ALLOCATES)
    if not calls.any():
        is_held = graph.meta.allocator.get("is_held", False)
        why = "; the capture held the heap, so first touches are out already" if is_held else ""
        raise NotApplicableError(f"no memory is asked of a driver here{why}", where=f"{graph.num_tasks} tasks")
    return graph.remove(calls)
