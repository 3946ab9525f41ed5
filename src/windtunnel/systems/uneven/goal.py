"""When a run is over, and what it was like.

In: losses on held-back samples by time, counts by worker. Out: the time to a loss or an accuracy, shares of waiting.
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
    """Train until one of these is reached.

    Parameters
    ----------
    duration_ns : int
        At most.
    loss, accuracy : float, optional
        On the samples that were held back.
    every_ns : int
        Between two looks.
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
    """A look at the model."""

    time_ns: int
    loss: float
    accuracy: float
    num_steps: int


@dataclass(frozen=True)
class Run:
    """One job under one strategy, in virtual time or really run.

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
        What nodes said, once each.
    under_way : tuple of (worker, begin ns)
        Steps that had not ended.
    lost_workers : tuple of (worker, ns)
        Workers that are gone since then.
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
        """Ns to a loss or an accuracy, on the line between two looks; None if it was never reached."""
        times = [point.time_ns for point in self.points]
        if loss is not None:
            return time_to(times, [point.loss for point in self.points], loss)
        assert accuracy is not None
        return time_to(times, [-point.accuracy for point in self.points], -accuracy)

    def wait_shares(self) -> list[float]:
        """Share of the time that each worker did not compute, as long as it was there."""
        busy = np.zeros(self.num_workers)
        np.add.at(busy, self.steps[:, 0], np.minimum(self.steps[:, 2], self.elapsed_ns) - self.steps[:, 1])
        for worker, begin_ns in self.under_way:
            busy[worker] += self.elapsed_ns - begin_ns
        until_ns = {**dict.fromkeys(range(self.num_workers), self.elapsed_ns), **dict(self.lost_workers)}
        return [float(max(0.0, 1 - item / max(until_ns[index], 1))) for index, item in enumerate(busy)]

    def bytes_by_pair(self) -> dict[tuple[int, int], int]:
        """Bytes from one node to another."""
        result: dict[tuple[int, int], int] = {}
        for source, target, _, _, size in self.messages.tolist():
            result[source, target] = result.get((source, target), 0) + size
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
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
    """When falling values first came to a target, on the line between two of them; None if they never did.

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
