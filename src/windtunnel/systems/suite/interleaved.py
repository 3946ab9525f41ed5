"""Two interleaved programs, so that a slowdown of the machine affects both.

In: two sides, each a checkout of this package, a git revision of the one in this folder, or any command. Out: a
``Comparison`` of paired rounds. Checkouts run workloads of the suite and are compared by time per unit; commands are
compared by how long they run. Not here: statistics (``comparison``), the suite itself (``suite``).
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import FlightError, InputError
from windtunnel.measure.workers import run_to_end
from windtunnel.systems.suite.comparison import Comparison, compare_rounds, overall_of

__all__ = ["Side", "compare_interleaved_runs", "side_of"]

_TAIL = 1500
_WHOLE = "command"


@dataclass(frozen=True)
class Side:
    """One of two interleaved programs.

    Attributes
    ----------
    text : str
        As the user wrote it.
    checkout : Path or None
        Folder with the package's source; None for a command.
    command : tuple of str
    """

    text: str
    checkout: Path | None = None
    command: tuple[str, ...] = ()

    def time_per_unit_ns(self, workload: str, arguments: Sequence[str]) -> tuple[float, str]:
        """Run once: median time per unit of the workload, and the unit; of a command, how long it ran.

        Raises
        ------
        FlightError
            It failed.
        """
        return _duration_of(self) if self.checkout is None else _suite_of(self, workload, arguments)


@contextlib.contextmanager
def side_of(text: str) -> Iterator[Side]:
    """Parse a side: a folder with the package, a git revision (checked out temporarily), or a command.

    Raises
    ------
    InputError
        It is none of these.
    """
    folder = Path(text)
    if folder.is_dir():
        if not _source(folder).is_dir():
            raise InputError(f"{folder} holds no checkout of windtunnel", fix="name a folder with src/windtunnel")
        yield Side(text, checkout=folder.resolve())
        return
    if " " not in text and _git("rev-parse", "--verify", "--quiet", f"{text}^{{commit}}") is not None:
        with tempfile.TemporaryDirectory(prefix="windtunnel-side-") as scratch:
            checkout = Path(scratch) / "checkout"
            if _git("worktree", "add", "--detach", str(checkout), text) is None:
                raise InputError(f"{text} cannot be checked out", where=str(Path.cwd()), fix="git worktree list")
            try:
                yield Side(text, checkout=checkout)
            finally:
                _git("worktree", "remove", "--force", str(checkout))
        return
    words = tuple(shlex.split(text))
    if not words or shutil.which(words[0]) is None:
        raise InputError(
            f"{text!r} is neither a folder, nor a git revision, nor a command that can be run",
            fix="name a checkout, a commit of the repository in this folder, or quote a command",
        )
    yield Side(text, command=words)


def _source(folder: Path) -> Path:
    return folder / "src" / "windtunnel" if (folder / "src").is_dir() else folder / "windtunnel"


def _git(*arguments: str) -> str | None:
    """Return the output of git; None if it fails or is not installed."""
    done = run_to_end(["git", *arguments])
    return None if done is None or done.code else done.stdout.strip()


def _run_timed(command: Sequence[str], environment: dict[str, str], folder: str | None = None) -> tuple[float, str]:
    """Run a command to its end; return nanoseconds and stdout."""
    done = run_to_end(command, environment=environment, folder=folder)
    if done is None:
        raise FlightError("the command could not be started", where=shlex.join(command))
    if done.code:
        raise FlightError(
            f"the command ended with exit code {done.code}",
            where=shlex.join(command),
            log_tail=(done.stderr or done.stdout)[-_TAIL:],
        )
    return done.elapsed_ns, done.stdout


def _duration_of(side: Side) -> tuple[float, str]:
    return _run_timed(side.command, {})[0], "runs"


def _suite_of(side: Side, workload: str, arguments: Sequence[str]) -> tuple[float, str]:
    assert side.checkout is not None
    environment = {"PYTHONPATH": str(_source(side.checkout).parent)}
    with tempfile.TemporaryDirectory(prefix="windtunnel-side-") as scratch:
        verb = [sys.executable, "-m", "windtunnel", "suite", "run", workload, "--json", "-o", f"{scratch}/run"]
        # not from here: a package in the current folder would come before the checkout's
        answer = json.loads(_run_timed([*verb, *arguments], environment, scratch)[1])
    result = answer["results"][0]
    kept = zip(result["durations_ns"][result["cut"] :], result["units"][result["cut"] :], strict=True)
    return float(np.median([duration_ns / units for duration_ns, units in kept])), result["unit"]


def compare_interleaved_runs(
    first: Side,
    second: Side,
    *,
    workloads: Sequence[str] = (),
    arguments: Sequence[str] = (),
    rounds: int = 8,
    progress: Progress | None = None,
) -> Comparison:
    """Run both sides alternately: first, second, second, first, ...; one round of each does not count.

    Parameters
    ----------
    workloads : sequence of str
        Of the suite; commands need none.
    arguments : sequence of str
        More of ``windtunnel suite run``, such as ``("--time-limit", "3s")``.
    rounds : int
        That count; six are the fewest with which a p value can be below 0.05.

    Raises
    ------
    InputError
        One side is a command and the other is not, or no workload is named.
    FlightError
        A side failed.
    """
    if (first.checkout is None) != (second.checkout is None):
        raise InputError("a command cannot be compared with a checkout", fix="name two of the same kind")
    if first.checkout is not None and not workloads:
        raise InputError(
            "two checkouts are compared by running workloads", fix="name some: windtunnel suite show workloads"
        )
    if rounds < 2:
        raise InputError(f"{rounds} rounds say nothing about noise", fix="use at least 2 rounds; 8 are usual")
    names = list(workloads) if first.checkout is not None else [_WHOLE]
    samples: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
    units: dict[str, str] = {}
    for turn in range(rounds + 1):
        # first, second, second, first: a steady drift of the machine favors neither side
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for name in names:
            if progress is not None:
                progress(name, turn, rounds + 1)
            times = {which: (first, second)[which].time_per_unit_ns(name, arguments) for which in order}
            units[name] = times[0][1]
            if turn:
                for which in (0, 1):
                    samples[name][which].append(times[which][0])
    rows = [compare_rounds(name, units[name], *samples[name]) for name in names]
    logs = [np.log(np.asarray(before) / np.asarray(after)) for before, after in samples.values()]
    return Comparison(tuple(rows), overall_of(rows, logs))
