"""A plan as a pipeline of samples: what the devices do while many samples are under way.

In: a ``Plan`` for throughput. Out: a ``Graph`` with one task per sample, stage and direction, its transfers in it, in
the order in which a schedule runs them, to replay. A full pipeline takes the load of its busiest device per sample:
that is what the plan's value says, and the replay shows what filling and draining add. Not here: the order
(``schedules``), running it.
"""

# D devices (stages), P places in the chain

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.search.placement.throughput import Plan, sync_ns
from windtunnel.systems.pipelines.replayed import alike, reads_of, side_by_side, tile_stage_times
from windtunnel.systems.pipelines.schedules import Schedule, forward_only, gpipe, one_forward_one_backward
from windtunnel.systems.pipelines.timed import StageTimes, build_schedule_graph

__all__ = ["ScheduleName", "build_pipeline_graph", "build_rank_graph", "plan_schedule", "stage_order"]

ScheduleName = Literal["1f1b", "gpipe"]
_SCHEDULES = {"1f1b": one_forward_one_backward, "gpipe": gpipe}


def build_pipeline_graph(
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
        Latency of a message between two devices, in addition to its transfer time.

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
    index = {device: position for position, device in enumerate(order)}
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
    reads = [{index[other] for other in before[device]} for device in order]
    return build_schedule_graph(plan_schedule(plan, num_samples, schedule), times, reads=reads, names=names)


def build_rank_graph(
    plan: Plan,
    schedule: Schedule,
    *,
    update_ns: NDArray[np.float64] | None = None,
    latency_ns: int = 0,
    overhead_ns: float = 0.0,
    recomputes: bool = False,
    part_ratios: tuple[float, float] = (0.5, 0.5),
    width: int = 1,
    exchange_ns: NDArray[np.float64] | None = None,
) -> Graph:
    """As ranks run it: a schedule's passes through the stages of a plan, messages of their own, updates.

    Stages form a chain; a value for a later stage goes through those between.

    Parameters
    ----------
    plan : Plan
        Contiguous, of a training, without replicas; ``cost_ns`` of its problem is what a message of that output takes.
    schedule : Schedule
        Schedule with the same number of stages.
    update_ns : float64 [D], optional
        What each device does after a batch.
    latency_ns : int
        Latency of every value that is sent.
    overhead_ns : float
        Overhead of each stage per sample in addition to its layers, half of it in the forward pass.
    recomputes : bool
        Each pass runs forward again before it goes backward.
    part_ratios : (float, float)
        What the two parts of a backward pass take of a whole one. A first stage has no input to find gradients for:
        its second part is all of it.
    width : int
        Number of data-parallel pipelines.
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
    # the recomputed forward pass is part of the input's half: the weights' half reuses its activations
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
        names = [f"{plan.problem.types[int(plan.kind[index])].name} {index}" for index in order]
    return build_schedule_graph(
        side_by_side(schedule, width), tile_stage_times(times, len(order), width),
        reads=reads_of(len(order), width), alike=alike(len(order), width), names=names,
    )  # fmt: skip


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
    # Kahn's algorithm over devices, lowest number first, so that equal plans give equal graphs.
    order: list[int] = []
    waiting = set(range(num))
    while waiting:
        free = sorted(index for index in waiting if not before[index] & waiting)
        if not free:
            raise NotApplicableError(
                "devices of this plan wait for each other, so that no pipeline runs it", where=plan.solver,
                fix="place contiguously: --solver dp",
            )  # fmt: skip
        order += free
        waiting -= set(free)
    return order, before


def _crossing_ns(plan: Plan, order: list[int], latency_ns: int) -> NDArray[np.float64]:
    """Return the duration of the messages across each boundary, a message for each value, [P - 1]."""
    problem = plan.problem
    index = np.argsort(order)[plan.device]
    # A value crosses every boundary between the stage that makes it and its last reader: stages pass on what
    # later ones need.
    last = index.copy()
    rows = ~problem.is_backward[problem.src] & ~problem.is_backward[problem.dst]
    np.maximum.at(last, problem.src[rows], index[problem.dst[rows]])
    sent_ns = problem.cost_ns + latency_ns
    return np.array([sent_ns[(index <= position) & (last > position)].sum() for position in range(len(order) - 1)])
