"""A plan as ``torch.distributed.pipelining`` runs it (room planning): messages that both sides wait for.

In: a ``Plan`` whose stages form a chain. Out: a ``Graph`` with one task per sample, stage and direction, and one per
message, to replay. A message begins when one side has sent and the other asks for it. A value for a later stage goes
through those between. Not here: what a schedule waits for together, and when (``messages``), running it.
"""

# P places in the chain, D devices

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.planning.pipelines.model import ScheduleName, plan_schedule, stage_order
from windtunnel.planning.pipelines.timed import StageTimes, scheduled
from windtunnel.planning.placement.throughput import Plan

__all__ = ["rendezvous_pipeline"]


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
    times = StageTimes(
        forward_ns=plan.loads.compute_ns[0, order] + overhead_ns / 2,
        backward_ns=plan.loads.compute_ns[1, order] + overhead_ns / 2,
        message_ns=_crossing_ns(plan, order, latency_ns),
        update_ns=None if update_ns is None else update_ns[order],
    )
    names = [f"{plan.problem.types[int(plan.kind[at])].name} {at}" for at in order]
    return scheduled(plan_schedule(plan, num_samples, schedule), times, messages="rendezvous", names=names)


def _crossing_ns(plan: Plan, order: list[int], latency_ns: int) -> NDArray[np.float64]:
    """What the values that cross each boundary take, every value once, each a message of its own [P - 1]."""
    problem = plan.problem
    place = np.argsort(order)[plan.device]
    last = place.copy()
    rows = ~problem.is_backward[problem.src] & ~problem.is_backward[problem.dst]
    np.maximum.at(last, problem.src[rows], place[problem.dst[rows]])
    sent_ns = problem.cost_ns + latency_ns
    return np.array([sent_ns[(place <= at) & (last > at)].sum() for at in range(len(order) - 1)])
