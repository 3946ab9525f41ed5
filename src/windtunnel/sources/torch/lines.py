"""Which line of the program calls an operator.

In: the one rich iteration, in which every outermost call of torch's API stands in a mark with the line that makes it.
Out: a line per event. A backward operator takes the line of the forward operator that made its autograd node, as it
does its layer. The marks are taken out of the events before anything else looks at them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from windtunnel.sources.memory.storages import Lines
from windtunnel.sources.torch.phase_and_layer import labels_within
from windtunnel.sources.torch.profile import Events, annotate
from windtunnel.sources.torch.timeline_points import walk

__all__ = ["lines_of", "mark_lines", "without_lines"]

LINE = "wt:line:"
_autograd: Any = torch.autograd
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


class _LineMarks(TorchFunctionMode):
    """While it is on, the profile says which line calls each function, method and operator of torch."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = Lines()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # an attribute runs nothing, and there are many; an update within a backward pass may end the iteration, and
        # with it the profile, which no mark outlives
        if getattr(function, "__name__", "") == "__get__" or function in _BACKWARD:
            return function(*args, **(kwargs or {}))
        with annotate(LINE + self._lines.texts[self._lines.here()]):
            return function(*args, **(kwargs or {}))


@contextmanager
def mark_lines() -> Iterator[None]:
    """Put the marks into the profile while this lasts, within backward passes too.

    A pass runs Python of the program (functions of its own, hooks, what a checkpoint repeats), and torch turns modes
    off when it begins one.
    """
    marks, run_engine = _LineMarks(), _autograd._engine_run_backward

    @functools.wraps(run_engine)
    def run_marked(*args: Any, **kwargs: Any) -> Any:
        if marks in _get_current_function_mode_stack():
            return run_engine(*args, **kwargs)
        with marks:
            return run_engine(*args, **kwargs)

    _autograd._engine_run_backward = run_marked
    marks.__enter__()
    try:
        yield
    finally:
        _autograd._engine_run_backward = run_engine
        _turn_off(marks)


def _turn_off(mode: TorchFunctionMode) -> None:
    """Take a mode away, also from below others that the program turned on meanwhile."""
    above = []
    while mode in _get_current_function_mode_stack():
        removed = _pop_mode()
        if removed is mode:
            break
        above.append(removed)
    for other in reversed(above):
        _push_mode(other)


def lines_of(events: Events) -> dict[int, str]:
    """The line of every record of the thread that the iteration runs on."""
    marker = events.markers()[0]
    inside = events.inside(marker)
    points = walk(events, inside[events.thread[inside] == events.thread[marker]])
    if not len(events.record_id):
        return {}
    labels = labels_within(events, points, LINE, also_around=True)
    return {int(events.record_id[row]): label for row, label in zip(points.rows.tolist(), labels, strict=True) if label}


def without_lines(events: Events) -> Events:
    """The events without the marks, each node below the nearest one that is left."""
    kept = np.array([row for row, name in enumerate(events.names) if not name.startswith(LINE)], dtype=np.int64)
    above = {node["id"]: node["ctrl_deps"] for node in events.nodes.values() if node["name"].startswith(LINE)}
    nodes = {
        record_id: {**node, "ctrl_deps": _nearest(node["ctrl_deps"], above)} if node["ctrl_deps"] in above else node
        for record_id, node in events.nodes.items()
        if node["id"] not in above
    }
    columns = ["start_ns", "end_ns", "thread", "sequence", "forward_thread"]
    columns += ["record_id"] * bool(len(events.record_id))
    selected = {name: getattr(events, name)[kept] for name in columns}
    return replace(events, names=[events.names[row] for row in kept.tolist()], nodes=nodes, **selected)


def _nearest(node: int, above: dict[int, int]) -> int:
    while node in above:
        node = above[node]
    return node
