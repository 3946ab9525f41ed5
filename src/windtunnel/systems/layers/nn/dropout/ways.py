"""Which way of each product is quickest for a shape, measured once.

In: the shape of a product. Out: the name of a way (``products``). What is timed are arrays of these very shapes and
sets of this very kind; no random number of the program is used up. The dense way is kept wherever none is clearly
quicker. Not here: the ways themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch

from windtunnel.errors import InputError
from windtunnel.systems.layers.nn.choice import coarse, quickest
from windtunnel.systems.layers.nn.dropout.keep import Span, draw, spans
from windtunnel.systems.layers.nn.dropout.products import WAYS, Way

__all__ = ["AUTOMATIC", "Shape", "check_way", "shape_of", "way_for"]

AUTOMATIC = "auto"
FORWARD, TO_INPUT, TO_WEIGHT = "forward", "to_input", "to_weight"


@dataclass(frozen=True)
class Shape:
    """Sizes that decide how long a product takes."""

    num_rows: int
    num_units: int
    num_columns: int
    num_kept: int
    num_sets: int
    group: int
    dtype: torch.dtype
    device: str
    threads: int


def check_way(name: str) -> str:
    """The name, if it is that of a way.

    Raises
    ------
    InputError
        It is not.
    """
    if name not in (AUTOMATIC, *WAYS):
        raise InputError(
            f"no method for a product is called {name!r}", fix=f"use one of {', '.join((AUTOMATIC, *WAYS))}"
        )
    return name


def way_for(name: str, product: str, shape: Shape | None) -> Way:
    """The way of this name; for ``"auto"`` the one that is quickest for a shape."""
    if name != AUTOMATIC or shape is None:
        return WAYS["dense" if name == AUTOMATIC else name]
    return WAYS[_quickest(product, shape)]


def shape_of(weight: torch.Tensor, spans: Sequence[Span], group: int) -> Shape | None:
    """About the shape of the products of some spans with a transposed weight; None without any.

    Sets, and rows of each, are rounded up, so that sequences of many lengths have few shapes.
    """
    if not spans:
        return None
    num_sets = coarse(len(spans))
    return Shape(
        num_rows=num_sets * coarse(-(-(spans[-1].last - spans[0].first) // len(spans)), 4),
        num_units=weight.shape[0],
        num_columns=weight.shape[1],
        num_kept=spans[0].keep.num_kept,
        num_sets=num_sets,
        group=group,
        dtype=weight.dtype,
        device=weight.device.type,
        threads=torch.get_num_threads(),
    )


@cache
def _quickest(product: str, shape: Shape) -> str:
    if shape.num_kept in (0, shape.num_units):
        return "dense" if shape.num_kept else "gather"
    x, weight, y = (
        torch.full(size, 0.01, dtype=shape.dtype, device=shape.device)
        for size in (
            (shape.num_rows, shape.num_units),
            (shape.num_units, shape.num_columns),
            (shape.num_rows, shape.num_columns),
        )
    )
    sets = _spans(shape, x.device)
    given = {FORWARD: (x, weight, sets, y), TO_INPUT: (y, weight, sets, x), TO_WEIGHT: (x, y, sets)}[product]
    left_out = set(["fused"] * (shape.device != "cpu") + ["runs"] * (shape.group == 1))
    ways = {name: partial(getattr(way, product), *given) for name, way in WAYS.items() if name not in left_out}
    return quickest(ways, plain="dense")


def _spans(shape: Shape, device: torch.device) -> tuple[Span, ...]:
    dropout = 1.0 - shape.num_kept / shape.num_units
    keeps = draw(
        shape.num_units, dropout, range(shape.num_sets), seed=0, group=min(shape.group, shape.num_units), device=device
    )
    ends = np.linspace(0, shape.num_rows, shape.num_sets + 1).astype(int)
    return spans(np.diff(ends).tolist(), keeps, period=1)
