"""What follows from durations that vary.

In: a graph with ``samples_ns`` (each iteration's own duration of every task) or ``duration_std_ns``. Out: an
interval for the makespan. Samples of one iteration are used together, so that what slows all workers at once is not
averaged away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.simulate.engine import replay_many
from windtunnel.units import format_duration

__all__ = ["PredictionInterval", "draw_durations", "prediction_interval"]


@dataclass(frozen=True, slots=True, eq=False)
class PredictionInterval:
    """A makespan with what its variation says.

    Attributes
    ----------
    median_ns, low_ns, high_ns : int
        Median of the replayed iterations and the bootstrap interval of that median.
    level : float
        Share of bootstrap medians inside.
    makespans_ns : int64 [K]
        The replayed iterations (or draws).
    """

    median_ns: int
    low_ns: int
    high_ns: int
    level: float
    makespans_ns: NDArray[np.int64]

    def __str__(self) -> str:
        low, median, high = (format_duration(value) for value in (self.low_ns, self.median_ns, self.high_ns))
        return f"{median} ({low} to {high}, {self.level:.0%})"


def draw_durations(graph: Graph, num_draws: int = 64, *, seed: int = 0) -> NDArray[np.int64]:
    """Durations that could have been, int64 [K, T].

    With ``samples_ns`` the K measured iterations themselves, each as a whole (``num_draws`` is not used); with
    ``duration_std_ns`` K independent normal draws per task, cut at zero; else the durations, once.
    """
    samples = graph.tasks.get("samples_ns")
    if samples is not None and samples.ndim == 2 and samples.shape[1]:
        return np.asarray(samples.T, dtype=np.int64)
    spread = graph.tasks.get("duration_std_ns")
    if spread is None or not spread.any():
        return graph.duration_ns[None].astype(np.int64)
    noise = np.random.default_rng(seed).standard_normal((num_draws, graph.num_tasks))
    return np.asarray(np.maximum(np.rint(graph.duration_ns + noise * spread), 0), dtype=np.int64)


def prediction_interval(
    graph: Graph, *, level: float = 0.9, num_draws: int = 64, num_bootstrap: int = 1000, seed: int = 0
) -> PredictionInterval:
    """Replay every measured iteration (or draw) and bootstrap the median makespan.

    Raises
    ------
    InputError
        The level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise InputError(f"level {level} is not between 0 and 1", fix="0.9 means that 90 % of medians lie inside")
    makespans = replay_many(graph, draw_durations(graph, num_draws, seed=seed)).makespan_ns
    rng = np.random.default_rng(seed)
    picked = makespans[rng.integers(0, len(makespans), (num_bootstrap, len(makespans)))]
    low, high = np.quantile(np.median(picked, axis=1), [(1 - level) / 2, (1 + level) / 2])
    return PredictionInterval(int(np.median(makespans)), int(low), int(high), level, makespans)
