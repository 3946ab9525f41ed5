"""Graphs that windtunnel stored: ``NAME.wt`` folders.

In: such a folder. Out: its graph. Not here: how it is stored (``graph``).
"""

from __future__ import annotations

from pathlib import Path

from windtunnel import registry
from windtunnel.graph import Graph, load

__all__ = ["is_stored", "load_stored_graph"]


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
