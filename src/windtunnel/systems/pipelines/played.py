"""A schedule that has been replayed: when each pass begins and ends, and what it costs.

In: a ``Schedule`` and ``StageTimes``. Out: ``PlayedSchedule``: passes with their times per rank, idle time, what every
rank holds. Not here: the graph (``timed``), pictures.
"""

# R ranks

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from windtunnel.graph import Kind, Phase
from windtunnel.simulate import Timeline, replay
from windtunnel.systems.pipelines.schedules import Action, Schedule
from windtunnel.systems.pipelines.timed import StageTimes, build_schedule_graph
from windtunnel.systems.pipelines.verify import in_flight, require_valid, weight_versions

__all__ = ["Pass", "PlayedSchedule", "play"]


class Pass(NamedTuple):
    """An action and its time, in ns."""

    action: Action
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class PlayedSchedule:
    """A schedule with the timeline of its graph."""

    schedule: Schedule
    timeline: Timeline

    @cached_property
    def passes(self) -> list[list[Pass]]:
        """Passes of each rank in order, [R]."""
        graph = self.timeline.graph
        rows = np.flatnonzero((graph.tasks["kind"] == int(Kind.COMPUTE)) & (graph.tasks["phase"] != int(Phase.UPDATE)))
        starts, ends = self.timeline.start_ns[rows].tolist(), self.timeline.finish_ns[rows].tolist()
        times = iter(zip(starts, ends, strict=True))  # tasks were made rank by rank, in order
        return [[Pass(item, *next(times)) for item in row if item is not None] for row in self.schedule.actions]

    @property
    def makespan_ns(self) -> int:
        """Time at which the last rank finishes."""
        return self.timeline.makespan_ns

    @cached_property
    def idle_ratios(self) -> list[float]:
        """The share of that time in which each rank computes nothing [R]."""
        table = self.timeline.utilization().to_pydict()
        return [1 - ratio for ratio in table["utilization"][: self.schedule.num_ranks]]

    @property
    def idle_ratio(self) -> float:
        """Idle fraction of all ranks together."""
        return float(np.mean(self.idle_ratios))

    def json(self) -> dict[str, Any]:
        """Return plain values in raw units."""
        schedule = self.schedule
        ranks = zip(self.passes, self.idle_ratios, in_flight(schedule), weight_versions(schedule), strict=True)
        return {
            "name": schedule.name,
            "stages": schedule.num_stages,
            "microbatches": schedule.num_microbatches,
            "batches": schedule.num_batches,
            "versions": schedule.versions,
            "rank_of": schedule.rank_of,
            "replicas": schedule.replicas,
            "makespan_ns": self.makespan_ns,
            "idle_ratio": self.idle_ratio,
            "ranks": [
                {
                    "idle_ratio": idle,
                    "in_flight": held,
                    "weight_versions": versions,
                    "passes": [{"action": str(item), "begin_ns": begin, "end_ns": end} for item, begin, end in passes],
                }
                for passes, idle, held, versions in ranks
            ],
        }


def play(schedule: Schedule, times: StageTimes) -> PlayedSchedule:
    """Check a schedule, and replay it with messages that are received whenever they come.

    Raises
    ------
    InputError
        The schedule cannot run, or the times do not fit to it.
    """
    require_valid(schedule)
    return PlayedSchedule(schedule, replay(build_schedule_graph(schedule, times)))
