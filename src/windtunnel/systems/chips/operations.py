"""Operators of one layer on a chip of tensor and vector cores.

In: operators and who reads from whom. Out: ``Operations``. Not here: when each starts (``lists``), cycles of
an operator.

Source: PHAZE (Wang et al., ICML 2024), section 4.2. An operator runs on one core of its type, or is spread over all of
them and then nothing that could run beside it does; an operator that fuses a tensor and a vector operator takes a core
of both types, of the same number.
"""

# N operators

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import GraphError

__all__ = [
    "FUSED",
    "TENSOR",
    "VECTOR",
    "Operations",
]

TENSOR, VECTOR, FUSED = range(3)
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Operations:
    """Operators of one layer and phase, each after all that it reads from.

    Parameters
    ----------
    kind_N : int8 [N]
        ``TENSOR``, ``VECTOR`` or ``FUSED``.
    src, dst : int64 [E]
        Who reads from whom; ``src < dst``.
    names : tuple of str
    """

    kind_N: NDArray[np.int8]
    src: Ints
    dst: Ints
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, kinds: ArrayLike, edges: Sequence[tuple[int, int]], names: Sequence[str] = ()) -> Operations:
        """From plain values.

        Raises
        ------
        GraphError
            An edge leaves the operators, or does not lead to a later one.
        """
        kind_N = np.asarray(kinds, np.int8)
        ends = np.array(sorted(set(edges)), np.int64).reshape(-1, 2)
        for src, dst in ends.tolist():
            if not 0 <= src < dst < len(kind_N):
                raise GraphError(
                    f"an edge does not go from an earlier operator to a later one: {src} -> {dst}",
                    where=f"{len(kind_N)} operators",
                )
        return cls(kind_N, ends[:, 0], ends[:, 1], tuple(names))

    def __len__(self) -> int:
        return len(self.kind_N)

    @cached_property
    def is_before(self) -> NDArray[np.bool_]:
        """Whether the first has to end before the second starts, bool [N, N]."""
        result = np.zeros((len(self), len(self)), np.bool_)
        result[self.src, self.dst] = True
        for node in range(len(self)):  # edges lead forwards, so that rows of sources are whole when they are read
            for source in self.src[self.dst == node]:
                result[:, node] |= result[:, source]
        return result

    @cached_property
    def segment(self) -> Ints:
        """Parts of the layer that run one after the other in any schedule, numbered."""
        order = self.is_before.sum(axis=0).argsort(kind="stable")
        segment, result = 0, np.zeros(len(self), np.int64)
        inside = self.is_before[np.ix_(order, order)]
        for index in range(len(self)):
            if index and inside[:index, index:].all():
                segment += 1
            result[order[index]] = segment
        return result
