"""Values of small tensors that a program computes itself, next to the fake tensors that have none.

In: operators on fake tensors. Out: real values of what follows from numbers, random draws and arrays alone: positions
in a data set, masks of padding, counters of optimizers, schedules. Such a value decides sizes (a slice, a mask), so it
has to be real. What depends on a parameter, or is larger than a limit, has no value. Not here: what a program gets that
reads a value which is not known (``sources.dry``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from windtunnel.sources.memory.dispatch import DispatchTracer, is_device_query, tensors_in
from windtunnel.sources.memory.packed_sequences import PACK, pack

__all__ = ["KnownValues", "forget_value", "value_of"]

MAX_ELEMENTS = 2**20
"""Of a tensor whose value is computed."""
_ATTRIBUTE = "_windtunnel_value"
_READ = torch.ops.aten._local_scalar_dense.default
_CPU = torch.device("cpu")
# flags that a healthy run never sets: no gradient is infinite
_NEVER_SETS = (torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default,)


class _Validity:
    """Whether the values of a storage are still those that a real run would have; shared by all views of it."""

    __slots__ = ("is_valid",)

    def __init__(self) -> None:
        self.is_valid = True


class _Known(NamedTuple):
    value: torch.Tensor
    validity: _Validity


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value of a tensor if the program itself has computed it, else None."""
    if tensor.requires_grad:
        return None
    known = getattr(tensor, _ATTRIBUTE, None)
    if known is not None:
        return known.value if known.validity.is_valid else None
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return tensor if is_plain and tensor.device.type == "cpu" and tensor.numel() <= MAX_ELEMENTS else None


def forget_value(tensor: torch.Tensor) -> None:
    """The tensor holds something else from now on."""
    known = getattr(tensor, _ATTRIBUTE, None)
    if known is not None:
        known.validity.is_valid = False
    elif not isinstance(tensor, FakeTensor):
        validity = _Validity()
        validity.is_valid = False
        setattr(tensor, _ATTRIBUTE, _Known(tensor, validity))


class KnownValues(DispatchTracer):
    """Computes what follows from known values, while ``fake_result`` and the fake tensor mode below say shapes.

    Parameters
    ----------
    fake_mode : FakeTensorMode
    """

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self._fake_mode = fake_mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if is_device_query(func, args):
            return args[0].device
        named = kwargs or {}
        tensors = list(tensors_in((args, tuple(named.values()))))
        if func is PACK and (lengths := value_of(tensors[1])) is not None:
            return pack(args[0], lengths, args[2])
        # one value that is not known makes the result unknown
        known: dict[int, torch.Tensor] = {}
        for tensor in tensors:
            value = value_of(tensor)
            if value is None:
                _forget_written_values(func, args, named)
                return self.fake_result(func, args, named)
            known[id(tensor)] = value
        if func is _READ:
            with _disable_current_modes():
                return func(known[id(args[0])])
        try:
            # first without values: that says how large the result is before anything is computed
            result = self.fake_result(func, args, named)
        except (DataDependentOutputException, DynamicOutputShapeException):
            # its shape depends on the values, which are known here
            return self._of_real(_compute(func, args, named, known), tensors)
        if sum(leaf.numel() for leaf in tensors_in((result,))) > MAX_ELEMENTS:
            _forget_written_values(func, args, named)
            return result
        try:
            computed = _compute(func, args, named, known)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            _forget_written_values(func, args, named)
            return result
        _attach(result, computed, tensors)
        return result

    def fake_result(self, func: Any, args: Any, named: dict[str, Any]) -> Any:
        """What the operator returns as to its shape."""
        return func(*args, **named)

    def _of_real(self, computed: Any, tensors: list[torch.Tensor]) -> Any:
        """Fake tensors of the sizes that values have decided."""

        def fake(value: torch.Tensor) -> torch.Tensor:
            with self._fake_mode:
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)

        result = tree_map_only(torch.Tensor, fake, computed)
        _attach(result, computed, tensors)
        return result


def _compute(func: Any, args: Any, named: dict[str, Any], known: dict[int, Any]) -> Any:
    """The operator on values; all of them lie on the host."""

    def real(tensor: torch.Tensor) -> Any:
        return known[id(tensor)]

    options = {key: _CPU if key == "device" and value is not None else value for key, value in named.items()}
    options = {key: value for key, value in options.items() if key != "pin_memory"}
    with _disable_current_modes():
        return func(*tree_map_only(torch.Tensor, real, args), **tree_map_only(torch.Tensor, real, options))


def _attach(result: Any, computed: Any, tensors: list[torch.Tensor]) -> None:
    """Give each new result its value; a view of an argument holds what the argument holds."""
    validities: dict[int, _Validity] = {}
    for tensor in tensors:
        known = getattr(tensor, _ATTRIBUTE, None)
        if known is not None:
            validities[known.value.untyped_storage()._cdata] = known.validity
    given = {id(tensor) for tensor in tensors}
    for leaf, value in zip(tensors_in((result,)), tensors_in((computed,)), strict=True):
        if id(leaf) not in given and isinstance(leaf, FakeTensor):
            validity = validities.get(value.untyped_storage()._cdata) or _Validity()
            setattr(leaf, _ATTRIBUTE, _Known(value, validity))


def _forget_written_values(func: Any, args: Any, named: dict[str, Any]) -> None:
    if not func._schema.is_mutable or func in _NEVER_SETS:
        return
    arguments = func._schema.arguments
    given = [(arguments[i], value) for i, value in enumerate(args)]
    given += [(argument, named[argument.name]) for argument in arguments if argument.name in named]
    for argument, value in given:
        if argument.alias_info is not None and argument.alias_info.is_write:
            for tensor in tensors_in((value,)):
                forget_value(tensor)
