"""Schedules that really run, in turn, and what was predicted of them.

In: schedules of one program, a transport, a link. Out: times of interleaved rounds, differences of results, a
receipt of each prediction. Not here: processes (``executor``), prices (``simulated``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.flights.receipt import Receipt
from windtunnel.hardware import Link
from windtunnel.measure.disturbance import Neighbors
from windtunnel.measure.fingerprint import machine
from windtunnel.measure.stats import Estimate, estimate_median, estimate_speedup
from windtunnel.systems.collectives.executor import RankProcesses
from windtunnel.systems.collectives.reference import assemble, random_inputs
from windtunnel.systems.collectives.schedules import Schedule
from windtunnel.systems.collectives.search import PricedSchedule
from windtunnel.systems.collectives.torch_executor import make_executor

__all__ = ["MeasuredSchedule", "receipts_of", "run_schedules"]


@dataclass(frozen=True)
class MeasuredSchedule:
    """What a schedule took.

    Attributes
    ----------
    schedule : Schedule
    duration_ns_R : int64 [R]
        Of each round, on the slowest rank.
    difference : float
        Largest relative difference of its results from those of the first schedule.
    neighbors_ratio : float
        Share of all cores that other programs took meanwhile.
    """

    schedule: Schedule
    duration_ns_R: NDArray[np.int64]
    difference: float
    neighbors_ratio: float = 0.0

    @property
    def duration(self) -> Estimate:
        """Median over rounds, with its interval."""
        return estimate_median(self.duration_ns_R.tolist())


def run_schedules(
    schedules: Sequence[Schedule],
    *,
    transport: str = "shared_memory",
    link: Link | None = None,
    num_rounds: int = 15,
    budget_s: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[MeasuredSchedule]:
    """Run schedules of one program in interleaved rounds, each rank a process of this host.

    Parameters
    ----------
    schedules : sequence of Schedule
        The first one is what results are compared with.
    transport : str
        ``shared_memory`` or ``gloo`` for plans; ``torch`` or ``nccl`` for PyTorch's own operators and collectives.
    link : Link, optional
        Emulated between any two ranks; by default this host's memory.
    num_rounds : int
    budget_s : float
        No round begins later.
    seed : int
        Of the inputs.
    progress : callable, optional

    Raises
    ------
    FlightError
        A schedule did not end; says in which instruction each rank waits.
    """
    program = schedules[0].program
    neighbors = Neighbors()
    with make_executor(sum(program.group_sizes), transport, link) as executor:
        numbers = [executor.load_program(item.program) for item in schedules]
        inputs = random_inputs(program, seed)  # after it is known that all fits into memory
        results = [_results(executor, number, item, inputs) for number, item in zip(numbers, schedules, strict=True)]
        elapsed_ns = executor.time(numbers, num_rounds, budget_s=budget_s, progress=progress).max(axis=2)
    taken_ratio = neighbors.cores_ratio or 0.0
    return [
        MeasuredSchedule(item, elapsed_ns[:, index], _difference(results[0], results[index]), taken_ratio)
        for index, item in enumerate(schedules)
    ]


def _results(executor: RankProcesses, number: int, schedule: Schedule, inputs: dict[str, Any]) -> list[NDArray[Any]]:
    """Full arrays of outputs and updated inputs."""
    program = schedule.program
    values = executor.run_program(number, program, inputs)
    return [assemble(program.types[name], values[name]) for name in (*program.outputs, *program.updates)]


def _difference(first: Sequence[NDArray[Any]], second: Sequence[NDArray[Any]]) -> float:
    pairs = zip(first, second, strict=True)
    return max(float(np.abs(a - b).max(initial=0) / max(float(np.abs(a).max(initial=0)), 1e-30)) for a, b in pairs)


def receipts_of(
    target: str, priced: Sequence[PricedSchedule], measured: Sequence[MeasuredSchedule], conditions: dict[str, Any]
) -> list[Receipt]:
    """A receipt of the speed-up of each schedule over the first one, predicted and measured."""
    return [
        Receipt(
            whatif="collectives-schedule",
            predicted_baseline_ns=priced[0].duration_ns,
            predicted_ns=price.duration_ns,
            baseline=measured[0].duration,
            changed=item.duration,
            speedup=estimate_speedup(measured[0].duration_ns_R.tolist(), item.duration_ns_R.tolist()),
            parameters={"schedule": item.schedule.label, "over": measured[0].schedule.label},
            target=target,
            hardware_fingerprint=machine(),
            conditions=conditions,
            num_rounds=len(item.duration_ns_R),
            neighbors_ratio=item.neighbors_ratio,
        )
        for price, item in zip(priced[1:], measured[1:], strict=True)
    ]
