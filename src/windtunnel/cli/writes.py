"""Words about the files that a script writes while it is captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from windtunnel.cli.console import advise

__all__ = ["redirect_writes", "report_writes"]

_SHOWN = 3


@contextmanager
def report_writes(script: Path) -> Iterator[None]:
    """Say before the run that the script seems to save files, and before each existing file that it is overwritten."""
    from windtunnel.sources.writes import FileWrites, lines_that_save, watch_writes

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
