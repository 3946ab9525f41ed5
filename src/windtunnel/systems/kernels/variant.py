"""Winners of searches as variants of a captured step's operators.

In: a graph, what searches came to. Out: the graph with the operators that those kernels compute as much faster as was
measured, each task with its evidence; what the step gains by each alone, with the interval of the measurement. Not
here: searching, and measuring.

The step's own operator is taken to be what the search began with: how much faster a kernel became is what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.measure.stats import Estimate
from windtunnel.simulate import Timeline, replay_many
from windtunnel.systems.kernels.rank import kernel_for, operators_of
from windtunnel.whatifs.faster import faster_operator, operator_work

__all__ = ["Placed", "gain_text", "place_winners"]


@dataclass(frozen=True)
class Placed:
    """One winner in a step.

    Attributes
    ----------
    kernel : str
    operator : str
    measured : Estimate
        Of the kernel: the original's time over that of the winner.
    label : str
        What its edits rest on.
    step : Estimate
        Of the iteration, by this winner alone.
    """

    kernel: str
    operator: str
    measured: Estimate
    label: str
    step: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def gain_text(gain: Estimate) -> str:
    """A gain and its interval.

    Examples
    --------
    >>> gain_text(Estimate(1.25, 1.2, 1.3))
    '1.250x (1.200-1.300)'
    """
    return f"{gain.value:.3f}x ({gain.low:.3f}-{gain.high:.3f})"


def place_winners(
    timeline: Timeline, winners: Sequence[Mapping[str, Any]], operator: str = ""
) -> tuple[Graph, list[Placed]]:
    """Put winners where they are computed, the one by which the step gains the most first.

    Parameters
    ----------
    timeline : Timeline
        A replay of a captured step.
    winners : sequence of mapping
        What ``kernels.evolving.read_result`` gives.
    operator : str
        Of the one winner that there is; by default those that its kernel is known to compute.

    Raises
    ------
    InputError
        Two winners for one operator, an operator for several winners, or the step has none of it.
    NotApplicableError
        A search found nothing, it is not known which operator its kernel computes, or the graph knows no operators.
    """
    if operator and len(winners) != 1:
        raise InputError("one operator is one kernel's", where="--operator", fix="place one search, or leave it out")
    graph = changed = timeline.graph
    placed: list[Placed] = []
    for winner in winners:
        kernel, edits = str(winner["kernel"]), winner["edits"]
        if not edits:
            raise NotApplicableError(
                f"the search for {kernel} found nothing that is surely faster", fix="leave it out, or search longer"
            )
        result = operator or _operator_of(graph, kernel)
        if result in (entry.operator for entry in placed):
            raise InputError(f"two kernels compute {result}", where=kernel, fix="place one of them")
        measured = Estimate(*(float(winner[name]) for name in ("speedup", "speedup_low", "speedup_high")))
        factors = (measured.value, measured.low, measured.high)
        tries = [faster_operator(graph, re.escape(result), factor).duration_ns for factor in factors]
        ends_ns = replay_many(graph, np.stack(tries), like=timeline).makespan_ns
        gains = [timeline.makespan_ns / int(end_ns) for end_ns in ends_ns]
        placed.append(Placed(kernel, result, measured, str(winner["label"]), Estimate(*gains)))
    for item in placed:
        evidence = f"evolved {item.kernel}, measured {gain_text(item.measured)}, {item.label}"
        changed = faster_operator(changed, re.escape(item.operator), item.measured.value, evidence)
    return changed, sorted(placed, key=lambda entry: -entry.step.value)


def _operator_of(graph: Graph, kernel: str) -> str:
    """The operator of a step that a kernel of ours computes, the longest of several."""
    names, _, own_ns = operator_work(graph)
    known = [code for code, name in enumerate(names.values) if own_ns[code] > 0 and kernel_for(name) == kernel]
    if not known and (computed := operators_of(kernel)):
        raise NotApplicableError(
            f"this step has no operator that {kernel} computes",
            where=", ".join(computed),
            fix="leave it out, or place it in another step",
        )
    if not known:
        raise NotApplicableError(f"it is not known which operator {kernel} computes", fix="name it with --operator")
    return str(names.values[max(known, key=lambda code: own_ns[code])])
