"""A PyTorch training step that really runs -> a graph.

In: a function that does one whole iteration. Out: a ``Graph`` whose replay takes as long as the step without any
profiler. Not here: scripts that own their loop (``script``), prices, what-ifs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.graph import Graph

__all__ = ["capture"]


@registry.source("torch-step", source="PyTorch profiler and execution trace; Daydream, ATC 2020")
def capture(
    step: Callable[[], Any],
    *,
    iterations: int = 20,
    warmup: int = 3,
    model: Any = None,
    optimizer: Any = None,
    progress: Progress | None = None,
) -> Graph:
    """Run ``step`` some times, bare and profiled in turn, and return the graph of one iteration.

    Parameters
    ----------
    step : callable
        One whole training iteration, without arguments.
    iterations : int
        How many bare and how many profiled iterations to measure.
    warmup : int
        Iterations before anything is measured.
    model, optimizer : Module or Optimizer, or several
        Found by themselves if they are not given.
    progress : callable
        Called with (what, done, total) after every iteration.

    Returns
    -------
    Graph
        One iteration. ``samples_ns`` [T, iterations] holds every profiled iteration; ``meta`` holds the time of the
        unprofiled iterations and what was taken out for the profiler. Where iterations vary so much that their time is
        known badly, ``meta["overhead"]["note"]`` says so and is logged.

    Raises
    ------
    InputError
        ``iterations`` is not positive, or ``step`` is not callable.
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    if iterations < 1 or not callable(step):
        raise InputError(
            "capture needs a function to call and at least one iteration",
            where=f"step={step!r}, iterations={iterations}",
            fix="pass a function that does one training iteration",
        )
    from windtunnel.sources.torch.annotate import Discovery
    from windtunnel.sources.torch.profile import escape_labels
    from windtunnel.sources.torch.recorder import Recorder

    discovery = Discovery().add(_as_iterable(model), _as_iterable(optimizer))
    recorder = Recorder(iterations=iterations, warmup=max(1, warmup), discovery=discovery, progress=progress)
    recorder.begin()
    try:
        with escape_labels():
            while not recorder.is_complete:
                step()
                recorder.boundary()
    finally:
        recorder.close()
    graph = recorder.graph()
    if note := graph.meta.overhead.get("note"):
        logging.getLogger(__name__).warning(note)
    return graph


def _as_iterable(value: Any) -> Iterable[Any]:
    if value is None:
        return ()
    return value if isinstance(value, (list, tuple)) else (value,)
