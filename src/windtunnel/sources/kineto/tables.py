"""Tables of what Kineto traces recorded of their devices (sources, Kineto).

In: files, one per rank. Out: `TraceTables`. Not here: the tables themselves (``sources.timeline.tables``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windtunnel.base.progress import Progress
from windtunnel.errors import NotApplicableError
from windtunnel.sources.kineto.events import read_events
from windtunnel.sources.ranks.reader import ranks_in
from windtunnel.sources.timeline.recorded import find_recorded_events
from windtunnel.sources.timeline.tables import TableRules, TraceTables, make_tables

__all__ = ["read_tables"]


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
