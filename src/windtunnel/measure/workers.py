"""The one launcher of other processes.

In: a module that has ``main(place)``, what it shall do, and how many ranks. Out: their answers, or an error with their
last words. The processes form a group that can be stopped and resumed as one. Each keeps to its cores before it starts
any thread, reads orders from a pipe of its own, and dies with its parent, however that ends. Not here: what they do.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from windtunnel.errors import FlightError, InputError
from windtunnel.measure.worker import die_with

__all__ = ["Done", "Place", "WorkerError", "Workers", "check_command_output", "die_with", "last_error", "run_to_end"]

_LOG_TAIL_BYTES = 4000
_POLL_S = 0.2
_GRACE_S = 1.0


def last_error(text: str) -> str:
    r"""The last line that names an exception, "" if none does; native libraries may print more as a process ends.

    Examples
    --------
    >>> last_error("Traceback ...\nValueError: no sender\nterminate called without an active exception")
    'ValueError: no sender'
    """
    raised = [line for line in text.splitlines() if "Error" in line and not line.startswith(" ")]
    return raised[-1].strip() if raised else ""


class WorkerError(FlightError):
    """A process ended before it answered, or did not answer in time."""


@dataclass
class Place:
    """Where a process stands among the others, and its channel to the process that started it.

    Attributes
    ----------
    rank, num_ranks : int
    rendezvous : str
        Path of a file by which the ranks can find each other; it is not there yet.
    config : any
        What to do; the same for all ranks.
    """

    rank: int
    num_ranks: int
    rendezvous: str
    config: Any
    line: Connection

    def join(self, patience_s: float | None = None, backend: str = "gloo") -> None:
        """Let ``torch.distributed`` find the other ranks; by default over gloo, with its own patience."""
        import torch.distributed as dist

        more: dict[str, Any] = {} if patience_s is None else {"timeout": timedelta(seconds=patience_s)}
        meet = f"file://{self.rendezvous}"
        dist.init_process_group(backend, init_method=meet, rank=self.rank, world_size=self.num_ranks, **more)

    def tell(self, answer: Any) -> None:
        """Send an answer to the parent."""
        self.line.send(answer)

    def order(self) -> Any:
        """Wait for the next order.

        Raises
        ------
        EOFError
            There will be none: the parent has closed the line.
        """
        try:
            return self.line.recv()
        except ConnectionError as error:
            raise EOFError from error


class Workers:
    """Processes that run one module together. Use as a context manager: leaving it ends them all.

    Parameters
    ----------
    module : str
        Its ``main(place)`` runs in each process and returns an exit code, or None.
    config : any
        What ``place.config`` will be; it is pickled.
    num_ranks : int
    title : str
        What they are called in errors.
    cores : sequence of int sequences, optional
        The cores of each rank; by default all may use those of this process.
    environment : mapping, optional
        More variables.
    patience_s : float
        How long a silent process is waited for.
    fds : sequence of int
        Open files that the processes inherit.
    prefixes : sequence of str sequences, optional
        What comes before the command of each rank, such as that of ``links.ShapedLink``; it must not fork.

    Raises
    ------
    WorkerError
        From any method that waits: a process ended or was silent too long. Says what each printed last.
    """

    def __init__(
        self,
        module: str,
        config: Any = None,
        *,
        num_ranks: int = 1,
        title: str = "program",
        cores: Sequence[Sequence[int]] = (),
        environment: Mapping[str, str] | None = None,
        patience_s: float = 300.0,
        fds: Sequence[int] = (),
        prefixes: Sequence[Sequence[str]] = (),
    ) -> None:
        self.title, self.num_ranks, self.patience_s = title, num_ranks, patience_s
        self._module, self._config, self._cores, self._fds = module, config, cores, tuple(fds)
        self._prefixes = prefixes
        self._environment = {**os.environ, **(environment or {})}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[Connection] = []

    def __enter__(self) -> Workers:
        self._folder = tempfile.TemporaryDirectory(prefix="windtunnel-workers-")
        try:
            for rank in range(self.num_ranks):
                self._start(rank)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, and what they started; twice does no harm."""
        if self._processes:
            self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for line in self._lines:
            line.close()
        self._lines = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def exit_codes(self) -> list[int | None]:
        """Of each rank; None while it runs."""
        return [process.poll() for process in self._processes]

    # --- orders and answers ---------------------------------------------------------------------------------

    def send(self, order: Any, rank: int = 0) -> None:
        """Give one rank an order.

        Raises
        ------
        WorkerError
            It has ended.
        """
        try:
            self._lines[rank].send(order)
        except OSError as error:
            raise self.death() from error

    def receive(self, rank: int = 0, patience_s: float | None = None) -> Any:
        """The next answer of a rank.

        Raises
        ------
        WorkerError
            A process ended before it answered, or none came in time.
        """
        limit_s = self.patience_s if patience_s is None else patience_s
        until_s = time.monotonic() + limit_s
        line = self._lines[rank]
        # A process may die without closing its pipe (a child of it may hold it): exit codes are looked at, too.
        # An answer that was sent before the death still counts.
        while not line.poll(min(_POLL_S, limit_s)):
            if any(self.exit_codes()) and not line.poll(0):
                raise self.death()
            if time.monotonic() > until_s:
                raise self.death(f"nothing was heard of it for {limit_s:.0f} s")
        try:
            return line.recv()
        except (EOFError, ConnectionError) as error:
            raise self.death() from error

    def has_answer(self, rank: int = 0) -> bool:
        """Whether a rank's next answer is there.

        Raises
        ------
        WorkerError
            It has ended.
        """
        if self._lines[rank].poll(0):
            return True
        if self.exit_codes()[rank] is not None:
            raise self.death()
        return False

    def gather(self, heard: Callable[[Any], None] | None = None, *, may_die: Sequence[int] = ()) -> list[Any]:
        """The last answer of each rank before it ends well; ``heard`` gets all that rank 0 says before.

        Ranks that ``may_die`` may also be killed by SIGKILL; the answer is then what they said last, or None.

        Raises
        ------
        WorkerError
            A process ended with an error or without an answer, or none said anything for too long.
        """
        last: dict[int, Any] = {}
        waiting = dict(zip(self._lines, range(self.num_ranks), strict=True))
        # Patience starts anew with each answer: a long job that reports progress is not given up.
        until_s = time.monotonic() + self.patience_s
        while waiting:
            for line in wait(list(waiting), _POLL_S):
                assert isinstance(line, Connection)
                rank, until_s = waiting[line], time.monotonic() + self.patience_s
                try:
                    answer = line.recv()
                except (EOFError, ConnectionError):
                    del waiting[line]
                    continue
                if heard is not None and rank == 0 and rank in last:
                    heard(last[rank])
                last[rank] = answer
            if self._has_failed(may_die):
                raise self.death()
            if time.monotonic() > until_s:
                raise self.death(f"nothing was heard of it for {self.patience_s:.0f} s")
        killed = [rank for rank in may_die if self.exit_codes()[rank] == -signal.SIGKILL]
        if self.wait(_GRACE_S) and not self._has_failed(may_die) and len({*last, *killed}) == self.num_ranks:
            return [last.get(rank) for rank in range(self.num_ranks)]
        raise self.death()

    def _has_failed(self, may_die: Sequence[int]) -> bool:
        """Whether a rank has ended badly, apart from those that may be killed."""
        return any(
            code and not (rank in may_die and code == -signal.SIGKILL) for rank, code in enumerate(self.exit_codes())
        )

    def wait(self, patience_s: float) -> bool:
        """Wait until rank 0 has ended; False if it has not in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[0].wait(patience_s)
        return self._processes[0].poll() is not None

    # --- turns ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop all of them where they are, with all that they started."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    # --- last words -----------------------------------------------------------------------------------------

    def log_tail(self) -> str:
        """The last lines that each process printed."""
        tails = [self._log(rank).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") for rank in self._ranks()]
        return "\n".join(f"[rank {rank}]\n{tail}" if len(tails) > 1 else tail for rank, tail in enumerate(tails))

    def death(self, reason: str = "") -> WorkerError:
        """An error that says how they ended, and what they printed last."""
        # A pipe closes before its process is gone; waiting a moment gives the exit code, which says most.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[0].wait(0 if reason else _GRACE_S)
        tail = self.log_tail()
        reported = last_error(tail)
        return WorkerError(
            f"the {self.title} did not answer: {reason or self._describe_kill() or reported or self._describe_exit()}",
            where=self._module,
            fix="the log below says more",
            log_tail=tail,
        )

    def _describe_kill(self) -> str:
        """Describe which process was killed, if any: the errors of the others follow from that."""
        for rank, code in enumerate(self.exit_codes()):
            if code is not None and code < 0 and code != -signal.SIGABRT:
                name = signal.Signals(-code).name
                who = f"rank {rank}" if self.num_ranks > 1 else "the process"
                return f"{who} was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return ""

    def _describe_exit(self) -> str:
        for rank, code in enumerate(self.exit_codes()):
            if code:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
                return f"rank {rank} {how}" if self.num_ranks > 1 else f"the process {how}"
        return "it ended without a word"

    def _ranks(self) -> range:
        return range(len(self._processes))

    def _log(self, rank: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"log{rank}.txt"

    def _start(self, rank: int) -> None:
        assert self._folder is not None
        ours, theirs = Pipe()
        cores = ",".join(map(str, self._cores[rank])) if self._cores else "-"
        prefix = list(self._prefixes[rank]) if self._prefixes else []
        child = [
            *prefix,
            sys.executable,
            "-m",
            "windtunnel.measure.worker",
            str(theirs.fileno()),
            str(os.getpid()),
            cores,
        ]
        with theirs, self._log(rank).open("wb") as log:
            process = subprocess.Popen(
                child,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), *self._fds),
                process_group=self._processes[0].pid if self._processes else 0,
                env=self._environment,
            )
        self._processes.append(process)
        self._lines.append(ours)
        meet = f"{self._folder.name}/meet"
        with contextlib.suppress(BrokenPipeError):  # a process that died at once is reported when it is waited for
            ours.send_bytes(pickle.dumps((self._module, sys.path, rank, self.num_ranks, meet)))
            ours.send(self._config)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._processes[0].pid, number)


@dataclass(frozen=True)
class Done:
    """A command that has run to its end."""

    code: int
    stdout: str
    stderr: str
    elapsed_ns: int


def check_command_output(command: Sequence[str], refused: str, fix: str) -> str:
    """Run a command that has to succeed, and return what it prints.

    Raises
    ------
    InputError
        It does not: ``refused``, and what it says.
    """
    done = run_to_end(command)
    if done is None or done.code:
        reported = done.stderr.strip() if done is not None else "it could not be started"
        raise InputError(f"{refused}: {reported}", where=" ".join(command), fix=fix)
    return done.stdout


def run_to_end(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    timeout_s: float | None = None,
) -> Done | None:
    """Run a command to its end; None where it cannot be started or does not end in time.

    Parameters
    ----------
    command : sequence of str
    environment : mapping, optional
        More variables.
    folder : path, optional
        Where it runs.
    timeout_s : float, optional
    """
    whole = {**os.environ, **(environment or {})}
    begun_ns = time.perf_counter_ns()
    try:
        done = subprocess.run(
            list(command), env=whole, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Done(done.returncode, done.stdout, done.stderr, time.perf_counter_ns() - begun_ns)
