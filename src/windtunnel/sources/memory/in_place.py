"""What autograd does in place on tensors that are real, and out of place on fake ones.

In: an operator called by a backward pass itself. Out: the one that a real run calls. Autograd adds up
gradients and fills zeros in place, but not where it sees a subclass of a tensor, which a fake tensor is.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["IN_PLACE_SCHEMAS", "as_in_place"]

_aten = torch.ops.aten
_SUM = _aten.add.Tensor
_FILLS = {
    _aten.index_put.default: _aten.index_put_.default,
    _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.index_add.default: _aten.index_add_.default,
    _aten.masked_scatter.default: _aten.masked_scatter_.default,
}
IN_PLACE_SCHEMAS = {
    str(func._schema): str(in_place._schema) for func, in_place in {**_FILLS, _SUM: _aten.add_.Tensor}.items()
}
"""Of operators that may be called in place, the schemas of those that then are."""
_ENGINE = "_engine_run_backward"
_DISPATCH = ("__torch_dispatch__", "__torch_function__", "__call__", "_fn", "inner", "as_in_place", "fake_result")


def as_in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """What a backward pass calls in place on real tensors, with its arguments; of any other call the call itself."""
    if (func is not _SUM and func not in _FILLS) or not _is_called_by_engine():
        return func, args
    if func in _FILLS:
        return _FILLS[func], args
    first, second = args
    is_sum = isinstance(second, torch.Tensor) and first is not second and not kwargs
    if not is_sum or first.shape != second.shape or first.dtype is not second.dtype:
        return func, args
    # into one that nothing else refers to, as a view's base does to its storage
    free: list[Any] = [tensor for tensor in (first, second) if not tensor._is_view()]
    if not free:
        return func, args
    into = min(free, key=lambda tensor: tensor._use_count())
    return _aten.add_.Tensor, (into, second if into is first else first)


def _is_called_by_engine() -> bool:
    """Whether no Python function lies between the call and the backward pass."""
    if torch._C._current_graph_task_id() == -1:
        return False
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _ENGINE:
        is_subclass = frame.f_code.co_varnames[:1] == ("cls",)  # whose sums autograd makes out of place
        if is_subclass or frame.f_code.co_name not in _DISPATCH:
            return False
        frame = frame.f_back
    return frame is not None
