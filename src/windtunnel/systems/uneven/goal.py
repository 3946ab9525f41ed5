"""The goal of a training run, and its record.

In: losses on held-out samples by time, steps and messages by worker. Out: the time to a loss or an accuracy, idle
fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Goal", "Point", "Run", "time_to"]


@dataclass(frozen=True)
class Goal:
    """The end of training: the first of a time, a loss and an accuracy.

    Parameters
    ----------
    duration_ns : int
        At most.
    loss, accuracy : float, optional
        On the held-out samples.
    every_ns : int
        Time between two evaluations.
    """

    duration_ns: int
    loss: float | None = None
    accuracy: float | None = None
    every_ns: int = 1_000_000_000

    def is_reached(self, point: Point) -> bool:
        """Whether training may stop here."""
        is_good = self.loss is not None and point.loss <= self.loss
        return is_good or (self.accuracy is not None and point.accuracy >= self.accuracy)


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation of the model."""

    time_ns: int
    loss: float
    accuracy: float
    num_steps: int


@dataclass(frozen=True)
class Run:
    """One job under one strategy, in virtual time or by real processes.

    Attributes
    ----------
    strategy : str
    points : tuple of Point
    elapsed_ns : int
    steps : int64 array [steps, 4]
        Worker, begin ns, end ns, samples of each local step, in the order in which they ended.
    messages : int64 array [messages, 5]
        Source, target, begin ns, arrival ns, bytes.
    num_workers : int
    weights : float32 array [n]
        In the end.
    warnings : tuple of str
        Warnings of the nodes, without repetition.
    under_way : tuple of (worker, begin ns)
        Steps that had not ended.
    lost_workers : tuple of (worker, ns)
        Workers that left the run, and when.
    """

    strategy: str
    points: tuple[Point, ...]
    elapsed_ns: int
    steps: NDArray[np.int64]
    messages: NDArray[np.int64]
    num_workers: int
    weights: NDArray[np.float32]
    warnings: tuple[str, ...] = ()
    under_way: tuple[tuple[int, int], ...] = ()
    lost_workers: tuple[tuple[int, int], ...] = ()

    def time_to(self, *, loss: float | None = None, accuracy: float | None = None) -> float | None:
        """Return the ns to a loss or an accuracy, interpolated between evaluations; None if it was never reached."""
        times = [point.time_ns for point in self.points]
        if loss is not None:
            return time_to(times, [point.loss for point in self.points], loss)
        assert accuracy is not None
        return time_to(times, [-point.accuracy for point in self.points], -accuracy)

    def wait_shares(self) -> list[float]:
        """Return the idle fraction of each worker until the end, or until it was lost."""
        busy = np.zeros(self.num_workers)
        np.add.at(busy, self.steps[:, 0], np.minimum(self.steps[:, 2], self.elapsed_ns) - self.steps[:, 1])
        for worker, begin_ns in self.under_way:
            busy[worker] += self.elapsed_ns - begin_ns
        until_ns = {**dict.fromkeys(range(self.num_workers), self.elapsed_ns), **dict(self.lost_workers)}
        return [float(max(0.0, 1 - item / max(until_ns[index], 1))) for index, item in enumerate(busy)]

    def bytes_by_pair(self) -> dict[tuple[int, int], int]:
        """Return the bytes that were sent from each node to each other node."""
        result: dict[tuple[int, int], int] = {}
        for source, target, _, _, size in self.messages.tolist():
            result[source, target] = result.get((source, target), 0) + size
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain values for JSON."""
        return {
            "strategy": self.strategy,
            "elapsed_ns": self.elapsed_ns,
            "warnings": list(self.warnings),
            "num_steps": [int((self.steps[:, 0] == worker).sum()) for worker in range(self.num_workers)],
            "wait_shares": self.wait_shares(),
            "lost": [{"worker": worker, "time_ns": time_ns} for worker, time_ns in self.lost_workers],
            "bytes": [
                {"source": item, "target": other, "size_bytes": size}
                for (item, other), size in sorted(self.bytes_by_pair().items())
            ],
            "points": [
                {"time_ns": p.time_ns, "loss": p.loss, "accuracy": p.accuracy, "num_steps": p.num_steps}
                for p in self.points
            ],
        }


def time_to(times: Sequence[float], values: Sequence[float], target: float) -> float | None:
    """Return when falling values first reached a target, by linear interpolation; None if they never did.

    Examples
    --------
    >>> time_to([0, 10, 20], [3.0, 2.0, 1.0], 1.5)
    15.0
    """
    for index, value in enumerate(values):
        if value <= target:
            if index == 0:
                return float(times[0])
            before = values[index - 1]
            return float(times[index - 1] + (before - target) / (before - value) * (times[index] - times[index - 1]))
    return None
