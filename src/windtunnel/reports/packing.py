"""Pack a replayed graph into the few bytes per task that the page's timeline draws from.

In: a graph with start and finish times. Out: base64 text of one deflated block: a JSON header, then columns whose
bytes are grouped by significance (so that the zeros of small numbers vanish). Names travel inside the block, so nothing
that a trace says is ever part of the page's own text. Not here: drawing (``assets/timeline.js``).
"""

from __future__ import annotations

import base64
import heapq
import json
import zlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import UNPLACED, Graph, Kind, Phase, Strings
from windtunnel.reports.colors import KIND_COLORS, KIND_LABELS, PHASE_COLORS, PHASE_LABELS

__all__ = ["Track", "pack", "shorten", "tracks_of"]

# T tasks, L tracks (one line of the picture each), S shown tasks (those that occupy time or a resource)
MAX_TEXT = 240
MAX_LANES = 64
Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Track:
    """One line of the picture: a label and the tasks on it, none of which overlap."""

    label: str
    rows: NDArray[np.int64]
    rank: int = 0
    resource: int = UNPLACED


@dataclass(slots=True)
class _Columns:
    """Columns as bytes, with what the page needs to find them again."""

    header: list[dict[str, object]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    def add(self, name: str, values: NDArray[np.int64]) -> None:
        """Append one column of non-negative numbers."""
        width = max(1, (int(values.max(initial=0)).bit_length() + 7) // 8)
        little = np.ascontiguousarray(values, dtype="<i8").view(np.uint8).reshape(-1, 8)
        self.header.append({"name": name, "width": width, "count": len(values)})
        self.parts.append(np.ascontiguousarray(little[:, :width].T).tobytes())


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """The text with its middle left out where it is too long, and control characters made visible.

    Examples
    --------
    >>> shorten("abcdefghij", 7)
    'abc…hij'
    """
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def tracks_of(graph: Graph, start_ns: Times, finish_ns: Times) -> list[Track]:
    """Lay the tasks out on lines: one per resource, more where tasks of one resource overlap."""
    resource = graph.tasks["resource"]
    order = np.lexsort((finish_ns, start_ns, resource))
    shown = order[(resource[order] != UNPLACED) | (finish_ns[order] > start_ns[order])]
    cuts = np.flatnonzero(np.diff(resource[shown])) + 1
    tracks: list[Track] = []
    for rows in np.split(shown, cuts):
        if len(rows):
            tracks += _tracks_of_resource(graph, rows, start_ns, finish_ns)
    return sorted(tracks, key=lambda track: (track.rank, track.resource == UNPLACED))


def _tracks_of_resource(graph: Graph, rows: NDArray[np.int64], start_ns: Times, finish_ns: Times) -> list[Track]:
    resource = int(graph.tasks["resource"][rows[0]])
    name = "no resource" if resource == UNPLACED else graph.resources.strings("name").decode(resource)
    ranks = graph.tasks.get("rank")
    rank = 0 if ranks is None or resource == UNPLACED else int(ranks[rows[0]])
    lane_of_task = _assign_lanes(start_ns[rows], finish_ns[rows])
    result = []
    for lane in range(int(lane_of_task.max()) + 1):
        label = shorten(name, 80) + (f" ({lane + 1})" if lane else "")
        result.append(Track(label, rows[lane_of_task == lane], rank, resource))
    return result


def _assign_lanes(start_ns: Times, finish_ns: Times) -> NDArray[np.int64]:
    """First free line for each task, in order of start; all 0 where none overlap."""
    lane_of_task = np.zeros(len(start_ns), dtype=np.int64)
    if (start_ns[1:] >= finish_ns[:-1]).all():
        return lane_of_task
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used = 0
    for row, (start, finish) in enumerate(zip(start_ns.tolist(), finish_ns.tolist(), strict=True)):
        # all lanes whose task is over are free again; the lowest is taken, so that the drawing stays low
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        lane_of_task[row] = lane
        heapq.heappush(busy, (finish, lane))
    return np.minimum(lane_of_task, MAX_LANES - 1)


def pack(
    graph: Graph,
    start_ns: Times,
    finish_ns: Times,
    *,
    critical: NDArray[np.int64] | None = None,
    slack_ns: Times | None = None,
    binding: NDArray[np.int64] | None = None,
) -> str:
    """Pack the timeline of a replayed graph.

    Parameters
    ----------
    graph : Graph
    start_ns, finish_ns : int64 [T]
    critical : int [C]
        Rows of the critical path, in time order; shown as a line of their own.
    slack_ns : int64 [T]
    binding : int [T]
        For each task the row whose start or end let it start, -1 for none.

    Returns
    -------
    Base64 text for the page.
    """
    tracks = tracks_of(graph, start_ns, finish_ns)
    path = np.zeros(0, dtype=np.int64) if critical is None else critical.astype(np.int64)
    has_path = 0 < len(path) < graph.num_tasks
    if has_path:
        tracks.insert(0, Track("critical path", path))
    rows = np.concatenate([track.rows for track in tracks]) if tracks else np.zeros(0, dtype=np.int64)
    ends = np.cumsum([len(track.rows) for track in tracks])
    # Rows of the page are in track order. The critical path repeats tasks in a track of its own in front,
    # so that positions of tasks begin behind it.
    position = np.full(graph.num_tasks, -1, dtype=np.int64)
    num_repeated = len(path) if has_path else 0
    position[rows[num_repeated:]] = np.arange(num_repeated, len(rows))
    columns = _Columns()
    # Differences between neighbors are small numbers, which compress far better than absolute times.
    columns.add("start", _steps(start_ns[rows], ends))
    columns.add("duration", finish_ns[rows] - start_ns[rows])
    names = _add_text(columns, graph, "name", rows)
    layers = _add_text(columns, graph, "layer", rows)
    columns.add("kind", graph.tasks["kind"][rows].astype(np.int64))
    phase = graph.tasks.get("phase")
    columns.add("phase", np.full(len(rows), int(Phase.OTHER)) if phase is None else phase[rows].astype(np.int64))
    columns.add("critical", np.maximum(position[path], 0))
    if slack_ns is not None:
        columns.add("slack", np.maximum(slack_ns[rows], 0))
    if binding is not None:
        columns.add("binding", _back_steps(binding, rows, position))
    header = {
        "tracks": [
            [track.label, track.rank, int(end), has_path and index == 0]
            for index, (track, end) in enumerate(zip(tracks, ends, strict=True))
        ],
        "columns": columns.header,
        "names": names,
        "layers": layers,
        "kinds": [[KIND_LABELS[kind], KIND_COLORS[kind]] for kind in Kind],
        "phases": [[PHASE_LABELS[phase], PHASE_COLORS[phase]] for phase in Phase],
        "end_ns": int(finish_ns.max(initial=0)),
        "num_hidden": graph.num_tasks - len(rows) + num_repeated,
    }
    return _deflate(header, columns.parts)


def _steps(start_ns: Times, ends: NDArray[np.int64]) -> Times:
    """Each start as its distance from the one before on the same line; the first of a line from zero."""
    steps = np.diff(start_ns, prepend=0)
    firsts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    firsts = firsts[firsts < len(start_ns)]
    steps[firsts] = start_ns[firsts]
    return steps


def _back_steps(binding: NDArray[np.int64], rows: NDArray[np.int64], position: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the binding task is, as a zig-zag distance from the task itself plus one; 0 for none."""
    own = np.arange(len(rows))
    bound = binding[rows].astype(np.int64)
    target = np.where(bound >= 0, position[bound], -1)
    distance = own - target
    zigzag = np.where(distance >= 0, 2 * distance, -2 * distance - 1)
    return np.where(target >= 0, zigzag + 1, 0)


def _add_text(columns: _Columns, graph: Graph, name: str, rows: NDArray[np.int64]) -> list[str]:
    """Add the codes of a text column; returns the texts that are used, shortened."""
    column = graph.tasks.get(name)
    if not isinstance(column, Strings):
        columns.add(name, np.zeros(len(rows), dtype=np.int64))
        return [""]
    used, codes = np.unique(column.codes[rows], return_inverse=True)
    columns.add(name, codes.astype(np.int64))
    return [shorten(column.values[code]) for code in used]


def _deflate(header: dict[str, object], parts: list[bytes]) -> str:
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    block = b"".join([len(text).to_bytes(8, "little"), text, *parts])
    return base64.b64encode(zlib.compress(block, 6)).decode("ascii")
