"""Which operators of a step a faster kernel would be worth it for.

In: a replayed graph. Out: operators in the order of what the iteration would gain if each alone were faster: what lies
off the critical path gains nothing, however long it takes. Not here: making kernels faster.

Source: GEVO's choice of kernels is by their own time; by the critical path as Coz, SOSP 2015, and Daydream, ATC 2020.
"""

# K operators, T tasks

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from windtunnel.errors import InputError
from windtunnel.simulate import Timeline, replay_many
from windtunnel.whatifs.faster import operator_work

__all__ = ["OperatorGain", "by_operator", "kernel_for", "operators_of"]

_MOST = 256  # operators by their own time
# kernels at hand, with which a search can begin
_AT_HAND = {
    "layer_norm": "layernorm",
    "softmax": "softmax",
    "cross_entropy": "cross-entropy",
    "nll_loss": "cross-entropy",
    "conv2d": "conv3x3",
    "convolution": "conv3x3",
}


@dataclass(frozen=True)
class OperatorGain:
    """One operator.

    Attributes
    ----------
    operator : str
    num_tasks : int
        Tasks in an iteration.
    own_ns : float
        Its own work in an iteration.
    speedup : float
        Of the iteration, if this operator alone were so much faster.
    hidden : float
        Fraction of the saved time that lies off the critical path and shortens nothing.
    at_hand : str
        A kernel that computes such an operator, or empty.
    """

    operator: str
    num_tasks: float
    own_ns: float
    speedup: float
    hidden: float
    at_hand: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in raw units."""
        return asdict(self)


def by_operator(timeline: Timeline, factor: float = 1.3) -> list[OperatorGain]:
    """Operators, the most worthwhile first.

    Parameters
    ----------
    timeline : Timeline
        A replay of the graph.
    factor : float
        How much faster each is taken to be.

    Raises
    ------
    InputError
        The factor is not above 1.
    NotApplicableError
        The graph does not say which operators its tasks are of.
    """
    if not 1 < factor < float("inf"):
        raise InputError(f"nothing is gained by {factor} times as fast", where="factor", fix="1.3 is usual")
    graph = timeline.graph
    names, computes, own_ns = operator_work(graph)
    codes = np.argsort(-own_ns, kind="stable")[:_MOST]
    codes = codes[own_ns[codes] > 0]
    durations_KT = np.stack([_faster(graph.duration_ns, computes & (names.codes == code), factor) for code in codes])
    ends_ns = replay_many(graph, durations_KT, like=timeline).makespan_ns
    num = max(graph.num_iterations, 1)
    result = []
    for code, durations_T, end_ns in zip(codes.tolist(), durations_KT, ends_ns.tolist(), strict=True):
        saved_ns = float((graph.duration_ns - durations_T).sum())
        won_ns = timeline.makespan_ns - end_ns
        count = int((computes & (names.codes == code)).sum())
        result.append(
            OperatorGain(
                names.values[code], count / num, float(own_ns[code]) / num, timeline.makespan_ns / end_ns,
                min(max(1 - won_ns / saved_ns, 0.0), 1.0) if saved_ns else 0.0, kernel_for(names.values[code]),
            )
        )  # fmt: skip
    return sorted(result, key=lambda entry: -entry.speedup)


def _faster(duration_ns: np.ndarray, selected: np.ndarray, factor: float) -> np.ndarray:
    return np.where(selected, np.rint(duration_ns / factor), duration_ns).astype(np.int64)


def kernel_for(operator: str) -> str:
    """The kernel at hand that computes an operator, or empty."""
    return next((kernel for part, kernel in _AT_HAND.items() if part in operator and "backward" not in operator), "")


def operators_of(kernel: str) -> list[str]:
    """Parts of names of the operators that a kernel at hand computes; none for a kernel of the user's own."""
    return [part for part, item in _AT_HAND.items() if item == kernel]
