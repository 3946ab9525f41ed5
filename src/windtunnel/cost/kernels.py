"""An operator with everything that its time depends on: ``Kernel``; equal ones cost the same.

Not here: their times (``lookup``), which kernels a net has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["Kernel", "TensorShape", "usual_stride"]


class TensorShape(NamedTuple):
    """A tensor among the arguments of a kernel."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operator with everything that its time depends on: equal kernels cost the same.

    Parameters
    ----------
    operator : str
        With overload, such as ``aten::conv2d.default``.
    arguments : tuple
        Tensors as ``TensorShape``, lists as tuples.
    keywords : tuple of (str, object)
    """

    operator: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    @property
    def signature(self) -> str:
        """All arguments as text."""
        return _text((*self.arguments, *self.keywords))

    @property
    def tensors(self) -> list[TensorShape]:
        """Tensors in the order of the arguments, lists opened."""
        return list(_tensors((*self.arguments, *(value for _, value in self.keywords))))


def _text(value: Any) -> str:
    if isinstance(value, TensorShape):
        stride = "" if value.stride == usual_stride(value.shape) else f"/{list(value.stride)}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{stride}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    return str(value)


def usual_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Steps of a tensor that lies row by row."""
    return tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))


def _tensors(value: Any) -> Iterable[TensorShape]:
    if isinstance(value, TensorShape):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)
