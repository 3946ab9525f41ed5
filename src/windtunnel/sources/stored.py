"""Which source reads what lies at a path, and the first of them: graphs that windtunnel stored (``NAME.wt`` folders).

In: a path. Out: the registered source that knows it, and its graph. Every source is asked, so that a new reader is one
file with a ``sniff``. Not here: how a graph is stored (``graph``).
"""

from __future__ import annotations

from pathlib import Path

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.graph import Graph, load

__all__ = ["format_of", "is_stored", "load_stored_graph", "sniff_source"]


def is_stored(path: Path) -> bool:
    """Whether a folder holds a stored graph."""
    return path.is_dir() and (path / "meta.json").exists()


@registry.source("stored", source="windtunnel's own folder of Parquet tables", sniff=is_stored)
def load_stored_graph(path: str | Path, *, read_limit: int | None = None) -> Graph:
    """Load a graph that ``save`` or ``windtunnel capture`` wrote.

    Parameters
    ----------
    path : str or Path
    read_limit : int, optional
        The most bytes of memory that reading may take (`windtunnel.base.reading.ReadLimit`).

    Raises
    ------
    InputError
        A table or column in the folder is damaged.
    SchemaVersionError
        It was written by a version that this one does not know.
    GraphError
        Its rows break a rule of the graph.
    """
    return load(path, read_limit=read_limit)


def format_of(path: Path) -> registry.Plugin | None:
    """Find the source that reads this file or folder: by its content, else by the end of its name.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Plugin or None
        None where no source knows it.

    Raises
    ------
    InputError
        Two sources claim it.
    """
    result = sniff_source(path)
    if result is not None or not path.is_file():
        return result
    sources = registry.all("source").values()
    return _only(path, [source for source in sources if source.suffixes and path.name.endswith(source.suffixes)])


def sniff_source(path: Path) -> registry.Plugin | None:
    """Find the source whose sniff knows this file or folder; None where none does."""
    sources = registry.all("source").values()
    return _only(path, [source for source in sources if source.sniff is not None and source.sniff(path)])


def _only(path: Path, found: list[registry.Plugin]) -> registry.Plugin | None:
    if len(found) > 1:
        raise InputError(
            f"{len(found)} sources claim to read {path}: {', '.join(item.name for item in found)}",
            where=", ".join(item.module for item in found),
            fix="uninstall the package of the wrong one, or make its sniff stricter",
        )
    return found[0] if found else None
