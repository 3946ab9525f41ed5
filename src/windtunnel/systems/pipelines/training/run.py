"""Placements that are really run as pipelines of gloo processes.

In: a workload, a number of stages, plans for its layers. Out: a ``PipelineRun`` per plan: the step that the replay of
its schedule says, beside the step that the runtime takes with the very same stages. What the
replay knows beside the plan is measured in the same processes, in turns with the splits: what a message takes by
itself, what the schedule does itself, how n processes on fewer cores slow each other, how much they vary. Not here:
which layer goes where (``planning``), what a step is predicted to take (``model``).
"""

# D devices (stages), N nodes, M microbatches

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.cost.interference import fit_slowdown
from windtunnel.errors import InputError
from windtunnel.measure.stats import Estimate, estimate_median, estimate_speedup
from windtunnel.measure.threads import threads
from windtunnel.search.placement.baselines import even
from windtunnel.search.placement.fleet import fleet_of
from windtunnel.search.placement.from_graph import Layers, layers_of
from windtunnel.search.placement.throughput import Plan
from windtunnel.systems.pipelines.generate import generate
from windtunnel.systems.pipelines.model import ScheduleName, plan_schedule, stage_order
from windtunnel.systems.pipelines.schedules import Schedule, has_parts
from windtunnel.systems.pipelines.training.model import (
    HostConditions,
    PipelineJob,
    predict_duration_ns,
    require_stages,
    stage_of_modules,
    whole_ns,
)
from windtunnel.systems.pipelines.training.parts import home_of
from windtunnel.systems.pipelines.training.train import pipeline_workers

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.systems.pipelines.training.rank import Item, Span

__all__ = ["Cut", "PipelineRun", "capture_microbatch", "conditions_of", "job_of", "run_pipelines"]

_MIN_MESSAGE_BYTES, _USUAL_BYTES = 1 << 12, 1 << 16  # of messages; the second where a job sends less
_CAPTURED = 12
_CONDITIONS_ROUNDS = 24  # from six of them, one outlier among twelve times decided between plans


@dataclass(frozen=True)
class PipelineRun:
    """One plan that was trained: predicted and measured step in ns, and the step of one process alone."""

    plan: Plan
    predicted_baseline_ns: float
    predicted_ns: float
    baseline: Estimate
    changed: Estimate
    speedup: Estimate
    slowdown: tuple[float, ...]
    num_rounds: int


@dataclass
class _Flown:
    """Durations of the items of a flight, in ns, round by round, without the first."""

    step_ns: list[float] = field(default_factory=list)
    split_ns: dict[int, list[float]] = field(default_factory=dict)
    message_ns: dict[int, list[float]] = field(default_factory=dict)
    beside_ns: dict[int, list[list[float]]] = field(default_factory=dict)
    idle_ns: list[list[float]] = field(default_factory=list)
    parts_ns: dict[int, list[float]] = field(default_factory=dict)
    copy_ns: dict[int, list[float]] = field(default_factory=dict)

    def conditions(self, table: Schedule, first_ratio: float = 0.0) -> HostConditions:
        """A line through the messages, a curve through the processes, what idle stages compute in such a table, parts.

        ``first_ratio`` is the first stage's share of the backward pass that was taken apart.
        """
        sizes = sorted(self.message_ns)
        times = [float(np.median(self.message_ns[size])) for size in sizes]
        latency_ns, slope = times[0], (times[-1] - times[0]) / (sizes[-1] - sizes[0])
        alone = np.mean(self.beside_ns[1], axis=1)
        ratios = [float(np.median(np.mean(self.beside_ns[count], axis=1) / alone)) for count in sorted(self.beside_ns)]
        spread, alone_spread = (_spread(self.beside_ns[count]) for count in (max(self.beside_ns), 1))
        idle_ns = np.median(np.array(self.idle_ns), axis=0)
        num_crossings = sum(item != other for item, other in pairwise(table.rank_of))
        sent_ns = 2 * num_crossings * latency_ns  # messages of one microbatch
        overhead_ns = max(0.0, (idle_ns.sum() / table.num_passes - sent_ns) / table.num_stages)
        curve = tuple(fit_slowdown(ratios))
        return HostConditions(
            1e9 / max(slope, 1e-3), latency_ns, curve, spread, alone_spread, overhead_ns, self._parts(first_ratio),
            self._copy_rate(),
        )  # fmt: skip

    def _parts(self, first_ratio: float) -> tuple[float, float]:
        """What gradients for inputs and those for weights take, of stages that have inputs to find gradients for."""
        if not self.parts_ns:
            return 0.5, 0.5
        forward, both, halfway, split = (float(np.median(self.parts_ns[index])) for index in range(4))
        first, rest = first_ratio * (both - forward), max((1 - first_ratio) * (both - forward), 1.0)
        return max(halfway - forward, 0.0) / rest, max(split - halfway - first, 0.0) / rest

    def _copy_rate(self) -> float:
        """Bytes per second of weights into another version."""
        return min((float(size / np.median(times) * 1e9) for size, times in self.copy_ns.items()), default=math.inf)


def _spread(times_ns: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return each time relative to the median."""
    every = np.ravel(times_ns)
    return tuple((every / np.median(every)).tolist())


def job_of(
    workload: str,
    parameters: Mapping[str, Any],
    num_stages: int,
    num_microbatches: int,
    *,
    table: Schedule | None = None,
    num_replicas: int = 1,
    progress: Progress | None = None,
) -> PipelineJob:
    """Capture one microbatch of a workload and find what a pipeline of it stands on.

    Parameters
    ----------
    workload : str
        A registered one whose step is a model and a loss.
    parameters : mapping
        Its own; ``batch_size`` is that of all microbatches together.
    num_stages, num_microbatches : int
        Sizes of each replica.
    table : Schedule, optional
        The schedule; by default 1F1B with a process per stage.
    num_replicas : int
        Number of data-parallel pipelines.

    Raises
    ------
    NotApplicableError
        The step is more than a model and a loss.
    InputError
        The batch does not divide into equal parts, or there are fewer than two stages.
    FlightError
        A process failed.
    """
    table = table or generate("1f1b", num_stages, num_microbatches)
    if table.num_ranks < 2:
        raise InputError(
            f"{num_microbatches} microbatches for {num_stages} stages on {table.num_ranks} process", where="devices",
            fix="two processes or more",
        )  # fmt: skip
    graph, paths = capture_microbatch(workload, parameters, num_microbatches * num_replicas, progress=progress)
    types, _ = fleet_of(f"{num_stages}xhere")

    def layers(bandwidth_bytes_per_s: float) -> Layers:
        return _with_loss(layers_of([graph], types, bandwidth_bytes_per_s, num_microbatches=num_microbatches), paths)

    rough = layers(1e9)
    # Bytes of messages to try, of a problem at one byte per ns.
    sent = rough.problem.cost_ns[~rough.problem.is_backward & (rough.problem.cost_ns > _MIN_MESSAGE_BYTES)]
    usual = int(np.median(sent)) // 4 * 4 if len(sent) else 0
    message_bytes = _MIN_MESSAGE_BYTES, max(usual, _USUAL_BYTES)
    job = PipelineJob(
        workload, dict(parameters), num_microbatches, graph, rough, HostConditions(1e9, 0.0, (1.0,)), message_bytes,
        num_replicas,
    )  # fmt: skip
    cut = _stage_cut(job, even(rough.problem), table)
    conditions = conditions_of(workload, parameters, table, message_bytes, cut, num_replicas=num_replicas)
    return dataclasses.replace(job, layers=layers(conditions.bandwidth_bytes_per_s), conditions=conditions)


def capture_microbatch(
    workload: str, parameters: Mapping[str, Any], num_microbatches: int, *, progress: Progress | None = None
) -> tuple[Graph, set[str]]:
    """Capture one microbatch of a workload's batch forward and backward on one thread, and an update.

    Returns
    -------
    Graph, set of str
        The second holds the paths of the model's modules.

    Raises
    ------
    NotApplicableError
        The step is more than a model and a loss.
    InputError
        The batch does not divide into equal parts.
    """
    from windtunnel.sources.torch.step import capture
    from windtunnel.systems.pipelines.training.rank import WholeModel

    with threads(1):
        whole = WholeModel(workload, dict(parameters), num_microbatches)
        graph = capture(
            lambda: whole.step(1),
            iterations=_CAPTURED, model=whole.model, optimizer=whole.optimizer, progress=progress,
        )  # fmt: skip
    return graph, {path for path, _ in whole.model.named_modules()}


class Cut(NamedTuple):
    """Stages by path of a module, and the first one's share of a backward pass through all of them."""

    stage_of: dict[str, int]
    first_ratio: float


def _stage_cut(job: PipelineJob, plan: Plan, table: Schedule) -> Cut | None:
    """Stages to take backward passes apart with, if a table does."""
    if not has_parts(table):
        return None
    backward_S = plan.loads.compute_ns[1, stage_order(plan)[0]]
    return Cut(stage_of_modules(job, plan), float(backward_S[0] / max(backward_S.sum(), 1.0)))


def conditions_of(
    workload: str,
    parameters: Mapping[str, Any],
    table: Schedule,
    message_bytes: tuple[int, int],
    cut: Cut | None = None,
    *,
    num_replicas: int = 1,
) -> HostConditions:
    """Measure the conditions of a schedule's processes: messages of two sizes, shared cores, variation.

    Backward passes are taken apart with the stages of ``cut``, if there are any. With replicas there are processes of
    as many schedules, of which one runs.

    Raises
    ------
    FlightError
        A process failed.
    """
    flown = _measure(
        workload, parameters, (), table, message_bytes, _CONDITIONS_ROUNDS, 60.0, None, cut=cut,
        num_replicas=num_replicas,
    )  # fmt: skip
    return flown[0]


def _with_loss(layers: Layers, paths: set[str]) -> Layers:
    """Assign the operators behind the model to the stage of the model's output."""
    problem, color = layers.problem, layers.problem.color.copy()
    for name, node in layers.node_of.items():
        if name in paths:
            continue
        for other in problem.src[problem.dst == node].tolist():
            color[color == color[node]] = color[other]
    return dataclasses.replace(layers, problem=dataclasses.replace(problem, color=color))


def run_pipelines(
    job: PipelineJob,
    plans: Sequence[Plan],
    *,
    schedule: ScheduleName | Schedule = "1f1b",
    recomputes: bool = False,
    rounds: int = 12,
    time_limit_s: float = 120.0,
    progress: Progress | None = None,
) -> list[PipelineRun]:
    """Run plans as pipelines of gloo processes, interleaved with each other and with a single process.

    Parameters
    ----------
    job : PipelineJob
    plans : sequence of Plan
        Of ``job.layers.problem``; each uses as many devices as the first.
    schedule : str or Schedule
        ``1f1b``, ``gpipe``, or a table of as many stages; of several batches, times are those of all of them.
    recomputes : bool
        Stages keep a microbatch's inputs only, and run forward again.
    rounds : int
    time_limit_s : float
        No round is begun after it.

    Returns
    -------
    list of PipelineRun
        In the order of the plans. Their baseline is the step of one process on one thread.

    Raises
    ------
    FlightError
        A process failed; says what it printed.
    NotApplicableError
        The model cannot be cut so.
    """
    if not plans or len({len(plan.kind) for plan in plans}) != 1:
        raise InputError("plans with different numbers of stages run separately", where="plans")
    require_stages(plans[0])
    splits = [stage_of_modules(job, plan) for plan in plans]
    table = plan_schedule(plans[0], job.num_microbatches, schedule) if isinstance(schedule, str) else schedule
    cut = _stage_cut(job, plans[0], table)
    conditions, flown = _measure(
        job.workload, job.parameters, splits, table, job.message_bytes, rounds, time_limit_s, progress, recomputes, cut
    )
    baseline_ns = whole_ns(job, conditions)
    runs = []
    for number, plan in enumerate(plans):
        split_ns = flown.split_ns[number]
        known_ns = predict_duration_ns(job, plan, conditions, table, recomputes=recomputes)
        runs.append(
            PipelineRun(
                plan, baseline_ns, known_ns, estimate_median(flown.step_ns), estimate_median(split_ns),
                estimate_speedup(flown.step_ns, split_ns), conditions.slowdown, len(split_ns),
            )
        )  # fmt: skip
    return runs


def _measure(
    workload: str,
    parameters: Mapping[str, Any],
    splits: Sequence[dict[str, int]],
    table: Schedule,
    message_bytes: tuple[int, int],
    rounds: int,
    time_limit_s: float,
    progress: Progress | None,
    recomputes: bool = False,
    cut: Cut | None = None,
    num_replicas: int = 1,
) -> tuple[HostConditions, _Flown]:
    from windtunnel.systems.pipelines.training.rank import Orders

    orders = Orders(
        workload,
        home_of(workload),
        dict(parameters),
        tuple(splits),
        table,
        message_bytes,
        rounds,
        time_limit_s,
        recomputes,
        {} if cut is None else cut.stage_of,
        num_replicas,
    )
    with pipeline_workers("windtunnel.systems.pipelines.training.rank", orders, orders.num_ranks) as ranks:
        flown = _sort_spans(ranks.gather(None if progress is None else lambda update: progress(*update)))
    return flown.conditions(table, 0.0 if cut is None else cut.first_ratio), flown


def _sort_spans(spans: Sequence[Sequence[Span]]) -> _Flown:
    """Sort spans by item: from the first start to the last end; of parallel processes, each span separately."""
    from windtunnel.systems.pipelines.training.rank import NUM_EXCHANGES

    flown = _Flown()
    for same in zip(*spans, strict=True):
        if same[0].round == 0:
            continue
        item: Item = same[0].item
        taken_ns = max(entry.end_ns for entry in same) - min(entry.begin_ns for entry in same)
        if item.what == "step":
            flown.step_ns.append(same[0].end_ns - same[0].begin_ns)
        elif item.what == "split":
            flown.split_ns.setdefault(item.number, []).append(taken_ns)
        elif item.what in ("parts", "copy"):
            times = flown.parts_ns if item.what == "parts" else flown.copy_ns
            times.setdefault(item.number, []).append(same[0].end_ns - same[0].begin_ns)
        elif item.what == "idle":
            flown.idle_ns.append([float(entry.compute_ns) for entry in same])
        elif item.what == "message":
            both_ns = max(entry.end_ns for entry in same[:2]) - min(entry.begin_ns for entry in same[:2])
            flown.message_ns.setdefault(item.number, []).append(both_ns / 2 / NUM_EXCHANGES)
        else:
            parallel_ns = [float(entry.end_ns - entry.begin_ns) for entry in same[: item.number]]
            flown.beside_ns.setdefault(item.number, []).append(parallel_ns)
    return flown
