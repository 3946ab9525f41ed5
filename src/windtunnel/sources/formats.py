"""Which source reads what lies at a path.

In: a path. Out: the registered source that knows it. Every source is asked, so that a new reader is one file with a
``sniff``. Not here: reading.
"""

from __future__ import annotations

from pathlib import Path

from windtunnel import registry
from windtunnel.errors import InputError

__all__ = ["format_of", "sniff_source"]


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
