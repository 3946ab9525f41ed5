"""Write a timeline as a Chrome/Perfetto trace.

In: a timeline. Out: a JSON file with one complete event per task, slack and criticality in its arguments, and flow
arrows for edges. Streamed (no second copy of the trace in memory) and atomic (a name appears only with the whole file).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from windtunnel.base.outputs import replacing
from windtunnel.graph import Kind
from windtunnel.simulate.arrays import edge_column
from windtunnel.simulate.breakdown import task_labels

if TYPE_CHECKING:
    from windtunnel.simulate.timeline import Timeline

__all__ = ["write_perfetto"]

_CHUNK = 8192
_MAX_NAME = 1000
_EXTRA = ("layer", "phase", "op", "cost_source")


def write_perfetto(timeline: Timeline, path: str | Path, *, max_flows: int = 100_000) -> Path:
    """Write ``path`` (``.json`` or ``.json.gz``) for https://ui.perfetto.dev or chrome://tracing.

    Parameters
    ----------
    timeline : Timeline
    path : str or Path
    max_flows : int
        At most so many arrows: edges of the critical path first, then those between resources, then the others. How
        many were left out stands in the file's ``otherData``.
    """
    path = Path(path)
    with replacing(path) as scratch, scratch.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                _write(timeline, packed, max_flows)
        else:
            _write(timeline, raw, max_flows)
    return path


def _write(timeline: Timeline, out: IO[bytes] | gzip.GzipFile, max_flows: int) -> None:
    encode = msgspec.json.Encoder().encode
    flows = _select_edges(timeline, max_flows)
    other = {"tool": "windtunnel", "edges": timeline.graph.num_edges, "edges_drawn": len(flows)}
    out.write(b'{"displayTimeUnit":"ns","otherData":' + encode(other) + b',"traceEvents":[\n')
    is_first = True
    for chunk in _chunks(timeline, flows):
        if chunk:
            out.write(b"" if is_first else b",\n")
            out.write(b",\n".join(map(encode, chunk)))
            is_first = False
    out.write(b"\n]}\n")


def _chunks(timeline: Timeline, flows: NDArray[Any]) -> Iterator[list[dict[str, Any]]]:
    process, thread = _tracks(timeline)
    yield _metadata(timeline, process, thread)
    describe = _describer(timeline)
    is_critical = np.zeros(timeline.graph.num_tasks, dtype=bool)
    is_critical[timeline.critical_path().task] = True
    slack = timeline.slack_ns()
    for first in range(0, timeline.graph.num_tasks, _CHUNK):
        rows = slice(first, first + _CHUNK)
        columns = (process, thread, _us(timeline.start_ns), _us(timeline.finish_ns - timeline.start_ns), _us(slack))
        values = zip(*(column[rows].tolist() for column in (*columns, is_critical)), strict=True)
        yield [
            {
                "ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, **describe(row),
                "args": {"task": row, "slack_us": slack_us, "critical": critical, **describe.args(row)},
            }
            for row, (pid, tid, ts, dur, slack_us, critical) in enumerate(values, first)
        ]  # fmt: skip
    for first in range(0, len(flows), _CHUNK):
        yield _arrows(timeline, flows[first : first + _CHUNK], process, thread)


def _us(time_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    return time_ns / 1000


class _describer:  # noqa: N801 - a function with a table
    """Name, category and extra arguments of a task, each distinct text cleaned once."""

    def __init__(self, timeline: Timeline) -> None:
        graph = timeline.graph
        self.names = graph.tasks.strings("name")
        self.cleaned = [clean(name) for name in self.names.values]
        self.kinds = graph.tasks["kind"]
        columns = [(by, task_labels(graph, by)) for by in _EXTRA if by in graph.tasks]
        self.extra = [(by, labels.codes, [clean(text) for text in labels.values]) for by, labels in columns]

    def __call__(self, row: int) -> dict[str, str]:
        return {"name": self.cleaned[self.names.codes[row]], "cat": Kind(int(self.kinds[row])).name.lower()}

    def args(self, row: int) -> dict[str, str]:
        return {by: strings[codes[row]] for by, codes, strings in self.extra if strings[codes[row]]}


def clean(text: str) -> str:
    """Text that JSON and a viewer can hold: no lone surrogates, no megabytes."""
    text = text if len(text) <= _MAX_NAME else text[: _MAX_NAME - 3] + "..."
    return text.encode("utf-8", "replace").decode("utf-8")


def _tracks(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Process and thread of each task: a process per rank, a thread per resource, more threads where tasks overlap."""
    graph = timeline.graph
    rank = graph.tasks.get("rank")
    process = np.zeros(graph.num_tasks, np.int64) if rank is None else rank.astype(np.int64)
    lane = _assign_lines(graph.tasks["resource"].astype(np.int64), process, timeline.start_ns, timeline.finish_ns)
    _, thread = np.unique(np.stack([graph.tasks["resource"], lane]), axis=1, return_inverse=True)
    return process, thread.reshape(-1).astype(np.int64) + 1


def _assign_lines(
    resource: NDArray[np.int64], process: NDArray[np.int64], start_ns: NDArray[np.int64], finish_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The first line of each resource that is free when the task starts: a track cannot show overlapping events."""
    lane = np.zeros(len(resource), dtype=np.int64)
    order = np.lexsort((finish_ns, start_ns, process, resource))
    key, start = np.stack([resource, process])[:, order], start_ns[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    bounds = [*np.flatnonzero(is_new).tolist(), len(order)]
    for first, last in pairwise(bounds):
        ends = finish_ns[order[first:last]]
        # nothing overlaps, as on most resources: all stay on line 0
        if (start[first + 1 : last] >= np.maximum.accumulate(ends)[:-1]).all():
            continue
        free: list[int] = []
        for row in order[first:last].tolist():
            at = next((i for i, end in enumerate(free) if end <= start_ns[row]), len(free))
            free[at : at + 1] = [int(finish_ns[row])]
            lane[row] = at
    return lane


def _metadata(timeline: Timeline, process: NDArray[np.int64], thread: NDArray[np.int64]) -> list[dict[str, Any]]:
    names = timeline.graph.resources.strings("name")
    resource = timeline.graph.tasks["resource"]
    _, first = np.unique(np.stack([process, thread]), axis=1, return_index=True)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        for rank in np.unique(process).tolist()
    ]
    for row in first.tolist():
        title = clean(names.decode(resource[row])) if resource[row] >= 0 else "unplaced"
        index = {"pid": int(process[row]), "tid": int(thread[row])}
        events.append({"ph": "M", "name": "thread_name", **index, "args": {"name": title}})
        events.append({"ph": "M", "name": "thread_sort_index", **index, "args": {"sort_index": index["tid"]}})
    return events


def _select_edges(timeline: Timeline, max_flows: int) -> NDArray[Any]:
    """Rows of the edges to draw, the most telling first."""
    graph = timeline.graph
    resource = graph.tasks["resource"]
    rank = np.where(resource[graph.edges["src"]] != resource[graph.edges["dst"]], 1, 2)
    edges = timeline.critical_path().edge
    rank[edges[edges >= 0]] = 0
    return np.argsort(rank, kind="stable")[:max_flows]


def _arrows(
    timeline: Timeline, edges: NDArray[Any], process: NDArray[np.int64], thread: NDArray[np.int64]
) -> list[dict[str, Any]]:
    table = timeline.graph.edges
    src, dst = table["src"][edges], table["dst"][edges]
    from_start = edge_column(timeline.graph, "from_start", np.bool_)[edges]
    # a viewer ties an arrow to the event around it, so it leaves in the last nanosecond and not at the end
    last_ns = np.maximum(timeline.finish_ns[src] - 1, timeline.start_ns[src])
    leave = _us(np.where(from_start, timeline.start_ns[src], last_ns))
    columns = (edges, process[src], thread[src], leave, process[dst], thread[dst], _us(timeline.start_ns[dst]))
    events: list[dict[str, Any]] = []
    for edge, pid, tid, ts, pid_to, tid_to, ts_to in zip(*(column.tolist() for column in columns), strict=True):
        common = {"cat": "edge", "name": "edge", "id": edge}
        events.append({"ph": "s", **common, "pid": pid, "tid": tid, "ts": ts})
        events.append({"ph": "f", "bp": "e", **common, "pid": pid_to, "tid": tid_to, "ts": ts_to})
    return events
