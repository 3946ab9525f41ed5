"""Another batch size for recorded calls.

In: shapes and integer arguments of the captured batch size, and the shapes that the inputs really have in the new one.
Out: arguments of the new size. Where the batch lies in a tensor is seen from the two shapes, so only the inputs of the
program need a rule: the dimension that equals the batch size.
"""

from __future__ import annotations

import math
from typing import Any

from windtunnel.cost.rerun.arguments import Prepared
from windtunnel.cost.rerun.program import Call, argument_names

__all__ = ["resize"]

Shape = tuple[int, ...]
_MAKES_SIZES = ("zeros", "ones", "full", "empty", "rand", "normal", "new_", "expand", "repeat")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_JOINS = ("stack", "cat", "concat", "pad_sequence")
_VIEWS = ("view", "reshape", "_unsafe_view")


def resize(call: Call, prepared: Prepared, shapes: list[Shape], batch: tuple[int, int]) -> None:
    """Change the sizes among the arguments of one call, and the shapes that its results are expected to have.

    Parameters
    ----------
    call : Call
    prepared : Prepared
        Changed in place.
    shapes : list of shapes
        Of the inputs in the new form, in the order of ``prepared.inputs``.
    batch : (int, int)
        Captured and new size.
    """
    scaled = [
        (slot.spec.shape, _find_scaled_dim(slot.spec.shape, shape))
        for slot, shape in zip(prepared.inputs, shapes, strict=True)
    ]
    moved = [(shape, dim) for shape, dim in scaled if dim is not None]
    name = call.operator.removeprefix("aten::").rstrip("_")
    if name == "arange" and _is_of_batch(call, batch[0]):
        # A range that counts samples ends later.
        index = argument_names(call.schema).index("end")
        prepared.positional[index] = prepared.positional[index] * batch[1] // batch[0]
        prepared.outputs[0].shape = scale_sizes(prepared.outputs[0].spec.shape, batch)
        return
    if name in _JOINS and not moved and len(prepared.positional[0]) == batch[0]:
        _join_more(prepared, batch)
        return
    makes_own = not prepared.inputs and name.startswith(_MAKES_SIZES) and _is_of_batch(call, batch[0])
    # before anything is changed: a call that is refused must be left as it was captured
    if name in _RECURRENT:
        _check_states(call, shapes)
    if not moved and not makes_own:
        return
    for slot in prepared.outputs:
        slot.shape = scale_sizes(slot.spec.shape, batch)
    if name in _VIEWS and prepared.outputs and moved:
        shape, dim = moved[0]
        target = prepared.outputs[0].spec.shape
        prepared.outputs[0].shape = _scale_at(target, _same_place(shape, dim, target, batch[0]), batch)
        prepared.positional[1] = _view_sizes(prepared.positional[1], target, prepared.outputs[0].shape)
    elif name.startswith(_MAKES_SIZES):
        prepared.positional = [_sizes_argument(value, batch) for value in prepared.positional]
        prepared.keywords = {key: _sizes_argument(value, batch) for key, value in prepared.keywords.items()}
    elif name in ("slice", "narrow") and moved:
        prepared.positional = [prepared.positional[0], *_bounds(prepared.positional[1:], moved[0], batch)]


def _join_more(prepared: Prepared, batch: tuple[int, int]) -> None:
    """A batch put together from single samples takes as many of them as it shall have, some more than once."""
    samples = prepared.positional[0]
    prepared.positional[0] = [samples[index % batch[0]] for index in range(batch[1])]
    for slot in prepared.outputs:
        slot.shape = scale_sizes(slot.spec.shape, batch)


def _is_of_batch(call: Call, size: int) -> bool:
    """Whether a call without inputs makes something for the whole batch: a first state, or data."""
    requested = [shape for shape in call.output_shapes if isinstance(shape, list)]
    return any(size in shape for shape in requested) or not call.layer


def _check_states(call: Call, shapes: list[Shape]) -> None:
    """A recurrent operator reads beyond a state that is too small, so nothing else may check this later."""
    index = argument_names(call.schema).index("batch_first") if "batch_first" in call.schema else -1
    batch_first = bool(call.inputs[index]) if index >= 0 else False
    if len(shapes[0]) == 3 and len(shapes[1]) == 3 and shapes[0][0 if batch_first else 1] != shapes[1][1]:
        raise ValueError(f"state {shapes[1]} does not fit input {shapes[0]}")


def scale_sizes(sizes: Shape, batch: tuple[int, int]) -> Shape:
    """Scale the first size that is the batch size, or else the first multiple of it.

    Examples
    --------
    >>> scale_sizes((32, 10), (32, 64)), scale_sizes((4096, 10), (32, 16))
    ((64, 10), (2048, 10))
    """
    old = batch[0]
    exact = [row for row, size in enumerate(sizes) if size == old]
    multiple = [row for row, size in enumerate(sizes) if old > 1 and size > 0 and size % old == 0]
    index = next(iter([*exact, *multiple]), None)
    return sizes if index is None else _scale_at(sizes, index, batch)


def _scale_at(sizes: Shape, dim: int, batch: tuple[int, int]) -> Shape:
    return tuple(size * batch[1] // batch[0] if row == dim else size for row, size in enumerate(sizes))


def _find_scaled_dim(old: Shape, new: Shape) -> int | None:
    return next((row for row, (before, after) in enumerate(zip(old, new, strict=False)) if before != after), None)


def _same_place(shape: Shape, dim: int, target: Shape, size: int) -> int:
    """Where the batch in dimension ``dim`` of a tensor lies after a view as ``target``: elements keep their order."""
    inner = math.prod(shape[dim + 1 :])
    outer = inner * shape[dim]
    # A dimension of the target steps over prod(target[row + 1:]) elements. The batch steps over `inner` and fills
    # `outer`:
    #     shape   (4, 32, 10)        dim 1: inner 10, outer 320
    #     target  (4, 8, 4, 10)      rows 1 and 2 lie within 10 .. 320: parts of the batch
    #     target  (128, 10)          row 0 reaches beyond 320: the batch is merged into it
    parts = [
        row
        for row in range(len(target))
        if math.prod(target[row + 1 :]) >= inner and math.prod(target[row:]) <= outer and target[row] > 1
    ]
    merged = [row for row in range(len(target)) if math.prod(target[row + 1 :]) <= inner]
    exact = [row for row in parts if target[row] == size]
    return next(iter([*exact, *parts, *merged]), 0)


def _view_sizes(sizes: Any, old: Shape, new: Shape) -> Any:
    """What to ask a view for: the new sizes, with -1 where it was."""
    # -1 stays: what it stands for follows from the other sizes, and may hold the batch itself
    if not isinstance(sizes, list):
        return sizes
    return (
        [size if size == -1 else now for size, now in zip(sizes, new, strict=True)] if len(sizes) == len(old) else sizes
    )


def _sizes_argument(value: Any, batch: tuple[int, int]) -> Any:
    if isinstance(value, list) and value and all(isinstance(size, int) for size in value):
        return list(scale_sizes(tuple(value), batch))
    return value


def _bounds(values: list[Any], moved: tuple[Shape, int], batch: tuple[int, int]) -> list[Any]:
    shape, dim = moved
    if not values or not isinstance(values[0], int) or values[0] % max(len(shape), 1) != dim:
        return values
    return [
        values[0],
        *(value * batch[1] // batch[0] if isinstance(value, int) and value > 1 else value for value in values[1:]),
    ]
