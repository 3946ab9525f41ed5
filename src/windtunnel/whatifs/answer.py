"""What a what-if would buy.

In: the replay before and the graph after. Out: ``Answer``: one useful line, a table, JSON. Memory and the sources of
prices are read from the replay after, when they are asked for. Intervals are attached by those who have receipts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from windtunnel.base.documents import json_text
from windtunnel.graph import Graph, Strings
from windtunnel.measure.disturbance import disturbance_log_error
from windtunnel.simulate import Timeline, replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.simulate.limits import Limits, find_peak_violation
from windtunnel.units import format_duration, format_size
from windtunnel.whatifs.peak_memory import (
    capacity_of,
    change_peak,
    peak_of_capture,
    peak_of_replay,
    predict_peak_bytes,
)
from windtunnel.whatifs.reach import Z90, price_log_error, step_log_error, variation_of
from windtunnel.whatifs.request import Request

__all__ = ["SCHEMA", "Answer", "Interval", "Status", "table_of"]

SCHEMA = "windtunnel.answer/1"
UNKNOWN = "unknown"
_DERIVED = (
    "graph",
    "timeline",
    "baseline_ns",
    "baseline_peak_bytes",
    "_peak_bytes",
    "peak_violation",
    "cost_shares",
    "variation",
    "reach",
)
WAITS = "waits"
_MIN_REACH = 0.005  # an interval of less would be printed without width
_OF_MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median, in standard deviations over the root of the count


class Status(StrEnum):
    """What came of a question."""

    PREDICTED = "predicted"
    NOT_APPLICABLE = "not applicable"
    IN_EFFECT = "already in effect"
    IMPLAUSIBLE = "implausible"


class Interval(Protocol):
    """What past flights say about a predicted speed-up."""

    @property
    def low(self) -> float:
        """Lower end of the speed-up."""

    @property
    def high(self) -> float:
        """Upper end of the speed-up."""

    @property
    def confidence(self) -> float:
        """Share of truths that such intervals hold."""

    @property
    def num_receipts(self) -> int:
        """How many flights it rests on; 0 if none backs the number."""

    @property
    def scope(self) -> str:
        """Of what those flights were: ``"job"``: of this very one; ``"shipped"``: most come with the package."""

    @property
    def correction(self) -> float:
        """Measured over predicted speed-up of flights of this very job and change; 1 where there were none."""


@dataclass(frozen=True, eq=False)
class Answer:
    """One predicted change. Times are of one iteration, in ns.

    Attributes
    ----------
    request : Request
        What was asked.
    baseline : Timeline
        The replay before.
    predicted_ns : float
        NaN where the change does not apply.
    samples_ratio : float
        Samples that an iteration trains on, after over before.
    reason : str
        Why nothing is predicted; empty where something is.
    status : Status
        Whether it is predicted, has nothing to act on, is in effect already, or breaks a physical limit.
    advice : str
        What would make it apply.
    reverse : str
        The request that undoes what is in effect already.
    limits : Limits, optional
        What physics allows; None where nothing is predicted, or the what-if states nothing.
    interval : Interval or None
        Attached by those who have receipts.
    correction : float
        Measured over predicted speed-up where this very job and change were flown before; ``predicted_ns`` and
        ``speedup`` then are the measured ones, and ``graph_speedup`` the predicted one.
    price_spread_ratio, price_waited_ratio : float
        How far what was measured for it varied, and how much of that time others took, as ``Meta`` has them.
    remake : callable, optional
        Makes the changed graph again where it was too large to keep.
    """

    request: Request
    baseline: Timeline = field(repr=False)
    predicted_ns: float = float("nan")
    samples_ratio: float = 1.0
    reason: str = ""
    advice: str = ""
    status: Status = Status.PREDICTED
    reverse: str = ""
    limits: Limits | None = field(default=None, repr=False)
    interval: Interval | None = None
    correction: float = 1.0
    price_spread_ratio: float = 0.0
    price_waited_ratio: float = 0.0
    remake: Callable[[], Graph] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Names of its what-ifs, joined by ``+``."""
        return "+".join(step.name for step in self.request.steps)

    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:
        """Parameters that were given, by what-if."""
        return {step.name: dict(step.parameters) for step in self.request.steps}

    @property
    def given(self) -> Mapping[str, Any]:
        """The same as a receipt keeps them: of a combination, behind the what-if's name."""
        if len(self.parameters) == 1:
            return dict(next(iter(self.parameters.values())))
        return {f"{name}.{key}": value for name, given in self.parameters.items() for key, value in given.items()}

    @property
    def used(self) -> Mapping[str, Mapping[str, Any]]:
        """All parameters by what-if, those that were given and the defaults of the others; unset ones are left out."""
        return {step.name: step.used for step in self.request.steps}

    @property
    def is_applicable(self) -> bool:
        """Whether the change has something to act on, so that there is a prediction."""
        return self.status is Status.PREDICTED

    @cached_property
    def baseline_ns(self) -> float:
        """The replayed iteration before."""
        return iteration_ns(self.baseline, self.baseline.graph.num_iterations)

    @property
    def speedup(self) -> float:
        """Time per sample before over after: above 1 is faster."""
        if not self.is_applicable:
            return float("nan")
        return self.samples_ratio * self.baseline_ns / self.predicted_ns if self.predicted_ns > 0 else float("inf")

    @cached_property
    def reach(self) -> float:
        """How far iterations and prices alone let the speed-up be off, as a logarithm, at 90 %.

        From how well the captured iterations, which vary, tell the usual one, and what becomes of the iteration if all
        that was priced for this change takes as much longer, or shorter, as prices varied between rounds; where other
        programs ran meanwhile, also what these may have done to one side of the comparison; of a step that was never
        run, how far predictions of such steps were off. These have different causes, so they add up as independent
        errors do.
        """
        before = self.baseline.graph
        varied = self.variation * min(1.0, _OF_MEDIAN / math.sqrt(max(1, before.num_iterations)))
        # only where prices varied: a large graph has to be made again
        prices = price_log_error(self.baseline, self.graph) if self.price_spread_ratio and self.is_applicable else 0.0
        others = disturbance_log_error(self.lost_ratio)
        return math.hypot(Z90 * varied, prices, others, step_log_error(before))

    @property
    def lost_ratio(self) -> float:
        """Share of the time that others took while the step was captured or changes were priced, the larger."""
        return max(self.price_waited_ratio, float(self.baseline.graph.meta.disturbance.get("lost_ratio", 0.0)))

    @cached_property
    def variation(self) -> float:
        """How far the speed-up varies from one captured iteration to the next: interquartile range of its logarithm."""
        return variation_of(self.baseline, lambda: self.graph) if self.is_applicable else 0.0

    @property
    def span(self) -> tuple[float, float] | None:
        """Ends of the 90 % interval of the speed-up; None where nothing says how sure it is.

        Of past flights, and never narrower than what was measured for this prediction (``reach``). Flights of this
        very job need no prediction: their interval is theirs alone.
        """
        if not self.is_applicable:
            return None
        interval, reach = self.interval, self.reach
        if interval is None or not interval.num_receipts:
            # Of a step that was not captured, what hardly moves with the prices that have intervals rests on others.
            is_known = reach >= _MIN_REACH if self.baseline.graph.meta.priced_for else reach > 0
            return (self.speedup * math.exp(-reach), self.speedup * math.exp(reach)) if is_known else None
        if self.is_flown:
            return interval.low, interval.high
        low, high = self.speedup * math.exp(-reach), self.speedup * math.exp(reach)
        return min(interval.low, low), max(interval.high, high)

    @property
    def is_flown(self) -> bool:
        """Whether this very job and change were flown before, so that ``speedup`` is a measured one."""
        return self.interval is not None and self.interval.scope == "job"

    @property
    def graph_speedup(self) -> float:
        """What the graph and its prices alone say, without what was flown."""
        return self.speedup / self.correction

    @cached_property
    def graph(self) -> Graph:
        """The graph after the change; the one before where it does not apply.

        Made again where it was too large to keep.
        """
        return self.remake() if self.remake is not None and self.is_applicable else self.baseline.graph

    @cached_property
    def timeline(self) -> Timeline:
        """The replay after the change; the one before where it does not apply."""
        return replay(self.graph, like=self.baseline) if self.is_applicable else self.baseline

    def keeping(self, graph: Graph, timeline: Timeline | None = None) -> Answer:
        """The same answer, which need not make these again."""
        self.__dict__.update({"graph": graph} if timeline is None else {"graph": graph, "timeline": timeline})
        return self

    def with_flight_interval(self, interval: Interval) -> Answer:
        """This answer with an interval from past flights; those of this very job and change replace its value."""
        return self._with_interval(interval, self.correction * interval.correction)

    def without_interval(self) -> Answer:
        """The prediction of the graph and its prices alone, without corrections from past flights."""
        return self if self.interval is None else self._with_interval(None, 1.0)

    def _with_interval(self, interval: Interval | None, correction: float) -> Answer:
        predicted_ns = self.predicted_ns * self.correction / correction
        result = replace(self, interval=interval, predicted_ns=predicted_ns, correction=correction)
        result.__dict__.update({key: self.__dict__[key] for key in _DERIVED if key in self.__dict__})
        return result

    @cached_property
    def baseline_peak_bytes(self) -> int | None:
        """Largest memory in use before, as seen in a real step or replayed; None where the graph knows neither."""
        seen = peak_of_capture(self.baseline.graph)
        return peak_of_replay(self.baseline) if seen is None else seen

    @property
    def peak_bytes(self) -> int | None:
        """Largest memory in use after; None where it is not known, or where the prediction breaks a physical limit."""
        return None if self.peak_violation else self._peak_bytes

    @property
    def exceeds_memory(self) -> bool:
        """Whether the predicted peak is more than the memory of the device that the graph is priced for."""
        return (self.peak_bytes or 0) > (capacity_of(self.baseline.graph) or math.inf)

    @cached_property
    def peak_violation(self) -> str:
        """Which limit the predicted peak of memory breaks; empty where it breaks none."""
        before, after = self.baseline_peak_bytes, self._peak_bytes
        if self.limits is None or before is None or after is None:
            return ""
        return find_peak_violation(self.limits, before, after)

    @cached_property
    def _peak_bytes(self) -> int | None:
        # a graph that knew no memory before knows none after, and need not be replayed to say so
        if self.baseline_peak_bytes is None:
            return None
        reformed = predict_peak_bytes(self.graph) if self.is_applicable else None
        if reformed is not None:
            return reformed
        return change_peak(self.baseline_peak_bytes, self.baseline, self.timeline)

    @cached_property
    def cost_shares(self) -> dict[str, float]:
        """Share of the critical path by who priced it, largest first; ``waits`` are lags of edges."""
        return cost_shares(self.timeline)

    def __str__(self) -> str:
        if not self.is_applicable:
            return f"{self.request}  {self.status}: {self.reason}"
        memory = "" if self.peak_bytes is None else f", peak {format_size(self.peak_bytes)}"
        samples = "" if self.samples_ratio == 1 else f" for {self.samples_ratio:g}x the samples"
        return f"{self.request}  {self._describe_speedup()}; {format_duration(self.predicted_ns)}{samples}{memory}"

    def _describe_speedup(self) -> str:
        interval = self.interval
        ends = "" if self.span is None else "{:.2f}-{:.2f}, ".format(*self.span)
        if interval is None or not interval.num_receipts:
            return f"{self.speedup:.2f}x ({ends}no receipt backs this number)"
        span = f"{ends}{100 * interval.confidence:.0f} %"
        if self.is_flown:
            return f"{self.speedup:.2f}x ({span}, measured on this job; predicted {self.graph_speedup:.2f}x)"
        whose = " that come with windtunnel" if interval.scope == "shipped" else ""
        return f"{self.speedup:.2f}x ({span}, {interval.num_receipts} receipts{whose})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values with raw units."""
        applies = self.is_applicable
        interval = None
        if self.interval is not None and self.interval.num_receipts:
            names = ("low", "high", "confidence", "num_receipts", "scope")
            interval = {name: getattr(self.interval, name) for name in names}
        return {
            "schema": SCHEMA,
            "whatif": str(self.request),
            "name": self.name,
            "parameters": {name: dict(given) for name, given in self.parameters.items()},
            "used": {name: dict(used) for name, used in self.used.items()},
            "is_applicable": applies,
            "status": str(self.status),
            "reason": self.reason,
            "advice": self.advice,
            "reverse": self.reverse,
            "baseline_ns": self.baseline_ns,
            "predicted_ns": self.predicted_ns if applies else None,
            "samples_ratio": self.samples_ratio,
            "is_flown": self.is_flown,
            "speedup": self.speedup if applies else None,
            "graph_speedup": self.graph_speedup if applies else None,
            "baseline_peak_bytes": self.baseline_peak_bytes,
            "peak_bytes": self.peak_bytes if applies else None,
            "exceeds_memory": self.exceeds_memory,
            "cost_shares": self.cost_shares if applies else {},
            "interval": interval,
            "span": self.span,
            "waited_ratio": self.lost_ratio if applies else 0.0,
        }

    def json(self) -> str:
        """One JSON document with raw units."""
        return json_text(self.to_dict())

    def table(self) -> pa.Table:
        """One row, the columns as in :meth:`json`."""
        return table_of([self])


def table_of(answers: list[Answer]) -> pa.Table:
    """Answers as a table, one row each."""
    rows = []
    for answer in answers:
        row = answer.to_dict()
        nested = {key: json_text(row.pop(key)) for key in ("parameters", "used", "cost_shares", "interval")}
        rows.append({**row, **nested})
    return pa.Table.from_pylist(rows)


def cost_shares(timeline: Timeline) -> dict[str, float]:
    """Share of the critical path by who priced it, largest first."""
    path = timeline.critical_path()
    total = path.length_ns
    if total <= 0:
        return {}
    sources = timeline.graph.tasks.get("cost_source")
    strings = sources if isinstance(sources, Strings) else Strings.repeat(UNKNOWN, timeline.graph.num_tasks)
    by_code = np.bincount(strings.codes[path.task], weights=path.duration_ns, minlength=len(strings.values))
    shares: dict[str, float] = {WAITS: float(path.wait_ns.sum()) / total}
    for text, spent in zip(strings.values, by_code.tolist(), strict=True):
        shares[text or UNKNOWN] = shares.get(text or UNKNOWN, 0.0) + spent / total
    return {text: share for text, share in sorted(shares.items(), key=lambda item: (-item[1], item[0])) if share > 0}
