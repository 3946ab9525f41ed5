"""A table of an answer, as the console and the pages show it.

In: columns with their formats, and rows of values. Out: cells of text. Not here: how a table is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Table"]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows.

    Parameters
    ----------
    columns : mapping, or sequence of pairs where two columns have one title
        Title to format: ``str`` for text, which is set to the left; for numbers, which are set to the right, a function
        such as ``format_duration`` or a template such as ``"{:.2f}x"``.
    rows : iterable of sequences
        Values by column. None is an empty cell.
    wraps : str, optional
        Title of the column that goes over several lines where there is no room; the first by default.

    Examples
    --------
    >>> table = Table({"what-if": str, "speed-up": "{:.2f}x"}, [("amp", 1.5), ("all", None)])
    >>> table.cells()
    [['amp', '1.50x'], ['all', '']]
    >>> table.numbers
    [1]
    """

    columns: Mapping[str, Any] | Sequence[tuple[str, Any]]
    rows: Iterable[Sequence[Any]]
    wraps: str | None = None

    @property
    def _pairs(self) -> list[tuple[str, Any]]:
        return list(self.columns.items() if isinstance(self.columns, Mapping) else self.columns)

    @property
    def titles(self) -> list[str]:
        """Titles of the columns."""
        return [title for title, _ in self._pairs]

    @property
    def numbers(self) -> list[int]:
        """Columns that are set to the right."""
        return [index for index, (_, format_) in enumerate(self._pairs) if format_ is not str]

    def cells(self) -> list[list[str]]:
        """Return the text of all cells by row."""
        formats = [format_.format if isinstance(format_, str) else format_ for _, format_ in self._pairs]
        return [
            ["" if value is None else format_(value) for format_, value in zip(formats, row, strict=True)]
            for row in self.rows
        ]
