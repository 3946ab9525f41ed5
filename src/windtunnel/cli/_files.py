"""Graphs by path, and names of outputs derived from inputs (room cli)."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.cli._console import Progress
    from windtunnel.graph import Graph

__all__ = ["derived", "open_graph", "require_free", "stem"]

_TRACES = (".json", ".json.gz")
_SUFFIXES = (".gz", ".json", ".pt", ".trace", ".wt", ".py", ".html", ".report", ".et")


def stem(path: Path) -> str:
    """The name without the suffixes that say what kind of file it is.

    Examples
    --------
    >>> stem(Path("runs/resnet.pt.trace.json.gz"))
    'resnet'
    """
    name = path.name
    while any(name.endswith(suffix) and name != suffix for suffix in _SUFFIXES):
        name = name[: name.rindex(".")]
    return name


def derived(path: Path, suffix: str, output: Path | None = None) -> Path:
    """Where the output goes: as asked, or beside the input under its name.

    Examples
    --------
    >>> derived(Path("runs/train.wt"), ".report.html").as_posix()
    'runs/train.report.html'
    """
    return output if output is not None else path.parent / f"{stem(path)}{suffix}"


def require_free(path: Path, *, force: bool) -> Path:
    """Refuse to overwrite, before any work is done.

    Raises
    ------
    InputError
        Something of that name is there and ``force`` is False.
    """
    if path.exists() and not force:
        raise InputError(f"{path} is there already", fix="overwrite it with --force, or choose another --output")
    return path


def open_graph(path: Path, *, progress: Progress | None = None, kineto: Path | None = None, **options: Any) -> Graph:
    """A stored graph, or the graph of a trace of any kind, or of a folder of Kineto traces, one per rank.

    ``kineto`` is that of :func:`windtunnel.sources.execution_trace.load_execution_trace`,
    ``options`` are those of
    :func:`windtunnel.sources.kineto.load_kineto`.

    Raises
    ------
    InputError
        Nothing is there, or it is none of these; ``kineto`` is given and it is no execution trace.
    """
    from windtunnel.sources.chakra.reader import is_chakra_json, load_chakra
    from windtunnel.sources.execution_trace.reader import is_execution_trace, load_execution_trace

    _require_there(path)
    if kineto is not None:
        _require_there(kineto)
        if path.is_dir() or not is_execution_trace(path):
            raise InputError("--kineto adds times to an execution trace", where=str(path), fix="leave it out")
    traces = _traces(path)
    if traces:
        from windtunnel.sources.kineto.reader import load_kineto

        return load_kineto(traces if path.is_dir() else path, progress=progress, **options)
    if any(options.values()):
        raise InputError("only a trace can be cut while it is read", where=str(path), fix="use --from and --to instead")
    if path.is_dir():
        from windtunnel.graph import load

        return load(path)
    if path.name.endswith((".et", ".et.gz")) or is_chakra_json(path):
        return load_chakra(path)
    if is_execution_trace(path):
        return load_execution_trace(path, kineto=kineto, progress=progress)
    fix = (
        f"capture it first: windtunnel capture {path}" if path.suffix == ".py" else "name a .wt folder or a .json trace"
    )
    raise InputError(f"{path} is neither a stored graph nor a trace", fix=fix)


def _require_there(path: Path) -> None:
    if not path.exists():
        near = _nearest(path)
        fix = f"did you mean {', '.join(near)}?" if near else "capture one: windtunnel capture train.py"
        raise InputError(f"there is no {path}", fix=fix)


def _traces(path: Path) -> list[Path]:
    """The Kineto trace itself, or those of a folder that is no stored graph; execution traces often lie beside."""
    from windtunnel.sources.chakra.reader import is_chakra_json
    from windtunnel.sources.execution_trace.reader import is_execution_trace

    if path.is_dir() and (path / "meta.json").exists():
        return []
    entries = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.is_file())
    entries = [entry for entry in entries if entry.name.endswith(_TRACES)]
    return [entry for entry in entries if not (is_execution_trace(entry) or is_chakra_json(entry))]


def _nearest(path: Path) -> list[str]:
    folder = path.parent if path.parent.is_dir() else Path()
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith((".wt", ".json", ".json.gz"))]
    return [str(folder / name) for name in difflib.get_close_matches(path.name, names, n=3, cutoff=0.3)]
