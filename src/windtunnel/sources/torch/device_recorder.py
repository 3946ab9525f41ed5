"""Record a step that computes on a GPU.

In: a call at every boundary between iterations, once it is known that the step's parameters lie on a device. Out: a
graph: bare iterations, timed by the device's clock, then one trace of some others by torch's profiler, whose host takes
what the bare ones leave for it. Not here: memory, and the calls that could be run again, which only a capture on the
host keeps; steps of several processes.
"""

from __future__ import annotations

import tempfile
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.measure.devices import IterationClock, finish, uses_gpu
from windtunnel.sources.torch.annotate import Discovery
from windtunnel.sources.torch.precision import precision
from windtunnel.sources.torch.profile import quiet_native_log
from windtunnel.sources.torch.program import keep_models, keep_optimizers

__all__ = ["DeviceRecorder", "lies_on_device"]

_SETTLING, _MAX_TRACED = 2, 8
_MARK = "ProfilerStep#"  # by which readers of traces recognize iterations


class _Phase(Enum):
    SETTLE = "settle"
    BARE = "bare"
    PRIME = "settle, profiled, thrown away"
    TRACE = "profiled"
    DONE = "done"


def lies_on_device(discovery: Discovery) -> bool:
    """Whether the parameters that were found lie on a GPU."""
    return any(parameter.device.type == "cuda" for parameter in discovery.parameters().values())


class DeviceRecorder:
    """As ``Recorder``, for a step on a device.

    Parameters
    ----------
    iterations : int
        Bare ones to measure; at most eight are traced.
    discovery : Discovery
    """

    def __init__(self, iterations: int, discovery: Discovery) -> None:
        self._discovery = discovery
        self._num_bare, self._num_traced = iterations, min(iterations, _MAX_TRACED)
        self._phase, self._turn = _Phase.SETTLE, 0
        self._clock = IterationClock()
        self._is_regular: list[bool] = []
        self._profile: Any = None
        self._mark: Any = None
        self._folder = tempfile.TemporaryDirectory(prefix="windtunnel-")
        self.bare_ns: list[int] = []

    @property
    def is_complete(self) -> bool:
        """Whether there is enough."""
        return self._phase is _Phase.DONE

    @property
    def progress(self) -> tuple[int, int]:
        """Iterations done, and in all."""
        lengths = {_Phase.SETTLE: _SETTLING, _Phase.BARE: self._num_bare, _Phase.PRIME: _SETTLING}
        before = list(lengths)[: list(_Phase).index(self._phase)]
        total = sum(lengths.values()) + self._num_traced
        return min(total, sum(lengths[item] for item in before) + self._turn), total

    def boundary(self, *, is_regular: bool) -> None:
        """An iteration ended, and the next one begins."""
        self._turn += 1
        if self._phase is _Phase.SETTLE and self._turn == _SETTLING:
            self._enter(_Phase.BARE)
            finish()
            self._clock.begin()
        elif self._phase is _Phase.BARE:
            self._clock.mark()
            self._is_regular.append(is_regular)
            self._turn = sum(self._is_regular)
            if self._turn == self._num_bare:
                durations = zip(self._clock.durations_ns(), self._is_regular, strict=True)
                self.bare_ns = [elapsed for elapsed, counts in durations if counts]
                self._enter(_Phase.PRIME)
                self._start()
        elif self._phase is _Phase.PRIME and self._turn == _SETTLING:
            self._enter(_Phase.TRACE)
            self._restart()
        elif self._phase is _Phase.TRACE:
            self._continue_tracing(is_regular)

    def _enter(self, phase: _Phase) -> None:
        self._phase, self._turn = phase, 0

    def _continue_tracing(self, is_regular: bool) -> None:
        self._unmark()
        if not is_regular:  # the trace begins anew
            self._turn = 0
            self._restart()
        elif self._turn < self._num_traced:
            self._put_mark()
        else:
            self._stop()
            with quiet_native_log():
                self._profile.export_chrome_trace(str(self._path))
            self._profile = None
            self._phase = _Phase.DONE

    @property
    def _path(self) -> Path:
        return Path(self._folder.name) / "trace.json.gz"

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        finish()
        self._profile = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if uses_gpu() else [])])
        with quiet_native_log():
            self._profile.__enter__()

    def _stop(self) -> None:
        finish()
        with quiet_native_log():
            self._profile.__exit__(None, None, None)

    def _restart(self) -> None:
        """The first start of a profiler is slow, and what is not whole is thrown away."""
        self._stop()
        self._start()
        self._put_mark()

    def _put_mark(self) -> None:  # not by record_function, whose blocks of the script are left out of a capture
        self._mark = torch.ops.profiler._record_function_enter_new(f"{_MARK}{self._turn}", None)

    def _unmark(self) -> None:
        if self._mark is not None:
            torch.ops.profiler._record_function_exit._RecordFunction(self._mark)
            self._mark = None

    def close(self) -> None:
        """Take the profiler away, in the middle of an iteration too."""
        self._unmark()
        if self._profile is not None:
            self._stop()
            self._profile = None
        if not self.is_complete:
            self._folder.cleanup()

    def graph(self) -> Graph:
        """The traced iterations without their profiler.

        Raises
        ------
        TraceError
            The profiler's own trace cannot be read.
        """
        from windtunnel.sources.kineto.reader import load_kineto
        from windtunnel.sources.torch.facts import host_facts, summary_ns

        traced = load_kineto(self._path, window=_MARK)
        self._folder.cleanup()
        result = _without_profiler(traced, float(np.median(self.bare_ns)))
        known = precision(self.bare_ns)
        notes = [item["note"] for item in (result.meta.overhead, known) if "note" in item]
        return result.with_meta(
            trace={name: value for name, value in result.meta.trace.items() if name != "path"},
            hardware={**host_facts(), **result.meta.hardware},
            iteration_ns=summary_ns(self.bare_ns),
            overhead={**result.meta.overhead, **known, "note": "; ".join(notes)},
            optimizers=_set_default_foreach(keep_optimizers(self._discovery)),
            models=keep_models(self._discovery),
            memory_base_bytes=self._discovery.resident_bytes(),
        )


def _without_profiler(traced: Graph, step_ns: float) -> Graph:
    from windtunnel.sources.kineto.unprofiled import without_profiler

    try:
        return without_profiler(traced, step_ns)
    except InputError as error:  # traced and bare iterations do not fit together
        result = without_profiler(traced)
        note = f"{result.meta.overhead['note']}: the machine was disturbed ({error.message})"
        return result.with_meta(overhead={**result.meta.overhead, "note": note})


def _set_default_foreach(optimizers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the implementation that torch takes on a device where none is asked for."""
    for optimizer in optimizers:
        for group in optimizer["groups"]:
            options = group["options"]
            if "foreach" in options and options["foreach"] is None and not options.get("fused"):
                options["foreach"] = True
    return optimizers
