"""A lane of other processes that are stopped while it is not their turn.

In: what to run, in one or several processes. Out: turns. The processes are stopped after a turn and resumed before the
next, so that neither a loader's workers nor a second rank runs while the other lane is measured. Not here: launching
them (``measure.workers``).
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import Any

import msgspec

from windtunnel.base.gpu_failures import gpu_advice
from windtunnel.errors import FlightError, NotApplicableError
from windtunnel.measure.deadline import OutOfTimeError
from windtunnel.measure.turns import Turn
from windtunnel.measure.workers import WorkerError, Workers
from windtunnel.sources.torch.launch import Meeting, Ranks, launch

__all__ = ["LaneConfig", "ProcessLane"]


class LaneConfig(msgspec.Struct, frozen=True):
    """What a lane's processes have to do; ``steps`` are names and parameters of flights."""

    script: str = ""
    argv: tuple[str, ...] = ()
    workload: str = ""
    workload_parameters: dict[str, Any] = {}
    steps: tuple[tuple[str, dict[str, Any]], ...] = ()
    seed: int = 0
    threads: int = 0
    device: str = "cpu"
    sees_operators: bool = True
    ranks: Ranks = Ranks()
    keeps_files: bool = False
    meeting: Meeting | None = None


class ProcessLane:
    """One variant in processes of its own. Use as a context manager: leaving it ends the processes.

    Parameters
    ----------
    config : LaneConfig
    title : str
        What it is called in errors.
    num_ranks : int
        How many processes.
    patience_s : float
        How long a silent process is waited for.
    deadline_s : float
        Reading of ``time.monotonic`` after which nothing is waited for.
    """

    def __init__(
        self,
        config: LaneConfig,
        *,
        title: str,
        num_ranks: int = 1,
        patience_s: float = 300.0,
        deadline_s: float = math.inf,
    ) -> None:
        self.iterations_per_sample = 1
        self.title = title
        self._config = config
        self._num_ranks = max(num_ranks, config.ranks.num_ranks)
        self._patience_s, self._deadline_s = patience_s, deadline_s
        self._stack = ExitStack()
        self._has_ended = False

    def __enter__(self) -> ProcessLane:
        with ExitStack() as stack:
            config, options = self._config, dict[str, Any]()
            if config.ranks.num_ranks > 1:  # the script finds its peers itself
                link, meeting, environment = stack.enter_context(launch(config.ranks))
                config = msgspec.structs.replace(config, meeting=meeting)
                options = {"environment": environment, "prefixes": link.prefixes}
            workers = Workers(
                "windtunnel.flights.process_variant",
                config,
                num_ranks=self._num_ranks,
                title=self.title,
                patience_s=self._patience_s,
                **options,
            )
            self._workers = stack.enter_context(workers)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_until_ready(self) -> None:
        """Wait until the program iterates, then stop it.

        Raises
        ------
        OutOfTimeError
            It did not before the deadline.
        FlightError
            It never did.
        """
        answer = self._answer()
        if not answer.get("ready"):
            self._fail(answer)
        self.iterations_per_sample = int(answer["iterations_per_sample"])
        self._workers.stop()

    def turn(self, num_iterations: int) -> Turn | None:
        """Let it run one iteration to settle and then ``num_iterations``; None when it has ended."""
        if self._has_ended:
            return None
        self._workers.resume()
        try:
            self._workers.send(num_iterations)
            answer = self._answer()
        except WorkerError:
            if any(self._workers.exit_codes()):
                raise
            answer = {"ended": True}  # it closed its line and ended well
        self._workers.stop()
        if answer.get("ended") or str(answer.get("raised", "")).startswith("SystemExit"):
            self._has_ended = True
            return None
        if "durations_ns" not in answer:
            self._fail(answer)
        return Turn(answer["durations_ns"], answer["losses"], answer["seen"])

    def log_tail(self) -> str:
        """The last lines that each process printed."""
        return self._workers.log_tail()

    def _answer(self) -> dict[str, Any]:
        remaining_s = max(0.0, self._deadline_s - time.monotonic())
        try:
            answer: dict[str, Any] = self._workers.receive(patience_s=min(self._patience_s, remaining_s))
        except WorkerError as error:
            if time.monotonic() >= self._deadline_s and not any(self._workers.exit_codes()):
                raise OutOfTimeError(
                    f"the {self.title} was not done when the time was up",
                    where=self._config.script or self._config.workload,
                    log_tail=self.log_tail(),
                ) from error
            if self._workers.exit_codes()[0] == 0:  # the program itself came to its end
                return {"ended": True}
            raise self._failure(error.message.partition(": ")[2]) from error
        return answer

    def _fail(self, answer: dict[str, Any]) -> None:
        if answer.get("is_not_applicable"):
            raise NotApplicableError(answer["error"], where=answer["where"], fix=answer["fix"])
        if "error" in answer:
            raise FlightError(answer["error"], where=answer["where"], fix=answer["fix"], log_tail=self.log_tail())
        raise self._failure(answer.get("raised") or "it ended before it iterated")

    def _failure(self, what: str) -> FlightError:
        return FlightError(
            f"the {self.title} could not be flown: {what}",
            where=self._config.script or self._config.workload,
            fix=gpu_advice(what) or "make it train without input for at least ten iterations; the log below says more",
            log_tail=self.log_tail(),
        )
