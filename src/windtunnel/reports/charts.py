"""Small charts as SVG text.

In: numbers and labels. Out: SVG that needs nothing else. Each answers one question; its title is a sentence in the
page, axes have units and start at zero, predicted is hollow, measured is solid, intervals are drawn. Every label is
escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.reports.colors import IDLE
from windtunnel.reports.packing import shorten
from windtunnel.units import format_duration, format_ratio, format_size

__all__ = [
    "Frame",
    "Mark",
    "Part",
    "Step",
    "areas",
    "draw_stacked_bar",
    "drawing",
    "escape",
    "forest",
    "waterfall",
    "words",
]

WIDTH = 1132
_KEYS_PER_LINE = 6
_HOLLOW = 'fill="#fff" stroke="#0072b2" stroke-width="2"'
_HATCH = (
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="6" height="6" fill="{IDLE}"/>'
    '<line x1="0" y1="0" x2="0" y2="6" stroke="#9aa3ad" stroke-width="2"/></pattern>'
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar."""

    label: str
    duration_ns: float
    ratio: float
    color: str
    is_hatched: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """One row of a forest plot: a predicted speed-up (hollow), what was measured (solid), and their intervals."""

    label: str
    predicted: float
    low: float = math.nan
    high: float = math.nan
    measured: float = math.nan
    measured_low: float = math.nan
    measured_high: float = math.nan


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a waterfall: percent that it takes off, or, for the rest, that remains."""

    label: str
    percent: float
    color: str
    meaning: str
    is_rest: bool = False


def escape(text: str, limit: int = 240) -> str:
    """Text from outside, fit for HTML and SVG, in content and in attributes."""
    return html.escape(shorten(text, limit), quote=True)


def _svg(height: float, body: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"<defs>{_HATCH}</defs>{body}</svg>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", style: str = "", limit: int = 60) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text, limit)}</text>'


def words(x: float, y: float, text: str, anchor: str = "start") -> str:
    """A small label; ``anchor`` is start, middle or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="{anchor}">{escape(text, 40)}</text>'


def drawing(height: float, body: Sequence[str], label: str) -> str:
    """What was drawn, as wide as a page."""
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{"".join(body)}</svg>'


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the axes of a chart lie; shares of an axis count from its origin."""

    left: float
    top: float
    floor: float
    right: float

    def x(self, share: float) -> float:
        """Of a share of the axis across."""
        return self.left + (self.right - self.left) * share

    def y(self, share: float) -> float:
        """Of a share of the axis upwards."""
        return self.floor - (self.floor - self.top) * share

    def axes(self, below: Sequence[str], left_labels: Sequence[str]) -> list[str]:
        """Both, with evenly spaced labels from the origin to the ends; where there are none, no labels."""
        body = [f'<path d="M{self.left},{self.top}V{self.floor}H{self.right}" fill="none" stroke="#8a9099"/>']
        for index, text in enumerate(below):
            body.append(words(self.x(index / (len(below) - 1)), self.floor + 15, text, "middle"))
        for index, text in enumerate(left_labels):
            body.append(words(self.left - 6, self.y(index / (len(left_labels) - 1)) + 4, text, "end"))
        return body


def draw_stacked_bar(parts: Sequence[Part], label: str) -> str:
    """One bar whose parts sum to the whole, each with its name, time and share beneath."""
    body, x = [], 0.0
    whole = sum(part.duration_ns for part in parts) or 1.0
    for part in parts:
        width = WIDTH * part.duration_ns / whole
        fill = "url(#hatch)" if part.is_hatched else part.color
        body.append(
            f'<rect x="{x:.2f}" y="0" width="{max(width - 1, 0.4):.2f}" height="38" fill="{fill}">'
            f"<title>{escape(part.label)}: {format_duration(part.duration_ns)}</title></rect>"
        )
        if width > 46:
            ink = "#111827" if part.is_hatched or _is_light(part.color) else "#ffffff"
            body.append(_text(x + 8, 24, format_ratio(part.ratio), style=f' style="fill:{ink};font-weight:600"'))
        x += width
    return _svg(50 + 32 * math.ceil(len(parts) / _KEYS_PER_LINE), "".join(body) + _keys(parts), label)


def _keys(parts: Sequence[Part]) -> str:
    """Names and times below the bar."""
    result = []
    for index, part in enumerate(parts):
        x, y = WIDTH / _KEYS_PER_LINE * (index % _KEYS_PER_LINE), 58 + 32 * (index // _KEYS_PER_LINE)
        fill = "url(#hatch)" if part.is_hatched else part.color
        result.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="11" height="11" rx="2" fill="{fill}"/>')
        result.append(_text(x + 17, y, part.label, limit=22))
        value = f"{format_duration(part.duration_ns)}, {format_ratio(part.ratio)}"
        result.append(_text(x + 17, y + 14, value, style=' class="soft"'))
    return "".join(result)


def _is_light(color: str) -> bool:
    red, green, blue = (int(color[index : index + 2], 16) for index in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140


def _ticks(top: float, count: int = 4) -> list[float]:
    """Round values from zero up to at least ``top``."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    return [step * index for index in range(math.ceil(top / step - 1e-9) + 1)]


def areas(
    time_ns: NDArray[np.int64],
    series: Sequence[tuple[str, NDArray[np.int64], str]],
    label: str,
    *,
    peak_ns: int,
    show: Callable[[float], str] = format_duration,
) -> str:
    """Bytes over time, stacked by category, with the peak marked.

    Parameters
    ----------
    time_ns : int64 [N]
        Ascending; each value holds until the next time.
    series : sequence of (name, bytes int64 [N], color)
        Drawn from the bottom up.
    show : callable
        How a place on the axis is written.
    """
    left, height, top = 76.0, 220.0, 16.0
    total = np.sum([values for _, values, _ in series], axis=0)
    ticks = _binary_ticks(float(total.max(initial=0)))
    span = max(int(time_ns[-1]) - int(time_ns[0]), 1)
    xs = left + (WIDTH - left) * (time_ns - time_ns[0]) / span
    body = []
    for tick in ticks:
        y = top + height * (1 - tick / ticks[-1])
        body.append(f'<line class="axis" x1="{left}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(_text(left - 8, y + 4, format_size(tick) if tick else "0", anchor="end", style=' class="soft"'))
    below = np.zeros(len(time_ns))
    for name, values, color in series:
        above = below + values
        points = _steps(xs, top + height * (1 - above / ticks[-1]), top + height * (1 - below / ticks[-1]))
        body.append(f'<path d="{points}" fill="{color}"><title>{escape(name)}</title></path>')
        below = above
    peak_x = left + (WIDTH - left) * (peak_ns - int(time_ns[0])) / span
    body.append(
        f'<line x1="{peak_x:.1f}" x2="{peak_x:.1f}" y1="{top}" y2="{top + height}" stroke="#111827" '
        'stroke-dasharray="4 3"/>'
    )
    body.append(_text(peak_x, 11, "peak", anchor="end" if peak_x > WIDTH - 60 else "middle"))
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "end" if fraction == 1.0 else "start" if fraction == 0.0 else "middle"
        x = left + (WIDTH - left) * fraction
        body.append(_text(x, top + height + 18, show(span * fraction), anchor=anchor, style=' class="soft"'))
    return _svg(top + height + 26, "".join(body), label)


def _binary_ticks(top: float) -> list[float]:
    power = 1024.0 ** (math.floor(math.log(top, 1024)) if top >= 1 else 0)
    return [tick * power for tick in _ticks(top / power)]


def _steps(xs: NDArray[np.float64], above: NDArray[np.float64], below: NDArray[np.float64]) -> str:
    """A closed path: along the top in steps, back along the bottom."""
    doubled = np.repeat(xs, 2)[1:]
    upper = np.repeat(above, 2)[:-1]
    lower = np.repeat(below, 2)[:-1]
    forth = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(doubled, upper, strict=True))
    back = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(doubled[::-1], lower[::-1], strict=True))
    return f"M{forth} L{back} Z"


def forest(marks: Sequence[Mark], label: str) -> str:
    """Speed-ups, one row each: hollow where predicted, solid where measured, intervals as lines."""
    left, row = 250.0, 30.0
    values = [
        value for mark in marks for value in (mark.predicted, mark.low, mark.high, mark.measured, mark.measured_high)
    ]
    most = max([value for value in values if math.isfinite(value)] + [1.2])
    ticks = _ticks(min(most, 3 * max([mark.predicted for mark in marks] + [1.0])) * 1.02)
    bottom = row * len(marks) + 12

    def x_of(value: float) -> float:
        return left + (WIDTH - left - 10) * min(value / ticks[-1], 1.0)

    body = []
    for tick in ticks:
        body.append(f'<line class="axis" x1="{x_of(tick):.1f}" x2="{x_of(tick):.1f}" y1="6" y2="{bottom:.0f}"/>')
        body.append(_text(x_of(tick), bottom + 16, f"{tick:g}x", anchor="middle", style=' class="soft"'))
    body.append(
        f'<line x1="{x_of(1):.1f}" x2="{x_of(1):.1f}" y1="6" y2="{bottom:.0f}" stroke="#4b5563" stroke-width="1.5"/>'
    )
    body.append(_text(x_of(1), bottom + 31, "as it is now", anchor="middle", style=' class="soft"'))
    for index, mark in enumerate(marks):
        y = row * index + 22
        body.append(_text(left - 12, y + 4, mark.label, anchor="end", limit=36))
        body += _interval(x_of, y - 4, mark.low, mark.high, "#0072b2")
        body.append(
            f'<circle cx="{x_of(mark.predicted):.1f}" cy="{y - 4:.1f}" r="5" {_HOLLOW}>'
            f"<title>predicted {mark.predicted:.2f}x</title></circle>"
        )
        if math.isfinite(mark.measured):
            body += _interval(x_of, y + 6, mark.measured_low, mark.measured_high, "#111827")
            body.append(
                f'<circle cx="{x_of(mark.measured):.1f}" cy="{y + 6:.1f}" r="5" fill="#111827">'
                f"<title>measured {mark.measured:.2f}x</title></circle>"
            )
    return _svg(bottom + 38, "".join(body), label)


def _interval(x_of: Callable[[float], float], y: float, low: float, high: float, color: str) -> list[str]:
    if not (math.isfinite(low) and math.isfinite(high)):
        return []
    return [
        f'<line x1="{x_of(low):.1f}" x2="{x_of(high):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
        f'stroke="{color}" stroke-width="2"/>',
        *(
            f'<line x1="{x_of(index):.1f}" x2="{x_of(index):.1f}" y1="{y - 4:.1f}" y2="{y + 4:.1f}" stroke="{color}"/>'
            for index in (low, high)
        ),
    ]


def waterfall(steps: Sequence[Step], label: str) -> str:
    """From 100 % at the top down to what remains: each step begins where the one before ended."""
    left, right, row = 120.0, WIDTH - 470.0, 30.0
    whole = max(100.0, *(step.percent for step in steps)) if steps else 100.0
    body, level = [], 100.0
    for index, step in enumerate(steps):
        y = 8 + row * index
        low, high = sorted((0.0, step.percent) if step.is_rest else (level - step.percent, level))
        x, width = left + (right - left) * max(low, 0.0) / whole, (right - left) * (high - max(low, 0.0)) / whole
        body.append(
            f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.8):.2f}" height="{row - 10:.0f}" fill="{step.color}">'
            f"<title>{escape(step.meaning)}</title></rect>"
        )
        body.append(_text(left - 10, y + 15, step.label, anchor="end"))
        body.append(_text(right + 8, y + 15, f"{step.percent:.2f} %", style=' style="font-weight:600"'))
        body.append(_text(right + 76, y + 15, step.meaning, style=' class="soft"', limit=62))
        level -= step.percent
    return _svg(16 + row * len(steps), "".join(body), label)
