"""What physics allows of a change.

In: the replay before a change and the parameters of its what-if. Out: ``Limits``: the largest and the smallest
speed-up, and how far the peak of memory may move. A what-if states them where it is registered (``limits=``), with the
functions of this module; ``ask`` checks every answer against them. Not here: predicting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Discipline, Graph, Kind, Phase, ResourceKind
from windtunnel.simulate import Timeline
from windtunnel.simulate.critical import CriticalPath
from windtunnel.simulate.iterations import iteration_ns, takes_part
from windtunnel.units import format_size

__all__ = [
    "Baseline",
    "Limits",
    "Selection",
    "StatedLimits",
    "all_work",
    "find_limit_violation",
    "find_peak_violation",
    "less_work",
    "no_faster",
    "of_kind",
    "of_phase",
    "other_order",
    "up_to",
]

Mask = NDArray[np.bool_]
_TOLERANCE = 0.01  # of a speed-up or a peak: durations are rounded, and prices are ratios of measurements


@dataclass(frozen=True, eq=False)
class Baseline:
    """What a what-if changes, and with which parameters it was asked.

    Parameters
    ----------
    timeline : Timeline
        The replay before the change.
    options : mapping
        Every parameter of the what-if, defaults included.
    num_iterations : int
        Of the captured graph, where an earlier change repeated it; 0: as many as the graph has.
    """

    timeline: Timeline = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    num_iterations: int = 0

    @property
    def graph(self) -> Graph:
        """The graph before the change."""
        return self.timeline.graph

    @cached_property
    def iteration_ns(self) -> float:
        """One iteration before the change."""
        return iteration_ns(self.timeline, self.num_iterations or self.graph.num_iterations)

    @cached_property
    def _path(self) -> CriticalPath:
        """The tasks that make the iterations as long as they are."""
        end = int(np.where(takes_part(self.graph), self.timeline.finish_ns, -1).argmax())
        return self.timeline.execution.critical_path(end)

    def work_ns(self, work: Mask) -> float:
        """Time that an iteration loses at most if some tasks go.

        Of the tasks on the critical path, with the waits before them and behind them. Where the order of tasks is not
        fixed, or tasks share a resource, others may become faster, too: then all of these tasks count, on the path or
        not.
        """
        graph = self.graph
        count = max(graph.num_iterations, 1)
        if self.timeline.engine != "static" or (graph.resources["discipline"] == Discipline.SHARED).any():
            return float(graph.duration_ns[work].sum()) / count
        path = self._path
        goes = work[path.task]
        around = goes | np.append(False, goes[:-1])
        return float(path.duration_ns[goes].sum() + path.wait_ns[around].sum()) / count

    def busiest_ns(self, without: Mask | None = None) -> float:
        """What the busiest thread, stream or device that takes part has to do in one iteration, in any order."""
        graph = self.graph
        counts = graph.all_tasks if without is None else ~without
        one_by_one = (
            (graph.resources["slots"] == 1)
            & (graph.resources["discipline"] != Discipline.SHARED)
            & np.isin(graph.resources["kind"], (ResourceKind.HOST_THREAD, ResourceKind.STREAM, ResourceKind.DEVICE))
        )
        counts = counts & takes_part(graph) & np.append(one_by_one, False)[graph.tasks["resource"]]
        if "is_arrival_join" in graph.tasks:  # they meet there, and take no time themselves
            counts &= ~graph.tasks["is_arrival_join"]
        busy_ns = np.bincount(graph.tasks["resource"][counts], graph.duration_ns[counts], minlength=1)
        return float(busy_ns.max()) / max(graph.num_iterations, 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """The range in which an answer can lie.

    Parameters
    ----------
    reason : str
        Why there is a limit, as a clause: ``"recomputation adds work"``.
    max_speedup, min_speedup : float
        Of the time per sample, against the graph before the change.
    max_saved_bytes, max_added_bytes : float
        How far below and above the old peak of memory the new one can lie.
    """

    reason: str
    max_speedup: float = math.inf
    min_speedup: float = 0.0
    max_saved_bytes: float = math.inf
    max_added_bytes: float = math.inf


StatedLimits = Callable[[Baseline], Limits]
Selection = Callable[[Baseline], Mask]
Number = float | Callable[[Baseline], float]


def _number(value: Number, baseline: Baseline) -> float:
    return value(baseline) if callable(value) else value


def _limits(reason: str, baseline: Baseline, max_speedup: float, bounds: Mapping[str, Number]) -> Limits:
    return Limits(reason, max_speedup, **{name: _number(value, baseline) for name, value in bounds.items()})


def of_phase(*phases: Phase) -> Selection:
    """Tasks of some phases."""
    return lambda baseline: baseline.graph.select(phase=phases)


def of_kind(*kinds: Kind) -> Selection:
    """Tasks of some kinds."""
    return lambda baseline: baseline.graph.select(kind=kinds)


def all_work(baseline: Baseline) -> Mask:
    """All tasks."""
    return baseline.graph.all_tasks


def no_faster(reason: str, **bounds: Number) -> StatedLimits:
    """Limits of a change that adds work: a step never becomes faster.

    ``bounds`` are further fields of :class:`Limits`: numbers, or functions of a :class:`Baseline`.
    """
    return lambda baseline: _limits(reason, baseline, 1.0, bounds)


def up_to(factor: Number, reason: str, **bounds: Number) -> StatedLimits:
    """Limits of a change that makes a step at most ``factor`` times as fast."""
    return lambda baseline: _limits(reason, baseline, _number(factor, baseline), bounds)


def less_work(work: Selection, reason: str, *, factor: Number = math.inf, **bounds: Number) -> StatedLimits:
    """Limits of a change that removes tasks, or runs them ``factor`` times as fast: it saves their time at most."""

    def compute_limits(baseline: Baseline) -> Limits:
        before_ns = baseline.iteration_ns
        faster = _number(factor, baseline)
        saved_ns = baseline.work_ns(work(baseline)) * (1.0 - 1.0 / max(faster, 1.0))
        left_ns = before_ns - saved_ns
        return _limits(reason, baseline, before_ns / left_ns if left_ns > 0 else math.inf, bounds)

    return compute_limits


def other_order(reason: str, *, without: Selection | None = None, **bounds: Number) -> StatedLimits:
    """Limits of a change that lets work overlap: the busiest thread or stream still does what it did.

    ``without`` selects the tasks that go, or that move to other threads.
    """

    def compute_limits(baseline: Baseline) -> Limits:
        busy_ns = baseline.busiest_ns(None if without is None else without(baseline))
        return _limits(reason, baseline, baseline.iteration_ns / busy_ns if busy_ns > 0 else math.inf, bounds)

    return compute_limits


def find_limit_violation(limits: Limits, baseline: Baseline, speedup: float) -> str:
    """Return why a speed-up is impossible, or an empty string where it is possible."""
    # a rounded duration is off by a nanosecond at most
    slack = _TOLERANCE + baseline.graph.num_tasks / max(baseline.iteration_ns * baseline.graph.num_iterations, 1.0)
    if math.isnan(speedup):
        return "the speed-up is not a number"
    if speedup > limits.max_speedup * (1 + slack):
        return f"{speedup:.3g}x is predicted where {limits.max_speedup:.3g}x is the most: {limits.reason}"
    if speedup * (1 + slack) < limits.min_speedup:
        return f"{speedup:.3g}x is predicted where {limits.min_speedup:.3g}x is the least: {limits.reason}"
    return ""


def find_peak_violation(limits: Limits, before_bytes: int, after_bytes: int) -> str:
    """Return why a peak of memory is impossible, or an empty string where it is possible."""
    saved, slack = before_bytes - after_bytes, _TOLERANCE * before_bytes
    if saved > limits.max_saved_bytes + slack:
        most = format_size(round(limits.max_saved_bytes))
        return f"{format_size(saved)} less memory are predicted where {most} is the most: {limits.reason}"
    if -saved > limits.max_added_bytes + slack:
        most = format_size(round(limits.max_added_bytes))
        return f"{format_size(-saved)} more memory are predicted where {most} is the most: {limits.reason}"
    return ""
