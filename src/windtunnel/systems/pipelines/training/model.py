"""Predicted step of a planned pipeline on this host: a replay on cores that processes share.

In: a ``PipelineJob`` and a plan for its layers. Out: ns. Beside the plan count what a message takes by itself, what the
schedule does itself, how n processes on fewer cores slow each other, and how much they vary: ``HostConditions``. Not
here: measuring these (``run``), choosing a plan (``search``).
"""

# D devices (stages), K draws, T tasks

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.interference import Interference, share_resource
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph, Kind
from windtunnel.hardware.host import usable_cores
from windtunnel.search.placement.from_graph import Layers
from windtunnel.search.placement.throughput import Plan
from windtunnel.simulate import Timeline, replay, replay_many
from windtunnel.systems.pipelines.model import ScheduleName, build_rank_graph, plan_schedule, stage_order
from windtunnel.systems.pipelines.replayed import ring_ns_per_byte
from windtunnel.systems.pipelines.schedules import Schedule
from windtunnel.systems.pipelines.timed import working_ranks

__all__ = [
    "HostConditions",
    "PipelineJob",
    "median_ns",
    "on_cores",
    "predict_duration_ns",
    "require_stages",
    "stage_of_modules",
    "step_ns",
    "whole_ns",
]

_NUM_DRAWS = 65
_TURNS, _SETTLED = 40, 1e-3  # until passes that slow each other are as long as they should be
_FILLED = 3  # batches after which a pipeline runs as it will run on


@dataclass(frozen=True)
class HostConditions:
    """Measured conditions of this host.

    Parameters
    ----------
    bandwidth_bytes_per_s : float
        Of a message, while it travels and nothing else runs.
    latency_ns : float
        Latency of an empty message.
    slowdown : tuple of float
        How many times longer each of 1, 2 ... busy processes takes than one alone.
    spread : tuple of float
        Of the same work in all processes at once, over and over: each time over the median.
    alone_spread : tuple of float
        The same of one process alone.
    overhead_ns : float
        What the schedule itself computes per stage and microbatch.
    part_ratios : (float, float)
        What the two parts of a backward pass take, gradients for inputs and for weights, of a whole one.
    copy_bytes_per_s : float
        Rate at which weights are copied into another version.
    """

    bandwidth_bytes_per_s: float
    latency_ns: float
    slowdown: tuple[float, ...]
    spread: tuple[float, ...] = (1.0,)
    alone_spread: tuple[float, ...] = (1.0,)
    overhead_ns: float = 0.0
    part_ratios: tuple[float, float] = (0.5, 0.5)
    copy_bytes_per_s: float = math.inf


@dataclass(frozen=True, eq=False)
class PipelineJob:
    """A workload that can be cut into stages.

    Parameters
    ----------
    workload : str
    parameters : mapping
    num_microbatches : int
    graph : Graph
        One microbatch forward and backward on one thread, and an update.
    layers : Layers
        Of that, for as many devices as there are stages; compute holds a microbatch's share of the update.
    conditions : HostConditions
        Conditions that were measured before any plan.
    message_bytes : (int, int)
        Sizes of the messages that are tried: a small one, and what the layers of this job usually send.
    num_replicas : int
        Number of data-parallel pipelines, each with all microbatches of the schedule.
    """

    workload: str
    parameters: Mapping[str, Any]
    num_microbatches: int
    graph: Graph
    layers: Layers
    conditions: HostConditions
    message_bytes: tuple[int, int]
    num_replicas: int = 1


def stage_of_modules(job: PipelineJob, plan: Plan) -> dict[str, int]:
    """The stage of each module, in the order in which samples meet them.

    Raises
    ------
    NotApplicableError
        Devices wait for each other.
    """
    order, _ = stage_order(plan)
    index = {device: position for position, device in enumerate(order)}
    return {name: index[int(plan.device[node])] for name, node in job.layers.node_of.items()}


def predict_duration_ns(
    job: PipelineJob,
    plan: Plan,
    conditions: HostConditions,
    schedule: ScheduleName | Schedule,
    *,
    recomputes: bool = False,
    num_replicas: int = 1,
) -> int:
    """All batches of a schedule: replays of it on processes that share the cores, their median.

    Stages wait for each other, so that what varies adds up: each replay draws anew by how much every task varies.

    Parameters
    ----------
    schedule : str or Schedule
        A table, or the name of one with a stage per rank and one batch.
    recomputes : bool
        Each pass runs forward again before it goes backward.
    num_replicas : int
        Number of data-parallel pipelines, which average their gradients before they update.
    """
    require_stages(plan)
    problem, count = job.layers.problem, job.num_microbatches
    bare = dataclasses.replace(
        problem,
        time_ns=problem.time_ns - job.layers.update_ns / count,
        cost_ns=problem.cost_ns * (job.conditions.bandwidth_bytes_per_s / conditions.bandwidth_bytes_per_s),
    )
    table = schedule if isinstance(schedule, Schedule) else plan_schedule(plan, count, schedule)
    updates_D = np.bincount(plan.device, job.layers.update_ns[:, 0], minlength=len(plan.kind)).astype(np.float64)
    weights_D = np.zeros(len(updates_D))
    if problem.weight_bytes is not None:
        weights_D += np.bincount(plan.device, problem.weight_bytes, len(updates_D))
    if table.versions != "flush":  # a version begins as a copy of the last one
        updates_D += weights_D / conditions.copy_bytes_per_s * 1e9
    num_holders = num_replicas * max((len(ranks) for ranks in table.replicas), default=1)
    exchange_D = weights_D * ring_ns_per_byte(num_holders, conditions.bandwidth_bytes_per_s)
    graph = build_rank_graph(
        dataclasses.replace(plan, problem=bare), table,
        update_ns=updates_D, latency_ns=round(conditions.latency_ns), overhead_ns=conditions.overhead_ns,
        recomputes=recomputes, part_ratios=conditions.part_ratios, width=num_replicas,
        exchange_ns=exchange_D if num_holders > 1 else None,
    )  # fmt: skip
    return median_ns(on_cores(graph, conditions, table.num_ranks * num_replicas), conditions)


def median_ns(graph: Graph, conditions: HostConditions) -> int:
    """Return the median makespan over random samples of task durations: a stage that waits, waits for the slowest."""
    drawn_KT = np.random.default_rng(0).choice(conditions.spread, (_NUM_DRAWS, graph.num_tasks)) * graph.duration_ns
    return int(np.median(replay_many(graph, drawn_KT.astype(np.int64)).makespan_ns))


def step_ns(
    job: PipelineJob,
    plan: Plan,
    conditions: HostConditions,
    make_table: Callable[[int], Schedule],
    **how: Any,
) -> float:
    """A batch among many: of a schedule that is never emptied, what a batch more takes.

    Parameters
    ----------
    make_table : callable
        Function that returns the schedule of a number of batches.
    how
        As of ``predict_duration_ns``.
    """
    first, more = (1, 0) if make_table(1).versions == "flush" else (_FILLED, _FILLED)
    times_ns = [
        predict_duration_ns(job, plan, conditions, make_table(number), **how) for number in (first, first + more)
    ]
    return (times_ns[1] - times_ns[0]) / more if more else float(times_ns[0])


def require_stages(plan: Plan) -> None:
    """Raise an error for a plan of one device."""
    if len(plan.kind) == 1:
        raise NotApplicableError("the plan uses one device only", where=plan.solver, fix="there are no plans to run")


def on_cores(graph: Graph, conditions: HostConditions, num_ranks: int) -> Graph:
    """Pin stages to cores: slower while other cores are busy, one after the other where they share a core.

    A message is work, too: it is copied on the core of who receives it.
    """
    cores = min(len(usable_cores()), num_ranks)
    busy = conditions.slowdown[cores - 1]
    counts = range(cores, num_ranks + cores, cores)
    curve = tuple(conditions.slowdown[min(count, num_ranks) - 1] / busy for count in counts)
    place_T = working_ranks(graph)
    for core in range(cores):
        graph = share_resource(graph, Interference("core", curve, curve), place_T % cores == core, f"core {core}")
    return _beside_each_other(graph, place_T % cores, np.array(conditions.slowdown[:cores]))


def _beside_each_other(graph: Graph, core_T: NDArray[np.int64], slowdown: NDArray[np.float64]) -> Graph:
    """Passes slowed by other cores for as long as these are busy: a stage that waits slows no other.

    How long they are follows from the replay, and the replay from it: both settle after a few turns.
    """
    computes, factor_T = graph.select(kind=Kind.COMPUTE), np.ones(graph.num_tasks)
    slowed = graph
    for _ in range(_TURNS if slowdown[-1] > 1 else 0):
        timeline = replay(slowed)
        # half of the step: a pass that ends later overlaps less, and the iteration would oscillate
        before, factor_T = factor_T, np.sqrt(factor_T * _task_slowdowns(timeline, core_T, slowdown))
        slowed = graph.scale(computes, factor_T[computes])
        if np.abs(factor_T - before)[computes].max(initial=0.0) < _SETTLED:
            break
    return slowed


def _task_slowdowns(
    timeline: Timeline, core_T: NDArray[np.int64], slowdown: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the factor by which the load of all cores slows each task, float64 [T]."""
    time_I, index = np.unique(np.concatenate([timeline.start_ns, timeline.finish_ns]), return_inverse=True)
    begins_T, ends_T = np.split(index, 2)
    users = np.zeros((len(slowdown), len(time_I)), dtype=np.int64)
    np.add.at(users, (core_T, begins_T), 1)
    np.subtract.at(users, (core_T, ends_T), 1)
    num_busy_I = (users.cumsum(axis=1) > 0).sum(axis=0)
    work_I = np.append(0.0, np.cumsum(np.diff(time_I) / slowdown[np.maximum(num_busy_I[:-1], 1) - 1]))
    taken_T, work_T = timeline.finish_ns - timeline.start_ns, work_I[ends_T] - work_I[begins_T]
    result: NDArray[np.float64] = np.divide(taken_T, work_T, out=np.ones(len(taken_T)), where=work_T > 0)
    return result


def whole_ns(job: PipelineJob, conditions: HostConditions) -> float:
    """One process: all microbatches and the update, each drawn anew by how much a process alone varies."""
    update_ns = float(job.layers.update_ns.sum())
    count = job.num_microbatches * job.num_replicas
    passes = np.random.default_rng(0).choice(conditions.alone_spread, (_NUM_DRAWS, count)).sum(axis=1)
    return float(np.median(passes)) * (replay(job.layers.graph).makespan_ns - update_ns) + update_ns
