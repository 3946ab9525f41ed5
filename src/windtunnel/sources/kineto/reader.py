"""Kineto (Chrome) traces that others made -> graphs, and tables of what they recorded of their devices.

In: files that `torch.profiler` exported, on any accelerator or none. Out: a `Graph` whose unchanged replay starts
every task when it was measured to start; `TraceTables` of files, one per rank. Not here: prices, what-ifs, simulated
time, the tables themselves (``sources.timeline.tables``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windtunnel import registry
from windtunnel.base.progress import Progress
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph
from windtunnel.sources.kineto.events import read_events
from windtunnel.sources.ranks.merge import merge
from windtunnel.sources.ranks.reader import ranks_in
from windtunnel.sources.timeline.build import build_graph
from windtunnel.sources.timeline.recorded import find_recorded_events
from windtunnel.sources.timeline.rules import TimelineRules
from windtunnel.sources.timeline.tables import TableRules, TraceTables, make_tables

__all__ = ["load_kineto", "read_tables"]


@registry.source(
    "kineto",
    source="PyTorch Kineto traces; Daydream, ATC 2020; HolisticTraceAnalysis",
    suffixes=(".json", ".json.gz"),
)
def load_kineto(
    path: str | Path | Sequence[str | Path],
    *,
    window: str | None = None,
    occurrence: int | None = None,
    partial: bool = False,
    allow_missing: bool = False,
    align: str = "auto",
    rules: TimelineRules | None = None,
    read_limit: int | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Load a Kineto trace, ``.json`` or ``.json.gz``, as a graph.

    Host threads become chains of leaf slices, time that no event covers the lag of the edge between two of them.
    Device tasks follow their launch (from its start) and the task before them on their stream. A call that waited
    keeps only its own work, the wait is an edge.

    Parameters
    ----------
    path : str or Path, or several
        A trace as exported by ``torch.profiler``; or one per rank, or the folder that holds these: one graph, as
        `windtunnel.sources.ranks.load_ranks` makes it.
    window : str, optional
        Name (or a part of it) of an annotation, for example ``"ProfilerStep#103"``: only what was launched inside
        it, with times from its begin.
    occurrence : int, optional
        Which of several annotations of that name, from 0 (negative: from the last); all of them by default.
    partial : bool
        Keep the events before the cut of a truncated file instead of refusing it.
    allow_missing, align
        Of several ranks, see there.
    rules : TimelineRules, optional
        How near two times must be to be cause and effect, where the trace does not tell.
    read_limit : int, optional
        The most bytes of memory that reading a file may take (`windtunnel.base.reading.ReadLimit`).
    progress : callable, optional
        Called with (what, bytes read, bytes in all) while reading.

    Returns
    -------
    Graph
        ``start_ns`` holds the measured starts, ``event`` the position in ``traceEvents``, ``start_cause`` and
        ``unexplained_ns`` why each device task began when it did; ``meta["trace"]`` counts what was left out, by
        reason.

    Raises
    ------
    TraceError
        The file is cut (byte offset), is no trace, an event's time is negative or no number (event index, name),
        there is nothing to run, or no such window.
    """
    rules = rules or TimelineRules()
    if isinstance(path, str | Path) and Path(path).is_dir():
        path = ranks_in(Path(path), "kineto")
    if isinstance(path, str | Path):
        return _load_one(path, window, occurrence, partial, rules, read_limit, progress)
    graphs = [_load_one(file, window, occurrence, partial, rules, read_limit, progress) for file in path]
    names = [str(file) for file in path]
    return merge(graphs, names, align=align, allow_missing=allow_missing, noise_ns=rules.noise_ns)


def _load_one(
    path: str | Path,
    window: str | None,
    occurrence: int | None,
    partial: bool,
    rules: TimelineRules,
    read_limit: int | None,
    progress: Progress | None,
) -> Graph:
    # read in the argument: no name keeps the events while the graph is built
    return build_graph(
        read_events(path, partial=partial, read_limit=read_limit, progress=progress),
        window=window,
        occurrence=occurrence,
        rules=rules,
    )


def read_tables(
    path: str | Path | Sequence[str | Path],
    *,
    rules: TableRules | None = None,
    read_limit: int | None = None,
    progress: Progress | None = None,
) -> TraceTables:
    """Read what traces recorded of their devices.

    The last of several profiler steps is left out, because a profiler stops before its kernels end.

    Parameters
    ----------
    path : str or Path, or several
        A trace, or one per rank, or the folder that holds these.
    rules : TableRules, optional
    read_limit : int, optional
        The most bytes of memory that reading a file may take.
    progress : callable, optional
        Called with (what, bytes read, bytes in all).

    Raises
    ------
    TraceError
        A file is cut, or is no trace.
    NotApplicableError
        No device event is in any of the traces.
    """
    rules = rules or TableRules()
    paths = [path] if isinstance(path, str | Path) else list(path)
    files = [
        file for given in paths for file in (ranks_in(Path(given), "kineto") if Path(given).is_dir() else [Path(given)])
    ]
    ranks = [
        find_recorded_events(read_events(file, read_limit=read_limit, progress=progress), like_hta=rules.like_hta)
        for file in files
    ]
    if not any(len(recorded.name) for recorded in ranks):
        raise NotApplicableError(
            "no work of a device is in the trace",
            where=", ".join(str(file) for file in files[:8]),
            fix="of a trace without device, windtunnel explain says where the time goes",
        )
    return make_tables(ranks, rules)
