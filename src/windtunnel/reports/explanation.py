"""Say in plain words where the time of an iteration goes.

In: a graph. Out: an ``Explanation``: time per iteration, its parts by phase, kind, layer and operator, the critical
path, the longest tasks, what measuring cost and what stays unexplained. Not here: prediction, drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from windtunnel.base.documents import json_text
from windtunnel.errors import InputError
from windtunnel.graph import Graph, Kind, Phase, Strings
from windtunnel.reports.bystanders import without_bystanders
from windtunnel.reports.colors import KIND_LABELS, PHASE_LABELS
from windtunnel.reports.device_use import device_lines
from windtunnel.reports.irregular import Irregular, irregular_lines, irregular_parts
from windtunnel.reports.losses import loss_lines
from windtunnel.reports.notes import communication_line, loading_lines, notes_of, profiler_lines
from windtunnel.reports.packing import shorten
from windtunnel.reports.plots import plot_explanation
from windtunnel.reports.waits import RankWait, rank_waits, wait_lines
from windtunnel.simulate import Timeline, replay, with_waits_for_data
from windtunnel.simulate.breakdown import communication_ns
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.units import format_count, format_duration, format_ratio, format_spread
from windtunnel.whatifs.device_use import DeviceUse, find_device_use
from windtunnel.whatifs.losses import Loss, find_losses
from windtunnel.whatifs.placing import overlap_steps
from windtunnel.whatifs.speed import Speed, speed_of_measurement

__all__ = ["Explanation", "LongTask", "Share", "explain", "integer_percentages"]

# T tasks, P tasks of the critical path
SCHEMA = "windtunnel.explanation/1"
NUM_LONGEST = 12
_MUCH = 0.3  # of the iteration, from which a part is called the bottleneck


@dataclass(frozen=True, slots=True)
class Share:
    """One part of the iteration: its time on the critical path, and how many tasks there make it up."""

    label: str
    duration_ns: float
    ratio: float
    num_tasks: int


@dataclass(frozen=True, slots=True)
class LongTask:
    """One task of the critical path."""

    name: str
    layer: str
    phase: str
    duration_ns: int
    wait_ns: int
    wait: str


@dataclass(frozen=True)
class Explanation:
    """Where the time of one iteration goes, all parts measured along the critical path, so that they sum to it.

    Attributes
    ----------
    replayed_ns : float
        Makespan over iterations.
    measured : mapping
        The unprofiled iteration: ``median``, ``low``, ``high``, ``samples``; empty if the source knows none.
    phases, kinds : tuple of Share
        Each sums to the iteration; what no task accounts for is ``idle``.
    layers, ops, lines, sources : tuple of Share
        Largest first. A line is the one of the program that calls an operator (of a backward operator, its forward);
        a source is the cost model that set a task's time.
    longest : tuple of LongTask
    overhead_ratio : float or None
        How much longer an iteration is while it is measured; 0.2 is 20 % longer. Taken out of all times above.
    unexplained_ratio : float or None
        Share of the measured iteration that the replay has too much or too little.
    communication_ns, exposed_ns : float
        Of an iteration, in which a rank communicates, and computes nothing meanwhile; of the rank with the most.
    waits : tuple of RankWait
        Of many ranks: who waited for whom in collectives.
    losses : tuple of Loss
        Of many ranks, or of a trace of a device: what each cause of lost time costs.
    device : DeviceUse or None
        Of work on a device: what it waits for, what its kernels achieve, what to change first.
    irregular : tuple of Irregular
        What comes only now and then (validation, checkpoints, logging), on top of the iteration.
    """

    replayed_ns: float
    num_tasks: int
    num_critical: int
    num_iterations: int
    num_ranks: int
    measured: Mapping[str, Any]
    hardware: str
    phases: tuple[Share, ...]
    kinds: tuple[Share, ...]
    layers: tuple[Share, ...]
    ops: tuple[Share, ...]
    longest: tuple[LongTask, ...]
    overhead_ratio: float | None
    unexplained_ratio: float | None
    sources: tuple[Share, ...] = ()
    lines: tuple[Share, ...] = ()
    notes: tuple[str, ...] = ()
    waits: tuple[RankWait, ...] = ()
    losses: tuple[Loss, ...] = ()
    irregular: tuple[Irregular, ...] = ()
    speed: Speed | None = None
    communication_ns: float = 0.0
    exposed_ns: float = 0.0
    device: DeviceUse | None = None

    @cached_property
    def iteration_ns(self) -> float:
        """Time per iteration: as measured without a profiler where that is known, else as replayed."""
        return float(self.measured.get("median", self.replayed_ns))

    @cached_property
    def time_and_spread(self) -> tuple[str, str]:
        """Time per iteration with the digits that its spread deserves, and the spread (empty if unknown)."""
        low, high = self.measured.get("low"), self.measured.get("high")
        if low is None or high is None or high <= low:
            return format_duration(self.iteration_ns), ""
        return format_spread(self.iteration_ns, (high - low) / 2)

    @property
    def circumstances(self) -> str:
        """The spread, how often it was measured, and on what."""
        samples = self.measured.get("samples")
        count = len(samples) if isinstance(samples, list | tuple) else samples
        about = [self.time_and_spread[1], f"{count} iterations" if count else "as replayed", self.hardware]
        return ", ".join(part for part in about if part)

    @property
    def headline(self) -> str:
        """Time per iteration with its spread and where it was measured."""
        return f"{self.time_and_spread[0]} per iteration ({self.circumstances})"

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {line}" for line in self.details())])

    def details(self) -> list[str]:
        """The lines below the headline, without indent."""
        percent = integer_percentages([share.ratio for share in self.phases])
        shares = zip(self.phases, percent, strict=True)
        lines = [str(self.speed or ""), *device_lines(self.device), self.bottleneck]
        lines.append("   ".join(f"{share.label} {value} %" for share, value in shares if value))
        lines.append(self._path_line())
        if self.overhead_ratio is not None and self.overhead_ratio > 0:
            lines.append(f"measuring made it {format_ratio(self.overhead_ratio)} longer, which is taken out")
        if self.unexplained_ratio is not None:
            lines.append(f"unexplained: {format_ratio(self.unexplained_ratio)} of the measured time")
        return [*(line for line in lines if line), *loss_lines(self.losses), *self.notes]

    @property
    def bottleneck(self) -> str:
        """What takes most of the iteration, where one part of it takes a good part; empty else."""
        largest = max(self.phases, key=lambda share: share.ratio, default=None)
        if largest is None or largest.ratio < _MUCH or largest.label == "other":
            return ""
        what = "nothing runs on the critical path" if largest.label == "idle" else f"the {largest.label} phase"
        percent = integer_percentages([share.ratio for share in self.phases])[self.phases.index(largest)]
        return f"bottleneck: {what}, {percent} % of the iteration"

    def _path_line(self) -> str:
        line = f"critical path: {format_count(self.num_critical)} of {format_count(self.num_tasks)} tasks"
        if not self.longest:
            return line
        first = self.longest[0]
        named = " ".join(part for part in (shorten(first.layer, 30), shorten(first.name, 30)) if part)
        return f"{line}; longest: {named} {format_duration(first.duration_ns)}"

    def table(self) -> pa.Table:
        """One row per part: which division it belongs to, its label, time, share and tasks."""
        rows = [{"by": by, **asdict(share)} for by, shares in self._divisions.items() for share in shares]
        columns = ("by", "label", "duration_ns", "ratio", "num_tasks")
        return pa.table({column: [row[column] for row in rows] for column in columns})

    def parts(self, by: str, depth: int = 0) -> list[tuple[str, float, float, int]]:
        """Label, time, share and number of tasks of every part: by a column above, or by (the longest) task.

        ``depth`` adds up layers that share this many leading parts of their path; 0 lists every layer.

        Raises
        ------
        InputError
            There is no such division.
        """
        if by == "task":
            whole = self.replayed_ns * self.num_iterations or 1.0
            return [(task.name, float(task.duration_ns), task.duration_ns / whole, 1) for task in self.longest]
        if by not in self._divisions:
            raise InputError(f"time cannot be divided by {by!r}", fix=f"use one of {', '.join(self._divisions)}, task")
        shares = self._divisions[by]
        if depth and by == "layer":
            shares = roll_up(shares, depth)
        return [(share.label, share.duration_ns, share.ratio, share.num_tasks) for share in shares]

    @property
    def _divisions(self) -> dict[str, tuple[Share, ...]]:
        parts = {"phase": self.phases, "kind": self.kinds, "layer": self.layers, "op": self.ops}
        return parts | {"line": self.lines, "source": self.sources}

    def plot(self) -> Any:
        """A matplotlib figure of the shares by phase; it is returned, not shown."""
        return plot_explanation(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values with raw units."""
        document = {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__ if name != "speed"}
        document["speed"] = None if self.speed is None else self.speed.json()
        return {"schema": SCHEMA, "iteration_ns": self.iteration_ns, **document}

    def json(self) -> str:
        """One JSON document with raw units."""
        return json_text(self.to_dict())


def explain(graph: Graph, timeline: Timeline | None = None) -> Explanation:
    """Explain where the time of an iteration goes.

    Parameters
    ----------
    graph : Graph
    timeline : Timeline
        Its replay, if there is one already.

    Returns
    -------
    Explanation
        Prints as a few plain lines; ``.table()`` and ``.json()`` hold all parts.

    Examples
    --------
    >>> from windtunnel.graph import GraphBuilder, Phase, ResourceKind
    >>> builder = GraphBuilder()
    >>> cpu = builder.resource("cpu", ResourceKind.HOST_THREAD)
    >>> _ = builder.task("matmul", duration_ns=750, resource=cpu, phase=Phase.FORWARD)
    >>> _ = builder.task("add", duration_ns=250, resource=cpu, phase=Phase.UPDATE)
    >>> print(explain(builder.build()))
    1.00 µs per iteration (as replayed)
      bottleneck: the forward phase, 75 % of the iteration
      forward 75 %   update 25 %
      critical path: 2 of 2 tasks; longest: matmul 750 ns
    """
    steps = overlap_steps(graph)
    timeline = replay(steps) if timeline is None or steps is not graph else timeline
    graph = steps
    timeline, left_out = without_bystanders(graph, timeline)
    timeline = with_waits_for_data(timeline)
    explained = timeline.graph
    iterations = max(1, graph.num_iterations)
    replayed_ns = iteration_ns(timeline, iterations)
    measured = graph.meta.iteration_ns
    measured = dict(measured) if isinstance(measured, Mapping) and measured.get("median") else {}
    kinds = _by_enum(timeline, "kind", KIND_LABELS)
    communication = communication_ns(explained, timeline.start_ns, timeline.finish_ns)
    sent_ns, exposed_ns = (float(spent_ns) / iterations for spent_ns in communication)
    host_ratio = sum(share.ratio for share in kinds if share.label == KIND_LABELS[Kind.HOST])
    return Explanation(
        replayed_ns=replayed_ns,
        speed=speed_of_measurement(graph, float(measured.get("median", replayed_ns))),
        num_tasks=graph.num_tasks,
        num_critical=len(timeline.critical_path()),
        num_iterations=iterations,
        num_ranks=graph.num_ranks,
        measured=measured,
        hardware=_hardware(graph.meta.hardware),
        phases=_by_enum(timeline, "phase", PHASE_LABELS),
        kinds=kinds,
        layers=_by_text(timeline, "layer"),
        ops=_by_text(timeline, "op" if "op" in graph.tasks else "name"),
        longest=_longest(explained, timeline),
        sources=_by_text(timeline, "cost_source"),
        lines=_by_text(timeline, "line"),
        overhead_ratio=_overhead(graph, measured),
        unexplained_ratio=abs(replayed_ns / measured["median"] - 1) if measured else None,
        notes=(
            *irregular_lines(graph, float(measured.get("median", replayed_ns))),
            *communication_line(sent_ns, exposed_ns),
            *loading_lines(timeline),
            *notes_of(graph, left_out),
            *profiler_lines(graph, host_ratio),
            *wait_lines(timeline),
        ),
        waits=rank_waits(timeline),
        irregular=irregular_parts(graph),
        communication_ns=sent_ns,
        exposed_ns=exposed_ns,
        device=find_device_use(explained, timeline),
        losses=find_losses(explained, timeline) if graph.num_ranks > 1 or "start_cause" in graph.tasks else (),
    )


def roll_up(shares: Sequence[Share], depth: int) -> tuple[Share, ...]:
    """Layers added up by the first ``depth`` parts of their paths, largest first.

    Examples
    --------
    >>> [share.label for share in roll_up([Share("h.0.attn", 1, 0.1, 1), Share("h.1", 5, 0.5, 1)], 1)]
    ['h']
    """
    result: dict[str, Share] = {}
    for share in shares:
        label = ".".join(share.label.split(".")[:depth])
        sums = result.get(label, Share(label, 0.0, 0.0, 0))
        result[label] = Share(
            label, sums.duration_ns + share.duration_ns, sums.ratio + share.ratio, sums.num_tasks + share.num_tasks
        )
    return tuple(sorted(result.values(), key=lambda share: -share.duration_ns))


def integer_percentages(ratios: list[float]) -> list[int]:
    """Whole percentages that sum to what the ratios sum to (largest remainder).

    Examples
    --------
    >>> integer_percentages([1 / 3, 1 / 3, 1 / 3])
    [34, 33, 33]
    """
    exact = 100 * np.asarray(ratios, dtype=np.float64)
    floors = np.floor(exact).astype(int)
    missing = round(float(exact.sum())) - int(floors.sum())
    order = np.argsort(-(exact - floors), kind="stable")
    floors[order[:missing]] += 1
    return [int(value) for value in floors]


def _by_enum(timeline: Timeline, column: str, labels: Mapping[Any, str]) -> tuple[Share, ...]:
    """Shares by an enumerated column, in its order; all waits together are idle."""
    if column in timeline.graph.tasks:
        result = {share.label: share for share in _shares(timeline, column, is_wait=False)}
    else:
        whole = _shares(timeline, "kind", is_wait=False)
        sums = [sum(share.duration_ns for share in whole), sum(share.ratio for share in whole)]
        result = {"other": Share("other", sums[0], sums[1], sum(share.num_tasks for share in whole))}
    shares = [
        replace(result[code.name.lower()], label=label) for code, label in labels.items() if code.name.lower() in result
    ]
    waits = _shares(timeline, "kind", is_wait=True)
    if waits:
        shares.append(Share("idle", sum(w.duration_ns for w in waits), sum(w.ratio for w in waits), 0))
    return tuple(shares)


def _by_text(timeline: Timeline, column: str) -> tuple[Share, ...]:
    """Shares by a text column, largest first; tasks without a text are left out."""
    if column not in timeline.graph.tasks:
        return ()
    return tuple(share for share in _shares(timeline, column, is_wait=False) if share.label)


def _shares(timeline: Timeline, column: str, *, is_wait: bool) -> list[Share]:
    """Rows of the breakdown, per iteration."""
    iterations = max(1, timeline.graph.num_iterations)
    return [
        Share(row["label"], row["duration_ns"] / iterations, row["share"], row["num_tasks"])
        for row in timeline.breakdown(column).to_pylist()
        if row["is_wait"] == is_wait
    ]


def _longest(graph: Graph, timeline: Timeline) -> tuple[LongTask, ...]:
    path = timeline.critical_path()
    labels = path.wait_labels()
    order = np.argsort(-path.duration_ns, kind="stable")[:NUM_LONGEST]
    return tuple(
        LongTask(
            name=_text(graph, "name", int(path.task[index])),
            layer=_text(graph, "layer", int(path.task[index])),
            phase=_phase(graph, int(path.task[index])),
            duration_ns=int(path.duration_ns[index]),
            wait_ns=int(path.wait_ns[index]),
            wait=labels[index],
        )
        for index in order.tolist()
    )


def _text(graph: Graph, column: str, row: int) -> str:
    strings = graph.tasks.get(column)
    return strings.decode(row) if isinstance(strings, Strings) else ""


def _phase(graph: Graph, row: int) -> str:
    phases = graph.tasks.get("phase")
    return "" if phases is None else PHASE_LABELS[Phase(int(phases[row]))]


def _hardware(hardware: Any) -> str:
    """What it ran on, in a few words."""
    if not isinstance(hardware, Mapping):
        return str(hardware or "")
    name = hardware.get("processor") or hardware.get("device") or hardware.get("machine") or ""
    threads = hardware.get("num_threads")
    name = str(name).replace("(R)", "").replace("(TM)", "").strip()
    return f"{name}, {threads} threads".lstrip(", ") if threads else name


def _overhead(graph: Graph, measured: Mapping[str, Any]) -> float | None:
    profiled = graph.meta.profiled_iteration_ns
    if not measured or not isinstance(profiled, Mapping) or not profiled.get("median"):
        return None
    return float(profiled["median"]) / float(measured["median"]) - 1


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return dict(value) if isinstance(value, Mapping) else value
