"""Times of the parts of a run, on the host or on a device.

In: the number of the part that begins. Out: nanoseconds by part. Not here: what a part is.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.measure.devices import HostClock, StreamClock

__all__ = ["NOTHING", "Stopwatch"]

NOTHING = -1  # a part that is not timed
_WINDOW = 32  # parts between two pauses: their launches fit the queue of a GPU, which holds about a thousand


class Stopwatch:
    """Stamps between parts of a run.

    On a device the run pauses after each window of parts, so that neither side slows the other one:

    ::

        host times      [finish] launch launch launch ... [finish] launch ...       the queue is never full
        device times    [finish] hold######### kernel kernel kernel [finish] hold### kernel ...
                          host:  launch launch launch                                no gap for a launch

    Parameters
    ----------
    clock : HostClock or StreamClock
        Whose time counts.
    paused_by : HostClock or StreamClock, optional
        Of the device that the run waits for at each pause; without it the run does not pause.
    hold_ns : float
        How long the device is held up after a pause: at least as long as the host takes to launch a window.

    Attributes
    ----------
    slowest_window_ns : float
        The longest that the host took from one pause to the next.
    """

    def __init__(
        self,
        clock: HostClock | StreamClock,
        paused_by: HostClock | StreamClock | None = None,
        *,
        hold_ns: float = 0.0,
    ) -> None:
        self._clock, self._device, self._hold_ns = clock, paused_by, hold_ns
        self._stamps: list[tuple[int, Any]] = []
        self._num_parts = 0
        self._host, self._window_began = HostClock(), 0
        self.slowest_window_ns = 0.0

    def begin(self, part: int) -> None:
        """What follows belongs to a part, and what came before it to the part before."""
        if self._device is not None and part != NOTHING:
            if self._num_parts % _WINDOW == 0:
                self._pause()
            self._num_parts += 1
        self._stamps.append((part, self._clock.stamp()))

    def settle(self, times_ns: NDArray[np.float64] | None = None) -> float:
        """Add the time of every part to its row, and forget the stamps; the time of all, in ns.

        Without rows the time is that from the first to the last stamp.
        """
        stamps, self._stamps = self._stamps, []
        if len(stamps) < 2:
            return 0.0
        self._clock.wait(stamps[-1][1])
        if self._device is None:
            total_ns = self._clock.between_ns(stamps[0][1], stamps[-1][1])
        else:
            total_ns = 0.0  # pauses do not count
        if times_ns is None:
            return total_ns
        for (part, first), (_, last) in itertools.pairwise(stamps):
            if part != NOTHING:
                part_ns = self._clock.between_ns(first, last)
                times_ns[part] += part_ns
                total_ns += part_ns if self._device is not None else 0.0
        return total_ns

    def _pause(self) -> None:
        device = self._device
        assert device is not None
        if self._stamps:
            self._stamps.append((NOTHING, self._clock.stamp()))
        if self._window_began:
            self.slowest_window_ns = max(
                self.slowest_window_ns, self._host.between_ns(self._window_began, self._host.stamp())
            )
        device.finish()
        if self._hold_ns:
            device.hold(self._hold_ns)
        self._window_began = self._host.stamp()
