"""Chips for cheaper layers as pages: one that skips zeros, and an engine for circulant blocks.

In: layers on a chip that skips zeros, designs of an engine. Out: a page each. Not here: simulating, searching.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.reports.charts import WIDTH, _svg, _text, escape
from windtunnel.reports.curves import Curve, curves
from windtunnel.reports.page import _page, write_text
from windtunnel.reports.sections import Section, table_html
from windtunnel.systems.chips.accelerators.sparse.shape import PHASES
from windtunnel.systems.chips.skipping import MODE_WORDS, GridAnswer
from windtunnel.units import format_count

if TYPE_CHECKING:  # neither torch nor a search is needed to draw
    from windtunnel.systems.chips.circulant import CirculantAnswer

__all__ = ["circulant_page", "zeros_page"]

_PHASE_COLORS = dict(zip(PHASES, ("#0072b2", "#d55e00", "#009e73"), strict=True))
_PHASE_LABELS = dict(zip(PHASES, ("forward", "gradients of inputs", "gradients of weights"), strict=True))


def zeros_page(answers: Sequence[GridAnswer], program: str, path: str | Path, *, overwrite: bool = False) -> Path:
    """Cycles of each layer by what the chip skips, stacked by pass; and how that changes while a network trains.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    last = answers[-1]
    title = (
        f"The backward pass takes {last.speedup('in+out+wr', ('backward',)):.2f} times fewer cycles, "
        f"the whole iteration {last.speedup('in+out+wr'):.2f} times fewer"
    )
    sections = [Section("layers", "Layers", title, _draw_stacked_bars(last))]
    if len(answers) > 1:
        lines = [
            Curve(label, [(answer.iteration, answer.speedup(mode, phases)) for answer in answers])
            for mode, phases, label in (
                ("in", ("backward",), "backward, zero operands"),
                ("out", ("backward",), "backward, masked gradients"),
                ("in+out+wr", ("backward",), "backward, both, work shared"),
                ("in+out+wr", PHASES, "whole iteration, both"),
            )
        ]
        drawing = curves(lines, "speed-up by iteration", x_label="iteration", y_label="times as fast", is_log=False)
        sections.append(Section("iterations", "Iterations", "What there is to skip changes while it trains", drawing))
    return _write_page(f"{program} on {last.chip}", sections, path, overwrite=overwrite)


def _draw_stacked_bars(answer: GridAnswer) -> str:
    """A row of a layer for each mode; all share one axis of cycles."""
    left, row = 330.0, 15.0
    most = max(item.total(mode) for item in answer.layers for mode in MODE_WORDS) or 1.0
    body, y = [], 24.0
    for index, phase in enumerate(PHASES):
        x = left + 180.0 * index
        body.append(f'<rect x="{x:.0f}" y="2" width="11" height="11" fill="{_PHASE_COLORS[phase]}"/>')
        body.append(_text(x + 17, 12, _PHASE_LABELS[phase]))
    for layer in answer.layers:
        body.append(_text(0, y + 11, layer.name, limit=24))
        for mode, label in MODE_WORDS.items():
            x = left
            body.append(_text(left - 8, y + 11, label, anchor="end", style=' class="soft"'))
            for phase in PHASES:
                cycles = float(layer.total(mode, (phase,)))
                width = (WIDTH - left - 90) * cycles / most
                body.append(
                    f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="11" fill="{_PHASE_COLORS[phase]}">'
                    f"<title>{escape(layer.name)}, {_PHASE_LABELS[phase]}: {cycles:,.0f} cycles</title></rect>"
                )
                x += width
            body.append(_text(x + 6, y + 10, format_count(round(layer.total(mode))), style=' class="soft"'))
            y += row
        y += 8
    note = "<p>Cycles of one iteration, as simulated from the masks of a real training.</p>"
    return _svg(y, "".join(body), "cycles of each layer by what is skipped") + note


def circulant_page(answer: CirculantAnswer, chip: str, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a page of speed against accuracy, with the designs.

    Raises
    ------
    InputError
        The file is there already and ``overwrite`` is False.
    """
    points = sorted((item.lost_points, answer.dense_cycles / item.cycles) for item in answer.front)
    line = Curve("designs that nothing beats", points)
    drawing = curves([line], "speed-up over lost accuracy", x_label="accuracy lost, points",
                     y_label="times fewer cycles than dense", is_log=False)  # fmt: skip
    best = max(points, key=lambda point: point[1])
    title = f"{best[1]:.1f} times fewer cycles at {best[0]:.2f} points less"
    sections = [
        Section("front", "Front", title, drawing),
        Section("designs", "Designs", "Blocks and engines that nothing beats", table_html(answer.table())),
    ]
    return _write_page(f"Circulant blocks on {chip}", sections, path, overwrite=overwrite)


def _write_page(title: str, sections: Sequence[Section], path: str | Path, *, overwrite: bool) -> Path:
    return write_text(Path(path), _page(title, f"<h1>{escape(title)}</h1>", sections), overwrite=overwrite)
