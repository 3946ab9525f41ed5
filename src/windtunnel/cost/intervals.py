"""How sure a price is: split-conformal intervals by class of operator, and what they mean for a makespan.

In: predictions and measurements that the model was not trained on. Out: ``ConformalIntervals``, which puts an interval
around further predictions that holds the truth as often as it says, whatever the model; durations drawn from priced
graphs; the interval of log(measured / predicted) of whole steps that were predicted from graphs that were never run:
intervals of prices do not hold what the host takes, nor what the price model has never seen; recorded steps do. Of n
steps that are alike, the next one lies between the least and the largest with a probability of (n - 1) / (n + 1).
Sources: Papadopoulos et al., ECML 2002; Lei et al., JASA 2018 (split conformal); Vovk 2012 (by class). Not here:
models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.cost.operators.learned_model import WIDTH_PER_OCTAVE, read_shipped_model
from windtunnel.cost.pricer import Prices
from windtunnel.errors import InputError
from windtunnel.graph import Graph, Strings
from windtunnel.hardware import Device

__all__ = ["STEP_ENDS", "ConformalIntervals", "draw_alike", "draw_durations", "step_ends"]

# N calibration samples, P rows to price, T tasks, K draws
Floats = NDArray[np.float64]
_FURTHEST = 3.0 * math.log(2)  # a draw is at most eight times off, however unsure a model is
_UNKNOWN = (float("nan"), float("nan"))
STEP_ENDS = (-0.135, 0.210)
"""Least and largest log(measured / predicted) of 18 steps on an H100 and an H200 (``benchmarks.gpu_predict``)."""


@dataclass(frozen=True)
class ConformalIntervals:
    """How far measured times lie from predicted ones, by class.

    Parameters
    ----------
    level : float
        Share of future measurements inside, at least.
    pooled : (float, float)
        Lower and upper end of log(measured / predicted) over all classes; NaN where there are too few samples.
    by_class : mapping of str to (float, float)
        The same for classes with enough samples of their own; others use the pooled one.

    Examples
    --------
    >>> ratios = np.log(np.linspace(0.8, 1.25, 99))
    >>> found = ConformalIntervals.fit(["conv"] * 99, ratios, level=0.9)
    >>> [round(float(np.exp(end)), 2) for end in found.by_class["conv"]]
    [0.82, 1.23]
    """

    level: float
    pooled: tuple[float, float]
    by_class: Mapping[str, tuple[float, float]]

    @classmethod
    def fit(
        cls, classes: Sequence[str], log_ratios: ArrayLike, *, level: float = 0.9, scales: ArrayLike = 1.0
    ) -> ConformalIntervals:
        """Calibrate on N samples that no model was trained on.

        Parameters
        ----------
        classes : sequence of str [N]
        log_ratios : float [N]
            log(measured / predicted).
        level : float
        scales : float [N]
            How uncertain the model says that each is; an interval grows with it.

        Raises
        ------
        InputError
            The level is not between 0 and 1, or a ratio is not finite (says which).
        """
        if not 0 < level < 1:
            raise InputError(f"level {level} is not between 0 and 1", fix="0.9 means that 90 % lie inside")
        ratios = np.asarray(log_ratios, dtype=np.float64)
        if not np.isfinite(ratios).all():
            raise InputError(
                "a measured or predicted time is zero, negative or not a number",
                where=f"sample {int(np.flatnonzero(~np.isfinite(ratios))[0])} of {len(ratios)}",
            )
        # Split conformal: quantiles of how far held-out prices were off are the interval of further prices,
        # whatever the model. By class, as convolutions and small pointwise kernels are off by other factors.
        scores, names = ratios / np.asarray(scales, dtype=np.float64), np.asarray(classes, dtype=object)
        ends = {str(name): _ends(scores[names == name], level) for name in dict.fromkeys(names.tolist())}
        return cls(level, _ends(scores, level), {name: end for name, end in ends.items() if not math.isnan(end[0])})

    def around(self, prices: Prices, classes: Sequence[str], scales: ArrayLike = 1.0) -> Prices:
        """The same prices with intervals; NaN where there were too few samples."""
        ends = np.array([self.by_class.get(name, self.pooled) for name in classes]).reshape(-1, 2)
        wide = np.asarray(scales, dtype=np.float64)
        # A longer time is a lower efficiency: the upper end of the ratio gives the lower end of the efficiency.
        low, high = np.exp(-ends[:, 1] * wide), np.exp(-ends[:, 0] * wide)
        mean = prices.efficiency
        return replace(prices, efficiency_low=mean * low, efficiency_high=mean * high, level=self.level)

    def to_dict(self) -> dict[str, object]:
        """In plain types, for the header of a checkpoint; an unknown end is None."""
        known = {"": self.pooled, **self.by_class}
        return {
            "level": self.level,
            "ends": {name: None if math.isnan(item[0]) else item for name, item in known.items()},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> ConformalIntervals:
        """Read what ``to_dict`` wrote.

        Raises
        ------
        InputError
            It is something else.
        """
        try:
            level, ends = float(document["level"]), dict(document["ends"])  # type: ignore[arg-type,call-overload]
            known = {name: _UNKNOWN if end is None else (float(end[0]), float(end[1])) for name, end in ends.items()}
            return cls(level, known.pop(""), known)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError("these are no intervals", where=f"{error}", fix="use what to_dict returns") from error


def _ends(scores: Floats, level: float) -> tuple[float, float]:
    """Order statistics that hold the next score with at least this probability; NaN where there are too few."""
    rank = math.ceil((len(scores) + 1) * (1 + level) / 2 - 1e-9)  # each side leaves out half
    if rank > len(scores):
        return _UNKNOWN
    ordered = np.sort(scores)
    return float(ordered[len(scores) - rank]), float(ordered[rank - 1])


def draw_durations(graph: Graph, num_draws: int = 64, *, seed: int = 0) -> NDArray[np.int64]:
    """Durations that could be, int64 [K, T]: a model that is wrong about an operator is wrong about it everywhere.

    One error is drawn per cost model and operator, since errors of one class go together; taken as independent they
    would cancel out over a graph, and its interval would be far too narrow.
    """
    return draw_alike([graph], num_draws, seed=seed)[0]


def draw_alike(graphs: Sequence[Graph], num_draws: int = 64, *, seed: int = 0) -> list[NDArray[np.int64]]:
    """The same of several graphs, int64 [K, T] each: where a model is wrong in one, it is as wrong in the others."""
    groups, num_groups = _groups(graphs)
    noise_KG = np.random.default_rng(seed).standard_normal((num_draws, num_groups))
    return [_draw(graph, noise_KG[:, group_T]) for graph, group_T in zip(graphs, groups, strict=True)]


def _draw(graph: Graph, noise_KT: Floats) -> NDArray[np.int64]:
    duration = graph.duration_ns.astype(np.float64)
    spread = graph.tasks.get("duration_std_ns")
    if spread is None:
        return np.repeat(graph.duration_ns[None], len(noise_KT), axis=0)
    relative = np.divide(spread, duration, out=np.zeros(graph.num_tasks), where=duration > 0)
    factors = np.exp(np.clip(noise_KT * relative, -_FURTHEST, _FURTHEST))
    sampled: NDArray[np.int64] = np.rint(duration * factors).astype(np.int64)
    return sampled


def _groups(graphs: Sequence[Graph]) -> tuple[list[NDArray[np.int64]], int]:
    """Number of each task's cost model and operator, by graph, and how many there are."""
    keys = [np.zeros(graph.num_tasks, dtype=np.int64) for graph in graphs]
    for name in ("cost_source", "op"):
        columns = [graph.tasks.get(name, Strings.repeat("", graph.num_tasks)) for graph in graphs]
        values = list(dict.fromkeys(value for column in columns for value in column.values))
        index = {value: code for code, value in enumerate(values)}
        codes = [np.array([index[value] for value in column.values], dtype=np.int64) for column in columns]
        for key, column, code in zip(keys, columns, codes, strict=True):
            key *= max(len(values), 1)
            key += code[column.codes] if len(code) else 0
    _, group_T = np.unique(np.concatenate(keys), return_inverse=True)
    ends = np.cumsum([len(key) for key in keys])[:-1]
    return [part.astype(np.int64) for part in np.split(group_T, ends)], int(group_T.max(initial=-1)) + 1


def step_ends(device: Device) -> tuple[float, float]:
    """Ends of log(measured / predicted) on a GPU, wider the further it is from the measured ones."""
    further = WIDTH_PER_OCTAVE * read_shipped_model().distance(device)
    low, high = STEP_ENDS
    return -math.hypot(low, further), math.hypot(high, further)
