"""LSTM and GRU with structured dropout, in place of torch's.

In: what ``torch.nn.LSTM`` and ``torch.nn.GRU`` take: batches first or second, packed sequences, one sequence alone,
both directions, projections excepted. Out: what they give. Parameters have torch's names and shapes, so that state
dicts load both ways. In training whole units are dropped for a whole batch; in evaluation, and where nothing is
dropped, torch's own layer runs. Not here: the recurrences (``sequence``).

Source: Sarma et al., Structured in Space, Randomized in Time, NeurIPS 2021, case III (a period of one step) to case
IV (a period of the whole sequence).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from windtunnel.errors import InputError
from windtunnel.systems.layers.nn.dropout.keep import check_dropout, count_groups, draw, spans
from windtunnel.systems.layers.nn.dropout.native import Direction, lay_by_unit, run_direction
from windtunnel.systems.layers.nn.dropout.sequence import Dropped, Steps
from windtunnel.systems.layers.nn.dropout.ways import AUTOMATIC, check_way

__all__ = ["Settings", "StructuredGRU", "StructuredLSTM", "check_layer", "lay_out", "run_layers", "seed_of"]

Tensor = torch.Tensor
_INPUT, _RECURRENT = 0, 1
_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Settings:
    """Settings of structured dropout.

    Parameters
    ----------
    between : float
        Share of the units dropped on the way from one layer to the next: torch's ``dropout``.
    input : float
        The same on the way into the first layer.
    recurrent : float
        The same on the way from one step to the next.
    period : int
        Steps that share a set: 1 draws one for each.
    group : int
        Number of neighboring units that are dropped together.
    seed : int or None
        None takes a number from torch's generator at each call, as torch's dropout does.
    way : str
        How products are done: ``"auto"`` is what is quickest for their shapes, else a name in ``products.WAYS``.
    """

    between: float = 0.0
    input: float = 0.0
    recurrent: float = 0.0
    period: int = 1
    group: int = 1
    seed: int | None = None
    way: str = AUTOMATIC

    def __post_init__(self) -> None:
        """Refuse unsupported settings."""
        for what, share in (("dropout", self.between), ("input_dropout", self.input), ("recurrent", self.recurrent)):
            check_dropout(share, what=what)
        if self.period < 1:
            raise InputError(
                f"the period of a set of units cannot be {self.period} steps", where=f"period={self.period}"
            )
        check_way(self.way)

    @property
    def drops(self) -> bool:
        """Whether these settings drop any units."""
        return max(self.between, self.input, self.recurrent) > 0


class _Structured:
    """Methods that both layers add to torch's."""

    settings: Settings
    num_calls: int

    def __init__(
        self: Any,
        *args: Any,
        input_dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        period: int = 1,
        group: int = 1,
        seed: int | None = None,
        way: str = AUTOMATIC,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        settings = Settings(self.dropout, input_dropout, recurrent_dropout, period, group, seed, way)
        if self.proj_size:
            raise InputError(
                f"structured dropout has no projections, and proj_size is {self.proj_size}",
                fix="use torch.nn.LSTM where the state is projected",
            )
        count_groups(self.hidden_size, settings.recurrent, settings.group)
        count_groups(self.input_size, settings.input, min(settings.group, self.input_size))
        self.settings = settings
        self.num_calls = 0
        lay_out(self)

    def forward(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002 - torch's name
        """Apply the layer with the signature of torch's."""
        settings = replace(self.settings, between=self.dropout)
        if not self.training or not settings.drops:
            return super().forward(input, hx)  # type: ignore[misc]
        self.num_calls += 1
        return run_layers(self, settings, input, hx, num_calls=self.num_calls)

    def extra_repr(self: Any) -> str:
        """Torch's, and what is dropped beyond it."""
        own = self.settings
        text = f"input_dropout={own.input}, recurrent_dropout={own.recurrent}, period={own.period}, group={own.group}"
        return f"{super().extra_repr()}, {text}"  # type: ignore[misc]


class StructuredLSTM(_Structured, torch.nn.LSTM):  # type: ignore[misc,unused-ignore]
    """``torch.nn.LSTM`` whose dropout drops the same units for a whole batch, so that products really shrink.

    Parameters
    ----------
    *args, **kwargs
        Those of ``torch.nn.LSTM``; ``dropout`` acts between layers.
    input_dropout, recurrent_dropout : float
        Shares dropped on the way into the first layer and from step to step.
    period, group, seed, way
        See :class:`Settings`.

    Raises
    ------
    InputError
        A share is none, a group is larger than a layer, or the state is projected.

    Examples
    --------
    >>> layer = StructuredLSTM(8, 16, dropout=0.5, num_layers=2, recurrent_dropout=0.5, seed=1)
    >>> output, (h, c) = layer(torch.ones(5, 3, 8))
    >>> tuple(output.shape), tuple(h.shape)
    ((5, 3, 16), (2, 3, 16))
    """


class StructuredGRU(_Structured, torch.nn.GRU):  # type: ignore[misc,unused-ignore]
    """``torch.nn.GRU`` whose dropout drops the same units for a whole batch; parameters of :class:`StructuredLSTM`.

    The recurrent products see the state with units dropped; the state that a gate carries on is whole.
    """


def lay_out(layer: torch.nn.Module) -> None:
    """Store weights with the row of a unit contiguous, so that kept ones are copied as a whole; shapes stay."""
    lay_by_unit(layer.parameters(recurse=False))


def run_layers(
    layer: torch.nn.RNNBase, settings: Settings, given: Any, hx: Any = None, *, num_calls: int = 0
) -> tuple[Any, Any]:
    """Run torch's LSTM or GRU with structured dropout instead of its own.

    Parameters
    ----------
    layer : torch.nn.LSTM or torch.nn.GRU
    settings : Settings
    given, hx
        What the layer is called with.
    num_calls : int
        Numbers the calls of a layer with a seed of its own: every call draws other sets.

    Returns
    -------
    What the layer gives.

    Raises
    ------
    InputError
        The weights have half precision, or a layer with a seed of its own is computed again in a backward pass.
    """
    check_layer(next(layer.parameters()).dtype, settings)
    data, batch_sizes, order, restore = _as_rows(layer, given)
    states = _initial(layer, hx, data, batch_sizes[0], order, is_single=_is_single(given))
    seed = seed_of(settings, num_calls)
    results: list[tuple[Tensor, ...]] = []
    num_directions = 2 if layer.bidirectional else 1
    for depth in range(layer.num_layers):
        # The first layer drops inputs, the others what the layer before hands on.
        share = settings.between if depth else settings.input
        dropped = _draw_spans(settings, seed, depth, _INPUT, share, data, batch_sizes, settings.period)
        outputs = []
        for direction in range(num_directions):
            index = depth * num_directions + direction
            own = [state[index] for state in states]
            output, *last = _one(layer, settings, seed, index, direction, data, batch_sizes, own, dropped)
            outputs.append(output)
            results.append(tuple(last))
        data = torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]
    last_states = [torch.stack(parts) for parts in zip(*results, strict=True)]
    result: tuple[Any, Any] = restore(data, last_states)
    return result


def _one(
    layer: Any,
    settings: Settings,
    seed: int,
    direction_index: int,
    direction: int,
    data: Tensor,
    batch_sizes: Sequence[int],
    states: list[Tensor],
    dropped: Dropped,
) -> tuple[Tensor, ...]:
    """Run one direction of one layer."""
    suffix = f"_l{direction_index // (2 if layer.bidirectional else 1)}{'_reverse' if direction else ''}"
    names = [f"weight_{kind}{suffix}" for kind in ("ih", "hh")]
    names += [f"bias_{kind}{suffix}" for kind in ("ih", "hh")] if layer.bias else []
    given = Direction(tuple(getattr(layer, name) for name in names), tuple(states))
    steps = Steps(tuple(batch_sizes), bool(direction))
    again = _draw_spans(settings, seed, direction_index, _RECURRENT, settings.recurrent, states[0], batch_sizes, 1)
    return run_direction(given, data, steps, dropped, again)


def _draw_spans(
    settings: Settings,
    seed: int,
    layer: int,
    site: int,
    share: float,
    like: Tensor,
    batch_sizes: Sequence[int],
    steps_per_span: int,
) -> Dropped:
    """Spans of one place; each of ``steps_per_span`` steps, though sets change with the period."""
    if share == 0:
        return Dropped()
    num_units = like.shape[1]
    group = min(settings.group, num_units)
    num_sets = -(-len(batch_sizes) // settings.period)
    # One set per period, drawn by its number alone, so that a backward pass can draw it again.
    keeps = draw(num_units, share, range(num_sets), seed=seed, layer=layer, site=site, group=group, device=like.device)
    if steps_per_span == 1:
        keeps = [keeps[step // settings.period] for step in range(len(batch_sizes))]
    return Dropped(spans(batch_sizes, keeps, steps_per_span), group, settings.way)


def check_layer(dtype: torch.dtype, settings: Settings) -> None:
    """Refuse what structured dropout cannot do.

    Raises
    ------
    InputError
        The weights have half precision, or a layer with a seed of its own is computed again in a backward pass.
    """
    if dtype not in _DTYPES:
        raise InputError(
            f"structured dropout has no {str(dtype).removeprefix('torch.')}",
            fix="keep this layer in float32: module.float()",
        )
    if settings.seed is not None and torch._C._current_graph_task_id() != -1:
        raise InputError(
            "a layer with a seed of its own is computed again in a backward pass, where it would drop other units",
            where=f"seed={settings.seed}",
            fix="leave out seed: sets then follow torch.manual_seed, and a checkpoint draws the same ones again",
        )


def seed_of(settings: Settings, num_calls: int) -> int:
    """The number that decides the sets of a call."""
    if settings.seed is None:
        return int(torch.randint(1 << 62, ()).item())
    return settings.seed + (num_calls << 32)


# --- from what a layer is called with to a packed sequence, and back ---------------------------------------


def _is_single(given: Any) -> bool:
    return isinstance(given, Tensor) and given.dim() == 2


def _as_rows(layer: torch.nn.RNNBase, given: Any) -> tuple[Tensor, list[int], Tensor | None, Any]:
    """Rows, batch sizes, the order of a packed batch, and the way back."""
    if isinstance(given, PackedSequence):

        def restore_packed_sequence(data: Tensor, states: list[Tensor]) -> tuple[Any, Any]:
            order = given.unsorted_indices
            states = states if order is None else [state.index_select(1, order) for state in states]
            packed = PackedSequence(data, given.batch_sizes, given.sorted_indices, given.unsorted_indices)
            return packed, _as_torch(states)

        return given.data, given.batch_sizes.tolist(), given.sorted_indices, restore_packed_sequence
    single = _is_single(given)
    if given.dim() not in (2, 3):
        raise InputError(f"a sequence has 2 or 3 dimensions, and this one has {given.dim()}", fix="pass [T, B, D]")
    if given.shape[-1] != layer.input_size:
        raise InputError(f"this layer reads {layer.input_size} units, and there are {given.shape[-1]}")
    x = given.unsqueeze(1) if single else given.transpose(0, 1) if layer.batch_first else given
    T, B = x.shape[:2]

    def restore(data: Tensor, states: list[Tensor]) -> tuple[Any, Any]:
        y = data.view(T, B, -1)
        if single:
            return y.squeeze(1), _as_torch([state.squeeze(1) for state in states])
        return (y.transpose(0, 1) if layer.batch_first else y), _as_torch(states)

    return x.reshape(T * B, -1), [B] * T, None, restore


def _as_torch(states: list[Tensor]) -> Any:
    return tuple(states) if len(states) > 1 else states[0]


def _initial(
    layer: torch.nn.RNNBase, hx: Any, data: Tensor, num_rows: int, order: Tensor | None, *, is_single: bool
) -> list[Tensor]:
    """States before the first step, each [layers, B, H]: zeros where none are given."""
    is_lstm = isinstance(layer, torch.nn.LSTM)
    size = (layer.num_layers * (2 if layer.bidirectional else 1), num_rows, layer.hidden_size)
    if hx is None:
        return [data.new_zeros(size) for _ in range(2 if is_lstm else 1)]
    states = list(hx) if is_lstm else [hx]
    states = [state.unsqueeze(1) for state in states] if is_single else states
    for state in states:
        if tuple(state.shape) != size:
            raise InputError(f"the state before the first step has shape {tuple(state.shape)} instead of {size}")
    return states if order is None else [state.index_select(1, order) for state in states]
