"""A plan as a pipeline of samples (room planning): what the devices do while many samples are under way.

In: a ``Plan`` for throughput. Out: a ``Graph`` with one task per sample, stage and direction, its transfers in it, in
the order in which a schedule runs them, to replay. A full pipeline takes the load of its busiest device per sample:
that is what the plan's value says, and the replay shows what filling and draining add. Not here: the order
(``schedules``), running it.
"""

# D devices (stages)

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.planning.pipelines.schedules import Schedule, forward_only, gpipe, one_forward_one_backward
from windtunnel.planning.pipelines.timed import StageTimes, scheduled
from windtunnel.planning.placement.throughput import Plan, sync_ns

__all__ = ["ScheduleName", "pipelined", "plan_schedule", "stage_order"]

ScheduleName = Literal["1f1b", "gpipe"]
_SCHEDULES = {"1f1b": one_forward_one_backward, "gpipe": gpipe}


def pipelined(
    plan: Plan,
    num_samples: int,
    *,
    schedule: ScheduleName = "1f1b",
    update_ns: NDArray[np.float64] | None = None,
    latency_ns: int = 0,
) -> Graph:
    """Samples through the stages of a plan, then an update.

    A device starts a sample where all devices that it reads from have done theirs. With ``1f1b`` (PipeDream, section
    3.2) it keeps as many samples under way as there are stages from it on; with ``gpipe`` all go forward first.
    Replicas of a stage take the samples in turn, each as many under way as there are devices from its stage on, shared
    by its replicas; when each has done one backward, they agree on their weights.

    Parameters
    ----------
    plan : Plan
        Contiguous.
    num_samples : int
    schedule : str
        ``1f1b`` or ``gpipe``.
    update_ns : float64 [D], optional
        What each device does after its last sample.
    latency_ns : int
        Of a message between two devices, beside what its transfer takes of either.

    Raises
    ------
    InputError
        There are no samples, or no schedule has that name.
    NotApplicableError
        Devices wait for each other.
    """
    if num_samples < 1:
        raise InputError(f"{num_samples} samples", where="num_samples", fix="one or more")
    order, before = stage_order(plan)
    place = {device: at for at, device in enumerate(order)}
    loads = plan.loads
    spent = (loads.compute_ns + loads.sent_ns + loads.received_ns)[:, order]
    agreeing = sync_ns(plan.problem, plan.device, plan.kind, plan.replicas) * plan.replicas
    times = StageTimes(
        forward_ns=spent[0], backward_ns=spent[1], agree_ns=agreeing[order], latency_ns=latency_ns,
        update_ns=None if update_ns is None else update_ns[order],
    )  # fmt: skip
    names = [
        f"{plan.problem.types[int(plan.kind[device])].name} {device}" + (f".{replica}" if num_replicas > 1 else "")
        for device, num_replicas in zip(order, plan.replicas[order].tolist(), strict=True)
        for replica in range(num_replicas)
    ]
    reads = [{place[other] for other in before[device]} for device in order]
    return scheduled(plan_schedule(plan, num_samples, schedule), times, reads=reads, names=names)


def plan_schedule(plan: Plan, num_samples: int, schedule: ScheduleName) -> Schedule:
    """Samples through the stages of a plan, in the order in which they are met.

    Raises
    ------
    InputError
        No schedule has that name.
    NotApplicableError
        Devices wait for each other.
    """
    if schedule not in _SCHEDULES:
        raise InputError(f"no schedule is called {schedule!r}", where="schedule", fix=" or ".join(_SCHEDULES))
    make = _SCHEDULES[schedule] if plan.problem.is_backward.any() else forward_only
    return make(len(plan.kind), num_samples, plan.replicas[stage_order(plan)[0]].tolist())


def stage_order(plan: Plan) -> tuple[list[int], list[set[int]]]:
    """Devices after all that they read from in the forward pass, and those.

    Raises
    ------
    NotApplicableError
        Some wait for each other.
    """
    problem, num = plan.problem, len(plan.kind)
    before: list[set[int]] = [set() for _ in range(num)]
    for src, dst in zip(problem.src.tolist(), problem.dst.tolist(), strict=True):
        a, b = int(plan.device[src]), int(plan.device[dst])
        if a != b and not problem.is_backward[dst]:
            before[b].add(a)
    order: list[int] = []
    waiting = set(range(num))
    while waiting:
        free = sorted(at for at in waiting if not before[at] & waiting)
        if not free:
            raise NotApplicableError(
                "devices of this plan wait for each other, so that no pipeline runs it", where=plan.solver,
                fix="place contiguously: --solver dp",
            )  # fmt: skip
        order += free
        waiting -= set(free)
    return order, before
