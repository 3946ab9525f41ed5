"""Numbers within the prose of the docs, filled from the bars that measured them.

In: a page with ``<!-- measured: BAR KEY FORM -->…<!-- end -->`` and the rows of ``docs/receipts/bars.json``. Out: the
page with each value as the bar has it now. KEY is a field of the bar's row, or a path into it (``seeds.1.2bw_off``),
with ``_`` for spaces.
Not here: the table of all bars (``tables``), sentences of the first page (``headlines``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.headlines import percent

__all__ = ["FORMS", "MARKER", "fill", "value_of"]

MARKER = re.compile(r"(<!--\s+measured:\s+(\S+)\s+(\S+)\s+(\S+)\s+-->)[^<]*(<!--\s+end\s+-->)")


def rounded(value: float) -> str:
    """A number with four digits at most, as people read it."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.4g}"


def slower(ratio: float) -> str:
    """A ratio of two times in words.

    Examples
    --------
    >>> slower(1.1591), slower(0.99)
    ('16 % slower', '1.0 % faster')
    """
    return f"{percent(abs(ratio - 1))} {'slower' if ratio > 1 else 'faster'}"


FORMS: dict[str, Callable[[Any], str]] = {
    "count": lambda value: f"{value:,.0f}",
    "number": rounded,
    "percent": percent,
    "points": lambda value: percent(value / 100),
    "ratio": lambda value: f"{value:.2f}",
    "signed": lambda value: f"{100 * value:+.1f} %",
    "slower": slower,
    "times": lambda value: f"{value:.3g}x",
}
"""How a value is written: ``percent`` of a ratio, ``points`` of a value that is a percentage already."""


def value_of(rows: Sequence[Mapping[str, Any]], bar: str, key: str) -> Any:
    """The value of a bar's field.

    Raises
    ------
    KeyError
        No bar has this name, or it has no such field.
    """
    found: Any = {str(row["bar"]): row for row in rows}[bar]
    for part in key.split("."):
        if isinstance(found, list):
            found = found[int(part)]
        else:
            found = found[part if part in found else part.replace("_", " ")]
    return found


def fill(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page with every marked number as measured.

    Raises
    ------
    KeyError
        A marker names a bar, a field or a form that is not there.
    """

    def replaced(marker: re.Match[str]) -> str:
        opening, bar, key, form, closing = marker.groups()
        return f"{opening}{FORMS[form](value_of(rows, bar, key))}{closing}"

    return MARKER.sub(replaced, text)
