"""A trace's job without its profiler (sources, Kineto).

In: a graph of a trace. Out: the same with shorter work on the host: a profiler that stamps every operator and every
call slows the host, not the device. By how much, the job's step time without it tells; where nobody knows that, or the
device is what the job waits for, the typical share stands in. Not here: our own captures, which take out what they cost
(``sources.torch``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, ResourceKind, lags
from windtunnel.simulate import replay
from windtunnel.units import format_duration, format_ratio

__all__ = ["TYPICAL_SHARE", "scale_host_times", "without_profiler"]

TYPICAL_SHARE = 0.6
"""Of the recorded host time; 0.55 to 0.66 in eight jobs of torch 2.11 on a Xeon with an H100, no shapes, no stacks."""
_MIN_SHARE = 0.4  # less would be another job, or another machine
_NEAR = 0.03  # the step time is met
_HALVINGS = 12


def without_profiler(graph: Graph, step_ns: float | None = None, *, min_share: float = _MIN_SHARE) -> Graph:
    """Host work, and the time between, in the share that makes a step take as long as it does without the profiler.

    Parameters
    ----------
    graph : Graph
        Of a Kineto trace.
    step_ns : float, optional
        What a step takes without the profiler. Without it, or where the device decides it, the host takes
        ``TYPICAL_SHARE`` of what was recorded.
    min_share : float
        Where the host would take less than this share, the step time is refused as that of another job or machine.

    Raises
    ------
    NotApplicableError
        The graph is of another source, or no host was recorded.
    InputError
        The step takes longer than with the profiler, or less than the device needs.
    """
    if graph.meta.source != "kineto":
        raise NotApplicableError(f"only torch.profiler's traces hold its cost; this graph is of {graph.meta.source!r}",
                                 where="step time", fix="leave it out")  # fmt: skip
    num_steps = max(1, graph.num_iterations)
    on_host = graph.select(resource_kind=ResourceKind.HOST_THREAD)
    if not on_host.any():
        raise NotApplicableError("no host was recorded, so the profiler cost it nothing", where="step time")

    def step_of(share: float) -> float:
        return replay(scale_host_times(graph, on_host, share)).makespan_ns / num_steps

    note = "the host's time is {} of what was recorded under the profiler"
    if step_ns is None:
        note = note.format(format_ratio(TYPICAL_SHARE)) + ", as is typical"
        return scale_host_times(graph, on_host, TYPICAL_SHARE).with_meta(
            overhead={"note": note, "host_ratio": TYPICAL_SHARE}
        )
    profiled_ns = step_of(1.0)
    share = _share(step_ns, profiled_ns, step_of, f"{num_steps} steps in the trace", min_share)
    return scale_host_times(graph, on_host, share).with_meta(
        overhead={"note": note.format(format_ratio(share)), "host_ratio": share},
        iteration_ns={"median": step_ns, "samples": [step_ns]},
        profiled_iteration_ns={"median": profiled_ns},
    )


def scale_host_times(graph: Graph, on_host: NDArray[np.bool_], share: float) -> Graph:
    """Tasks of the host, bool [T], and the time between them, in this share of what they took."""
    tasks = on_host & (graph.duration_ns > 0)
    edges, lag_ns = graph.edges, lags(graph.edges)
    between = (on_host[edges["src"]] & on_host[edges["dst"]]) | (edges["kind"] == EdgeKind.LAUNCH)
    between &= lag_ns > 0
    shorter = graph.set_duration(
        tasks, np.rint(graph.duration_ns[tasks] * share).astype(np.int64), cost_source="unprofiled"
    )
    return shorter.set_lag(between, np.rint(lag_ns[between] * share).astype(np.int64))


def _share(step_ns: float, longest: float, step_of: Callable[[float], float], steps: str, min_share: float) -> float:
    typical, shortest = step_of(TYPICAL_SHARE), step_of(min_share)
    reported = ""
    if step_ns > longest * (1 + _NEAR):
        reported = (
            f"a step takes {format_duration(longest)} with the profiler, and {format_duration(step_ns)} without it?"
        )
    elif step_ns < shortest * (1 - _NEAR):
        reported = (
            f"in this trace a step needs {format_duration(shortest)} at least, and {format_duration(step_ns)} was said"
        )
    if reported:
        raise InputError(reported, where=f"step time, {steps}",
                         fix="give one step of this job; or all, where the trace has no ProfilerStep")  # fmt: skip
    if abs(typical / step_ns - 1) <= _NEAR:
        return TYPICAL_SHARE
    low, high = min_share, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if step_of(middle) < step_ns else (low, middle)
    return (low + high) / 2
