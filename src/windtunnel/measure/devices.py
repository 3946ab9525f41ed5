"""When a device has finished the work that it was given.

In: actions that may hand work to a GPU and return at once. Out: nanoseconds until the work was done there. On a GPU
the stream's own events tell them, so that a program which runs ahead of its device is not held up between iterations.
Not here: what is run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from windtunnel.errors import AbsentDeviceError
from windtunnel.measure.turns import elapsed_ns

__all__ = [
    "HostClock",
    "IterationClock",
    "StreamClock",
    "finish",
    "require_captured_device",
    "stream_clock",
    "time_with_sync_ns",
    "uses_gpu",
]


def uses_gpu(device: str = "") -> bool:
    """Whether a device is a GPU; without a name, whether this process has used one."""
    if device:
        return device.partition(":")[0] == "cuda"
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def time_with_sync_ns(action: Callable[[], Any], device: str) -> int:
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


class HostClock:
    """Stamps of the host's own clock, for work that is done when its call returns.

    Examples
    --------
    >>> clock = HostClock()
    >>> first = clock.stamp()
    >>> clock.between_ns(first, clock.stamp()) >= 0
    True
    """

    device_name = "CPU"

    def stamp(self) -> Any:
        """This moment."""
        return time.perf_counter_ns()

    def wait(self, stamp: Any) -> None:
        """Every moment that has a stamp is over."""

    def between_ns(self, first: Any, last: Any) -> float:
        """Time between two stamps, in ns."""
        return float(last - first)

    def finish(self) -> None:
        """All work is done already."""

    def hold(self, duration_ns: float) -> None:
        """Nothing waits here."""


class StreamClock:
    """Stamps on the current stream of a GPU.

    The stream can be held up, so that what the host launches meanwhile runs without gaps afterwards: times between
    stamps are then those of the kernels alone.
    """

    _CYCLES_PER_NS = 2.0  # no clock of a GPU is faster, so that a hold is never too short

    @property
    def device_name(self) -> str:
        """Name of the GPU, as its driver gives it."""
        import torch

        return str(torch.cuda.get_device_name())

    def stamp(self) -> Any:
        """An event on the stream: it has a time once the device gets there."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, stamp: Any) -> None:
        """Wait until the device gets to a stamp."""
        stamp.synchronize()

    def between_ns(self, first: Any, last: Any) -> float:
        """Time between two stamps that the device has passed, in ns."""
        return 1e6 * float(first.elapsed_time(last))

    def finish(self) -> None:
        """Wait until the device has finished its work."""
        finish("cuda")

    def hold(self, duration_ns: float) -> None:
        """Keep the stream from what is launched from now on for at least this long; it must be idle."""
        import torch

        torch.cuda._sleep(round(duration_ns * self._CYCLES_PER_NS))


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
        self._clock = StreamClock() if (uses_gpu() if is_on_gpu is None else is_on_gpu) else HostClock()
        self._begun: Any = None
        self._pairs: list[tuple[Any, Any]] = []

    def __len__(self) -> int:
        """Iterations that are marked."""
        return len(self._pairs)

    def begin(self) -> None:
        """An iteration begins here; what was before it does not count."""
        self._begun = self._clock.stamp()

    def mark(self) -> None:
        """The iteration ends here, and the next one begins."""
        now = self._clock.stamp()
        self._pairs.append((self._begun, now))
        self._begun = now

    def durations_ns(self) -> list[int]:
        """Of every iteration since the last call; waits for the device."""
        pairs, self._pairs = self._pairs, []
        if pairs:
            self._clock.wait(pairs[-1][1])
        return [round(self._clock.between_ns(*pair)) for pair in pairs]


def stream_clock(device: str) -> StreamClock | None:
    """The clock of a device: None for the CPU, whose work is done when a call returns.

    Raises
    ------
    AbsentDeviceError
        It is a GPU, and there is none here.
    """
    if not uses_gpu(device):
        return None
    import torch

    if not torch.cuda.is_available():
        raise AbsentDeviceError(
            "this step ran on a GPU, and there is none here to run its operators again",
            fix="ask on the machine with the GPU, or take published ratios: prices='paper'",
        )
    return StreamClock()


def require_captured_device(captured_on: Sequence[str], clock: StreamClock | HostClock | None) -> None:
    """Refuse to run again on one GPU what was captured on another.

    Parameters
    ----------
    captured_on : sequence of str
        Names of the GPUs that a capture saw; without any, nothing is refused.
    clock : StreamClock or HostClock, optional
        Of the GPU here; None for what runs on the host.

    Raises
    ------
    AbsentDeviceError
        The GPU here is none of them.

    Examples
    --------
    >>> require_captured_device((), HostClock())
    """
    if clock is None or not captured_on or clock.device_name in captured_on:
        return
    raise AbsentDeviceError(
        f"this step was captured on {captured_on[0]}, and the GPU here is {clock.device_name}",
        where=f"devices of the capture: {', '.join(captured_on)}",
        fix="capture it here, ask on the machine of the capture, or take published ratios: prices='paper'",
    )
