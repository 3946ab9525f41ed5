"""A tree map as SVG: areas that are in proportion to sizes, grouped.

In: sizes in two levels. Out: SVG text; every label is escaped.

Source: Bruls, Huizing, van Wijk, Squarified treemaps, 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.reports.charts import WIDTH, _is_light, _svg, _text, escape

__all__ = ["Leaf", "squarify", "treemap"]

HEIGHT = 420.0
_LETTER, _LINE = 6.4, 15.0
Box = tuple[float, float, float, float]  # x, y, width, height


@dataclass(frozen=True, slots=True)
class Leaf:
    """One rectangle: its group, its label, what it stands for and in which color."""

    group: str
    label: str
    size: float
    color: str


def treemap(leaves: Sequence[Leaf], label: str, *, show: Callable[[float], str]) -> str:
    """Draw groups as rectangles of rectangles, largest first."""
    groups: dict[str, list[Leaf]] = {}
    for leaf in sorted((leaf for leaf in leaves if leaf.size > 0), key=lambda leaf: -leaf.size):
        groups.setdefault(leaf.group, []).append(leaf)
    ordered = sorted(groups.values(), key=lambda members: -sum(leaf.size for leaf in members))
    boxes = squarify([sum(leaf.size for leaf in members) for members in ordered], (0.0, 0.0, float(WIDTH), HEIGHT))
    body = []
    for members, box in zip(ordered, boxes, strict=True):
        inner = squarify([leaf.size for leaf in members], box)
        body += [_rectangle(leaf, index, show) for leaf, index in zip(members, inner, strict=True)]
        x, y, width, height = box
        body.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="none" '
            'stroke="#fff" stroke-width="4"/>'
        )
    return _svg(HEIGHT, "".join(body), label)


def _rectangle(leaf: Leaf, box: Box, show: Callable[[float], str]) -> str:
    x, y, width, height = box
    title = f"{leaf.group}: {leaf.label}, {show(leaf.size)}"
    result = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{leaf.color}" '
        f'stroke="#fff" stroke-width="1"><title>{escape(title)}</title></rect>'
    )
    ink = ' style="fill:#111827"' if _is_light(leaf.color) else ' style="fill:#ffffff"'
    room = int((width - 12) / _LETTER)
    lines = [text for text in (leaf.label, show(leaf.size)) if len(text) <= room]
    if height < _LINE * len(lines) + 6:
        lines = lines[: max(0, int((height - 6) / _LINE))]
    return result + "".join(
        _text(x + 7, y + 4 + _LINE * (index + 1) - 2, text, style=ink) for index, text in enumerate(lines)
    )


def squarify(sizes: Sequence[float], box: Box) -> list[Box]:
    """Rectangles of these areas (in proportion) that fill ``box``, as square as rows allow; sizes fall.

    Examples
    --------
    >>> squarify([2, 1, 1], (0, 0, 4, 2))
    [(0, 0, 2.0, 2), (2.0, 0, 2.0, 1.0), (2.0, 1.0, 2.0, 1.0)]
    """
    result: list[Box] = []
    x, y, width, height = box
    total = float(sum(sizes))
    start = 0
    while start < len(sizes) and total > 0:
        scale = width * height / total
        # Bruls, Huizing and van Wijk 2000: a row is laid along the shorter side of what is left, and takes further
        # sizes as long as its worst rectangle does not become less square.
        side = min(width, height)
        end = start + 1
        while end < len(sizes) and _worst(sizes[start : end + 1], side, scale) <= _worst(sizes[start:end], side, scale):
            end += 1
        row = sizes[start:end]
        share = sum(row) / total
        offset = 0.0
        for size in row:
            part = size / sum(row)
            if width >= height:
                result.append(
                    (x, y + offset * height if offset else y, width * share, height * part if part < 1 else height)
                )
            else:
                result.append(
                    (x + offset * width if offset else x, y, width * part if part < 1 else width, height * share)
                )
            offset += part
        if width >= height:
            x, width = x + width * share, width * (1 - share)
        else:
            y, height = y + height * share, height * (1 - share)
        total -= sum(row)
        start = end
    return result


def _worst(row: Sequence[float], side: float, scale: float) -> float:
    """The largest ratio of sides within a row along ``side``."""
    area = sum(row) * scale
    if side <= 0 or area <= 0:
        return float("inf")
    return max(max(side**2 * size * scale / area**2, area**2 / (side**2 * size * scale)) for size in row if size > 0)
