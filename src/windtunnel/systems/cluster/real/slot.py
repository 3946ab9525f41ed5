"""One slot of a real cluster: a process that takes part in one job after the other.

In: a ``Task`` at a time, and ``STOP``. Out: a ``Report`` for each task. Ranks of a job agree on when to stop by the
sum that they make anyway: all leave after the same iteration.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.measure.links import sleep_until
from windtunnel.measure.workers import Place

__all__ = ["STOP", "Report", "Task", "main"]

STOP = "stop"
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Task:
    """The task of one rank of a job until it is finished or stopped.

    Attributes
    ----------
    job : int
    rank, num_ranks : int
    meet : str
        File by which ranks find each other.
    compute_ns : int
        Of an iteration, without communication.
    gradient_bytes : int
    num_iterations : int
        That are left.
    """

    job: int
    rank: int
    num_ranks: int
    meet: str
    compute_ns: int
    gradient_bytes: int
    num_iterations: int


@dataclass(frozen=True)
class Report:
    """The result of a task.

    Attributes
    ----------
    job : int
    num_done : int
        Iterations.
    begun_ns, ended_ns : int
        Of the clock that all processes share: first iteration, last.
    """

    job: int
    num_done: int
    begun_ns: int
    ended_ns: int


def main(process: Place) -> None:
    """Execute tasks until the connection is closed."""
    torch.set_num_threads(1)
    process.tell("ready")
    try:
        while True:
            order = process.order()
            if isinstance(order, Task):  # a stop that arrives after the end of its task is ignored
                process.tell(_run_task(process, order))
    except EOFError:
        return


def _run_task(process: Place, task: Task) -> Report:
    if task.num_ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{task.meet}", rank=task.rank, world_size=task.num_ranks)
    gradients = torch.zeros(task.gradient_bytes // _FLOAT_BYTES + 1)
    num_done, is_stopped = 0, False
    begun_ns = time.monotonic_ns()
    while num_done < task.num_iterations and not is_stopped:
        sleep_until(time.monotonic_ns() + task.compute_ns)
        requested: Any = process.line.poll(0)
        is_asked = bool(requested) and process.order() == STOP
        if task.num_ranks > 1:
            gradients[-1] = float(is_asked)
            dist.all_reduce(gradients)
            is_asked = bool(gradients[-1] > 0)
            gradients.zero_()
        is_stopped = is_asked
        num_done += 1
    if task.num_ranks > 1:
        dist.destroy_process_group()
    return Report(task.job, num_done, begun_ns, time.monotonic_ns())
