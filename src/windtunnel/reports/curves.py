"""Charts of the benchmark suite as SVG: bars with intervals, and curves over batch size.

In: numbers and labels. Out: SVG in the manner of ``charts``: axes start at zero, intervals are drawn, labels are
escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.reports.charts import WIDTH, _interval, _svg, _text, _ticks, escape

__all__ = ["Bar", "Curve", "bars", "curves"]

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#332288", "#8c939b")
_DASHES = ("", "6 3", "2 3")
_MAX_MARKS = 20


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: a value, its interval if known, and how it is written."""

    label: str
    value: float
    text: str
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: points (x, y)."""

    label: str
    points: Sequence[tuple[float, float]]


def bars(rows: Sequence[Bar], label: str, *, top: float = 0.0, show: Callable[[float], str] = "{:g}".format) -> str:
    """Values from zero, one row each; ``top`` is the least end of the axis."""
    left, row = 250.0, 26.0
    most = max([value for entry in rows for value in (entry.value, entry.high) if math.isfinite(value)] + [top])
    ticks = _ticks(most)
    bottom = row * len(rows) + 8

    def x_of(value: float) -> float:
        return left + (WIDTH - left - 120) * min(value / ticks[-1], 1.0)

    body = []
    for tick in ticks:
        body.append(f'<line class="axis" x1="{x_of(tick):.1f}" x2="{x_of(tick):.1f}" y1="4" y2="{bottom:.0f}"/>')
        body.append(_text(x_of(tick), bottom + 15, show(tick), anchor="middle", style=' class="soft"'))
    for index, item in enumerate(rows):
        y = row * index + 8
        width = max(x_of(item.value) - left, 0.5)
        body.append(_text(left - 12, y + 13, item.label, anchor="end", limit=36))
        body.append(
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="17" fill="{_COLORS[0]}">'
            f"<title>{escape(item.label)}: {escape(item.text)}</title></rect>"
        )
        body += _interval(x_of, y + 8.5, item.low, item.high, "#111827")
        end = max([x_of(value) for value in (item.value, item.high) if math.isfinite(value)])
        body.append(_text(end + 8, y + 13, item.text, style=' class="soft"'))
    return _svg(bottom + 22, "".join(body), label)


def curves(lines: Sequence[Curve], label: str, *, x_label: str, y_label: str, is_log: bool = True) -> str:
    """Lines over an x axis, logarithmic or not, whose marks are the points' own places; y starts at zero."""
    left, right, top, height = 76.0, 250.0, 20.0, 260.0
    xs = sorted({x for line in lines for x, _ in line.points})
    ticks = _ticks(max([y for line in lines for _, y in line.points] + [1e-9]))
    scale: Callable[[float], float] = math.log if is_log else float
    low, high = scale(xs[0]), scale(xs[-1])

    def point(x: float, y: float) -> tuple[float, float]:
        across = (scale(x) - low) / ((high - low) or 1.0)
        return left + (WIDTH - left - right) * across, top + height * (1 - y / ticks[-1])

    body = [_text(left - 8, 12, y_label, anchor="start", style=' class="soft"')]
    for tick in ticks:
        y = point(xs[0], tick)[1]
        body.append(f'<line class="axis" x1="{left}" x2="{WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(_text(left - 8, y + 4, f"{tick:g}", anchor="end", style=' class="soft"'))
    for position in xs[:: -(-len(xs) // _MAX_MARKS)]:
        x = point(position, 0)[0]
        body.append(_text(x, top + height + 17, f"{position:g}", anchor="middle", style=' class="soft"'))
    body.append(_text(WIDTH - right, top + height + 34, x_label, anchor="end", style=' class="soft"'))
    for index, line in enumerate(lines):
        body += _line(line, index, [point(x, y) for x, y in line.points], WIDTH - right + 20, top + 14 + 18 * index)
    return _svg(max(top + height + 40, top + 20 + 18 * len(lines)), "".join(body), label)


def _line(line: Curve, index: int, points: Sequence[tuple[float, float]], key_x: float, key_y: float) -> list[str]:
    """The line, its points, and its entry in the key; a dash tells lines of one color apart."""
    color = _COLORS[index % len(_COLORS)]
    dash = _DASHES[index // len(_COLORS) % len(_DASHES)]
    stroke = f'stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points)
    return [
        f'<polyline points="{path}" fill="none" {stroke}><title>{escape(line.label)}</title></polyline>{dots}',
        f'<line x1="{key_x}" x2="{key_x + 22}" y1="{key_y - 4}" y2="{key_y - 4}" {stroke}/>',
        _text(key_x + 28, key_y, line.label, limit=30),
    ]
