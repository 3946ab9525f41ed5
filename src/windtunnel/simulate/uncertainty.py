"""What follows from durations that vary (room simulate).

In: a graph with ``samples_ns`` (each iteration's own duration of every task) or ``duration_std_ns``. Out: how likely
each task is critical, an interval for the makespan, how the makespan answers to faster layers. Samples of one
iteration are used together, so that what slows all workers at once is not averaged away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.simulate._replay import replay, replay_many
from windtunnel.simulate.breakdown import task_labels
from windtunnel.units import format_duration

__all__ = ["PredictionInterval", "criticality", "draw_durations", "prediction_interval", "speedup_curves"]

_FACTORS = (1.0, 0.75, 0.5, 0.25, 0.0)
_MAX_VALUES = 1 << 25  # durations held at once: 256 MiB


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


def criticality(graph: Graph, num_draws: int = 64, *, seed: int = 0) -> NDArray[np.float64]:
    """Share of the draws in which each task is on the critical path, float64 [T]."""
    drawn = draw_durations(graph, num_draws, seed=seed)
    count = np.zeros(graph.num_tasks, dtype=np.int64)
    for duration_ns in drawn:
        count[replay(graph.with_columns(duration_ns=duration_ns)).critical_path().task] += 1
    return count / len(drawn)


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


def speedup_curves(
    graph: Graph,
    by: str = "layer",
    *,
    factors: tuple[float, ...] = _FACTORS,
    where: NDArray[np.bool_] | None = None,
) -> pa.Table:
    """How the makespan answers when a layer's (kind's, operator's) tasks take ``factor`` of their time.

    Parameters
    ----------
    graph : Graph
    by : str
        Task column whose values form the groups.
    factors : tuple of float
        1 is unchanged, 0 is free.
    where : bool [T], optional
        Only these tasks; others keep their durations.

    Returns
    -------
    table with ``label``, ``factor``, ``makespan_ns``, ``speedup``: a *virtual speed-up curve* per label. The label
    whose curve is steepest is the one worth optimizing, which need not be the one that runs longest.

    Raises
    ------
    InputError
        The graph has no such column, or a factor is negative.

    References
    ----------
    Curtsinger and Berger, "Coz: finding code that counts with causal profiling", SOSP 2015.
    """
    if not factors or min(factors) < 0:
        raise InputError(f"factors {factors} must be 0 or more")
    labels = task_labels(graph, by)
    chosen = graph.all_tasks if where is None else where
    cases = [(code, factor) for code in np.unique(labels.codes[chosen]).tolist() for factor in factors]
    at_once = max(1, _MAX_VALUES // max(graph.num_tasks, 1))
    parts = [cases[first : first + at_once] for first in range(0, len(cases), at_once)]
    makespans = [replay_many(graph, _scaled(graph, labels.codes, chosen, part)).makespan_ns for part in parts]
    base_ns = replay(graph).makespan_ns
    return pa.table(
        {
            "label": pa.array([labels.values[code] for code, _ in cases], pa.string()),
            "factor": pa.array([factor for _, factor in cases], pa.float64()),
            "makespan_ns": np.concatenate([np.zeros(0, np.int64), *makespans]),
            "speedup": base_ns / np.maximum(np.concatenate([np.zeros(0), *makespans]), 1),
        }
    )


def _scaled(
    graph: Graph, codes: NDArray[np.int32], chosen: NDArray[np.bool_], cases: list[tuple[int, float]]
) -> NDArray[np.int64]:
    """Durations of each case, int64 [K, T] with K contiguous."""
    durations_TK = np.repeat(graph.duration_ns[:, None].astype(np.int64), len(cases), axis=1)
    for k, (code, factor) in enumerate(cases):
        rows = chosen & (codes == code)
        durations_TK[rows, k] = np.rint(durations_TK[rows, k] * factor).astype(np.int64)
    return durations_TK.T
