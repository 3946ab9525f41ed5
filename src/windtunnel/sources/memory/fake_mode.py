"""A place where tensors are fake.

In: nothing. Out: a context in which every new tensor has a shape, a type and a device, but no memory, and operators
compute shapes only, besides values of small tensors that the program itself computes (``small_values``). Not here:
what a program gets that reads a value which is not known (``sources.dry``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import _disable_current_modes

from windtunnel.errors import InputError
from windtunnel.sources.memory.in_place import as_in_place
from windtunnel.sources.memory.small_values import KnownValues
from windtunnel.sources.torch.device_recurrent import BACKWARD, recurrent_gradients

__all__ = ["fake_tensors"]


_REDUCED_IN_PLACE = (
    torch.ops.aten.binary_cross_entropy.default,
    torch.ops.aten.mse_loss.default,
    torch.ops.aten.smooth_l1_loss.default,
    torch.ops.aten.soft_margin_loss.default,
)
"""Losses whose kernel keeps the values of all elements behind the number that it returns."""
_FEW_STEPS = 16
_MAX_RUN_ELEMENTS = 2**24


class _FakeOperators(KnownValues):
    """Results of the size that the real operator gives them, and a fraction that torch itself reads is 1."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__(fake_mode)
        self._workspaces: dict[tuple[Any, ...], int] = {}

    def fake_result(self, func: Any, args: Any, named: dict[str, Any]) -> Any:
        """What the real operator would return as to its shape and size."""
        if func is torch.ops.aten._local_scalar_dense.default:
            if args[0].dtype.is_floating_point or args[0].dtype is torch.bool:
                return args[0].dtype is torch.bool or 1.0
            raise DataDependentOutputException(func)  # a size, most likely
        if func is BACKWARD:
            return recurrent_gradients(args)
        func, args = as_in_place(func, args, named)
        result = func(*args, **named)
        if func is torch.ops.aten.mkldnn_rnn_layer.default and args[-1]:
            return (*result[:3], torch.empty(self._recurrent_bytes(args), dtype=torch.uint8))
        if func in _REDUCED_IN_PLACE and isinstance(result, FakeTensor) and not result.dim():
            return result.new_empty(torch.broadcast_shapes(args[0].shape, args[1].shape)).resize_(())
        return result

    def _recurrent_bytes(self, args: tuple[Any, ...]) -> int:
        """What oneDNN keeps of a recurrent layer for the backward pass, which torch's fake operator leaves out."""
        key = tuple(tuple(value.shape) if isinstance(value, torch.Tensor) else str(value) for value in args)
        if key not in self._workspaces:
            self._workspaces[key] = _recurrent_bytes(args)
        return self._workspaces[key]


def _recurrent_bytes(args: tuple[Any, ...]) -> int:
    """By running the layer alone; a long one twice for a few time steps, as the size grows by the same with each."""
    is_batch_first = args[14]
    length = int(args[0].shape[1 if is_batch_first else 0])
    if args[0].numel() + length * args[5].numel() <= _MAX_RUN_ELEMENTS or length <= 2 * _FEW_STEPS:
        return _run_recurrent(args, length)
    short, longer = _run_recurrent(args, _FEW_STEPS), _run_recurrent(args, 2 * _FEW_STEPS)
    return longer + (longer - short) * (length - 2 * _FEW_STEPS) // _FEW_STEPS


def _run_recurrent(args: tuple[Any, ...], length: int) -> int:
    shape = list(args[0].shape)
    shape[1 if args[14] else 0] = length
    with _disable_current_modes(), torch.enable_grad():  # without a gradient nothing is kept
        values = [torch.zeros(value.shape) if isinstance(value, torch.Tensor) else value for value in args]
        values[0] = torch.zeros(shape, requires_grad=True)
        size: int = torch.ops.aten.mkldnn_rnn_layer.default(*values)[3].untyped_storage().nbytes()
        return size


def _wrap_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Module._apply`` that sets what a parameter holds; torch's own swaps fake tensors, which may be referred to."""

    def convert(module: torch.nn.Module, function: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
        kept: dict[str, Any] = {name: item for name, item in module._parameters.items() if isinstance(item, FakeTensor)}
        for name in kept:
            module._parameters[name] = None
        try:
            original(module, function, recurse)
        finally:
            module._parameters.update(kept)
        with torch.no_grad():
            for parameter in kept.values():
                _set_data(parameter, function(parameter))
                if parameter.grad is not None:
                    _set_data(parameter.grad, function(parameter.grad))
        return module

    return convert


def _set_data(tensor: Any, value: Any) -> None:
    if value is not tensor:
        tensor.data = value
        if isinstance(tensor, FakeTensor):
            tensor.fake_device = value.device


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Make every tensor that is made within fake.

    Raises
    ------
    InputError
        The program needs values to go on.
    """
    apply = torch.nn.Module._apply
    torch.nn.Module._apply = _wrap_apply(apply)  # type: ignore[method-assign]
    try:
        fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        with fake_mode, _FakeOperators(fake_mode):
            yield
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
        operator = next((str(value) for value in error.args if value), type(error).__name__)
        raise InputError(
            f"this job cannot be predicted without its values: {operator} gives a result whose form hangs on them",
            where="fake tensors",
            fix="let it really run, or give that operator an input of fixed form",
        ) from error
    finally:
        torch.nn.Module._apply = apply  # type: ignore[method-assign]
