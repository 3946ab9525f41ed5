"""A workload's pipelines on this host, planned: captured microbatches, measured processes.

In: a workload, how many processes, plans of ``planning.pipelines``. Out: ``Blocks`` for every size of a microbatch,
each really captured on one thread; what the processes stand on; the step of each plan by a replay on the cores that
they share; a plan as a pipeline that can train. Not here: which plans there are (``pipelines``), running one (``run``).
"""

# R ranks of all pipelines

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.graph import Graph
from windtunnel.hardware import Fabric
from windtunnel.search.blocks import Blocks, blocks_of
from windtunnel.systems.pipelines.generate import generate
from windtunnel.systems.pipelines.replayed import (
    Played,
    batch_ns,
    stage_of_modules,
    stage_times,
    table_of,
    tile_stage_times,
)
from windtunnel.systems.pipelines.training.job import PipelineSpec, PlannedPipeline
from windtunnel.systems.pipelines.training.model import HostConditions, median_ns, on_cores
from windtunnel.systems.pipelines.training.run import capture_microbatch, conditions_of
from windtunnel.systems.pipelines.two_bw import PlanRow

__all__ = ["capture_blocks", "conditions_for", "links_of", "pipeline_of", "rank_on_host"]

_MIN_MESSAGE_BYTES, _USUAL_BYTES = 1 << 12, 1 << 16


def capture_blocks(
    workload: str, parameters: Mapping[str, Any], batch: int, sizes: Sequence[int], *, progress: Progress | None = None
) -> dict[int, Blocks]:
    """Capture blocks for each microbatch size.

    Raises
    ------
    NotApplicableError
        The step is more than a model and a loss, or the model has no equal blocks.
    InputError
        A size does not divide the batch.
    """
    result = {}
    for done, size in enumerate(sizes):
        if progress is not None:
            progress("capturing microbatches", done, len(sizes))
        graph, _ = capture_microbatch(workload, {**parameters, "batch_size": batch}, batch // size)
        result[size] = blocks_of(graph, size, num_held=batch)
    return result


def conditions_for(
    workload: str, parameters: Mapping[str, Any], profiles: Mapping[int, Blocks], num_ranks: int, batch: int
) -> HostConditions:
    """Measure the conditions of processes on this host, with messages as this model sends them.

    Raises
    ------
    FlightError
        A process failed.
    """
    size = sorted(profiles)[len(profiles) // 2]
    blocks = profiles[size]
    usual = int(np.median([blocks.crossing_bytes(unit) for unit in range(1, blocks.num_units)])) // 4 * 4
    number = max(2, num_ranks)
    # a workload's batch has to have as many parts as there are ranks, whatever is planned
    parts = next((batch // profile for profile in sorted(profiles, reverse=True) if batch // profile >= number), batch)
    given = {**parameters, "batch_size": batch}
    table = generate("1f1b", number, parts)
    return conditions_of(workload, given, table, (_MIN_MESSAGE_BYTES, max(usual, _USUAL_BYTES)))


def links_of(conditions: HostConditions, num_ranks: int) -> Fabric:
    """Return the links between processes, which are all on one server."""
    return Fabric.of_rates(conditions.bandwidth_bytes_per_s, conditions.bandwidth_bytes_per_s, num_ranks + 1)


def rank_on_host(
    rows: Sequence[PlanRow],
    profiles: Mapping[int, Blocks],
    conditions: HostConditions,
    *,
    progress: Progress | None = None,
) -> list[Played]:
    """Rows with the steps that replays on the cores of this host take, the quickest first."""
    result = []
    for done, row in enumerate(rows):
        if progress is not None:
            progress("replaying plans", done, len(rows))
        result.append(Played(row, _step_ns(row, profiles[row.microbatch], conditions)))
    return sorted(result, key=lambda played: played.step_ns)


def _step_ns(row: PlanRow, blocks: Blocks, conditions: HostConditions) -> float:
    single = stage_times(row, blocks, links_of(conditions, row.num_workers), latency_ns=conditions.latency_ns)
    own = conditions.overhead_ns / 2 if row.depth > 1 else 0.0  # scheduling overhead per pass
    more: dict[str, Any] = {
        name: np.asarray(getattr(single, name), float) + own for name in ("forward_ns", "backward_ns")
    }
    times = tile_stage_times(dataclasses.replace(single, **more), row.depth, row.width)

    def median_step_ns(graph: Graph) -> float:
        return float(median_ns(on_cores(graph, conditions, row.num_workers), conditions))

    return batch_ns(row, times, median_step_ns, width=row.width)


def pipeline_of(
    played: Played, profiles: Mapping[int, Blocks], workload: str, parameters: Mapping[str, Any], batch: int
) -> PlannedPipeline:
    """A plan as the pipeline that runs exactly it.

    Parameters
    ----------
    played : Played
    profiles : mapping of int to Blocks
        Blocks by samples of a microbatch.
    workload, parameters
    batch : int
        Samples of an update.
    """
    row, blocks = played.row, profiles[played.row.microbatch]
    spec = PipelineSpec(
        workload, {**parameters, "batch_size": batch}, row.depth, row.num_microbatches, table_of(row).name,
        num_replicas=row.width, recomputes=row.recomputes,
    )  # fmt: skip
    pass_ns = float(blocks.forward_ns.sum() + blocks.backward_ns.sum())
    alone_ns = batch / row.microbatch * pass_ns + float(blocks.update_ns.sum())
    return PlannedPipeline(spec, stage_of_modules(row, blocks), played.step_ns, alone_ns)
