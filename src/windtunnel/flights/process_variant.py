"""One variant of a program, in a process of its own, that runs only when it is its turn.

In: what to run, under which flights; then, turn by turn, how many iterations. Out: an answer when ready, and one per
turn. A closed line ends the process. Only the first rank answers.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from windtunnel import registry
from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.flights.paused_processes import LaneConfig
from windtunnel.flights.proof import BATCHES_AHEAD, LossWatch, Witness
from windtunnel.measure.devices import IterationClock
from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.workers import Place
from windtunnel.sources.scratch import writes_below
from windtunnel.sources.targets import build_workload, discover
from windtunnel.sources.torch.hooks import StepHooks
from windtunnel.sources.torch.launch import join_job
from windtunnel.sources.torch.live import LiveProgram
from windtunnel.sources.torch.script import EndOfScript, run_as_main

__all__ = ["main"]

_BOUNDARIES_BEFORE_READY = 4


class _Timer:
    """Counts the iterations of a turn and waits for the next one at its end."""

    def __init__(self, worker: Place, program: LiveProgram, *, sees_operators: bool) -> None:
        self._program = program
        self._worker = worker
        self._clock = IterationClock()
        self._num_wanted = -1  # -1: not asked yet
        self._num_settling = 0
        self.losses = LossWatch()
        self._sees_operators = sees_operators
        self._witness: Witness | None = None
        self._seen: dict[str, float] = {}
        self._num_watched = 0

    def boundary(self, *, is_regular: bool = True, num_settling: int = 1, loaders: Sequence[Any] = ()) -> None:
        """An iteration lies behind."""
        if self._worker.rank:
            return
        if self._num_wanted < 0:
            self.tell({"ready": True, "iterations_per_sample": self._program.iterations_per_sample})
            self._await_order(num_settling)
            # The iterations before the first that is timed are watched.
            self._num_watched = self._num_settling
            self._witness = Witness(self._program, loaders, sees_operators=self._sees_operators)
            self._witness.begin()
        elif self._num_settling > 0:
            self._num_settling -= 1
            if not self._num_settling and self._witness is not None:
                self._seen, self._witness = self._witness.end(self._num_watched), None
        elif is_regular:
            self._clock.mark()
            if len(self._clock) >= self._num_wanted:
                durations_ns = self._clock.durations_ns()
                self.tell({"durations_ns": durations_ns, "losses": self.losses.read(), "seen": self._seen})
                self._await_order(num_settling)
        self._clock.begin()

    def tell(self, answer: dict[str, Any]) -> None:
        """Send an answer to the parent process, which gives the turns."""
        if not self._worker.rank:
            self._worker.tell(answer)

    def _await_order(self, num_settling: int) -> None:
        try:
            self._num_wanted, self._clock = self._worker.order(), IterationClock()
        except EOFError:
            raise EndOfScript from None
        self._num_settling = max(num_settling, self._program.iterations_per_sample)


def main(worker: Place) -> int:
    """Run the lane that the parent describes."""
    config: LaneConfig = worker.config
    program = LiveProgram(rank=worker.rank, num_ranks=worker.num_ranks, is_hooked=bool(config.script))
    program.kept["rendezvous"] = worker.rendezvous
    if config.meeting is not None:
        join_job(worker.rank, worker.num_ranks, config.meeting)
    timer = _Timer(worker, program, sees_operators=config.sees_operators)
    random.seed(config.seed)
    np.random.seed(config.seed)  # noqa: NPY002 - what a script may use
    torch.manual_seed(config.seed)
    if config.threads:
        torch.set_num_threads(config.threads)
    hold_heap()
    try:
        with ExitStack() as stack:
            for name, parameters in config.steps:
                stack.enter_context(registry.get("flight", name).function(program, **parameters))
            stack.enter_context(timer.losses.watching())
            (_run_script if config.script else _run_workload)(config, program, timer)
    except EndOfScript:
        return 0
    except WindtunnelError as error:
        reported = {"error": error.message, "where": error.where, "fix": error.fix}
        timer.tell(reported | {"is_not_applicable": isinstance(error, NotApplicableError)})
        return 2
    except BaseException as error:  # any exception of a script is reported to the waiting parent
        traceback.print_exc()
        name = "SystemExit" if isinstance(error, SystemExit) else type(error).__name__  # os._exit is one, too
        timer.tell({"raised": f"{name}: {str(error).partition(chr(10))[0]}"})
        return 0 if isinstance(error, SystemExit) else 1
    timer.tell({"ended": True})
    return 0


def _run_script(config: LaneConfig, program: LiveProgram, timer: _Timer) -> None:
    def at_boundary(hooks: StepHooks, is_regular: bool) -> None:
        if hooks.num_boundaries == 2:  # one whole iteration has shown every model
            program.add(hooks.models, hooks.optimizers)
        if hooks.num_boundaries >= _BOUNDARIES_BEFORE_READY:
            settling = _num_settling(hooks.loaders, program)
            timer.boundary(is_regular=is_regular, num_settling=settling, loaders=hooks.loaders)

    hooks = StepHooks(on_boundary=at_boundary, on_loader=program.loader_arguments, on_step=program.step)
    script = Path(config.script)
    scratch = Path(program.kept["rendezvous"]).parent / f"scratch{program.rank}"  # goes with the parent's folder
    scratch.mkdir()
    with writes_below(scratch, script) if config.keeps_files else nullcontext(), hooks:
        run_as_main(script, config.argv)


def _num_settling(loaders: list[Any], program: LiveProgram) -> int:
    """Batches that workers or a thread have ready are used up before anything is measured."""
    ready = [int(loader.num_workers * (loader.prefetch_factor or 0)) for loader in loaders]
    ahead = int(program.kept.get(BATCHES_AHEAD, 0))
    return 1 + max([ahead, *ready])


def _run_workload(config: LaneConfig, program: LiveProgram, timer: _Timer) -> None:
    with torch.device(config.device) if config.device != "cpu" else nullcontext():
        built = build_workload(config.workload, config.workload_parameters, program)
    discover(built.step, program)
    loaders = [built.loader] if built.loader is not None else []
    num_settling = _num_settling(loaders, program)
    while True:
        built.step()
        timer.boundary(num_settling=num_settling, loaders=loaders)
