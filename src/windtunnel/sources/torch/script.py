"""Run an unmodified training script under instruments, and capture it.

In: a path and its arguments. Out: how the script ended, and from a capture a ``Graph`` of one of its iterations. The
script runs as ``python script.py args...`` would run it (``__main__``, ``sys.argv``, ``sys.path[0]``), in this process;
its loop is recognized by its optimizer steps and loader fetches, and it is ended once its instruments have enough.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from windtunnel.base.extras import require
from windtunnel.base.gpu_failures import gpu_advice
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError, WindtunnelError
from windtunnel.graph import Graph
from windtunnel.sources.torch.hooks import StepHooks
from windtunnel.sources.torch.launch import is_one_of_several, num_ranks_here, rank_here
from windtunnel.sources.torch.script_iterations import EndOfScript, RankPilot, RecorderPilot

__all__ = [
    "EndOfScript",
    "Ended",
    "IncompleteCaptureError",
    "LeftProcess",
    "Pilot",
    "RecorderPilot",
    "capture_script",
    "check_script",
    "num_planned",
    "run_as_main",
    "run_until_enough",
]


_FEWEST = 4  # profiled iterations that make a graph
_BAD_USAGE = 2  # what argparse and click end with


class LeftProcess(SystemExit):
    """The script called ``os._exit``, which would have ended this process without a word."""


class Pilot(Protocol):
    """Leads instruments through a script."""

    def at_boundary(self, hooks: StepHooks, is_regular: bool) -> None:
        """Between two of its iterations; raises :class:`EndOfScript` once there is enough."""

    def close(self) -> None:
        """Take every instrument away, in the middle of an iteration too."""


class IncompleteCaptureError(InputError):
    """The script ended before enough iterations were measured.

    Parameters
    ----------
    graph : Graph or None
        What was captured until then, if one whole iteration was.
    """

    def __init__(self, message: str = "", *, where: str = "", fix: str = "", graph: Graph | None = None) -> None:
        super().__init__(message, where=where, fix=fix)
        self.graph = graph


def capture_script(
    path: str | Path,
    argv: Sequence[str] = (),
    *,
    iterations: int = 20,
    warmup: int = 3,
    progress: Progress | None = None,
    pilot: Callable[[Any], Pilot] | None = None,
) -> Graph:
    """Run a script as if it were the main program, capture some of its iterations, then end it.

    Parameters
    ----------
    path : path
        The script.
    argv : sequence of str
        Its arguments.
    iterations, warmup, progress
        As in :func:`windtunnel.sources.torch.step.capture`.
    pilot : callable, optional
        Makes of the recorder who leads it, where more is to be seen of the script than it sees.

    Returns
    -------
    Graph
        One iteration.

    Raises
    ------
    InputError
        The file is not there or is no Python.
    IncompleteCaptureError
        The script raised, ended or never stepped before enough was measured; its ``graph`` holds what was captured.
    """
    require("torch", extra="torch")
    from windtunnel.sources.torch.recorder import Recorder

    script = check_script(path)
    recorder = Recorder(iterations=iterations, warmup=max(1, warmup), progress=progress)
    leads = (pilot or (RankPilot if is_one_of_several() else RecorderPilot))(recorder)
    ended = run_until_enough(script, argv, leads)
    irregular = leads.irregular.as_meta() if isinstance(leads, RecorderPilot) else {}
    return _result(recorder, ended, irregular)


def num_planned(iterations: int, warmup: int) -> int:
    """How many of its iterations a script must have for a whole capture; three before them show its loop."""
    from windtunnel.sources.torch.recording import schedule

    return 3 + sum(1 for _ in schedule(iterations, max(1, warmup)))


@dataclass(frozen=True)
class Ended:
    """How a script under instruments came to its end.

    Attributes
    ----------
    script : Path
    hooks : StepHooks
        What it showed of itself until then.
    failure : BaseException or None
        What came out of it.
    argv : sequence of str
        Its arguments.
    """

    script: Path
    hooks: StepHooks
    failure: BaseException | None
    argv: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it came to its own end, and not to grief."""
        return self.failure is None or (isinstance(self.failure, SystemExit) and self.failure.code in (None, 0))

    def reason(self, option: str) -> tuple[str, str]:
        """Why that was too early, and what to do; ``option`` says how many iterations are measured."""
        name, failure, finder = self.script.name, self.failure, self.hooks.finder
        seen = f"after {self.hooks.num_steps} optimizer steps"
        longer = f"let it train longer, or ask for fewer {option}"
        if isinstance(failure, KeyboardInterrupt):
            return f"interrupted {seen}", f"run it again, or ask for fewer {option}"
        if isinstance(failure, SystemExit):
            return self._describe_exit(failure, seen, longer)
        if failure is not None:
            advice = gpu_advice(f"{type(failure).__name__}: {failure}") or self._by_itself()
            return f"{name} raised {type(failure).__name__} {seen}: {failure}", advice
        if self.hooks.num_steps == 0:
            return self._without_steps()
        if not finder.is_locked:
            return (
                f"{name} ended {seen}, before its loop repeated itself",
                "let it train longer: at least three iterations come before the warm-up",
            )
        return f"{name} ended {seen}, too early", longer

    def _describe_exit(self, failure: SystemExit, seen: str, longer: str) -> tuple[str, str]:
        """Describe a script that exited: because of its arguments, before it trained, or while it trained."""
        call = "os._exit" if isinstance(failure, LeftProcess) else "sys.exit"
        reported = f"{self.script.name} called {call}({failure.code!r}) {seen}"
        if self.hooks.num_steps or failure.code in (None, 0):
            return reported, longer
        if failure.code == _BAD_USAGE and call == "sys.exit":
            return (
                f"{self.script.name} refused its arguments ({' '.join(self.argv) or 'none'}) and ended",
                "its own words stand above; its options come behind it: SCRIPT.py --epochs 3",
            )
        return reported, self._by_itself()

    def _by_itself(self) -> str:
        return f"make it run by itself first: {shlex.join(['python', str(self.script), *self.argv])}"

    def _without_steps(self) -> tuple[str, str]:
        if self.hooks.num_foreign_steps:
            return (
                f"{self.script.name} trains on another thread than its main one "
                f"({self.hooks.num_foreign_steps} optimizer steps)",
                "let its main thread run the training loop",
            )
        return (
            f"{self.script.name} ended and no optimizer stepped in this process",
            "measure the script that calls optimizer.step() itself, not one that starts other processes",
        )

    def place(self) -> str:
        """The line of the script itself where it failed."""
        frames = traceback.extract_tb(self.failure.__traceback__) if self.failure is not None else []
        own = [frame for frame in frames if Path(frame.filename) == self.script]
        return f"{self.script}:{own[-1].lineno}" if own else str(self.script)


def run_until_enough(
    script: Path,
    argv: Sequence[str],
    pilot: Pilot,
    *,
    surroundings: AbstractContextManager[Any] | None = None,
    on_loader: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Ended:
    """Run ``script`` as the main program under instruments, until they have enough or it ends by itself.

    Parameters
    ----------
    script : Path
        One that :func:`check_script` has let pass.
    argv : sequence of str
        Its arguments.
    pilot : Pilot
        Called between its iterations; closed at the end.
    surroundings : context manager, optional
        What the script runs within.
    on_loader : callable, optional
        As for :class:`windtunnel.sources.torch.hooks.StepHooks`.

    Returns
    -------
    Ended
        Whatever a script raises is its own affair, and is told here.

    Raises
    ------
    WindtunnelError
        An instrument's own.
    """
    from windtunnel.sources.torch.profile import escape_labels

    hooks = StepHooks(on_boundary=pilot.at_boundary, on_loader=on_loader, holds_heap=False)
    if isinstance(pilot, RecorderPilot):
        pilot.irregular.follow(hooks)
    failure: BaseException | None = None
    try:
        with surroundings or nullcontext(), escape_labels(keeps_all=False), hooks:
            run_as_main(script, argv)
    except EndOfScript:
        pass
    except WindtunnelError:
        raise
    except BaseException as error:
        failure = error
    finally:
        pilot.close()
    return Ended(script, hooks, failure, argv)


@contextmanager
def _as_main_program(script: Path, argv: Sequence[str]) -> Iterator[None]:
    kept = sys.argv, sys.path[:], sys.modules.get("__main__")
    sys.argv = [str(script), *argv]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = kept[0], kept[1]
        if kept[2] is not None:
            sys.modules["__main__"] = kept[2]


@contextmanager
def _intercept_exit(home: int) -> Iterator[None]:
    """``os._exit`` of the main thread of this process unwinds the script; anywhere else it does what it always did."""
    leave = os._exit

    def leaving(status: int) -> NoReturn:
        if os.getpid() == home and threading.current_thread() is threading.main_thread():
            raise LeftProcess(status)
        leave(status)

    os._exit = leaving
    try:
        yield
    finally:
        os._exit = leave


def run_as_main(script: Path, argv: Sequence[str] = ()) -> None:
    """Run ``script`` in this process as ``python script args...`` does, and put everything back after it.

    A child that the script forks ends where the script ends: it must not go on as a second one of us.
    """
    home = os.getpid()
    try:
        with _as_main_program(script, argv), _intercept_exit(home):
            runpy.run_path(str(script), run_name="__main__")
    except BaseException as error:
        if os.getpid() != home:
            _leave_child(error)
        raise
    if os.getpid() != home:
        _leave_child(None)


def check_script(path: str | Path) -> Path:
    """Return the path of a script, after checking that it exists and is Python.

    Raises
    ------
    InputError
        It is not.
    """
    script = Path(path)
    if not script.is_file():
        raise InputError(
            f"there is no script {script}",
            where=str(script.resolve()),
            fix="check the path; a module needs its file name",
        )
    try:
        compile(script.read_bytes(), str(script), "exec")
    except (SyntaxError, ValueError) as error:
        raise InputError(
            f"{script.name} is not valid Python: {error}",
            where=f"{script}:{getattr(error, 'lineno', None) or 0}",
            fix="correct it, then capture again",
        ) from error
    return script


def _result(recorder: Any, ended: Ended, irregular: dict[str, Any]) -> Graph:
    recording = recorder.recording
    # a flight of this graph starts the same program again
    known: dict[str, Any] = {"origin": {"script": str(ended.script.resolve()), "argv": list(ended.argv)}}
    known["irregular"] = irregular
    if is_one_of_several():
        known["distributed"] = {"rank": rank_here(), "world_size": num_ranks_here()}
    graph: Graph | None = None
    if recording.is_complete or recording.rich is not None:
        graph = recorder.graph().with_meta(**known)
    if graph is not None and recording.is_complete:
        return graph
    if graph is not None and ended.is_whole and len(recording.light_ns) >= _FEWEST:
        return graph  # fewer iterations than were asked for, and all of one kind: ``meta.is_complete`` says so
    message, fix = ended.reason("--iterations")
    kept = "nothing was captured" if graph is None else f"{recorder.num_measured} measured iterations are kept"
    raise IncompleteCaptureError(f"{message}; {kept}", where=ended.place(), fix=fix, graph=graph) from ended.failure


def _leave_child(failure: BaseException | None) -> NoReturn:
    """End a forked child as the interpreter would."""
    if failure is not None and not isinstance(failure, SystemExit):
        traceback.print_exception(failure)
    code = failure.code if isinstance(failure, SystemExit) else int(failure is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
