"""A folder with one trace per rank, of any source -> one graph.

In: a folder, or paths. Out: one graph per rank from the source that knows it, merged. Not here: merging (``merge``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windtunnel import registry
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError, TraceError
from windtunnel.graph import Graph
from windtunnel.sources.ranks.merge import merge
from windtunnel.sources.stored import format_of, is_stored, sniff_source

__all__ = ["holds_ranks", "load_ranks", "ranks_in"]


def holds_ranks(path: Path) -> bool:
    """Whether a folder holds something that a source reads, one per rank."""
    return path.is_dir() and any(_find_source(entry) is not None for entry in _entries(path))


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder that is no stored graph itself."""
    return [] if is_stored(folder) else sorted(folder.iterdir())


def _find_source(path: Path) -> registry.Plugin | None:
    return format_of(path) if path.is_file() or is_stored(path) else None


@registry.source(
    "ranks",
    source="dPRO, MLSys 2022; a folder with one trace per rank, of any other source here",
    sniff=holds_ranks,
)
def load_ranks(
    path: str | Path | Sequence[str | Path],
    *,
    align: str = "auto",
    allow_missing: bool = False,
    hosts: Sequence[str] | None = None,
    window: str | None = None,
    occurrence: int | None = None,
    partial: bool = False,
    read_limit: int | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Load the traces of several ranks as one graph.

    Parameters
    ----------
    path : str or Path, or several
        A folder that holds one trace (or stored graph) per rank, or these.
    align : {"auto", "none"}
        Whether to set the clocks of the ranks by what they did together.
    allow_missing : bool
        Join the ranks that are given also if the traces speak of more.
    hosts : sequence of str, optional
        The host of each path: its ranks share a clock.
    window, occurrence, partial, read_limit, progress
        For the reader of each trace, as `windtunnel.sources.kineto.load_kineto` takes them.

    Raises
    ------
    TraceError
        No trace is there, they are of several formats, or the ranks do not fit to each other.
    InputError
        Their source takes no such option.
    """
    paths = ranks_in(Path(path)) if isinstance(path, str | Path) else [Path(item) for item in path]
    source = _one_source(paths)
    options: dict[str, Any] = {"window": window, "occurrence": occurrence, "partial": partial}
    requested = {name: value for name, value in options.items() if value not in (None, False)}
    unknown = sorted(set(requested) - set(source.parameters))
    if unknown:
        raise InputError(f"the source {source.name!r} takes no {unknown[0]}", where=str(path), fix="leave it out")
    others = {"read_limit": read_limit, "progress": progress}
    used = requested | {name: value for name, value in others.items() if name in source.parameters}
    graphs = [source.function(item, **used) for item in paths]
    return merge(graphs, [str(item) for item in paths], align=align, allow_missing=allow_missing, hosts=hosts)


def ranks_in(folder: Path, source: str = "") -> list[Path]:
    """The traces of a folder, or only those of one source.

    Beside those of the profiler, which only their names tell, often lie others that say what they are: execution
    traces of the same run, graphs that were stored.
    """
    known = {entry: plugin for entry in _entries(folder) if (plugin := _find_source(entry)) is not None}
    result = [entry for entry, plugin in known.items() if source in ("", plugin.name)]
    by_name = [entry for entry in result if sniff_source(entry) is None]
    return by_name or result


def _one_source(paths: list[Path]) -> registry.Plugin:
    result = {path: _find_source(path) for path in paths}
    for path, source in result.items():
        if source is None:
            raise TraceError("no source knows this", where=str(path), fix="give one trace per rank")
    kinds = {source.name: source for source in result.values() if source is not None}
    if not kinds:
        raise TraceError("no traces are given", fix="give the path of a trace, or one per rank")
    if len(kinds) > 1:
        first = {name: next(str(p) for p, s in result.items() if s is not None and s.name == name) for name in kinds}
        raise TraceError(
            f"these traces are of {len(kinds)} formats: {', '.join(kinds)}",
            where=", ".join(first.values()),
            fix="put the ranks of one run, as one tool recorded them, into a folder of their own",
        )
    return next(iter(kinds.values()))
