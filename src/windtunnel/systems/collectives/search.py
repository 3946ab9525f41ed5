"""The autotuner: all schedules of a program, each with its price.

In: schedules of a program and a function that builds their graphs. Out: schedules in the order of their prices. Not
here: which schedules there are (``schedules``), what a graph costs (``priced``, ``simulated``), running the best
(``run``).

References
----------
Jangda et al., ASPLOS 2022, section 5. The published tuner times every program it meets on its one path; this one prices
all, so that only the best have to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.base.progress import Progress
from windtunnel.graph import Graph
from windtunnel.simulate import replay
from windtunnel.systems.collectives.program import Program
from windtunnel.systems.collectives.schedules import Schedule

__all__ = ["PricedSchedule", "best_of_each_kind", "search_schedules", "state_bytes"]


@dataclass(frozen=True, slots=True)
class PricedSchedule:
    """A schedule, and what a step of it takes.

    Attributes
    ----------
    schedule : Schedule
    duration_ns : int
    state_bytes : int
        Inputs that are updated, as the rank with most of them stores them.
    """

    schedule: Schedule
    duration_ns: int
    state_bytes: int


def state_bytes(program: Program) -> int:
    """Bytes of updated inputs on the rank that stores most of them."""
    items = [program.inputs[name] for name in program.updates]
    return sum(item.local_bytes(0, program.group_sizes[item.group]) for item in items)


def search_schedules(
    schedules: Sequence[Schedule], build: Callable[[Program], Graph], progress: Progress | None = None
) -> list[PricedSchedule]:
    """Schedules of one program, the fastest first; of equally fast ones, those with the smallest state.

    Parameters
    ----------
    schedules : sequence of Schedule
    build : callable
        The priced graph of a program, whose replay is what a step takes.
    progress : callable, optional
        Called with (what, done, total).
    """
    result = []
    for done, schedule in enumerate(schedules, 1):
        elapsed_ns = replay(build(schedule.program)).makespan_ns
        result.append(PricedSchedule(schedule, elapsed_ns, state_bytes(schedule.program)))
        if progress is not None:
            progress("schedules", done, len(schedules))
    return sorted(result, key=lambda item: (item.duration_ns, item.state_bytes, len(item.schedule.steps)))


def best_of_each_kind(priced: Sequence[PricedSchedule]) -> list[PricedSchedule]:
    """The fastest schedule of each label, in order: those of one label differ in what they do not fuse or slice."""
    first: dict[str, PricedSchedule] = {}
    for item in priced:
        first.setdefault(item.schedule.label, item)
    return list(first.values())
