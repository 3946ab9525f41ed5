"""A place where tensors are fake.

In: nothing. Out: a context in which every new tensor has a shape, a type and a device, but no memory, and operators
compute shapes only, besides values of small tensors that the program itself computes from numbers, random draws and
arrays alone: positions in a data set, masks of padding, counters of optimizers, schedules. Such a value decides sizes
(a slice, a mask), so it has to be real. What depends on a parameter, or is larger than a limit, has no value. Batch
sizes and lengths of packed sequences are real, too, as recurrent layers read them in C++. Not here: what a program gets
that reads a value which is not known (``sources.dry``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from windtunnel.errors import InputError
from windtunnel.sources.memory.dispatch import DispatchTracer, is_device_query, tensors_in
from windtunnel.sources.memory.in_place import as_in_place
from windtunnel.sources.memory.storages import failing_line
from windtunnel.sources.torch.device_operators import BACKWARD, recurrent_gradients

__all__ = ["PACK", "PAD", "KnownValues", "fake_tensors", "forget_value", "pack", "pad", "value_of"]

PACK = torch.ops.aten._pack_padded_sequence.default
PAD = torch._C._VariableFunctions._pad_packed_sequence
MAX_ELEMENTS = 2**20
"""Of a tensor whose value is computed."""
_ATTRIBUTE = "_windtunnel_value"
_READ = torch.ops.aten._local_scalar_dense.default
_CPU = torch.device("cpu")
_INDEXED = (
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
)
_SELECT = torch.ops.aten.masked_select.default
# flags that a healthy run never sets: no gradient is infinite
_NEVER_SETS = (torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default,)
_REDUCED_IN_PLACE = (
    torch.ops.aten.binary_cross_entropy.default,
    torch.ops.aten.mse_loss.default,
    torch.ops.aten.smooth_l1_loss.default,
    torch.ops.aten.soft_margin_loss.default,
)
"""Losses whose kernel keeps the values of all elements behind the number that it returns."""
_FEW_STEPS = 16
_MAX_RUN_ELEMENTS = 2**24


def pack(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of samples one time step after the other, and how many samples each time step has.

    Parameters
    ----------
    padded : Tensor
        Fake.
    lengths : Tensor
        Real.
    batch_first : bool
    """
    with _disable_current_modes():
        thin = torch.empty((*padded.shape[:2], 1))
        rows, batch_sizes = PACK(thin, lengths, batch_first)
    return padded.new_empty((rows.shape[0], *padded.shape[2:])), batch_sizes


def pad(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reverse, differentiable; ``batch_sizes`` is real, and so are the lengths that are returned."""
    with _disable_current_modes():
        sizes: list[int] = batch_sizes.tolist()
        times = torch.repeat_interleave(torch.arange(len(sizes)), batch_sizes)
        samples = torch.cat([torch.arange(size) for size in sizes])
        lengths = torch.tensor([sum(size > sample for size in sizes) for sample in range(sizes[0])])
    num_steps = max(total_length, len(sizes))
    order: Any = (samples, times) if batch_first else (times, samples)
    shape = (sizes[0], num_steps) if batch_first else (num_steps, sizes[0])
    return data.new_full((*shape, *data.shape[1:]), padding_value).index_put(order, data), lengths


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
        args = self._without_masks(func, args)
        tensors = list(tensors_in((args, tuple(named.values()))))
        if func is PACK and (lengths := value_of(tensors[1])) is not None:
            return pack(args[0], lengths, args[2])
        if func is _SELECT and (mask := value_of(args[1])) is not None and value_of(args[0]) is None:
            shape = torch.broadcast_shapes(args[0].shape, mask.shape)
            with _disable_current_modes():
                num_elements = int(mask.expand(shape).sum())
            return args[0].new_empty(num_elements)
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

    def _without_masks(self, func: Any, args: Any) -> Any:
        """Arguments whose known masks are the positions that they select, so that a result's size follows."""
        #      index(data, [mask])           ->  index(data, [rows])           a mask of M dimensions becomes
        #      index_put(data, [mask], new)  ->  index_put(data, [rows], new)  M tensors of positions
        if func not in _INDEXED:
            return args
        positions: list[torch.Tensor | None] = []
        for index in args[1]:
            mask = value_of(index) if index is not None and index.dtype in (torch.bool, torch.uint8) else None
            if mask is None:
                positions.append(index)
                continue
            with _disable_current_modes():
                rows = mask.nonzero().unbind(1)
            positions += self._of_real(rows, [index])
        return (args[0], positions, *args[2:])

    def fake_result(self, func: Any, args: Any, named: dict[str, Any]) -> Any:
        """What the operator returns as to its shape."""
        return func(*args, **named)

    def _of_real(self, computed: Any, tensors: list[torch.Tensor]) -> Any:
        """Fake tensors of the sizes that values have decided."""
        device = tensors[0].device

        def fake(value: torch.Tensor) -> torch.Tensor:
            with self._fake_mode:
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

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


class _FakeOperators(KnownValues):
    """Results of the size that the real operator gives them, and a fraction that torch itself reads is 1."""

    def __init__(self, fake_mode: FakeTensorMode, *, has_device: bool) -> None:
        super().__init__(fake_mode)
        self._has_device = has_device
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
        """What a recurrent layer keeps for the backward pass, which torch's fake operator leaves out."""
        if self._has_device:
            return _gates_and_state_bytes(args)
        key = tuple(tuple(value.shape) if isinstance(value, torch.Tensor) else str(value) for value in args)
        if key not in self._workspaces:
            self._workspaces[key] = _recurrent_bytes(args)
        return self._workspaces[key]


def _gates_and_state_bytes(args: tuple[Any, ...]) -> int:
    """What cuDNN keeps of every time step of a layer; oneDNN keeps three times as much."""
    values, weights, hidden = args[0], args[1], args[5]
    width = int(hidden.shape[-1])
    num_steps = values.numel() // int(values.shape[-1])  # of all samples
    return int(num_steps * (int(weights.shape[0]) + width) * values.element_size())


def _recurrent_bytes(args: tuple[Any, ...]) -> int:
    """What oneDNN keeps, by running the layer alone; a long one for a few time steps, as each adds the same."""
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
def fake_tensors(*, has_device: bool = False) -> Iterator[None]:
    """Make every tensor that is made within fake; recurrent layers keep what they do on a device, if there is one.

    Raises
    ------
    InputError
        The program needs values to go on.
    """
    apply = torch.nn.Module._apply
    torch.nn.Module._apply = _wrap_apply(apply)  # type: ignore[method-assign]
    try:
        fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        with fake_mode, _FakeOperators(fake_mode, has_device=has_device):
            yield
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
        operator = next((str(value) for value in error.args if value), type(error).__name__)
        raise InputError(
            f"this job cannot be predicted without its values: what {operator} returns depends on them",
            where=failing_line(error) or "fake tensors",
            fix="run it as it is (windtunnel capture or memory without --fake), or give the result a fixed size",
        ) from error
    finally:
        torch.nn.Module._apply = apply  # type: ignore[method-assign]
