"""Prices of schedules on this host: their plans, replayed with times of instructions that were measured here.

In: the schedules of a program, a transport, a link. Out: graphs of their plans. Not here: how an instruction is
measured (``calibration``), the replay (``simulated``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.base.progress import Progress
from windtunnel.graph import Graph
from windtunnel.hardware import Link
from windtunnel.hardware.host import usable_cores
from windtunnel.measure.database import ProfileDatabase
from windtunnel.systems.collectives.calibration import Calibration, Work, calibrate, work_of
from windtunnel.systems.collectives.executor import Executor
from windtunnel.systems.collectives.lower import lower
from windtunnel.systems.collectives.plan import Plan
from windtunnel.systems.collectives.program import Program
from windtunnel.systems.collectives.simulated import build_plan_graph

__all__ = ["HostPrices", "calibrate_programs"]

_MAX_LOADED_BYTES = 1 << 30
"""Buffers of plans that processes hold at once; more plans get new processes."""


@dataclass(frozen=True)
class HostPrices:
    """What plans take on this host.

    Attributes
    ----------
    calibration : Calibration
    link : Link, optional
        Emulated between any two ranks.
    plans : mapping of Program to Plan
        Of programs that have been lowered already.
    """

    calibration: Calibration
    link: Link | None = None

    plans: Mapping[Program, Plan] = field(default_factory=dict)

    def build_graph(self, program: Program) -> Graph:
        """The graph of a program's plan; its replay is the price."""
        plan = self.plans.get(program) or lower(program)
        return build_plan_graph(plan, self.calibration, self.link, num_cores=len(usable_cores()))


def calibrate_programs(
    programs: Sequence[Program],
    *,
    transport: str = "shared_memory",
    link: Link | None = None,
    database: ProfileDatabase | None = None,
    progress: Progress | None = None,
) -> HostPrices:
    """Measure every instruction of these programs' plans that is not known.

    Parameters
    ----------
    programs : sequence of Program
        Schedules of one program.
    transport : str
        ``shared_memory`` or ``gloo``.
    link : Link, optional
    database : ProfileDatabase, optional
        Where what is known is taken from, and what is measured is kept.
    progress : callable, optional
        Called with (what, done, total).
    """
    times = Calibration({})
    plans = {program: lower(program) for program in programs}
    waiting = _plans_of_new_work(plans.values())
    total = len(waiting)
    while waiting:
        with Executor(len(waiting[0].ranks), transport, link) as executor:
            numbers: list[int] = []
            loaded_bytes = 0
            while waiting and (not numbers or loaded_bytes + waiting[0].memory_bytes <= _MAX_LOADED_BYTES):
                plan = waiting.pop(0)
                loaded_bytes += plan.memory_bytes
                numbers.append(executor.load(plan))
                if progress is not None:
                    progress("plans", total - len(waiting), total)
            found = calibrate(executor, numbers, num_cores=len(usable_cores()), database=database)
        times = found.join(times)
    return HostPrices(times, link, plans)


def _plans_of_new_work(plans: Iterable[Plan]) -> list[Plan]:
    """Plans with an instruction that no plan before them has."""
    seen: set[Work] = set()
    result: list[Plan] = []
    for plan in plans:
        works = {
            work for rank in plan.ranks for items in rank.threads.values() for item in items
            if (work := work_of(item, rank)) is not None
        }  # fmt: skip
        if not result or works - seen:
            seen |= works
            result.append(plan)
    return result
