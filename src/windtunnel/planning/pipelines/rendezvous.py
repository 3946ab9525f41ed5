"""A plan as ranks run it (room planning): messages of their own, whatever the schedule.

In: a ``Plan`` whose stages form a chain, and a table of actions. Out: a ``Graph`` with one task per pass and one per
message, to replay. A value for a later stage goes through those between. Not here: what a rank waits for, and when
(``messages``), running it.
"""

# P places in the chain, D devices

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.planning.pipelines.model import ScheduleName, plan_schedule, stage_order
from windtunnel.planning.pipelines.replayed import alike, beside, reads_of, side_by_side
from windtunnel.planning.pipelines.schedules import Schedule
from windtunnel.planning.pipelines.timed import StageTimes, scheduled
from windtunnel.planning.placement.throughput import Plan

__all__ = ["chained", "rendezvous_pipeline"]


def chained(
    plan: Plan,
    schedule: Schedule,
    *,
    messages: Literal["buffered", "rendezvous"] = "buffered",
    update_ns: NDArray[np.float64] | None = None,
    latency_ns: int = 0,
    overhead_ns: float = 0.0,
    recomputes: bool = False,
    part_ratios: tuple[float, float] = (0.5, 0.5),
    width: int = 1,
    exchange_ns: NDArray[np.float64] | None = None,
) -> Graph:
    """A schedule's passes through the stages of a plan, and its updates.

    Parameters
    ----------
    plan : Plan
        Contiguous, of a training, without replicas; ``cost_ns`` of its problem is what a message of that output takes.
    schedule : Schedule
        Of as many stages.
    messages : str
        ``buffered``: as the runtime waits; ``rendezvous``: as torch's own GPipe and 1F1B do.
    update_ns : float64 [D], optional
        What each device does after a batch.
    latency_ns : int
        Of every value that is sent.
    overhead_ns : float
        What each stage takes per sample beside its layers, half of it forward.
    recomputes : bool
        Each pass runs forward again before it goes backward.
    part_ratios : (float, float)
        What the two parts of a backward pass take of a whole one. A first stage has no input to find gradients for:
        its second part is all of it.
    width : int
        Such pipelines beside each other.
    exchange_ns : float64 [D], optional
        What each device's gradients take to be averaged with those of the others, after a batch.

    Raises
    ------
    InputError
        The schedule has another number of stages.
    NotApplicableError
        Devices wait for each other.
    """
    order, _ = stage_order(plan)
    if schedule.num_stages != len(order):
        raise InputError(
            f"the plan has {len(order)} stages, the schedule {schedule.num_stages}", where=schedule.name,
            fix="plan for as many devices as the schedule has stages",
        )  # fmt: skip
    forward_ns, backward_ns = plan.loads.compute_ns[:, order] + overhead_ns / 2
    again_ns = plan.loads.compute_ns[0, order] * recomputes
    has_input = np.arange(len(order)) > 0
    times = StageTimes(
        forward_ns=forward_ns,
        backward_ns=backward_ns + again_ns,
        input_ns=np.where(has_input, part_ratios[0] * backward_ns + again_ns, 0.0),
        weights_ns=np.where(has_input, part_ratios[1] * backward_ns, backward_ns + again_ns),
        message_ns=_crossing_ns(plan, order, latency_ns),
        update_ns=None if update_ns is None else update_ns[order],
        exchange_ns=None if exchange_ns is None else exchange_ns[order],
    )
    names = None
    if schedule.num_ranks == len(order) and width == 1:
        names = [f"{plan.problem.types[int(plan.kind[at])].name} {at}" for at in order]
    return scheduled(
        side_by_side(schedule, width), beside(times, len(order), width), messages=messages,
        reads=reads_of(len(order), width), alike=alike(len(order), width), names=names,
    )  # fmt: skip


def rendezvous_pipeline(
    plan: Plan,
    num_samples: int,
    *,
    schedule: ScheduleName = "1f1b",
    update_ns: NDArray[np.float64] | None = None,
    latency_ns: int = 0,
    overhead_ns: float = 0.0,
) -> Graph:
    """Samples through the stages of a plan, then an update.

    Parameters
    ----------
    plan : Plan
        Contiguous, of a training, without replicas; ``cost_ns`` of its problem is what a message of that output takes.
    num_samples : int
        As many as stages or more.
    schedule : str
        ``1f1b`` or ``gpipe``.
    update_ns : float64 [D], optional
        What each device does after its last sample.
    latency_ns : int
        Of every value that is sent.
    overhead_ns : float
        What each stage takes per sample beside its layers, half of it forward.

    Raises
    ------
    InputError
        There are fewer samples than stages.
    NotApplicableError
        Devices wait for each other.
    """
    order, _ = stage_order(plan)
    if num_samples < len(order):
        raise InputError(f"{num_samples} samples for {len(order)} stages", where="num_samples", fix="as many, or more")
    return chained(
        plan, plan_schedule(plan, num_samples, schedule),
        messages="rendezvous", update_ns=update_ns, latency_ns=latency_ns, overhead_ns=overhead_ns,
    )  # fmt: skip


def _crossing_ns(plan: Plan, order: list[int], latency_ns: int) -> NDArray[np.float64]:
    """What the values that cross each boundary take, every value once, each a message of its own [P - 1]."""
    problem = plan.problem
    place = np.argsort(order)[plan.device]
    last = place.copy()
    rows = ~problem.is_backward[problem.src] & ~problem.is_backward[problem.dst]
    np.maximum.at(last, problem.src[rows], place[problem.dst[rows]])
    sent_ns = problem.cost_ns + latency_ns
    return np.array([sent_ns[(place <= at) & (last > at)].sum() for at in range(len(order) - 1)])
