"""What the host of a GPU needs for a step, fitted to steps that wait for their host.

In: graphs of dry runs, and how long these steps took on a GPU without a profiler. Out: ``HostCosts``. A step's time is
a sum of counts, each with one of its numbers, so the fit is linear. Ten steps cannot tell eight numbers apart: they are
held near what traces of the steps say (self times of calls, nodes and gaps, less what the profiler adds per event).
Needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.host_times import HostCosts, host_times_ns
from windtunnel.graph import Graph

__all__ = ["WAITING", "fit_costs"]

WAITING = (
    "bert", "decoder-lm", "dlrm-paper", "inception-v3-paper", "resnet50", "resnet50-paper", "perceptron", "decoder_lm",
    "attention_by_hand", "lora_accumulation",
)  # fmt: skip
"""Steps whose device waits for the host most of the time."""
# medians over the traces; what a profiler adds to each event follows from the bare time of the same step
PRIOR = HostCosts(0.6, 8_000.0, 9_000.0, 2_800.0, 1_300.0, 2_000.0, 3_500.0, 6_000.0, 16_000.0)
_WIDTH = 0.5  # of a number, as far as a trace tells it
_ERROR = 0.15  # of a step's time: hosts of one kind differ by as much from one hour to the next
_NAMES = tuple(field.name for field in fields(HostCosts))
_NONE = HostCosts(*[0.0] * len(_NAMES))


def fit_costs(steps: Iterable[tuple[Graph, float]]) -> HostCosts:
    """Numbers that fit the given graphs and their times, in nanoseconds, best.

    Parameters
    ----------
    steps : iterable of (Graph, float)
    """
    from scipy.optimize import lsq_linear

    rows = [(_counts(graph), bare_ns) for graph, bare_ns in steps]
    prior = np.array([getattr(PRIOR, name) for name in _NAMES])
    # relative errors of the steps, and relative distances of the numbers from the prior
    terms = [counts[1:] * prior / bare_ns / _ERROR for counts, bare_ns in rows]
    rests = [(1 - counts[0] / bare_ns) / _ERROR for counts, bare_ns in rows]
    matrix = np.vstack([*terms, np.eye(len(prior)) / _WIDTH])
    factors = lsq_linear(matrix, np.concatenate([rests, np.full(len(prior), 1 / _WIDTH)]), (0.0, np.inf)).x
    return HostCosts(*(prior * factors).tolist())


def _counts(graph: Graph) -> NDArray[np.float64]:
    """Nanoseconds that hang on no number, then how often each number counts."""
    fixed = host_times_ns(graph, _NONE).sum()
    units = [HostCosts(*[float(name == other) for other in _NAMES]) for name in _NAMES]
    return np.array([fixed, *(host_times_ns(graph, unit).sum() - fixed for unit in units)])
