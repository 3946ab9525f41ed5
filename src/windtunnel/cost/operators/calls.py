"""A call of an operator as work keeps it, and what its shapes and strides say.

In: shapes, strides and arguments of one row of work. Out: ``Call``, sizes and alignments. Not here: what operators make
of them (``matrix_facts``, ``row_facts``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.graph.flops import operator_flops

__all__ = ["Call", "Describe", "Row", "Shape", "alignment_of", "is_strided"]

Shape = Sequence[int]
Row = dict[str, float]
_LINE = 128  # bytes of a line of the cache


@dataclass(frozen=True)
class Call:
    """One call: an operator with its tensors and other arguments.

    Parameters
    ----------
    name : str
        As of ``plain_name``.
    shapes, strides, arguments : list
        Of each argument; a list of shapes for a list of tensors.
    item : int
        Bytes of an element of the type that is computed in.
    moved : float
        Bytes that the graph says are read and written.
    """

    name: str
    shapes: list[Any]
    strides: list[Any]
    arguments: list[Any]
    item: int
    moved: float

    def stride(self, index: int) -> list[int]:
        """Strides of a tensor; those of one that lies row by row where they were not captured."""
        if index < len(self.strides) and len(self.strides[index]) == len(self.shapes[index]):
            return list(self.strides[index])
        return _usual(self.shapes[index])

    def argument(self, index: int, default: Any = None) -> Any:
        """An argument that is no tensor."""
        return self.arguments[index] if index < len(self.arguments) else default

    def flops(self, outputs: Sequence[Any] = ()) -> float:
        """Operations of the call."""
        return float(operator_flops(f"aten::{self.name}", self.shapes, self.arguments, list(outputs)))


def _usual(shape: Shape) -> list[int]:
    return [math.prod(shape[index + 1 :]) for index in range(len(shape))]


def is_strided(shape: Shape, stride: Shape) -> bool:
    """Whether a tensor lies otherwise than row by row."""
    return any(size > 1 and step != usual for size, step, usual in zip(shape, stride, _usual(shape), strict=True))


def alignment_of(length: float, item: int) -> float:
    """Bytes, a power of two and at most ``_LINE``, that divide a row of this many elements."""
    num_bytes = int(length) * item
    return float(min(num_bytes & -num_bytes, _LINE)) if num_bytes else float(_LINE)


Describe = Callable[[Call], tuple[str, Row]]
"""Family of a call, empty for none, and its numbers by column."""
