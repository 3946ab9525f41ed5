"""Pictures for files and notebooks: the report's charts as matplotlib figures.

In: an explanation. Out: a figure, never shown. matplotlib is an extra and is imported when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.reports.colors import IDLE, PHASE_COLORS, PHASE_LABELS
from windtunnel.units import format_ratio

if TYPE_CHECKING:
    from windtunnel.reports.explanation import Explanation

__all__ = ["plot_explanation"]

_COLORS = {PHASE_LABELS[phase]: color for phase, color in PHASE_COLORS.items()}


def plot_explanation(explanation: Explanation) -> Any:
    """Draw the shares of the iteration by phase; idle is hatched, as it has no color of its own.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.
    """
    figure = require("matplotlib.figure", extra="plot").Figure(figsize=(7.0, 2.2), layout="constrained")
    axes = figure.subplots()
    begin_ms = 0.0
    for share in explanation.phases:
        width_ms = share.duration_ns / 1e6
        is_idle = share.label == "idle"
        color, hatch = (IDLE, "///") if is_idle else (_COLORS[share.label], None)
        label = f"{share.label} {format_ratio(share.ratio)}"
        axes.barh(0, width_ms, left=begin_ms, color=color, hatch=hatch, edgecolor="white", label=label)
        begin_ms += width_ms
    axes.set(xlabel="time of one iteration, ms", yticks=[], xlim=(0, begin_ms or 1.0), title=explanation.headline)
    axes.spines[["left", "right", "top"]].set_visible(False)
    if explanation.phases:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.5), ncols=len(explanation.phases), frameon=False)
    return figure
