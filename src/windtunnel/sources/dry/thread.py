"""What the program's thread does between the operators of one rank's iteration.

In: a profile of names while the iteration runs on fake tensors, in which the recorder marks its calls. Out: a
``ThreadCall`` for everything that takes the thread's time on a device's host: Python between two calls from Python,
calls that launch nothing, nodes of the backward pass, and the recorded calls among them; the same that a capture on
fake tensors has (``sources.torch.fake``). Not here: graphs (``build``), what all this takes (``cost.host_times``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from windtunnel.sources.torch.build import LOADER, MARKS, PYTHON
from windtunnel.sources.torch.fake_events import DISPATCH
from windtunnel.sources.torch.profile import ITERATION, Events, LightProfiler, annotate

__all__ = ["ThreadCall", "ThreadProfile", "mark_call", "pause_profile"]

_CALL = "wt:call "
_SUBCLASS, _UNPACKS = "PythonSubclass", ("aten::detach", "detach")


class ThreadCall(NamedTuple):
    """One stretch of the thread: its name, which recorded call it is (-1: none), whether a loader fetches a batch."""

    name: str
    call: int = -1
    is_loading: bool = False


class ThreadProfile:
    """A profile of names of one iteration."""

    def __init__(self) -> None:
        self._profiler = LightProfiler()
        self._marker: Any = None

    def start(self) -> None:
        """Begin to record on this thread."""
        self._profiler.start()
        self._marker = annotate(ITERATION)
        self._marker.__enter__()

    def stop(self) -> None:
        """End the recording."""
        self._marker.__exit__(None, None, None)
        self._profiler.stop()

    def calls(self, names: list[str]) -> list[ThreadCall]:
        """What the thread did, in order.

        Parameters
        ----------
        names : list of str
            Operators of all recorded calls.
        """
        return _in_order(self._profiler.events(), names)


def mark_call(number: int) -> None:
    """Put the number of a recorded call into the profile."""
    with annotate(f"{_CALL}{number}"):
        pass


@contextmanager
def pause_profile() -> Iterator[None]:
    """Leave out of the profile what runs within: thousands of events of fake tensors, which are not the program's."""
    torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch._C._autograd._enable_record_function(True)


def _in_order(events: Events, names: list[str]) -> list[ThreadCall]:
    #      linear |-----------------------------|       thread: python, linear, t (call 0), addmm (call 1)
    #        t |-------|      addmm |----------|        a call belongs to the operator that was dispatched to it;
    #     dispatch |--|       dispatch |-----|          of an operator on tensors that wrap others there are several
    #      wt:call 0            wt:call 1
    marker = events.markers()[0]
    rows = events.inside(marker)
    result: list[ThreadCall] = []
    open_rows: list[tuple[int, int]] = []  # (end, index in the result)
    hidden_until = loading_until = last = -1
    for row in rows[(events.thread[rows] == events.thread[marker]) & (rows != marker)].tolist():
        name, start_ns, end_ns = events.names[row], events.start_ns[row], events.end_ns[row]
        while open_rows and open_rows[-1][0] <= start_ns:
            open_rows.pop()
        if name.startswith(_CALL):
            call, owner = int(name.removeprefix(_CALL)), open_rows[-1][1] if open_rows else -1
            if owner > last:
                last, result[owner] = owner, result[owner]._replace(call=call)
            else:
                last = len(result)
                result.append(ThreadCall(names[call], call, start_ns < loading_until))
        elif end_ns <= hidden_until or name.startswith(MARKS) or name == _SUBCLASS:
            continue
        elif name == DISPATCH:
            hidden_until = end_ns
        elif name in _UNPACKS and open_rows and "Backward" in result[open_rows[-1][1]].name:
            continue  # the hooks that follow memory let autograd make one of every saved tensor
        else:
            if not open_rows:
                result.append(ThreadCall(PYTHON))
            loading_until = end_ns if name.startswith(LOADER) else loading_until
            open_rows.append((end_ns, len(result)))
            result.append(ThreadCall(name, is_loading=start_ns < loading_until))
    return [*result, ThreadCall(PYTHON)]
