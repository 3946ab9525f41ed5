"""The three products of a layer with only its kept units, in several ways.

In: rows of a sequence [N, D], a transposed weight [D, G] whose rows are contiguous, and spans of rows with their
kept units. Out: what is added to an output [N, G], the gradient of the input [N, D], the gradient of the weight
[D, G]. The ways give the same numbers, but for the order in which floats are added:

- ``dense`` masks the input and multiplies all of it, in one product for all spans;
- ``gather`` copies the kept rows of the weight together, one product per span;
- ``runs`` multiplies each run of neighbors where it lies, without a copy;
- ``fused`` gathers while it multiplies (``engine``), on a processor only.

Not here: which way is quickest for a shape (``ways``).

Source: Sarma et al., NeurIPS 2021: column sparsity forward, output sparsity to the input, row sparsity to the weight.
"""

# N rows, D units, G columns, k kept units of a span, B rows of a span

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from windtunnel.measure.threads import match_torch_threads
from windtunnel.systems.layers.nn.dropout import engine
from windtunnel.systems.layers.nn.dropout.keep import Span, factors_of
from windtunnel.systems.layers.nn.gemm import add_product, product

__all__ = ["WAYS", "Way", "row_major"]

Tensor = torch.Tensor
Spans = Sequence[Span]


@dataclass(frozen=True)
class Way:
    """One way to do the three products.

    Attributes
    ----------
    forward : callable (x, weight, spans, out)
        ``out[rows] += scale x[rows, kept] weight[kept]``.
    to_input : callable (dy, weight, spans, dx)
        ``dx[rows, kept] = scale dy[rows] weight[kept]'``, 0 elsewhere.
    to_weight : callable (x, dy, spans)
        The sum over spans of ``scale x[rows, kept]' dy[rows]`` in rows ``kept``; 0 in rows that no span keeps.
    """

    forward: Callable[[Tensor, Tensor, Spans, Tensor], Any]
    to_input: Callable[[Tensor, Tensor, Spans, Tensor], Any]
    to_weight: Callable[[Tensor, Tensor, Spans], Tensor]


def row_major(weight: Tensor) -> Tensor:
    """A weight [G, D] as its transpose [D, G] with contiguous rows: a view where it is stored so already."""
    return weight.detach().t().contiguous()


# --- dense -----------------------------------------------------------------------------------------------


def _rows(spans: Spans) -> slice:
    return slice(spans[0].first, spans[-1].last)


def _dense_forward(x: Tensor, weight: Tensor, spans: Spans, out: Tensor) -> None:
    rows = _rows(spans)
    add_product(out[rows], x[rows] * factors_of(spans, x), weight)


def _dense_to_input(dy: Tensor, weight: Tensor, spans: Spans, dx: Tensor) -> None:
    rows = _rows(spans)
    torch.mul(product(dy[rows], weight.t()), factors_of(spans, dx), out=dx[rows])


def _dense_to_weight(x: Tensor, dy: Tensor, spans: Spans) -> Tensor:
    rows = _rows(spans)
    return product((x[rows] * factors_of(spans, x)).t(), dy[rows])


# --- gather ----------------------------------------------------------------------------------------------


def _gather_forward(x: Tensor, weight: Tensor, spans: Spans, out: Tensor) -> None:
    for span in spans:
        index, scale = span.keep.index, span.keep.scale
        kept = x[span.first : span.last].index_select(1, index)
        add_product(out[span.first : span.last], kept, weight.index_select(0, index), scale)


def _gather_to_input(dy: Tensor, weight: Tensor, spans: Spans, dx: Tensor) -> None:
    dx[_rows(spans)].zero_()
    for span in spans:
        index = span.keep.index
        kept = product(dy[span.first : span.last], weight.index_select(0, index).t()).mul_(span.keep.scale)
        dx[span.first : span.last].index_copy_(1, index, kept)


def _gather_to_weight(x: Tensor, dy: Tensor, spans: Spans) -> Tensor:
    dweight = x.new_zeros(x.shape[1], dy.shape[1])
    for span in spans:
        index = span.keep.index
        kept = x[span.first : span.last].index_select(1, index)
        dweight.index_add_(0, index, product(kept.t(), dy[span.first : span.last]), alpha=span.keep.scale)
    return dweight


# --- runs ------------------------------------------------------------------------------------------------


def _runs_forward(x: Tensor, weight: Tensor, spans: Spans, out: Tensor) -> None:
    for span in spans:
        part, result = x[span.first : span.last], out[span.first : span.last]
        for first, last in span.keep.runs:
            add_product(result, part[:, first:last], weight[first:last], span.keep.scale)


def _runs_to_input(dy: Tensor, weight: Tensor, spans: Spans, dx: Tensor) -> None:
    dx[_rows(spans)].zero_()
    for span in spans:
        part, result = dy[span.first : span.last], dx[span.first : span.last]
        for first, last in span.keep.runs:
            add_product(result[:, first:last], part, weight[first:last].t(), span.keep.scale)


def _runs_to_weight(x: Tensor, dy: Tensor, spans: Spans) -> Tensor:
    dweight = x.new_zeros(x.shape[1], dy.shape[1])
    for span in spans:
        part, gradient = x[span.first : span.last], dy[span.first : span.last]
        for first, last in span.keep.runs:
            add_product(dweight[first:last], part[:, first:last].t(), gradient, span.keep.scale)
    return dweight


# --- fused -----------------------------------------------------------------------------------------------


def _run(kernel: Callable[..., None], first: Tensor, second: Tensor, spans: Spans, result: Tensor) -> None:
    first, second = first.detach(), second.detach()
    kept, counts = engine.pad_sets([span.keep.index.numpy() for span in spans])
    firsts = np.array([span.first for span in spans])
    lasts = np.array([span.last for span in spans])
    scale = first.numpy().dtype.type(spans[0].keep.scale)
    with match_torch_threads():
        kernel(first.numpy(), second.numpy(), kept, counts, firsts, lasts, scale, result.numpy())


def _engine_forward(x: Tensor, weight: Tensor, spans: Spans, out: Tensor) -> None:
    _run(engine.add_forward, x, weight, spans, out)


def _engine_input_gradient(dy: Tensor, weight: Tensor, spans: Spans, dx: Tensor) -> None:
    dx[_rows(spans)].zero_()
    _run(engine.set_input, dy, weight, spans, dx)


def _engine_weight_gradient(x: Tensor, dy: Tensor, spans: Spans) -> Tensor:
    dweight = x.new_zeros(x.shape[1], dy.shape[1])
    _run(engine.add_weight, x, dy, spans, dweight)
    return dweight


WAYS = {
    "dense": Way(_dense_forward, _dense_to_input, _dense_to_weight),
    "gather": Way(_gather_forward, _gather_to_input, _gather_to_weight),
    "runs": Way(_runs_forward, _runs_to_input, _runs_to_weight),
    "fused": Way(_engine_forward, _engine_input_gradient, _engine_weight_gradient),
}
