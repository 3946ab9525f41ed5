"""Graphs by path, names of outputs derived from inputs, and words about files that a script writes."""

from __future__ import annotations

import difflib
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.cli.console import advise, choose_wait_policy
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.base.progress import Progress
    from windtunnel.graph import Graph
    from windtunnel.measure import ProfileDatabase

__all__ = [
    "database_of",
    "derive_path",
    "open_graph",
    "prepare_reruns",
    "redirect_writes",
    "report_writes",
    "require_free",
    "require_there",
    "stem",
    "warn_of_disturbance",
]

_SUFFIXES = (".gz", ".json", ".pt", ".trace", ".wt", ".py", ".html", ".report", ".et")
_SHOWN = 3


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


def database_of(*, fresh: bool) -> ProfileDatabase:
    """What was measured on this host before; ``fresh``: only what is measured from now on."""
    from windtunnel.measure import ProfileDatabase

    return ProfileDatabase(since=int(time.time()) if fresh else 0)


def derive_path(path: Path, suffix: str, output: Path | None = None) -> Path:
    """Where the output goes: as asked, or beside the input under its name.

    Examples
    --------
    >>> derive_path(Path("runs/train.wt"), ".report.html").as_posix()
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
        raise InputError(f"{path} is there already", fix="overwrite it with --force, or choose another --out")
    return path


def open_graph(
    path: Path,
    *,
    progress: Progress | None = None,
    kineto: Path | None = None,
    read_limit: str = "",
    align: str = "auto",
    allow_missing: bool = False,
    needs_times: bool = True,
    **options: Any,
) -> Graph:
    """The graph of whatever a registered source knows: a stored one, a trace, a folder of traces.

    A job that was not run is refused, unless ``needs_times`` is False because the verb prices its tasks or copies them.
    ``read_limit`` is a size with its unit. ``align`` and ``allow_missing`` are for a folder with a trace per rank, see
    :func:`windtunnel.sources.ranks.load_ranks`. ``kineto`` and ``options`` are parameters of the source's reader, such
    as :func:`windtunnel.sources.kineto.load_kineto`.

    Raises
    ------
    InputError
        Nothing is there, no source knows it or two do; ``kineto`` or an option is given and its source takes none; its
        tasks have no times.
    """
    from windtunnel.sources.stored import format_of
    from windtunnel.units import parse_size

    require_there(path)
    if kineto is not None:
        require_there(kineto)
    source = format_of(path)
    if source is None:
        raise _unknown(path)
    accepts = source.parameters
    if kineto is not None and "kineto" not in accepts:
        raise InputError("--kineto applies only to an execution trace", where=str(path), fix="leave out --kineto")
    several = {name: value for name, value in (("align", align), ("allow_missing", allow_missing)) if name in accepts}
    if len(several) < 2 and (align != "auto" or allow_missing):
        raise InputError("the file holds one rank", where=str(path), fix="leave out --align and --allow-missing")
    requested = {name: value for name, value in options.items() if value}
    if not requested.keys() <= accepts.keys():
        raise InputError(
            "--window and --partial apply only to a trace", where=str(path), fix="use --from and --to instead"
        )
    if read_limit and "read_limit" not in accepts:
        raise InputError(f"the source {source.name!r} has no read limit", where=str(path), fix="leave out --read-limit")
    others = {"progress": progress, "kineto": kineto, "read_limit": parse_size(read_limit) if read_limit else None}
    opened: Graph = source.function(
        path, **requested, **several, **{name: item for name, item in others.items() if name in accepts}
    )
    if needs_times:
        _require_times(opened, path)
    warn_of_disturbance(opened)
    return opened


def _require_times(graph: Graph, path: Path) -> None:
    """Refuse a job that was not run and that nothing has priced yet."""
    if graph.tasks["duration_ns"].any():
        return
    from windtunnel.whatifs.placing import select_unpriced  # takes a while

    if select_unpriced(graph).any():
        raise InputError(
            "the tasks of this job have no times, because it was not run",
            where=str(path),
            fix=f"predict times for a device: windtunnel predict {shlex.quote(str(path))} --on h100; "
            "--out FILE writes a graph with times",
        )


def warn_of_disturbance(graph: Graph) -> None:
    """Say on stderr if other programs kept the captured step from running; every verb that uses the graph does."""
    from windtunnel.measure.disturbance import disturbance_line

    if line := disturbance_line(graph.meta.disturbance):
        advise(line)


def prepare_reruns(graph: Graph, prices: str = "auto") -> None:
    """Let the operators of a captured program, if they are run again, wait as those of the capture did."""
    if prices != "paper" and graph.meta.program:
        choose_wait_policy()


def _unknown(path: Path) -> InputError:
    if path.is_dir():
        return InputError(
            f"{path} is neither a stored graph nor a folder of traces", fix="name a folder written by capture"
        )
    fix = "name a .wt folder or a .json trace"
    if path.suffix == ".py":
        fix = f"capture it first: windtunnel capture {shlex.quote(str(path))}"
    return InputError(f"{path} is neither a stored graph nor a trace", fix=fix)


def require_there(path: Path) -> None:
    """Refuse a path at which nothing is, with the nearest names.

    Raises
    ------
    InputError
        There is nothing.
    """
    if not path.exists():
        near = _nearest(path)
        fix = f"did you mean {', '.join(near)}?" if near else "capture one: windtunnel capture train.py"
        raise InputError(f"there is no {path}", fix=fix)


def _nearest(path: Path) -> list[str]:
    folder = path.parent if path.parent.is_dir() else Path()
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith((".wt", ".json", ".json.gz"))]
    return [str(folder / name) for name in difflib.get_close_matches(path.name, names, n=3, cutoff=0.3)]


@contextmanager
def report_writes(script: Path) -> Iterator[None]:
    """Say before the run that the script seems to save files, and before each existing file that it is overwritten."""
    from windtunnel.sources.scratch import FileWrites, lines_that_save, watch_writes

    lines = [f"line {line}: {call}" for line, call in lines_that_save(script)]
    if lines:
        advise(
            f"{script.name} saves files ({_join_first(lines)}), as in any run; "
            "--scratch redirects them to a temporary directory"
        )
    writes = FileWrites(script, lambda path: advise(f"{script.name} overwrites {path}; --scratch prevents this"))
    try:
        with watch_writes(writes):
            yield
    finally:
        if writes.created:
            advise(f"{script.name} wrote {_join_first([str(path) for path in writes.created])}")


@contextmanager
def redirect_writes(script: Path) -> Iterator[None]:
    """Send what the script writes to a folder that goes when it ends."""
    from windtunnel.sources.scratch import files_kept_away

    with files_kept_away(script) as files:
        yield
        written = [str(path) for path in files.list_written_paths()]
    if written:
        advise(f"{script.name} wrote to a temporary directory: {_join_first(written)}")


def _join_first(texts: Sequence[str]) -> str:
    rest = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
