"""What a recorder needs in addition for a step that computes on a GPU.

In: marks between bare iterations, profiles. Out: the times of bare iterations by the device's own clock, which no
iteration waits for; the traces of light and rich iterations as files, with every kernel. Not here: which iteration is
measured how (``recorder``), the graph (``device_build``).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from itertools import accumulate, compress, groupby
from pathlib import Path
from typing import Any

from windtunnel.measure.devices import IterationClock, finish, uses_gpu
from windtunnel.sources.torch.annotate import Discovery
from windtunnel.sources.torch.profile import LightProfiler, RichProfiler

__all__ = ["DeviceTraces", "lies_on_device"]


def lies_on_device(discovery: Discovery) -> bool:
    """Whether the parameters that were found lie on a GPU."""
    return any(parameter.device.type == "cuda" for parameter in discovery.parameters().values())


class DeviceTraces:
    """Clock and files of one capture.

    Attributes
    ----------
    kind : str
        Type of the device; empty where the host stands in for it.
    num_light : int
        Iterations in the longest run of light ones that count, and ``first_light`` of them.
    """

    def __init__(self) -> None:
        self.kind = "cuda" if uses_gpu() else ""
        self._clock = IterationClock()
        self._is_regular: list[bool] = []
        self._folder = Path(tempfile.mkdtemp(prefix="windtunnel-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.first_light, self.num_light = 0, 0
        self.allocator: dict[str, int] = {}

    def trace(self, name: str) -> Path:
        """The Kineto trace of the iterations of a name: ``light``, ``rich`` or ``operators``."""
        return self._folder / f"{name}.json"

    def execution_trace(self, name: str) -> Path:
        """The execution trace of the iteration of a name."""
        return self._folder / f"{name}-execution.json"

    def begin_bare(self) -> None:
        """Bare iterations begin, with a device that has nothing left to do."""
        finish()
        if self.kind:
            _cuda().reset_peak_memory_stats()
        self._clock.begin()

    def mark_bare(self, *, is_regular: bool) -> int:
        """A bare iteration ended and the next one begins; how many counted."""
        self._clock.mark()
        self._is_regular.append(is_regular)
        return sum(self._is_regular)

    def end_bare(self) -> list[int]:
        """Times of the bare iterations that counted, in ns."""
        durations = self._clock.durations_ns()
        regular, self._is_regular = self._is_regular, []
        if self.kind:
            cuda = _cuda()
            self.allocator = {
                "peak_allocated_bytes": int(cuda.max_memory_allocated()),
                "peak_reserved_bytes": int(cuda.max_memory_reserved()),
            }
        return list(compress(durations, regular))

    def keep_light(self, profiler: LightProfiler, is_regular: list[bool]) -> None:
        """Write the trace of the light iterations."""
        runs = [(len(list(group)), value) for value, group in groupby(is_regular)]
        begins = accumulate((length for length, _ in runs), initial=0)
        best = max(zip(runs, begins, strict=False), key=lambda item: (item[0][1], item[0][0]))
        (self.num_light, is_kept), self.first_light = best
        if is_kept:
            profiler.save(self.trace("light"))

    def keep_rich(self, profiler: RichProfiler, name: str) -> None:
        """Write the two traces of a rich iteration."""
        profiler.save(self.trace(name))
        profiler.save_execution_trace(self.execution_trace(name))

    def remove(self) -> None:
        """Delete the files."""
        self._remove()


def _cuda() -> Any:
    return sys.modules["torch"].cuda
