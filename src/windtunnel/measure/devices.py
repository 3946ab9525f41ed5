"""When a device has finished the work that it was given.

In: actions that may hand work to a GPU and return at once. Out: nanoseconds until the work was done there. On a GPU
the stream's own events tell them, so that a program which runs ahead of its device is not held up between iterations.
Not here: what is run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from windtunnel.measure.rounds import elapsed_ns

__all__ = ["IterationClock", "elapsed_with_sync_ns", "finish", "uses_gpu"]


def uses_gpu(device: str = "") -> bool:
    """Whether a device is a GPU; without a name, whether this process has used one."""
    if device:
        return device.partition(":")[0] == "cuda"
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def elapsed_with_sync_ns(action: Callable[[], Any], device: str) -> int:
    """Wall-clock time of one call until its device has finished it, in ns."""

    def whole() -> None:
        action()
        finish(device)

    return elapsed_ns(whole)


def finish(device: str = "") -> None:
    """Wait until a device has finished its work; without a name the current GPU, where this process uses one."""
    if uses_gpu(device):
        import torch

        torch.cuda.synchronize(device or None)


class IterationClock:
    """Times between marks: by the host's clock, or by events on the current stream of a GPU.

    Parameters
    ----------
    is_on_gpu : bool, optional
        By default whether this process has used one.

    Examples
    --------
    >>> clock = IterationClock(is_on_gpu=False)
    >>> clock.begin()
    >>> clock.mark()
    >>> len(clock.durations_ns())
    1
    """

    def __init__(self, *, is_on_gpu: bool | None = None) -> None:
        self._is_on_gpu = uses_gpu() if is_on_gpu is None else is_on_gpu
        self._begun: Any = None
        self._pairs: list[tuple[Any, Any]] = []

    def __len__(self) -> int:
        """Iterations that are marked."""
        return len(self._pairs)

    def begin(self) -> None:
        """An iteration begins here; what was before it does not count."""
        self._begun = self._now()

    def mark(self) -> None:
        """The iteration ends here, and the next one begins."""
        now = self._now()
        self._pairs.append((self._begun, now))
        self._begun = now

    def durations_ns(self) -> list[int]:
        """Of every iteration since the last call; waits for the device."""
        pairs, self._pairs = self._pairs, []
        if not self._is_on_gpu:
            return [end - begin for begin, end in pairs]
        if pairs:
            pairs[-1][1].synchronize()
        return [round(1e6 * begin.elapsed_time(end)) for begin, end in pairs]

    def _now(self) -> Any:
        if not self._is_on_gpu:
            return time.perf_counter_ns()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
