"""One direction of a recurrent layer by torch's own kernel, where that gives the same and is quicker.

In: a packed sequence with units dropped on the way into the layer, weights, states. Out: what the recurrences of
``sequence`` give. Torch's kernel multiplies with all units, dropped ones too, and knows nothing that is dropped from
step to step: there is no such way for a layer with recurrent dropout. Which is quicker is measured once per shape, and
the first shape of a layer decides how its weights are stored: by unit for us, by gate for torch. Not here: our own
recurrences (``sequence``), ways of their products (``ways``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from windtunnel.systems.layers.nn.choice import coarse, quickest
from windtunnel.systems.layers.nn.dropout.keep import draw, factors_of, spans
from windtunnel.systems.layers.nn.dropout.sequence import Dropped, Steps, gru, lstm, product
from windtunnel.systems.layers.nn.dropout.ways import AUTOMATIC

__all__ = ["Direction", "lay_by_unit", "run_direction"]

Tensor = torch.Tensor
_SETTLED = "_windtunnel_settled"


@dataclass(frozen=True, eq=False)
class Direction:
    """One direction of one layer.

    Parameters
    ----------
    weights : tuple of Tensor
        Of the input and of the recurrence, then both biases where there are any; as torch has them.
    states : tuple of Tensor
        h, and c of an LSTM, each [B, H].
    """

    weights: tuple[Tensor, ...]
    states: tuple[Tensor, ...]

    @property
    def is_lstm(self) -> bool:
        """An LSTM has a cell besides its state."""
        return len(self.states) == 2


def run_direction(given: Direction, x: Tensor, steps: Steps, dropped: Dropped, again: Dropped) -> tuple[Tensor, ...]:
    """Output [N, H] and last states [B, H].

    Parameters
    ----------
    given : Direction
    x : [N, D]
    steps : Steps
    dropped, again : Dropped
        On the way in, and from step to step.
    """
    can = not again.spans and dropped.way == AUTOMATIC and not steps.is_reverse and len(set(steps.batch_sizes)) == 1
    if can and _is_native_quicker(_shape_of(given, x, steps, dropped)):
        _settle(given.weights[:2], is_by_unit=False)
        return _native(given, x, steps, dropped)
    _settle(given.weights[:2], is_by_unit=True)
    return _own(given, x, steps, dropped, again)


def lay_by_unit(weights: Iterable[Any]) -> None:
    """Store matrices with the row of a unit contiguous, so that kept ones are copied as a whole; shapes stay.

    What is first run with them may store them as torch does again.
    """
    for weight in weights:
        if isinstance(weight, Tensor) and weight.is_leaf and weight.dim() == 2:
            weight.data = weight.data.t().contiguous().t()
            if hasattr(weight, _SETTLED):
                delattr(weight, _SETTLED)


def _settle(weights: Sequence[Tensor], *, is_by_unit: bool) -> None:
    """Store matrices as the way that runs reads them; the first time alone, or two shapes in turn would copy on and on.

    Weights that are shared, in a flat buffer or under another name, stay as they are.
    """
    for weight in weights:
        if weight.is_leaf and not hasattr(weight, _SETTLED):
            setattr(weight, _SETTLED, True)
            weight.data = weight.data.t().contiguous().t() if is_by_unit else weight.data.contiguous()


def _own(given: Direction, x: Tensor, steps: Steps, dropped: Dropped, again: Dropped) -> tuple[Tensor, ...]:
    weight, recurrent, *biases = given.weights
    h = given.states[0]
    if given.is_lstm:
        gates = product(x, weight, biases[0] + biases[1] if biases else None, dropped)
        return lstm(gates, recurrent, h, given.states[1], steps, again)
    first, second = biases or (None, None)
    return gru(product(x, weight, first, dropped), recurrent, second, h, steps, again)


def _native(given: Direction, x: Tensor, steps: Steps, dropped: Dropped) -> tuple[Tensor, ...]:
    size = steps.batch_sizes[0]
    masked = (x * factors_of(dropped.spans, x) if dropped.spans else x).view(-1, size, x.shape[1])
    states = [state.unsqueeze(0) for state in given.states]
    how = bool(given.weights[2:]), 1, 0.0, torch.is_grad_enabled(), False, False
    if given.is_lstm:
        output, *last = torch._VF.lstm(masked, states, given.weights, *how)
    else:
        output, *last = torch._VF.gru(masked, states[0], given.weights, *how)
    return output.view(len(x), -1), *(state.squeeze(0) for state in last)


# --- which is quicker -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape:
    num_steps: int
    batch_size: int
    num_units: int
    num_hidden: int
    num_kept: int
    period: int
    group: int
    is_lstm: bool
    has_bias: bool
    dtype: torch.dtype
    device: str
    threads: int
    trains: bool


def _shape_of(given: Direction, x: Tensor, steps: Steps, dropped: Dropped) -> _Shape:
    num_steps = coarse(len(steps.batch_sizes))
    period = -(-len(steps.batch_sizes) // max(len(dropped.spans), 1))
    return _Shape(
        num_steps, coarse(steps.batch_sizes[0], 4), x.shape[1], given.states[0].shape[1],
        dropped.spans[0].keep.num_kept if dropped.spans else x.shape[1], min(coarse(period), num_steps),
        dropped.group, given.is_lstm, bool(given.weights[2:]), x.dtype, x.device.type, torch.get_num_threads(),
        torch.is_grad_enabled(),
    )  # fmt: skip


@cache
def _is_native_quicker(shape: _Shape) -> bool:
    gates = (4 if shape.is_lstm else 3) * shape.num_hidden

    def constant_tensor(*size: int, is_by_unit: bool = False) -> Tensor:
        created = torch.full(size[::-1] if is_by_unit else size, 0.01, dtype=shape.dtype, device=shape.device)
        return (created.t() if is_by_unit else created).requires_grad_(shape.trains)

    biases = [constant_tensor(gates)] * 2 * shape.has_bias
    states = tuple(constant_tensor(shape.batch_size, shape.num_hidden) for _ in range(2 if shape.is_lstm else 1))
    sides = shape.num_units, shape.num_hidden
    plain, by_unit = (
        Direction((*(constant_tensor(gates, side, is_by_unit=item) for side in sides), *biases), states)
        for item in (False, True)
    )
    x = constant_tensor(shape.num_steps * shape.batch_size, shape.num_units)
    sizes = [shape.batch_size] * shape.num_steps
    result: Dropped = Dropped()
    if shape.num_kept < shape.num_units:
        keeps = draw(
            shape.num_units, 1 - shape.num_kept / shape.num_units, range(-(-shape.num_steps // shape.period)),
            seed=0, group=shape.group, device=x.device,
        )  # fmt: skip
        result = Dropped(spans(sizes, keeps, shape.period), shape.group)
    steps = Steps(tuple(sizes))

    def once(given: Direction, run: Callable[..., Sequence[Tensor]], *more: Any) -> Callable[[], None]:
        def run_once() -> None:
            with torch.set_grad_enabled(shape.trains):
                output = run(given, x, steps, result, *more)[0]
                if shape.trains:
                    torch.autograd.grad(output.sum(), [x, *given.weights[:2]])

        return run_once

    ways = {"native": once(plain, _native), "own": once(by_unit, _own, Dropped())}
    return quickest(ways, plain="native") == "native"
