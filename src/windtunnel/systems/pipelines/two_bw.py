"""PipeDream-2BW's planner: width, depth, microbatch, recomputing, emptied or not, under memory.

In: ``Blocks`` for each microbatch, how many workers, their memory, their links, the batch. Out: ``PlanTable``: every
combination with its time and memory, or why it cannot be. Equal stages, all of one width. Not here: what a stage takes
in reality (``search.blocks``), the schedules' own waits (``replayed``), running a plan (``training``).

Source: PipeDream-2BW (Narayanan et al., ICML 2021), section 3.3: the cost functions as published, with the factor of
recomputing as the forward pass itself takes, unless one is given.
"""

# w data-parallel pipelines, d stages, b samples of a microbatch, m microbatches of a batch on each pipeline

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from windtunnel.cost.collective import ring_ratio
from windtunnel.errors import InputError
from windtunnel.hardware import Fabric
from windtunnel.search.blocks import Blocks, cut_evenly
from windtunnel.systems.pipelines.stage_memory import (
    Precision,
    Running,
    StageMemory,
    memory_of_stage,
    tightest_unit,
)
from windtunnel.units import format_size

__all__ = ["Job", "PlanRow", "PlanTable", "ScheduleChoice", "plan_2bw", "time_per_microbatch_ns"]

ScheduleChoice = Literal["2bw", "1f1b"]


@dataclass(frozen=True)
class Job:
    """Devices, batch and options that are planned for.

    Parameters
    ----------
    num_workers : int
        Maximum number of workers.
    memory_bytes : float
        Memory of each worker.
    batch : int
        Samples of one update.
    links : Fabric
    precision : str
    base_bytes : float
        Bytes of a process before it builds anything.
    recompute_factor : float, optional
        How many times longer a microbatch takes where its activations are computed again; published is 4/3. By default
        one more forward pass.
    """

    num_workers: int
    memory_bytes: float
    batch: int
    links: Fabric
    precision: Precision = "fp32"
    base_bytes: float = 0.0
    recompute_factor: float | None = None


@dataclass(frozen=True)
class PlanRow:
    """One combination.

    Parameters
    ----------
    schedule : str
        ``2bw``, ``1f1b``, or ``none`` for one stage.
    width, depth, microbatch : int
    recomputes : bool
    num_microbatches : int
        Of a batch on each pipeline; 0 where the batch does not divide.
    microbatch_ns : float
        The planner's time per microbatch.
    step_ns : float
        Of a batch, with the time that filling and emptying takes; infinite where the combination cannot be.
    memory : tuple of StageMemory
        Memory of a worker of each stage.
    reason : str
        Why it cannot be; empty where it can.
    missing_bytes : float
        How much memory is missing.
    """

    schedule: str
    width: int
    depth: int
    microbatch: int
    recomputes: bool
    num_microbatches: int = 0
    microbatch_ns: float = float("inf")
    step_ns: float = float("inf")
    memory: tuple[StageMemory, ...] = ()
    reason: str = ""
    missing_bytes: float = 0.0

    @property
    def is_feasible(self) -> bool:
        """Whether the plan is possible."""
        return not self.reason

    @property
    def peak_bytes(self) -> float:
        """Peak memory of the worker that holds most."""
        return max((item.total for item in self.memory), default=0.0)

    @property
    def num_workers(self) -> int:
        """Number of devices that the plan uses."""
        return self.width * self.depth

    def __str__(self) -> str:
        again = ", recomputed" if self.recomputes else ""
        return f"{self.schedule}, {self.width} x {self.depth} workers, microbatch {self.microbatch}{again}"


@dataclass(frozen=True)
class PlanTable:
    """Return every combination, quickest first, then those that are not possible.

    Parameters
    ----------
    rows : tuple of PlanRow
    """

    rows: tuple[PlanRow, ...]

    @property
    def feasible(self) -> tuple[PlanRow, ...]:
        """Plans that are possible."""
        return tuple(row for row in self.rows if row.is_feasible)

    @property
    def best(self) -> PlanRow:
        """The quickest.

        Raises
        ------
        InputError
            Nothing fits: says what is nearest, the tightest layer and how much is missing.
        """
        if self.rows and self.rows[0].is_feasible:
            return self.rows[0]
        short = [row for row in self.rows if row.missing_bytes]
        if not short:
            reasons = sorted({row.reason for row in self.rows})
            raise InputError("no plan is possible", where="; ".join(reasons[:4]), fix="another batch or depth")
        nearest = min(short, key=lambda row: row.missing_bytes)
        raise InputError(
            f"no plan fits into memory; the nearest is {format_size(round(nearest.missing_bytes))} too large",
            where=f"{nearest}: {nearest.reason}", fix="more memory or workers, or smaller microbatches",
        )  # fmt: skip


def plan_2bw(
    profiles: Mapping[int, Blocks],
    job: Job,
    *,
    schedules: Sequence[ScheduleChoice] = ("2bw", "1f1b"),
    widths: Sequence[int] | None = None,
    depths: Sequence[int] | None = None,
    recomputes: Sequence[bool] = (False, True),
) -> PlanTable:
    """Try everything: blocks are equal, so that every depth has one cut and there is nothing to search for.

    Parameters
    ----------
    profiles : mapping of int to Blocks
        Blocks by samples of a microbatch.
    job : Job
    schedules : sequence of str
    widths, depths : sequence of int, optional
        Only these.
    recomputes : sequence of bool

    Raises
    ------
    InputError
        There are no workers or samples; a depth that was asked for does not divide the blocks.
    """
    if job.num_workers < 1 or job.batch < 1 or not profiles:
        raise InputError(f"{job.num_workers} workers, a batch of {job.batch}", where="devices", fix="one or more")
    first = next(iter(profiles.values()))
    for depth in depths or ():
        cut_evenly(first.num_blocks, depth)
    rows: list[PlanRow] = []
    for width, depth in _shapes(job.num_workers, widths, depths):
        for schedule in schedules if depth > 1 else ("none",):
            for microbatch in sorted(profiles):
                for again in recomputes:
                    requested = PlanRow(schedule, width, depth, microbatch, again)
                    rows.append(_row(requested, profiles[microbatch], job))
    return PlanTable(tuple(sorted(rows, key=lambda row: (not row.is_feasible, row.step_ns))))


def _shapes(num_workers: int, widths: Sequence[int] | None, depths: Sequence[int] | None) -> Iterator[tuple[int, int]]:
    for width in widths or range(1, num_workers + 1):
        for depth in depths or range(1, num_workers // width + 1):
            if width * depth <= num_workers:
                yield width, depth


def _row(row: PlanRow, blocks: Blocks, job: Job) -> PlanRow:
    """Return a combination with its numbers, or with the reason why it is not possible."""
    try:
        stages = cut_evenly(blocks.num_blocks, row.depth)
    except InputError as error:
        return _without(row, error.message)
    # Each batch is split over the replicas and into microbatches; a pipeline that has fewer microbatches
    # than stages never fills.
    samples = row.width * row.microbatch
    count, rest = divmod(job.batch, samples)
    if rest:
        return _without(row, f"a batch of {job.batch} is no multiple of {row.width} x {row.microbatch}")
    if count < row.depth:
        return _without(row, f"{count} microbatch{'es' * (count != 1)} for {row.depth} stages", count)
    how = Running(
        row.depth,
        row.width,
        count,
        job.batch,
        row.schedule != "2bw",
        row.recomputes,
        job.precision,
        job.base_bytes,
    )
    memory = tuple(memory_of_stage(blocks, units, stage, how) for stage, units in enumerate(stages))
    microbatch_ns = time_per_microbatch_ns(blocks, stages, how, job)
    # 2BW is never emptied; 1F1B fills and empties the pipeline once per batch, which takes depth - 1 microbatches more
    turns = count + row.depth - 1 if row.schedule == "1f1b" else count
    peak = max(item.total for item in memory)
    reason, missing = "", 0.0
    if peak > job.memory_bytes:
        stage = max(range(len(memory)), key=lambda index: memory[index].total)
        layer = tightest_unit(blocks, stages[stage], stage, how)
        reason = (
            f"microbatch {row.microbatch}: needs {format_size(round(peak))} of "
            f"{format_size(round(job.memory_bytes))}, tightest at stage {stage} layer {layer}"
        )
        missing = peak - job.memory_bytes
    return PlanRow(
        row.schedule, row.width, row.depth, row.microbatch, row.recomputes, count, microbatch_ns,
        turns * microbatch_ns, memory, reason, missing,
    )  # fmt: skip


def _without(row: PlanRow, reason: str, count: int = 0) -> PlanRow:
    return PlanRow(row.schedule, row.width, row.depth, row.microbatch, row.recomputes, count, reason=reason)


def time_per_microbatch_ns(blocks: Blocks, stages: Sequence[tuple[int, int]], how: Running, job: Job) -> float:
    """The planner's cost functions.

    One stage: the sum over units of the longer of a unit's compute and its share of the exchange of gradients. Several:
    the slowest stage's, with what it receives. Weights go around a ring.
    """
    half = 0.5 if how.precision == "mixed" else 1.0
    ring = ring_ratio(how.width) * half / job.links.among(how.width).bandwidth_bytes_per_s * 1e9
    compute_U = blocks.forward_ns + blocks.backward_ns
    if how.recomputes:
        factor = job.recompute_factor
        compute_U = compute_U + blocks.again_ns if factor is None else factor * compute_U
    exchange_U = ring * blocks.weight_bytes / how.num_microbatches
    if how.depth == 1:
        return float(np.maximum(compute_U, exchange_U).sum())
    per_byte = 1e9 / job.links.among(how.depth).bandwidth_bytes_per_s
    return max(
        max(
            float(compute_U[first:last].sum()) + 2.0 * per_byte * blocks.crossing_bytes(first),
            float(exchange_U[first:last].sum()),
        )
        for first, last in stages
    )
