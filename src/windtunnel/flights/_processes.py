"""A lane of other processes that are stopped while it is not their turn (room flights, private).

In: what to run, in one or several processes. Out: turns. The processes form a group that gets SIGSTOP after a turn
and SIGCONT before the next, so that neither a loader's workers nor a second rank runs while the other lane is
measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from windtunnel.errors import FlightError, NotApplicableError
from windtunnel.measure.turns import Turn

__all__ = ["LaneConfig", "ProcessLane"]

_LOG_TAIL_BYTES = 4000
_POLL_S = 0.5


class LaneConfig(msgspec.Struct, frozen=True):
    """What a lane's process has to do; ``steps`` are names and parameters of flights."""

    script: str = ""
    argv: tuple[str, ...] = ()
    workload: str = ""
    workload_parameters: dict[str, Any] = {}
    steps: tuple[tuple[str, dict[str, Any]], ...] = ()
    rank: int = 0
    num_ranks: int = 1
    rendezvous: str = ""
    answers_fd: int = -1
    orders_fd: int = -1
    seed: int = 0
    threads: int = 0


class ProcessLane:
    """One variant in processes of its own. Use as a context manager: leaving it ends the processes.

    Parameters
    ----------
    config : LaneConfig
        What every process runs; ranks and pipes are filled in here.
    num_ranks : int
        How many processes.
    patience_s : float
        How long a silent process is waited for.
    """

    def __init__(self, config: LaneConfig, *, title: str, num_ranks: int = 1, patience_s: float = 300.0) -> None:
        self.iterations_per_sample = 1
        self.title = title
        self._folder = tempfile.TemporaryDirectory(prefix="windtunnel-lane-")
        self._patience_s = patience_s
        self._num_ranks = num_ranks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._config = msgspec.structs.replace(config, num_ranks=num_ranks, rendezvous=f"{self._folder.name}/meet")
        self._answers: IO[bytes] | None = None
        self._orders: IO[bytes] | None = None
        self._buffer = b""
        self._has_ended = False

    def __enter__(self) -> ProcessLane:
        answers_read, answers_write = os.pipe()
        orders_read, orders_write = os.pipe()
        self._answers = os.fdopen(answers_read, "rb", buffering=0)
        self._orders = os.fdopen(orders_write, "wb", buffering=0)
        for rank in range(self._num_ranks):
            fds = {"answers_fd": answers_write, "orders_fd": orders_read} if rank == 0 else {}
            self._start(msgspec.structs.replace(self._config, rank=rank, **fds), tuple(fds.values()))
        os.close(answers_write)
        os.close(orders_read)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)
            process.wait()
        for pipe in (self._answers, self._orders):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()

    @property
    def _group(self) -> int:
        return self._processes[0].pid

    def _start(self, config: LaneConfig, fds: tuple[int, ...]) -> None:
        path = Path(self._folder.name) / f"lane{config.rank}.json"
        path.write_bytes(msgspec.json.encode(config))
        group = self._processes[0].pid if self._processes else 0
        with self._log(config.rank).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "windtunnel.flights._lane", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                process_group=group,
            )
        self._processes.append(process)

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"log{rank}.txt"

    def wait_until_ready(self) -> None:
        """Wait until the program iterates, then stop it.

        Raises
        ------
        FlightError
            It never did.
        """
        answer = self._answer()
        if answer is None or not answer.get("ready"):
            self._fail(answer or {})
        assert answer is not None
        self.iterations_per_sample = int(answer["iterations_per_sample"])
        self._stop()

    def turn(self, num_iterations: int) -> Turn | None:
        """Let it run one iteration to settle and then ``num_iterations``; None when it has ended."""
        if self._has_ended:
            return None
        assert self._orders is not None
        self._continue()
        try:
            self._orders.write(f"{num_iterations}\n".encode())
        except BrokenPipeError:
            self._has_ended = True
            return None
        answer = self._answer()
        self._stop()
        if answer is None or answer.get("ended") or str(answer.get("raised", "")).startswith("SystemExit"):
            self._has_ended = True
            return None
        if "durations_ns" not in answer:
            self._fail(answer)
        return Turn(answer["durations_ns"], answer["losses"])

    def log_tail(self) -> str:
        """The last lines that each process printed."""
        tails = []
        for rank in range(len(self._processes)):
            tail = self._log(rank).read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
            tails.append(f"[rank {rank}]\n{tail}" if len(self._processes) > 1 else tail)
        return "\n".join(tails)

    def _fail(self, answer: dict[str, Any]) -> None:
        if answer.get("is_not_applicable"):
            raise NotApplicableError(answer["error"], where=answer["where"], fix=answer["fix"])
        if "error" in answer:
            raise FlightError(answer["error"], where=answer["where"], fix=answer["fix"], log_tail=self.log_tail())
        silent = "it ended before it iterated" if answer.get("ended") else "it ended without a word"
        what = answer.get("raised") or silent
        raise FlightError(
            f"the {self.title} could not be flown: {what}",
            where=self._config.script or self._config.workload,
            fix="make it train by itself for at least ten iterations; the log below says more",
            log_tail=self.log_tail(),
        )

    def _answer(self) -> dict[str, Any] | None:
        """The next line that the lane sends; None when it has closed its pipe."""
        assert self._answers is not None
        until_s = time.monotonic() + self._patience_s
        while b"\n" not in self._buffer:
            if select.select([self._answers], [], [], _POLL_S)[0]:
                piece = os.read(self._answers.fileno(), 1 << 16)
                if not piece:
                    return None
                self._buffer += piece
            elif time.monotonic() > until_s or any(process.poll() for process in self._processes):
                self._fail({"raised": f"nothing was heard of it for {self._patience_s:.0f} s, or a process of it died"})
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _stop(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, signal.SIGSTOP)

    def _continue(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, signal.SIGCONT)
