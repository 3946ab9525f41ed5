"""Logits that are computed when they are read, so that a loss can compute them a chunk at a time.

In: the rows that enter a linear layer. Out: what a program takes for the results of the layer: views of it are views of
the rows, its cross-entropy is computed in chunks, and anything else that is asked of it is asked of the logits, which
are then computed as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from windtunnel.cost.rerun import cross_entropy_in_chunks

__all__ = ["DeferredLogits"]

_functional = torch.nn.functional
_Tensor = torch.Tensor
_ATTRIBUTES = frozenset(
    getattr(_Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "layout")
)
_METADATA = frozenset({_Tensor.size, _Tensor.dim, _Tensor.numel, _Tensor.is_floating_point, torch.is_floating_point})
_VIEWS = frozenset({_Tensor.view, _Tensor.reshape, torch.reshape})
_FLATTENS = frozenset({_Tensor.flatten, torch.flatten})
_COPIES = frozenset({_Tensor.contiguous, _Tensor.clone, torch.clone})
_SWAPS = frozenset({_Tensor.transpose, torch.transpose})
_PERMUTES = frozenset({_Tensor.permute, torch.permute})
_UNCOMPUTED = "the program reads logits in a way in which they cannot be computed later"


class DeferredLogits(torch.Tensor):
    """Results of ``linear(rows, weight, bias)`` that are not there yet.

    Parameters
    ----------
    rows : Tensor [..., D]
    weight : Tensor [V, D]
    bias : Tensor [V], optional
    num_chunks : int
        In which a loss computes them.
    compute : callable
        Gives the whole logits.
    is_moved : bool
        Whether classes are the second of three dimensions, as a loss of sequences wants them.
    """

    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]
    compute: Callable[[], torch.Tensor]
    is_moved: bool
    whole: torch.Tensor | None

    @staticmethod
    def __new__(
        cls: type[DeferredLogits],
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        num_chunks: int,
        compute: Callable[[], torch.Tensor],
        *,
        dtype: torch.dtype | None = None,
        is_moved: bool = False,
    ) -> DeferredLogits:
        """Without any memory for the logits."""
        shape = [*rows.shape[:-1], weight.shape[0]]
        if is_moved:
            shape[1], shape[2] = shape[2], shape[1]
        kind = rows.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype
        result: Any = _Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype or autocast, device=rows.device, requires_grad=weight.requires_grad
        )
        result.parts = rows, weight, bias, num_chunks
        result.compute, result.is_moved, result.whole = compute, is_moved, None
        return cast("DeferredLogits", result)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Defer what can be deferred, and compute the rest."""
        del types
        keywords = dict(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            if func in _ATTRIBUTES or func in _METADATA:
                return func(*args, **keywords)
            deferred = args[0] if args and isinstance(args[0], cls) else None
            if deferred is not None:
                if func is _functional.cross_entropy and (loss := _loss(deferred, *args[1:], **keywords)) is not None:
                    return loss
                rows = None if deferred.is_moved else _rows_of(func, deferred, args[1:], keywords)
                if rows is not None:
                    return _derive(deferred, rows, func, args, keywords)
            return func(*_compute_all(args), **_compute_all(keywords))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Below the gradients it is too late to compute anything."""
        del cls, types, args, kwargs
        raise RuntimeError(f"{_UNCOMPUTED}: {func}")


def _compute_all(value: Any) -> Any:
    """With logits in the place of what stands for them."""
    if isinstance(value, DeferredLogits):
        if value.whole is None:
            value.whole = value.compute()
        return value.whole
    if isinstance(value, tuple | list):
        return type(value)(map(_compute_all, value))
    if isinstance(value, dict):
        return {key: _compute_all(item) for key, item in value.items()}
    return value


def _derive(deferred: Any, rows: torch.Tensor, func: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Logits of other rows, which are those of the function where they are asked for as a whole."""
    is_moved = func in _SWAPS or func in _PERMUTES
    dtype = torch.float32 if func is _Tensor.float else _dtype_of(deferred)
    _, weight, bias, num_chunks = deferred.parts

    def compute() -> torch.Tensor:
        return cast("torch.Tensor", func(_compute_all(deferred), *_compute_all(args[1:]), **keywords))

    return DeferredLogits(rows, weight, bias, num_chunks, compute, dtype=dtype, is_moved=is_moved)


def _dtype_of(deferred: Any) -> torch.dtype:
    return cast("torch.dtype", _Tensor.dtype.__get__(deferred))  # type: ignore[attr-defined]


def _rows_of(func: Any, deferred: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> torch.Tensor | None:
    """The rows of a view of the logits; None where it is no matter of rows."""
    rows, weight, *_ = deferred.parts
    if func in _COPIES or func is _Tensor.float:
        return cast("torch.Tensor", rows)
    if keywords:
        return None
    if func in _VIEWS:
        return _reshape_rows(rows, weight.shape[0], args[0] if isinstance(args[0], tuple | list) else args)
    if func in _FLATTENS:
        first, last = (*args, 0, -1)[:2] if len(args) < 2 else args
        return rows.flatten(first, last) if len(args) == 2 and last in (-2, rows.dim() - 2) else None
    if func is _Tensor.__getitem__:
        return _select_rows(rows, args[0])
    dims = args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args
    positive = tuple(dim % rows.dim() for dim in dims if isinstance(dim, int))
    swaps = func in _SWAPS and set(positive) == {1, 2}
    if rows.dim() == 3 and (swaps or (func in _PERMUTES and positive == (0, 2, 1))):
        return cast("torch.Tensor", rows)
    return None


def _reshape_rows(rows: torch.Tensor, num_classes: int, sizes: Sequence[int]) -> torch.Tensor | None:
    *leading, last = sizes
    if last == -1:
        count = 1
        for size in leading:
            count *= size
        last = num_classes if count * rows.shape[-1] == rows.numel() else -1
    return rows.reshape(*leading, rows.shape[-1]) if last == num_classes else None


def _select_rows(rows: torch.Tensor, index: Any) -> torch.Tensor | None:
    """Rows by slices and numbers of all dimensions but the last."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not all(isinstance(item, int | slice) or item is Ellipsis for item in items) or items.count(Ellipsis) > 1:
        return None
    if Ellipsis in items:
        i = items.index(Ellipsis)
        items[i : i + 1] = [slice(None)] * (rows.dim() - len(items) + 1)
    if len(items) == rows.dim() and items.pop() != slice(None):
        return None
    return rows[tuple(items)]


def _loss(
    deferred: Any,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    """The loss in chunks; None where it is none over labels alone."""
    dims = 3 if deferred.is_moved else 2
    is_usual = weight is None and size_average is None and reduce is None and reduction in ("mean", "sum")
    rows, layer_weight, bias, num_chunks = deferred.parts
    if not is_usual or target.is_floating_point() or rows.dim() != dims or target.dim() != dims - 1:
        return None
    return cross_entropy_in_chunks(
        rows.reshape(-1, rows.shape[-1]),
        layer_weight,
        bias,
        target.reshape(-1),
        num_chunks=num_chunks,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
