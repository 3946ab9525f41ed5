"""What a training does only now and then, in words: validation, checkpoints, logging.

In: ``meta.irregular`` of a capture and the time of its step. Out: a line for each kind, with its average cost. Not
here: seeing and timing it (``sources.torch``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windtunnel.graph import Graph
from windtunnel.units import format_count, format_duration, format_ratio

__all__ = ["Irregular", "irregular_lines", "irregular_parts"]

_WORTH_SAYING = 0.001  # of the step, on average


@dataclass(frozen=True, slots=True)
class Irregular:
    """One kind of work that is not part of every iteration.

    Attributes
    ----------
    kind : str
    cost_ns : int
        Each time.
    every : int or None
        Iterations from one to the next; None where it was seen once, and its average is not known.
    per_iteration_ns : float or None
        On average.
    per_epoch_ns : float or None
        Where the length of an epoch is known.
    """

    kind: str
    cost_ns: int
    every: int | None
    per_iteration_ns: float | None
    per_epoch_ns: float | None


def irregular_parts(graph: Graph) -> tuple[Irregular, ...]:
    """What was seen while the graph was captured."""
    irregular = graph.meta.irregular
    epoch = irregular.get("iterations_per_epoch")
    return tuple(_part(event, epoch) for event in irregular.get("events", ()))


def _part(event: Mapping[str, Any], epoch: int | None) -> Irregular:
    cost_ns, every = int(event["cost_ns"]), event.get("every")
    if event["kind"] == "end of epoch" and epoch:
        every = epoch
    per_iteration_ns = cost_ns / every if every else None
    per_epoch_ns = per_iteration_ns * epoch if per_iteration_ns is not None and epoch else None
    return Irregular(str(event["kind"]), cost_ns, every, per_iteration_ns, per_epoch_ns)


def irregular_lines(graph: Graph, iteration_ns: float) -> tuple[str, ...]:
    """A line for each kind that costs something worth a line, and what all add to a step."""
    parts = irregular_parts(graph)
    num_iterations = int(graph.meta.irregular.get("num_iterations", 0))
    epoch = graph.meta.irregular.get("iterations_per_epoch")
    lines, added_ns = [], 0.0
    for part in parts:
        if part.per_iteration_ns is None:
            seen = f"seen once in {format_count(num_iterations)} iterations"
            lines.append(f"{part.kind}: {format_duration(part.cost_ns)}, {seen}")
            continue
        if part.per_iteration_ns < _WORTH_SAYING * iteration_ns:
            continue
        added_ns += part.per_iteration_ns
        line = f"{part.kind}: {format_duration(part.cost_ns)} every {format_count(part.every or 0)} iterations, "
        line += f"{format_duration(part.per_iteration_ns)} per iteration on average"
        if part.per_epoch_ns is not None:
            line += f", {format_duration(part.per_epoch_ns)} per epoch of {format_count(epoch or 0)}"
        lines.append(line)
    if added_ns and iteration_ns:
        lines.append(
            f"this comes on top of the iteration above and makes a run {format_ratio(added_ns / iteration_ns)} longer"
        )
    return tuple(lines)
