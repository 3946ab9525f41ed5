"""Check every answer against the limits that its what-ifs state.

In: steps, the graphs that they leave and the predicted time. Out: the limits, and which of them it breaks. Of a request
of several what-ifs each step is checked against the graph that it changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from windtunnel import registry
from windtunnel.graph import Graph
from windtunnel.simulate import Timeline, replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.simulate.limits import Baseline, Limits, find_limit_violation
from windtunnel.whatifs.request import Step

__all__ = ["Limiter"]


@dataclass
class Limiter:
    """Limits of answers that share a baseline; graphs between the steps of several requests are replayed once.

    Parameters
    ----------
    baseline : Timeline
    """

    baseline: Timeline
    _between: dict[int, Timeline] = field(default_factory=dict)

    def check_answer(
        self, steps: Sequence[Step], graphs: Sequence[Graph], predicted_ns: float
    ) -> tuple[Limits | None, str]:
        """What physics allows of an answer (None where no step states it), and what it breaks of that.

        Parameters
        ----------
        steps : sequence of Step
            Of its request.
        graphs : sequence of Graph
            After each of them.
        predicted_ns : float
            One iteration after the last.
        """
        timelines = [self.baseline, *map(self._replay_once, graphs[:-1])]
        count = self.baseline.graph.num_iterations
        times_ns = [*(iteration_ns(timeline, count) for timeline in timelines), predicted_ns]
        samples = [graph.meta.samples_ratio for graph in (self.baseline.graph, *graphs)]
        result: list[Limits] = []
        for i, step in enumerate(steps):
            limits = _limits_of_step(step, timelines[i], count)
            if limits is None:
                continue
            result.append(limits)
            # Speed-up of this step alone: in samples per time, between the graphs before and after it.
            speedup = samples[i + 1] / samples[i] * times_ns[i] / times_ns[i + 1] if times_ns[i + 1] > 0 else math.inf
            if violation := find_limit_violation(limits, Baseline(timelines[i], num_iterations=count), speedup):
                return None, violation if len(graphs) == 1 else f"{step}: {violation}"
        return _together(result, len(graphs)), ""

    def _replay_once(self, graph: Graph) -> Timeline:
        if id(graph) not in self._between:  # a timeline keeps its graph, so that no other gets the same id
            self._between[id(graph)] = replay(graph, like=self.baseline)
        return self._between[id(graph)]


def _limits_of_step(step: Step, timeline: Timeline, num_iterations: int) -> Limits | None:
    plugin = registry.get("whatif", step.name)
    if plugin.limits is None:
        return None
    defaults = {name: parameter.default for name, parameter in plugin.parameters.items()}
    limits: Limits = plugin.limits(Baseline(timeline, {**defaults, **step.parameters}, num_iterations))
    return limits


def _together(step_limits: list[Limits], num_steps: int) -> Limits | None:
    """Limits of the peak of memory after all steps: of several only that it never falls, or never rises, holds."""
    if len(step_limits) < num_steps:
        return None
    if num_steps == 1:
        return step_limits[0]
    signs = {
        name: 0.0 if all(getattr(limits, name) == 0 for limits in step_limits) else math.inf
        for name in ("max_saved_bytes", "max_added_bytes")
    }
    return Limits("; ".join(limits.reason for limits in step_limits), **signs)
