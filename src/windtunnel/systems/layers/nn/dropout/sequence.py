"""Products over a whole sequence and recurrences, each one autograd node.

In: a packed sequence [N, D], weights as torch has them, spans of kept units. Out: results, and exact gradients of all.
A recurrence saves what its steps computed and no compacted copy; its gradient of the weight is one product over the
sequence. Not here: layers, directions, unpacking (``recurrent``).

Source: Hochreiter and Schmidhuber, 1997; Cho et al., 2014, with torch's gates; Sarma et al., NeurIPS 2021.
"""

# N rows of a packed sequence, D units in, H units, B rows of a step; gates i f g o of an LSTM, r z n of a GRU

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from windtunnel.systems.layers.nn import gemm
from windtunnel.systems.layers.nn.dropout.keep import Span
from windtunnel.systems.layers.nn.dropout.products import Way, row_major
from windtunnel.systems.layers.nn.dropout.ways import FORWARD, TO_INPUT, TO_WEIGHT, shape_of, way_for

__all__ = ["Dropped", "Steps", "gru", "lstm", "product"]

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Dropped:
    """Which units a product leaves out, and how: no spans, nothing."""

    spans: tuple[Span, ...] = ()
    group: int = 1
    way: str = "auto"

    def of(self, product: str, weight: Tensor) -> Way:
        """The way of one product over all spans."""
        return way_for(self.way, product, shape_of(weight, self.spans, self.group))

    def step(self, product: str, weight: Tensor) -> Way:
        """The way of one product of a single step."""
        return way_for(self.way, product, shape_of(weight, self.spans[:1], self.group))


@dataclass(frozen=True)
class Steps:
    """Rows of each step of a packed sequence, in the order in which a direction goes through them."""

    batch_sizes: tuple[int, ...]
    is_reverse: bool = False

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Step, first row, number of rows."""
        starts = [0]
        for size in self.batch_sizes:
            starts.append(starts[-1] + size)
        order = range(len(self.batch_sizes))
        for step in reversed(order) if self.is_reverse else order:
            yield step, starts[step], self.batch_sizes[step]


# --- a product over a sequence ---------------------------------------------------------------------------


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dropped: Dropped) -> Tensor:
        rows = row_major(weight)
        out = x.new_zeros(len(x), rows.shape[1])
        if bias is not None:
            out += bias.detach()
        dropped.of(FORWARD, rows).forward(x, rows, dropped.spans, out)
        context.save_for_backward(x, weight)
        context.dropped, context.has_bias = dropped, bias is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = context.saved_tensors
        dropped, rows, dy = context.dropped, row_major(weight), dy.contiguous()
        needs_x, needs_weight, needs_bias, _ = context.needs_input_grad
        dx = dweight = None
        if needs_x:
            dx = torch.empty_like(x)
            dropped.of(TO_INPUT, rows).to_input(dy, rows, dropped.spans, dx)
        if needs_weight:
            dweight = dropped.of(TO_WEIGHT, rows).to_weight(x, dy, dropped.spans).t()
        return dx, dweight, dy.sum(0) if context.has_bias and needs_bias else None, None


def product(x: Tensor, weight: Tensor, bias: Tensor | None, dropped: Dropped) -> Tensor:
    """``x~ weight' + bias`` with x~ of the kept units only, [N, G].

    Parameters
    ----------
    x : [N, D]
    weight : [G, D]
    bias : [G], optional
    dropped : Dropped
    """
    if not dropped.spans:
        return torch.nn.functional.linear(x, weight, bias)
    result: Tensor = _Product.apply(x.contiguous(), weight, bias, dropped)
    return result


# --- what both recurrences do ------------------------------------------------------------------------------


def _recur(dropped: Dropped, weight: Tensor) -> Callable[[int, Tensor, Tensor], None]:
    """Return a function that adds the product of the state before a step to its gates."""
    way = dropped.step(FORWARD, weight) if dropped.spans else None

    def add(step: int, state: Tensor, out: Tensor) -> None:
        if way is None:
            gemm.add_product(out, state, weight)
        else:
            way.forward(state, weight, _local(dropped.spans, step, len(out)), out)

    return add


def _return(dropped: Dropped, weight: Tensor) -> Callable[[int, Tensor, Tensor], None]:
    """Return a function that writes the gradient of the state before a step."""
    way = dropped.step(TO_INPUT, weight) if dropped.spans else None

    def write(step: int, dgates: Tensor, out: Tensor) -> None:
        if way is None:
            out.copy_(gemm.product(dgates, weight.t()))
        else:
            way.to_input(dgates, weight, _local(dropped.spans, step, len(out)), out)

    return write


def _local(spans: Sequence[Span], step: int, num_rows: int) -> tuple[Span]:
    return (Span(0, num_rows, spans[step].keep),)


def _weight_gradient(dropped: Dropped, weight: Tensor, states: Tensor, dgates: Tensor) -> Tensor:
    if dropped.spans:
        return dropped.of(TO_WEIGHT, weight).to_weight(states, dgates, dropped.spans).t()
    return gemm.product(states.t(), dgates).t()


# --- LSTM ------------------------------------------------------------------------------------------------


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, steps: Steps, dropped: Dropped
    ) -> tuple[Tensor, Tensor, Tensor]:
        H, rows = h0.shape[1], row_major(weight)
        active, h, c = gates.clone(), h0.clone(), c0.clone()
        before, c_before, squashed, out = (h0.new_empty(len(gates), H) for _ in range(4))
        recur = _recur(dropped, rows)
        for step, first, size in steps:
            here = slice(first, first + size)
            gate, cell, state = active[here], c[:size], h[:size]
            before[here], c_before[here] = state, cell
            recur(step, state, gate)
            gate[:, : 2 * H].sigmoid_()
            gate[:, 2 * H : 3 * H].tanh_()
            gate[:, 3 * H :].sigmoid_()
            cell.mul_(gate[:, H : 2 * H]).addcmul_(gate[:, :H], gate[:, 2 * H : 3 * H])
            torch.tanh(cell, out=squashed[here])
            torch.mul(gate[:, 3 * H :], squashed[here], out=out[here])
            h[:size] = out[here]
        context.save_for_backward(active, weight, before, c_before, squashed)
        context.steps, context.dropped = steps, dropped
        return out, h, c

    @staticmethod
    @once_differentiable
    def backward(context: Any, dout: Tensor, dh: Tensor, dc: Tensor) -> tuple[Tensor | None, ...]:
        active, weight, before, c_before, squashed = context.saved_tensors
        H, rows = before.shape[1], row_major(weight)
        dh, dc, dgates = dh.clone(), dc.clone(), torch.empty_like(active)
        through = _lstm_slopes(active, c_before, squashed, dgates)
        give_back = _return(context.dropped, rows)
        for step, first, size in reversed(list(context.steps)):
            here = slice(first, first + size)
            dstate, dcell, gates = dout[here] + dh[:size], dc[:size], dgates[here].view(size, 4, H)
            dcell.addcmul_(dstate, through[here])
            gates[:, :3].mul_(dcell.unsqueeze(1))
            gates[:, 3].mul_(dstate)
            dcell.mul_(active[here, H : 2 * H])
            give_back(step, dgates[here], dh[:size])
        dweight = _weight_gradient(context.dropped, rows, before, dgates) if context.needs_input_grad[1] else None
        return dgates, dweight, dh, dc, None, None


def _lstm_slopes(active: Tensor, c_before: Tensor, squashed: Tensor, out: Tensor) -> Tensor:
    """What the gradient of a cell, and of a state, is multiplied with, for all steps at once.

    Into ``out`` [N, 4 H] for the gates; what is returned, [N, H], takes a state's gradient to its cell.
    """
    i, f, g, o = active.chunk(4, dim=1)
    to_i, to_f, to_g, to_o = out.chunk(4, dim=1)
    torch.mul(torch.addcmul(i, i, i, value=-1), g, out=to_i)
    torch.mul(torch.addcmul(f, f, f, value=-1), c_before, out=to_f)
    torch.addcmul(i, i, g * g, value=-1, out=to_g)
    torch.mul(torch.addcmul(o, o, o, value=-1), squashed, out=to_o)
    return torch.addcmul(o, o, squashed * squashed, value=-1)


def lstm(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, steps: Steps, dropped: Dropped
) -> tuple[Tensor, Tensor, Tensor]:
    """One direction of one layer of an LSTM.

    Parameters
    ----------
    gates : [N, 4 H]
        What the input and both biases add to the gates.
    weight : [4 H, H]
        Recurrent weight.
    h0, c0 : [B, H]
    steps : Steps
    dropped : Dropped
        One span per step, of the state before it.

    Returns
    -------
    output [N, H], last h and c [B, H]
    """
    result: tuple[Tensor, Tensor, Tensor] = _Lstm.apply(gates, weight, h0, c0, steps, dropped)
    return result


# --- GRU -------------------------------------------------------------------------------------------------


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, gates: Tensor, weight: Tensor, bias: Tensor | None, h0: Tensor, steps: Steps, dropped: Dropped
    ) -> tuple[Tensor, Tensor]:
        H, rows = h0.shape[1], row_major(weight)
        h, inner = h0.clone(), torch.zeros_like(gates)
        before, out = (h0.new_empty(len(gates), H) for _ in range(2))
        if bias is not None:
            inner += bias.detach()
        active, recur = gates.clone(), _recur(dropped, rows)
        for step, first, size in steps:
            here = slice(first, first + size)
            gate, add, state = active[here], inner[here], h[:size]
            before[here] = state
            recur(step, state, add)
            gate[:, : 2 * H].add_(add[:, : 2 * H]).sigmoid_()
            gate[:, 2 * H :].addcmul_(gate[:, :H], add[:, 2 * H :]).tanh_()
            torch.lerp(gate[:, 2 * H :], state, gate[:, H : 2 * H], out=out[here])
            h[:size] = out[here]
        context.save_for_backward(active, weight, before, inner[:, 2 * H :].contiguous())
        context.steps, context.dropped, context.has_bias = steps, dropped, bias is not None
        return out, h

    @staticmethod
    @once_differentiable
    def backward(context: Any, dout: Tensor, dh: Tensor) -> tuple[Tensor | None, ...]:
        active, weight, before, candidate = context.saved_tensors
        H, rows = before.shape[1], row_major(weight)
        dh, dgates, dinner = dh.clone(), torch.empty_like(active), torch.empty_like(active)
        give_back = _return(context.dropped, rows)
        for step, first, size in reversed(list(context.steps)):
            here = slice(first, first + size)
            r, z, n = (active[here, index * H : (index + 1) * H] for index in range(3))
            d = dout[here] + dh[:size]
            torch.mul(d * (1 - z), 1 - n * n, out=dgates[here, 2 * H :])
            torch.mul(d * (before[here] - n), z * (1 - z), out=dgates[here, H : 2 * H])
            torch.mul(dgates[here, 2 * H :] * candidate[here], r * (1 - r), out=dgates[here, :H])
            dinner[here, : 2 * H] = dgates[here, : 2 * H]
            torch.mul(dgates[here, 2 * H :], r, out=dinner[here, 2 * H :])
            give_back(step, dinner[here], dh[:size])
            dh[:size].addcmul_(d, z)
        needs_weight, needs_bias = context.needs_input_grad[1], context.has_bias and context.needs_input_grad[2]
        dweight = _weight_gradient(context.dropped, rows, before, dinner) if needs_weight else None
        return dgates, dweight, dinner.sum(0) if needs_bias else None, dh, None, None


def gru(
    gates: Tensor, weight: Tensor, bias: Tensor | None, h0: Tensor, steps: Steps, dropped: Dropped
) -> tuple[Tensor, Tensor]:
    """One direction of one layer of a GRU.

    Parameters
    ----------
    gates : [N, 3 H]
        What the input and its bias add to the gates.
    weight : [3 H, H]
    bias : [3 H], optional
        Recurrent bias.
    h0 : [B, H]
    steps : Steps
    dropped : Dropped
        One span per step, of the state before it; the state that is carried on is whole.

    Returns
    -------
    output [N, H], last h [B, H]
    """
    result: tuple[Tensor, Tensor] = _Gru.apply(gates, weight, bias, h0, steps, dropped)
    return result
