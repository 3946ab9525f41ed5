"""Where words go: the answer to stdout, progress and advice to stderr, at most 80 columns.

Color only on a terminal and never as the only sign; ``NO_COLOR`` is honored; piped output has no control codes. While
somebody else's program runs, stdout is kept for the answer, and its threads wait for each other as a busy machine
needs it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from windtunnel.base.documents import json_text
from windtunnel.base.plausible import require_plausible_document
from windtunnel.base.tables import Table

__all__ = [
    "Progress",
    "advise",
    "apply_style",
    "choose_wait_policy",
    "clean",
    "print_lines",
    "quote_word",
    "show",
    "stdout_to_stderr",
    "suggest",
]

COLUMNS = 80
MAX_CELL = 160
MAX_LINE = 600
QUIET_S = 2.0
REMIND_S = 15.0
BEAT_S = 0.5
_QUIET_SHARE = 0.9


def clean(text: str, limit: int) -> str:
    """Text from outside, without control characters and not endless; line breaks become spaces."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}…{text[-(limit // 2) :]}"
    text = text.replace("\n", " ")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def quote_word(text: object) -> str:
    """A word of a command as the shell needs it."""
    return shlex.quote(str(text))


def _escape_control_characters(text: str) -> str:
    """Text that may hold names from outside, with control characters written out; line breaks stay."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def advise(line: str) -> None:
    """One line of advice: what is written, what to do next."""
    sys.stdout.flush()
    sys.stderr.write(f"{_escape_control_characters(line)}\n")


def suggest(*words: object) -> None:
    """The next useful command, as the shell takes it."""
    advise(f"next: {shlex.join(map(str, words))}")


def apply_style(text: str, style: str) -> str:
    """Color on a terminal, plain text elsewhere."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return text
    codes = {"bold red": "1;31", "bold": "1"}
    return f"\033[{codes[style]}m{text}\033[0m"


def show(document: Mapping[str, Any], lines: Iterable[str | Table], *, as_json: bool) -> None:
    """The answer: one JSON document that every reader takes, or lines and tables.

    Parameters
    ----------
    document : mapping
        Numbers that JSON does not know become null.
    lines : iterable of str or Table
        Not consumed where the answer is JSON, so that a generator computes nothing then.
    as_json : bool

    Raises
    ------
    ImplausibleError
        By a defect of ours, a number of the document cannot be true.
    """
    require_plausible_document(document)
    if as_json:
        sys.stdout.write(json_text(document, indent=1) + "\n")
    else:
        print_lines(lines)


def print_lines(lines: Iterable[str | Table]) -> None:
    """Lines, over as many lines of 80 columns as they need, and tables."""
    for line in lines:
        for part in _wrap(line) if isinstance(line, str) else _draw(line):
            sys.stdout.write(f"{_escape_control_characters(part)}\n")


def _wrap(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    # a path or an option that is cut cannot be copied
    whole_words = textwrap.TextWrapper(
        COLUMNS, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False
    )
    return whole_words.wrap(clean(line, MAX_LINE)) or [""]


def _draw(table: Table) -> list[str]:
    """A table of at most 80 columns; where there is no room, its column ``wraps`` goes over several lines."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold", show_edge=False)
    wraps = 0 if table.wraps is None else table.titles.index(table.wraps)
    for index, title in enumerate(table.titles):
        justify: Any = "right" if index in table.numbers else "left"
        rich_table.add_column(title, justify=justify, no_wrap=index != wraps, overflow="fold")
    for row in table.cells():
        limits = (MAX_LINE if index == wraps else MAX_CELL for index in range(len(row)))
        rich_table.add_row(*(Text(clean(cell, limit)) for cell, limit in zip(row, limits, strict=True)))
    # a new console each time: it reads NO_COLOR, and whether stdout is a terminal, now
    console = Console(width=COLUMNS, highlight=False, file=sys.stdout)
    with console.capture() as capture:
        console.print(rich_table)
    return [line.rstrip() for line in capture.get().splitlines()]


class Progress:
    """What is being done, how much of it, how long yet; silent for two seconds, so that quick work says nothing.

    Called with (what, done, total); on a terminal a bar, elsewhere a line now and then. With ``heartbeat`` it also
    shows work that does not call for a while; not where other people's programs run, which may fork while the thread of
    the heartbeat runs.
    """

    def __init__(self, what: str, *, heartbeat: bool = False) -> None:
        self._what = what
        self._last: tuple[str, int, int | None] = (what, 0, None)
        self._began = self._reminded = time.monotonic()
        self._bar: Any = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True) if heartbeat else None

    def __enter__(self) -> Progress:
        if self._heart is not None:
            self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._heart is not None:
            self._heart.join()
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` parts of a task are done; 0 is a total that is not known yet."""
        with self._lock:
            self._last = (clean(what, 40), done, total)
            self._show(*self._last)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            with self._lock:
                if self._bar is None:
                    self._show(*self._last)

    def _show(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._began < QUIET_S:
            return
        if sys.stderr.isatty():
            self._show_bar(what, done, total)
        elif now - self._reminded >= REMIND_S:
            self._reminded = now
            amount = "" if total is None else f": {what} {done} of {total}" if total else f": {what} {done}"
            advise(f"{self._what}{amount}, {now - self._began:.0f} s")

    def _show_bar(self, what: str, done: int, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        if self._bar is None:
            text = TextColumn("{task.description}", markup=False)
            columns = (text, BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True, width=COLUMNS), transient=True)
            self._bar.add_task(what, total=total or None)
            self._bar.start()
        self._bar.update(0, description=what, completed=done, total=total or None)


def choose_wait_policy() -> None:
    """Let threads sleep while they wait for each other where the cores have other work, too; before torch is loaded.

    Threads that spin then stall: a step of 12 ms takes seconds. On a quiet machine they make small operators nearly
    twice as fast. What the user has set stays as it is.
    """
    from windtunnel.measure.disturbance import free_share

    if "OMP_WAIT_POLICY" in os.environ:
        return
    share = free_share()
    if share < _QUIET_SHARE:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        advise(f"this machine is busy (a thread runs {share:.0%} of the time): setting OMP_WAIT_POLICY=passive")


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send all that is printed in here to stderr, what other processes and C code print too."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no stdout at all
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
