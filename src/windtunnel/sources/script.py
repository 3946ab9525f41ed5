"""Capture an unmodified training script (room sources).

In: a path and its arguments. Out: a ``Graph`` of one of its iterations. The script runs as ``python script.py
args...`` would run it (``__main__``, ``sys.argv``, ``sys.path[0]``), in this process; its loop is recognised by its
optimiser steps and loader fetches, and it is ended once enough iterations have been measured.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from windtunnel.errors import InputError, WindtunnelError
from windtunnel.extras import require
from windtunnel.graph import Graph
from windtunnel.sources.hooks import StepHooks

__all__ = ["EndOfScript", "IncompleteCaptureError", "capture_script", "checked_script", "run_as_main"]


class EndOfScript(BaseException):
    """Raised inside of a script to end it; not an ``Exception``, so that its own handlers let it pass."""


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
    progress: Callable[[str, int, int], None] | None = None,
) -> Graph:
    """Run a script as if it were the main program, capture some of its iterations, then end it.

    Parameters
    ----------
    path : path
        The script.
    argv : sequence of str
        Its arguments.
    iterations, warmup, progress
        As in :func:`windtunnel.sources.torch_step.capture`.

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
    from windtunnel.sources._torch_recorder import Recorder

    script = checked_script(path)
    recorder = Recorder(iterations=iterations, warmup=max(1, warmup), progress=progress)
    pilot = _Pilot(recorder)
    home = os.getpid()
    failure: BaseException | None = None
    hooks = StepHooks(on_boundary=pilot.at_boundary, holds_heap=False)
    try:
        with hooks:
            run_as_main(script, argv)
    except EndOfScript:
        pass
    except WindtunnelError:
        raise
    except BaseException as error:  # whatever a script raises is its own affair, and is told
        failure = error
    finally:
        if os.getpid() != home:
            _leave_child(failure)
        recorder.close()
    graph = _result(recorder, hooks, script, failure)
    # a flight of this graph starts the same program again
    return graph.with_meta(origin={"script": str(script.resolve()), "argv": list(argv)})


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


def run_as_main(script: Path, argv: Sequence[str] = ()) -> None:
    """Run ``script`` in this process as ``python script args...`` does, and put everything back after it."""
    with _as_main_program(script, argv):
        runpy.run_path(str(script), run_name="__main__")


class _Pilot:
    """Leads the recorder from boundary to boundary, and ends the script."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self._pattern: tuple[Any, ...] = ()

    def at_boundary(self, hooks: StepHooks, is_regular: bool) -> None:
        if self.recorder.is_complete:
            raise EndOfScript
        pattern = hooks.finder.pattern
        if pattern and pattern != self._pattern:  # the first, or the loop has changed its form
            self._pattern = pattern
            self.recorder.restart()
            self.recorder.recording.discovery.add(hooks.models, hooks.optimizers)
            self.recorder.begin()
            return
        self.recorder.boundary(is_regular=is_regular)
        if self.recorder.is_complete:
            raise EndOfScript


def checked_script(path: str | Path) -> Path:
    """The path of a script that is there and is Python.

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


def _result(recorder: Any, hooks: StepHooks, script: Path, failure: BaseException | None) -> Graph:
    from windtunnel.sources._torch_build import build_graph

    recording = recorder.recording
    if recording.is_complete:
        return build_graph(recording)
    graph = build_graph(recording) if recording.rich is not None else None
    message, fix = _reason(hooks, script, failure)
    kept = "nothing was captured" if graph is None else f"{recorder.num_measured} measured iterations are kept"
    raise IncompleteCaptureError(f"{message}; {kept}", where=_place(script, failure), fix=fix, graph=graph) from failure


def _reason(hooks: StepHooks, script: Path, failure: BaseException | None) -> tuple[str, str]:
    seen = f"after {hooks.num_steps} optimiser steps"
    if isinstance(failure, KeyboardInterrupt):
        return f"interrupted {seen}", "run it again, or ask for fewer --iterations"
    if isinstance(failure, SystemExit):
        return (
            f"{script.name} called sys.exit({failure.code!r}) {seen}",
            "let it train longer, or ask for fewer --iterations",
        )
    if failure is not None:
        return f"{script.name} raised {type(failure).__name__} {seen}: {failure}", "make it run by itself first"
    if hooks.num_steps == 0 and hooks.num_foreign_steps:
        return (
            f"{script.name} trains on another thread than its main one ({hooks.num_foreign_steps} optimiser steps)",
            "let its main thread run the training loop",
        )
    if hooks.num_steps == 0:
        return (
            f"{script.name} ended and no optimiser stepped in this process",
            "capture the script that calls optimizer.step() itself, not one that starts other processes",
        )
    if not hooks.finder.is_locked:
        return (
            f"{script.name} ended {seen}, before its loop repeated itself",
            "let it train longer: at least three iterations come before the warm-up",
        )
    return f"{script.name} ended {seen}, too early", "let it train longer, or ask for fewer --iterations"


def _place(script: Path, failure: BaseException | None) -> str:
    """The line of the script itself where it failed."""
    frames = traceback.extract_tb(failure.__traceback__) if failure is not None else []
    own = [frame for frame in frames if Path(frame.filename) == script]
    return f"{script}:{own[-1].lineno}" if own else str(script)


def _leave_child(failure: BaseException | None) -> NoReturn:
    """A forked child comes out of the script here: it must not go on as a second capture."""
    if failure is not None and not isinstance(failure, SystemExit):
        traceback.print_exception(failure)
    code = failure.code if isinstance(failure, SystemExit) else int(failure is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
