"""Latencies of nets on many devices, and what a cell tells about them.

In: a table of nets of any kind, or of the 15,625 cells as published for NAS-Bench-201. Out: ``LatencyTable``, features
for ``model``, and the FLOP proxy that a prediction has to beat. Not here: nets of cells (``workloads.cells``),
prices on this host (``run``).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.reading import ReadLimit, unpacked
from windtunnel.errors import InputError
from windtunnel.workloads.cells import EDGES, OPERATIONS, Cell

__all__ = ["LatencyTable", "cell_features", "read_latencies"]

# N cells, D devices, E edges, O operations but none
Floats = NDArray[np.float64]
_PLACES = {(edge, name): (row, column) for row, edge in enumerate(EDGES) for column, name in enumerate(OPERATIONS[1:])}


@dataclass(frozen=True, eq=False)
class LatencyTable:
    """Measured latencies of nets.

    Parameters
    ----------
    names : tuple of str
        Of the nets.
    cells : tuple of Cell
        What the names say where they are cells; empty otherwise.
    devices : tuple of str
    latency_ms : float [N, D]
    """

    names: tuple[str, ...]
    cells: tuple[Cell, ...]
    devices: tuple[str, ...]
    latency_ms: Floats

    @property
    def features(self) -> Floats:
        """What is known of the nets besides their latencies [N, P]; P is 0 where they are no cells."""
        return cell_features(self.cells) if self.cells else np.zeros((len(self.names), 0))

    def on(self, device: str) -> Floats:
        """Latencies on one device [N].

        Raises
        ------
        InputError
            The device is not in the table.
        """
        if device not in self.devices:
            raise InputError(f"no latencies on {device!r}", where="devices", fix=f"known: {', '.join(self.devices)}")
        return self.latency_ms[:, self.devices.index(device)]

    def without(self, devices: Iterable[str]) -> Floats:
        """Latencies on all other devices [N, D - given]."""
        left_out = frozenset(devices)
        return self.latency_ms[:, [name not in left_out for name in self.devices]]


def read_latencies(path: str | Path) -> LatencyTable:
    """Read a CSV file, plain or gzip: ``net`` or ``arch``, then one column per device in milliseconds.

    A column ``index`` before them is passed by. Under ``arch`` every name is a cell's.

    Raises
    ------
    InputError
        It is no such table, or a row has a cell or a number that cannot be read; names its line.
    """
    rows = _rows(Path(path))
    _, header = next(rows, (0, []))
    first = int(header[:1] == ["index"])
    devices = tuple(header[first + 1 :])
    if header[first : first + 1] not in (["net"], ["arch"]) or not devices:
        raise InputError("this is no table of latencies", where=str(path), fix="columns: net or arch, then devices")
    has_cells = header[first] == "arch"
    names: list[str] = []
    cells: list[Cell] = []
    latencies: list[list[float]] = []
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"{len(row)} fields under {len(header)} names", where=f"{path}, line {line}")
        try:
            names.append(row[first])
            cells += [Cell.of_name(row[first])] if has_cells else []
            latencies.append([float(one) for one in row[first + 1 :]])
        except ValueError as error:
            raise InputError(f"a row cannot be read: {error}", where=f"{path}, line {line}") from error
    return LatencyTable(tuple(names), tuple(cells), devices, np.array(latencies).reshape(len(names), len(devices)))


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines with their numbers."""
    try:
        reader = csv.reader(io.StringIO(unpacked(ReadLimit(path), cost=4, error=InputError).decode(), newline=""))
        yield from ((reader.line_num, row) for row in reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"the table cannot be read: {error}", where=str(path)) from error


def cell_features(cells: Sequence[Cell]) -> Floats:
    """Operations of a cell as it is written, and as a runtime runs it that drops dead edges.

    Returns
    -------
    float [N, 57]
        How often each operation occurs, written and live; which operation each edge has, written and live, at half
        the weight; how many edges are live. Operations ``none`` count nowhere. The four operations' counts have
        the same mean square as the 24 edges of each kind together.
    """
    written_NEO = np.zeros((len(cells), len(EDGES), len(OPERATIONS) - 1))
    live_NEO = np.zeros_like(written_NEO)
    for row, cell in enumerate(cells):
        for edge, name in zip(EDGES, cell.operations, strict=True):
            if name != "none":
                written_NEO[row, *_PLACES[edge, name]] = 1
        for dst, src, name in cell.live_edges():
            live_NEO[row, *_PLACES[(dst, src), name]] = 1
    counts = [_standardized(one.sum(axis=1)) for one in (written_NEO, live_NEO)]
    edges = [0.5 * _standardized(one.reshape(len(cells), -1)) for one in (written_NEO, live_NEO)]
    return np.column_stack([*counts, *edges, _standardized(live_NEO.sum(axis=(1, 2))[:, None])])


def _standardized(features_NP: Floats) -> Floats:
    """Centered, the mean square of a row 1."""
    centered = features_NP - features_NP.mean(axis=0)
    size = np.sqrt((centered**2).sum(axis=1).mean())
    return np.asarray(centered / size if size > 0 else centered, dtype=np.float64)
