"""Plans ranked by the replay of their schedule: what the cost functions of a planner leave out.

In: rows of a ``PlanTable``, ``Blocks``, links. Out: the step of each by its schedule's own waits: filling and emptying,
uneven stages, messages on links, the exchange of gradients, updates. Not here: which rows there are (``two_bw``),
measured conditions of a host (``training``).
"""

# w data-parallel pipelines, S stages, R ranks

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.progress import Progress
from windtunnel.cost.collective import ring_ratio
from windtunnel.graph import Graph
from windtunnel.hardware import Fabric
from windtunnel.search.blocks import Blocks, cut_evenly
from windtunnel.simulate import replay
from windtunnel.systems.pipelines.generate import generate
from windtunnel.systems.pipelines.schedules import Action, Schedule
from windtunnel.systems.pipelines.timed import StageTimes, build_schedule_graph
from windtunnel.systems.pipelines.two_bw import Job, PlanRow

__all__ = [
    "Played",
    "alike",
    "batch_ns",
    "rank_by_replay",
    "reads_of",
    "ring_ns_per_byte",
    "side_by_side",
    "stage_of_modules",
    "stage_times",
    "table_of",
    "tile_stage_times",
]

Floats = NDArray[np.float64]
_FIRST, _LAST = 2, 4  # batches: a pipeline that is never emptied takes its time from the difference


@dataclass(frozen=True)
class Played:
    """A row, and the step that its replay takes."""

    row: PlanRow
    step_ns: float


def rank_by_replay(
    rows: Sequence[PlanRow], profiles: Mapping[int, Blocks], job: Job, *, progress: Progress | None = None
) -> list[Played]:
    """Rows with their replayed steps, the quickest first.

    Workers have devices of their own, so that data-parallel pipelines take the same time.
    """
    result = []
    for done, row in enumerate(rows):
        if progress is not None:
            progress("replaying plans", done, len(rows))
        times = stage_times(row, profiles[row.microbatch], job.links)
        result.append(Played(row, batch_ns(row, times)))
    return sorted(result, key=lambda played: played.step_ns)


def batch_ns(
    row: PlanRow, times: StageTimes, step_ns: Callable[[Graph], float] | None = None, *, width: int = 1
) -> float:
    """The time of one batch.

    Parameters
    ----------
    row : PlanRow
    times : StageTimes
        Times of the stages of all pipelines.
    step_ns : callable, optional
        What a graph takes; by default its replay's makespan.
    width : int
        Number of data-parallel pipelines that are replayed.
    """
    spent = step_ns or (lambda graph: float(replay(graph).makespan_ns))

    def batches_ns(num_batches: int) -> float:
        table = side_by_side(table_of(row, num_batches), width)
        return spent(
            build_schedule_graph(table, times, reads=reads_of(row.depth, width), alike=alike(row.depth, width))
        )

    if row.schedule != "2bw":
        return batches_ns(1)
    return (batches_ns(_LAST) - batches_ns(_FIRST)) / (_LAST - _FIRST)


def table_of(row: PlanRow, num_batches: int = 1) -> Schedule:
    """The schedule of one pipeline of a row."""
    name = "1f1b" if row.schedule == "none" else row.schedule
    return generate(name, row.depth, row.num_microbatches, num_batches=num_batches)


def stage_of_modules(row: PlanRow, blocks: Blocks) -> dict[str, int]:
    """The stage of each module, by its path."""
    ends = [last for _, last in cut_evenly(blocks.num_blocks, row.depth)]
    stage_U = np.searchsorted(ends, np.arange(blocks.num_units), side="right").tolist()
    return {name: stage_U[unit] for name, unit in blocks.unit_of.items() if name}


def stage_times(row: PlanRow, blocks: Blocks, links: Fabric, *, latency_ns: float = 0.0) -> StageTimes:
    """Return the times of the stages of a row.

    Parameters
    ----------
    row : PlanRow
    blocks : Blocks
        Blocks of the row's microbatch.
    links : Fabric
    latency_ns : float
        Latency of an empty message.
    """
    stages = cut_evenly(blocks.num_blocks, row.depth)
    backward_U = blocks.backward_ns + (blocks.again_ns if row.recomputes else 0.0)
    forward, backward, update, weights = (
        np.array([values[first:last].sum() for first, last in stages])
        for values in (blocks.forward_ns, backward_U, blocks.update_ns, blocks.weight_bytes)
    )
    ring = ring_ns_per_byte(row.width, links.among(row.width).bandwidth_bytes_per_s)
    per_byte = 1e9 / links.among(row.depth).bandwidth_bytes_per_s
    messages = np.array([latency_ns + per_byte * blocks.crossing_bytes(first) for first, _ in stages[1:]])
    return StageTimes(
        forward_ns=forward, backward_ns=backward, update_ns=update, message_ns=messages,
        exchange_ns=ring * weights if row.width > 1 else None,
    )  # fmt: skip


def ring_ns_per_byte(width: int, bandwidth_bytes_per_s: float) -> float:
    """Return the duration per byte of a ring all-reduce of gradients over ``width`` replicas."""
    return ring_ratio(width) / bandwidth_bytes_per_s * 1e9


def side_by_side(schedule: Schedule, width: int) -> Schedule:
    """Return ``width`` pipelines as one table; stages and ranks of each follow those of the one before."""
    if width == 1:
        return schedule
    num_ranks, num_stages, replicas = schedule.num_ranks, schedule.num_stages, range(width)

    def shift_stage(action: Action, which: int) -> Action:
        return action._replace(stage=action.stage + which * num_stages)

    return dataclasses.replace(
        schedule,
        actions=tuple(
            tuple(item and shift_stage(item, which) for item in row) for which in replicas for row in schedule.actions
        ),
        rank_of=tuple(which * num_ranks + rank for which in replicas for rank in schedule.rank_of),
        replicas=tuple(
            tuple(which * num_ranks + rank for rank in ranks) for which in replicas for ranks in schedule.replicas
        ),
        max_in_flight=schedule.max_in_flight * width,
        overlaps=frozenset(shift_stage(overlap, which) for which in replicas for overlap in schedule.overlaps),
    )


def reads_of(num_stages: int, width: int) -> list[set[int]]:
    """Return the stages whose outputs each stage of the pipelines reads; the first of each pipeline reads none."""
    return [{stage - 1} if stage % num_stages else set() for stage in range(num_stages * width)]


def alike(num_stages: int, width: int) -> list[set[int]]:
    """Stages of pipelines side by side that have the same weights."""
    return [set(range(stage, num_stages * width, num_stages)) for stage in range(num_stages)]


def tile_stage_times(times: StageTimes, num_stages: int, width: int) -> StageTimes:
    """Repeat the times of one pipeline for ``width`` data-parallel pipelines."""
    if width == 1:
        return times

    def tile_values(values: ArrayLike | None, number: int, more: int = 0) -> Floats | None:
        if values is None:
            return None
        single = np.append(np.broadcast_to(np.asarray(values, float), number), np.zeros(more))
        return np.tile(single, width)[: number * width + more * (width - 1)]

    of_stages: dict[str, Any] = {
        name: tile_values(getattr(times, name), num_stages)
        for name in (
            "forward_ns",
            "backward_ns",
            "input_ns",
            "weights_ns",
            "update_ns",
            "agree_ns",
            "exchange_ns",
            "kept_bytes",
        )
    }
    return dataclasses.replace(times, **of_stages, message_ns=tile_values(times.message_ns, num_stages - 1, 1))
