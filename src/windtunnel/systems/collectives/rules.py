"""Which layouts an operator takes, and which it makes (complete inference).

In: a stage and the types of its operands. Out: the type of its value, or an error that names the smallest repair.
Not here: programs, rewriting.

Legend: R replicated, S(d) sliced along dimension d, L local, k ranks of the group.

References
----------
Jangda et al., ASPLOS 2022, section 3.2. Two published rules are not followed: a product of any two sliced matrices is
not local (both must slice the contracted dimension), and a norm of slices is no sliced scalar (partial sums are added).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from windtunnel.systems.collectives.layout_errors import Call, LayoutError
from windtunnel.systems.collectives.layouts import (
    FLAT,
    LOCAL,
    REPLICATED,
    Layout,
    TensorType,
    root_layout,
    slice_layout,
)

if TYPE_CHECKING:
    from windtunnel.systems.collectives.program import Stage

__all__ = ["COMMUNICATION", "POINTWISE", "REDUCTIONS", "LayoutError", "infer", "operator_names", "spans"]

COMMUNICATION = frozenset({"all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast", "send"})
"""Operators in which ranks exchange data."""
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "maximum", "select", "greater"})
_UNARY = frozenset({"neg", "sqrt", "relu", "square", "cast"})
POINTWISE = _ARITHMETIC | _UNARY | {"dropout", "update"}
"""Operators whose results depend on the same element of each operand only."""
REDUCTIONS = frozenset({"sum", "sum_squares"})
"""Operators that make one element of all; of slices they make a local partial sum."""


def infer(stage: Stage, operands: Sequence[TensorType | float], group_sizes: Sequence[int]) -> TensorType:
    """The type of the value that a stage makes.

    Parameters
    ----------
    stage : Stage
    operands : sequence of TensorType or float
        In the order of ``stage.operands``.
    group_sizes : sequence of int

    Raises
    ------
    LayoutError
        The operands do not fit; ``fix`` and ``repair`` name the smallest change.
    """
    call = Call(stage, operands, group_sizes)
    if not call.tensors:
        raise call.error("an operator needs a tensor", "compute constants before the program")
    for index, item in enumerate(operands):
        if isinstance(item, TensorType) and item.group != call.tensors[0].group:
            behind = min(range(len(operands)), key=lambda i: _group(operands[i]))
            what = f"operands are on groups {call.tensors[0].group} and {item.group}"
            raise call.repairable(what, "send", behind) if index else call.error(what, "use one group")
    return _RULES[stage.op](call)


def operator_names() -> list[str]:
    """Names of all operators."""
    return sorted(_RULES)


def _group(item: TensorType | float) -> int:
    return item.group if isinstance(item, TensorType) else 1 << 30


# --- pointwise ------------------------------------------------------------------------------------------------


def _pointwise(call: Call) -> TensorType:
    """R,R→R; S(d),S(d)→S(d); S(d),R→S(d) where R is absent along d; L,L→L; L,R→L; a scalar goes with everything."""
    shape = _broadcast_shape(call)
    _check_dtypes(call)
    rank = len(shape)
    layouts = [_align(item, rank) for item in call.tensors]
    names = [index for index, item in enumerate(call.operands) if isinstance(item, TensorType)]
    widest = next((item for item in call.tensors if not item.is_scalar), call.tensors[0])
    result = TensorType(shape, REPLICATED, widest.dtype, call.tensors[0].group)
    kinds = {layout.kind for layout in layouts}
    if "rooted" in kinds:
        index = names[next(i for i, layout in enumerate(layouts) if layout.kind == "rooted")]
        root = layouts[names.index(index)].root
        if len(kinds) > 1 or len({layout.root for layout in layouts}) > 1:
            raise call.repairable("only its root has the value of a reduced operand", "broadcast", index, root=root)
        return result.with_layout(root_layout(root))
    if "sliced" in kinds:
        return result.with_layout(slice_layout(_find_slice_dim(call, shape, layouts, names)))
    return result.with_layout(LOCAL if "local" in kinds else REPLICATED)


def _find_slice_dim(call: Call, shape: tuple[int, ...], layouts: list[Layout], names: list[int]) -> int:
    """The one dimension along which sliced operands are cut, when all others fit to it."""
    dims = [layout.dim for layout in layouts if layout.is_sliced]
    for index, layout, item in zip(names, layouts, call.tensors, strict=True):
        if layout.is_local:
            raise call.repairable(
                "a local operand cannot be combined with slices", "reduce_scatter", index, dim=dims[0]
            )
        if layout.is_sliced and layout.dim != dims[0]:
            raise call.repairable(f"operands are sliced along {dims[0]} and {layout.dim}", "all_gather", index)
        if layout.is_sliced and dims[0] == FLAT and item.shape != shape:
            raise call.repairable("a flat slice of a smaller tensor does not broadcast", "all_gather", index)
        if layout.is_replicated and spans(item, shape, dims[0]):
            dim = dims[0] if dims[0] == FLAT else dims[0] - (len(shape) - len(item.shape))
            if dims[0] == FLAT and item.shape != shape:
                sliced_index = names[next(i for i, other in enumerate(layouts) if other.is_sliced)]
                raise call.repairable("a tensor that broadcasts has no flat slice", "all_gather", sliced_index)
            raise call.repairable("a replicated operand has more elements than a slice", "slice", index, dim=dim)
    return dims[0]


def spans(item: TensorType, shape: tuple[int, ...], dim: int) -> bool:
    """Whether an operand has more than one element along a dimension of a result of this shape."""
    if item.is_scalar:
        return False
    if dim == FLAT:
        return True
    position = dim - (len(shape) - len(item.shape))
    return position >= 0 and item.shape[position] > 1


def _align(item: TensorType, rank: int) -> Layout:
    """The layout with its dimension counted as in a result of ``rank`` dimensions."""
    if not item.layout.is_sliced or item.layout.dim == FLAT:
        return item.layout
    return slice_layout(item.layout.dim + rank - len(item.shape))


def _broadcast_shape(call: Call) -> tuple[int, ...]:
    try:
        return tuple(map(int, np.broadcast_shapes(*(item.shape for item in call.tensors))))
    except ValueError:
        shapes = " and ".join(str(list(item.shape)) for item in call.tensors)
        raise call.error(f"shapes {shapes} do not broadcast", "make trailing dimensions equal, or 1") from None


def _check_dtypes(call: Call) -> None:
    """Tensors of several elements have one type: a silent conversion would change what is sent and summed."""
    wide = [(index, item) for index, item in enumerate(call.operands) if isinstance(item, TensorType)]
    wide = [(index, item) for index, item in wide if not item.is_scalar]
    if len({item.dtype for _, item in wide}) > 1:
        target = max((item.dtype for _, item in wide), key=lambda name: (int(name[-2:]), name))
        index = next(i for i, item in wide if item.dtype != target)
        raise call.repairable("operands have different types", "cast", index, dtype=target)


def _cast(call: Call) -> TensorType:
    return replace(call.first, dtype=call.stage.setting("dtype"))


def _unary(call: Call) -> TensorType:
    return call.first


def _select(call: Call) -> TensorType:
    if len(call.operands) != 3:
        raise call.error("select takes a condition and two values", "pass three operands")
    return _pointwise(call)


def _binary(call: Call) -> TensorType:
    if len(call.operands) != 2:
        raise call.error(f"{call.stage.op} takes two operands", "pass two")
    return _pointwise(call)


def _dropout(call: Call) -> TensorType:
    probability = call.stage.setting("probability")
    if not 0 <= probability < 1:
        raise call.error(f"a dropout probability of {probability} is not in [0, 1)", "pass one that is")
    for step in call.tensors[1:]:
        if not (step.is_scalar and step.layout.is_replicated and step.item_bytes > 2):
            raise call.error("the step of a dropout is no number that all ranks share", "declare a float32 scalar")
    if len(call.operands) > 2 or not isinstance(call.operands[0], TensorType):
        raise call.error("dropout takes a tensor and the number of a step", "pass these two")
    return call.tensors[0]


def _update(call: Call) -> TensorType:
    """Same layout; a replicated target takes slices, whose result is sliced."""
    if len(call.tensors) != 2:
        raise call.error("update takes a tensor and its new value", "pass both")
    target, value = call.tensors
    if target.shape != value.shape or target.dtype != value.dtype:
        raise call.error("the new value has another shape or type", "make them equal")
    if target.layout == value.layout or (target.layout.is_replicated and value.layout.is_sliced):
        return value
    if value.layout.is_local:
        raise call.repairable("a local value would leave ranks with different tensors", "all_reduce", 1)
    if value.layout.kind == "rooted":
        raise call.repairable("only the root has the new value", "broadcast", 1, root=value.layout.root)
    if target.layout.is_sliced and value.layout.is_replicated:
        raise call.repairable("a sliced tensor takes a slice", "slice", 1, dim=target.layout.dim)
    if target.layout.is_sliced:
        raise call.repairable("the slices are of different dimensions", "lay_out", 0, layout=value.layout)
    raise call.repairable("the tensor has another layout than its new value", "lay_out", 0, layout=value.layout)


# --- products and reductions ----------------------------------------------------------------------------------


def _matmul(call: Call) -> TensorType:
    """R,R→R; S(i),R→S(i), i not last; R,S(1)→S(last); S(last),S(0)→L; L,R→L; R,L→L; all else is an error."""
    if len(call.tensors) != 2 or len(call.operands) != 2:
        raise call.error("matmul takes two tensors", "pass both")
    a, b = call.tensors
    if len(a.shape) < 2 or len(b.shape) != 2 or a.shape[-1] != b.shape[0]:
        raise call.error("the contracted dimensions differ", "multiply [..., M, K] by [K, N]")
    _check_dtypes(call)
    last = len(a.shape) - 1
    result = TensorType((*a.shape[:-1], b.shape[1]), REPLICATED, a.dtype, a.group)
    for index, item in enumerate((a, b)):
        if item.layout.kind == "rooted":
            raise call.repairable("only the root has the operand", "broadcast", index, root=item.layout.root)
        if item.layout.is_sliced and item.layout.dim == FLAT:
            raise call.repairable("a flat slice is no matrix", "all_gather", index)
    left, right = a.layout, b.layout
    if left.is_local or right.is_local:
        other = 1 if left.is_local else 0
        if (right if left.is_local else left).is_replicated:
            return result.with_layout(LOCAL)
        if (right if left.is_local else left).is_local:
            raise call.repairable("the product of two partial sums is no partial sum", "all_reduce", 0)
        raise call.repairable("a local operand needs a replicated one", "all_gather", other)
    if left.is_replicated and right.is_replicated:
        return result
    if left.is_sliced and right.is_replicated:
        if left.dim != last:
            return result.with_layout(left)
        raise call.repairable("the contracted dimension is sliced on one side only", "slice", 1, dim=0)
    if left.is_replicated:
        if right.dim == 1:
            return result.with_layout(slice_layout(last))
        raise call.repairable("the contracted dimension is sliced on one side only", "slice", 0, dim=last)
    if left.dim == last and right.dim == 0:
        return result.with_layout(LOCAL)
    index = 1 if left.dim != last else 0
    raise call.repairable("both operands are sliced, but not both along the contracted dimension", "all_gather", index)


def _reduction(call: Call) -> TensorType:
    """R→R; S→L, the partial sum of a slice; L→L."""
    layout = call.first.layout
    if layout.kind == "rooted":
        raise call.repairable("only the root has the operand", "broadcast", root=layout.root)
    return TensorType((), REPLICATED if layout.is_replicated else LOCAL, call.first.dtype, call.first.group)


# --- communication --------------------------------------------------------------------------------------------


def _require_local(call: Call) -> TensorType:
    item = call.first
    if item.layout.is_replicated:
        raise call.repairable(f"reducing a replicated tensor multiplies it by {call.num_ranks}", "remove")
    if item.layout.is_sliced:
        raise call.repairable("slices hold different elements, which cannot be reduced", "replace", by="all_gather")
    if item.layout.kind == "rooted":
        raise call.repairable("it is reduced already", "replace", by="broadcast", root=item.layout.root)
    return item


def _all_reduce(call: Call) -> TensorType:
    return _require_local(call).with_layout(REPLICATED)


def _check_dim(call: Call, item: TensorType) -> int:
    dim = call.stage.setting("dim")
    if dim != FLAT and not 0 <= dim < len(item.shape):
        raise call.error(f"there is no dimension {dim}", f"pass 0 to {len(item.shape) - 1}, or flat ({FLAT})")
    return int(dim)


def _reduce_scatter(call: Call) -> TensorType:
    item = _require_local(call)
    return item.with_layout(slice_layout(_check_dim(call, item)))


def _all_gather(call: Call) -> TensorType:
    item = call.first
    if item.layout.is_replicated:
        raise call.repairable("every rank has all of it", "remove")
    if item.layout.is_local:
        raise call.repairable("local tensors have no blocks to gather", "replace", by="all_reduce")
    if item.layout.kind == "rooted":
        raise call.repairable("only the root has it", "replace", by="broadcast", root=item.layout.root)
    return item.with_layout(REPLICATED)


def _reduce(call: Call) -> TensorType:
    return _require_local(call).with_layout(root_layout(_root(call)))


def _root(call: Call) -> int:
    root = int(call.stage.setting("root"))
    if not 0 <= root < call.num_ranks:
        raise call.error(f"there is no rank {root}", f"pass 0 to {call.num_ranks - 1}")
    return root


def _broadcast(call: Call) -> TensorType:
    item, root = call.first, _root(call)
    if item.layout.is_local:
        raise call.repairable("a local tensor has no root", "reduce", root=root)
    if item.layout.is_sliced:
        raise call.repairable("the root has a slice only", "all_gather")
    if item.layout.kind == "rooted" and item.layout.root != root:
        raise call.error(f"rank {item.layout.root} has the value, not rank {root}", f"pass root={item.layout.root}")
    return item.with_layout(REPLICATED)


def _slice(call: Call) -> TensorType:
    item = call.first
    dim = _check_dim(call, item)
    if item.layout.is_local:
        raise call.repairable("blocks of unrelated tensors are no slices of one", "all_reduce")
    if item.layout.is_sliced:
        raise call.repairable("it is sliced already", "remove" if item.layout.dim == dim else "all_gather")
    if item.layout.kind == "rooted":
        raise call.repairable("only the root has it", "broadcast", root=item.layout.root)
    return item.with_layout(slice_layout(dim))


def _send(call: Call) -> TensorType:
    item = call.first
    if item.group + 1 >= len(call.group_sizes):
        raise call.error(f"there is no group after group {item.group}", "declare one more group")
    here, there = call.group_sizes[item.group], call.group_sizes[item.group + 1]
    if here != there:
        raise call.error(
            f"group {item.group} has {here} ranks, group {item.group + 1} has {there}: rank r sends to rank r",
            "give both groups as many ranks",
        )
    return replace(item, group=item.group + 1)


_RULES: dict[str, Callable[[Call], TensorType]] = {
    **dict.fromkeys(_ARITHMETIC, _binary),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(REDUCTIONS, _reduction),
    "select": _select,
    "cast": _cast,
    "dropout": _dropout,
    "update": _update,
    "matmul": _matmul,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "slice": _slice,
    "send": _send,
}
