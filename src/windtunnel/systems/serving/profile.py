"""The latency of one instance of a model by threads and batch size.

In: a CSV file, or measured latencies. Out: a ``Profile`` without the cells that were not measured. Not here: measuring
(``run``), choosing (``search``).
"""

# C cells

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.columns import number, read_rows, whole_number
from windtunnel.base.outputs import whole
from windtunnel.errors import InputError

__all__ = ["COLUMNS", "Cell", "Profile", "Row", "read_cells", "read_profile", "write_profile"]

COLUMNS = ("num_threads", "batch_size", "latency_ms")
_BYTES = "memory_bytes"
_MEAN = "latency_mean_ms"  # as the authors' tables call it
_MIN_MS = 1e-9

Cell = tuple[int, int]
"""Threads and batch of one instance."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Latencies of one isolated instance, by ascending threads and batch.

    Parameters
    ----------
    threads_C, batch_C : int64 [C]
    latency_ns_C : float64 [C]
        Of a whole batch.
    own_bytes_C : int64 [C], optional
        That an instance never shares: weights, and the most that it has worked with.
    """

    threads_C: NDArray[np.int64]
    batch_C: NDArray[np.int64]
    latency_ns_C: NDArray[np.float64]
    own_bytes_C: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, latency_ns: Mapping[Cell, float], own_bytes: Mapping[Cell, int] | None = None) -> Profile:
        """Create a profile from cells, with the memory of each if it is known.

        Raises
        ------
        InputError
            There are none, or one is no time.

        Examples
        --------
        >>> Profile.of({(2, 8): 3e6, (1, 8): 5e6}).threads_C.tolist()
        [1, 2]
        """
        if not latency_ns:
            raise InputError("a profile without a cell says nothing", fix="measure at least one instance")
        for (threads, batch), value in latency_ns.items():
            if threads < 1 or batch < 1 or not 0 < value < float("inf"):
                raise InputError(f"{value} ns are no latency of {threads} threads with a batch of {batch}")
        rows = sorted(latency_ns)
        cells = np.array(rows, dtype=np.int64)
        times = np.array([latency_ns[row] for row in rows], dtype=np.float64)
        sizes = None if own_bytes is None else np.array([own_bytes[row] for row in rows], dtype=np.int64)
        return cls(cells[:, 0].copy(), cells[:, 1].copy(), times, sizes)

    @property
    def max_threads(self) -> int:
        """Threads of the largest instance."""
        return int(self.threads_C.max())

    @cached_property
    def cells(self) -> dict[Cell, float]:
        """Latency in ns by (threads, batch)."""
        return dict(zip(self._rows(), self.latency_ns_C.tolist(), strict=True))

    @cached_property
    def own_bytes(self) -> dict[Cell, int] | None:
        """Memory in bytes by (threads, batch); None if it was not measured."""
        return None if self.own_bytes_C is None else dict(zip(self._rows(), self.own_bytes_C.tolist(), strict=True))

    def bytes_of(self, cells: Iterable[Cell]) -> int | None:
        """Return the memory of the given instances; None if it was not measured."""
        return None if self.own_bytes is None else sum(self.own_bytes[cell] for cell in cells)

    def _rows(self) -> Iterator[Cell]:
        return zip(self.threads_C.tolist(), self.batch_C.tolist(), strict=True)

    def with_latencies(self, latency_ns_C: NDArray[np.float64]) -> Profile:
        """Return the same cells with other latencies."""
        return Profile(self.threads_C, self.batch_C, latency_ns_C, self.own_bytes_C)


@dataclass(frozen=True)
class Row:
    """A row of a profile file: line, threads and batch, latency, and memory if the file has it."""

    line: int
    cell: Cell
    latency_ns: float
    own_bytes: int | None


def read_cells(path: Path, where: Mapping[str, str] | None = None) -> list[Row]:
    """Read the rows of a file with ``num_threads``, ``batch_size``, ``latency_ms`` (or ``latency_mean_ms``).

    ``memory_bytes`` may be there, too.

    Parameters
    ----------
    path : Path
    where : mapping of column to text, optional
        Only rows whose columns say so.

    Raises
    ------
    InputError
        The file cannot be read, a field is not a number, or no row is left.
    """
    rows = list(enumerate(read_rows(path, COLUMNS[:2]), 2))
    latency = next((name for name in (COLUMNS[2], _MEAN) if name in rows[0][1]), "")
    if not latency:
        raise InputError(f"there is no column {COLUMNS[2]!r}", where=str(path), fix=f"the file needs {COLUMNS}")
    for column, text in (where or {}).items():
        known = sorted({row.get(column, "") for _, row in rows})
        rows = [(line, row) for line, row in rows if row.get(column) == text]
        if not rows:
            raise InputError(f"no row has {column}={text}", where=str(path), fix=f"it has {', '.join(known[:12])}")
    result = []
    for line, row in rows:
        threads, batch = (whole_number(row, name, path, line, least=1) for name in COLUMNS[:2])
        size = whole_number(row, _BYTES, path, line) if _BYTES in row else None
        result.append(Row(line, (threads, batch), 1e6 * number(row, latency, path, line, least=_MIN_MS), size))
    return result


def read_profile(path: Path, where: Mapping[str, str] | None = None) -> Profile:
    """Read a profile; parameters as for ``read_cells``.

    Raises
    ------
    InputError
        Also where two rows say different things of one cell; names the lines and what tells them apart.
    """
    result: dict[Cell, Row] = {}
    for row in read_cells(path, where):
        known = result.setdefault(row.cell, row)
        if known.latency_ns != row.latency_ns:
            raise InputError(
                f"{row.cell[0]} threads with a batch of {row.cell[1]} take {known.latency_ns / 1e6:g} ms and "
                f"{row.latency_ns / 1e6:g} ms",
                where=f"{path}: lines {known.line} and {row.line}",
                fix=_suggest_filter(path, known.line, row.line),
            )
    sizes = {cell: row.own_bytes for cell, row in result.items() if row.own_bytes is not None}
    return Profile.of({cell: row.latency_ns for cell, row in result.items()}, sizes or None)


def _suggest_filter(path: Path, first: int, second: int) -> str:
    rows = read_rows(path, ())
    row, other = rows[first - 2], rows[second - 2]
    differ = [name for name in row if row[name] != other[name] and not name.startswith("latency")]
    return f"say which is meant: --where {differ[0]}={row[differ[0]]}" if differ else "leave one of them out"


def write_profile(path: Path, cells: Iterable[tuple[Cell, float]], own_bytes: Mapping[Cell, int] | None = None) -> None:
    """Write rows that ``read_cells`` reads: cells with their latencies in ns, and memory.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    with whole(path) as scratch, scratch.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS if own_bytes is None else (*COLUMNS, _BYTES))
        for cell, latency_ns in cells:
            size = [] if own_bytes is None else [own_bytes[cell]]
            writer.writerow([*cell, repr(latency_ns / 1e6), *size])
