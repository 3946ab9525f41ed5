"""Values that a program reads where there are none.

In: calls that bring a tensor's value to Python. Out: a stand-in, which can be printed, added up and passed on; whoever
decides by it gets an error with the program's line. Questions whose answer is known of every healthy run are answered:
nothing is infinite or not a number, and from a number to the same one plus 64 there are 64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass_type

from windtunnel.errors import InputError
from windtunnel.sources.memory.fake_mode import value_of
from windtunnel.sources.memory.storages import program_frame

__all__ = ["READS", "StandIn", "Values", "asker", "has_no_value", "own_line", "read_known", "value_of_fake"]

_TORCH = str(Path(torch.__file__).parent)
_OPTIM = str(Path(torch.__file__).parent / "optim")
_SCHEDULES = str(Path(torch.__file__).parent / "optim" / "lr_scheduler.py")  # these change a rate, not the work
_OWN = str(Path(__file__).parents[2])
_NEVER = {torch.isnan, torch.isinf, torch.isneginf, torch.isposinf, torch.Tensor.isnan, torch.Tensor.isinf}
_ALWAYS = {torch.isfinite, torch.Tensor.isfinite}
_KEEPS = {torch.any, torch.all, torch.logical_or, torch.logical_and, torch.Tensor.any, torch.Tensor.all}
_KEEPS |= {torch.Tensor.__or__, torch.Tensor.__and__, torch.Tensor.to, torch.Tensor.sum, torch.sum}
_TURNS = {torch.logical_not, torch.Tensor.logical_not, torch.Tensor.__invert__, torch.bitwise_not}
_UNSCALE: Any = torch._amp_foreach_non_finite_check_and_unscale_
_MARK, _NUMBER = "_windtunnel_known", "_windtunnel_number"
_SUMS = dict.fromkeys(("add", "__add__", "__radd__", "radd", "add_", "__iadd__"), 1)
_SUMS |= dict.fromkeys(("sub", "__sub__", "sub_", "__isub__"), -1)
_BOUNDS = 2
_ENDLESS = 100_000  # reads in one line: a loop that ends on a value
_SIZED = {"view", "reshape", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "arange", "narrow", "split"}
_SIZED |= {
    "expand",
    "repeat",
    "repeat_interleave",
    "unflatten",
    "tile",
    "chunk",
    "new_zeros",
    "new_empty",
}

_TO_ARRAYS: set[Any] = {torch.Tensor.numpy, torch.Tensor.__array__}


def own_line() -> str:
    """The line that the program is at, with its file as Python names it; empty where none of its frames runs."""
    frame = program_frame()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


@dataclass
class Values:
    """Answers reads, and keeps where they were.

    Parameters
    ----------
    guesses : bool
        Decide by stand-ins, too, and give them to numpy.
    lines : dict of str to int
        Lines that read values, and how often.
    has_default_device : bool
        Whether the program made the device torch's default.
    """

    guesses: bool = False
    has_default_device: bool = False
    lines: dict[str, int] = field(default_factory=dict)

    def mark_result(self, function: Any, args: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> None:
        """Mark what is known of a result."""
        if function is _UNSCALE:  # fills in whether a gradient of a scaled loss is not finite
            setattr(args[1], _MARK, False)
        if not isinstance(result, torch.Tensor):
            return
        moved = None if named else _offset_number(getattr(function, "__name__", ""), args)
        if moved is not None or (args and result is args[0] and hasattr(result, _NUMBER)):
            setattr(result, _NUMBER, moved or _Number(object()))  # what is changed in place is another number
        if function in _NEVER or function in _ALWAYS:
            setattr(result, _MARK, function in _ALWAYS)
        elif function in _KEEPS or function in _TURNS:
            known = [getattr(argument, _MARK, None) for argument in args if isinstance(argument, torch.Tensor)]
            if known and None not in known:
                setattr(result, _MARK, any(known) != (function in _TURNS))

    def read(self, function: Any, tensor: torch.Tensor) -> Any:
        """The value of a tensor that has none."""
        if function in _TO_ARRAYS:
            return self._array(tensor)
        known = getattr(tensor, _MARK, None)
        if known is not None:
            return known if function in (torch.Tensor.item, torch.Tensor.__bool__) else int(known)
        self._note(own_line())
        if function is torch.Tensor.tolist and tensor.dim():
            return _make_nested_list(list(tensor.shape), lambda: self._value(tensor.dtype, _Number(object())))
        value = self._value(tensor.dtype, _number(tensor) or _Number(object()))
        return value if function in (torch.Tensor.item, torch.Tensor.tolist) else _CONVERSIONS[function](value)

    def _note(self, line: str) -> None:
        self.lines[line] = self.lines.get(line, 0) + 1

    def _array(self, tensor: torch.Tensor) -> Any:
        """Ones, as nothing in an array can be watched; only where guesses are asked for."""
        line = own_line()
        if not self.guesses:
            raise InputError(
                "the program takes values to numpy that only a real run has",
                where=line or "torch",
                fix="leave that out for this run, or pass --guess-values: every value is then taken as 1",
            )
        self._note(line)
        return np.ones(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))

    def _value(self, dtype: torch.dtype, number: _Number) -> Any:
        if dtype.is_floating_point:
            return StandIn(1).of(self)
        return WholeStandIn(1 + number.offset).of(self, number)

    def require_no_size(self, function: Any, args: Any) -> None:
        """No size hangs on a value that nothing has computed.

        Raises
        ------
        InputError
            One does.
        """
        name = getattr(function, "__name__", "")
        if name == "__getitem__" or (name == "arange" and len(args) == _BOUNDS):
            spans = [slice(*args)] if name == "arange" else _slices(args[1:])
            hangs = not all(map(_has_length, spans))
        else:
            hangs = name in _SIZED and any(isinstance(item, WholeStandIn) for item in _flat(args))
        if hangs:
            raise InputError(
                f"the result of {function.__name__} has a size that hangs on values of a real run",
                where=own_line() or "torch",
                fix="give it a fixed size for this run",
            )

    def with_bounds(self, index: Any) -> Any:
        """An index whose slices end at numbers, where they ended at tensors without values."""
        if isinstance(index, tuple):
            return tuple(self.with_bounds(item) for item in index)
        if not isinstance(index, slice):
            return index
        parts = (index.start, index.stop, index.step)
        return slice(*(self.read(torch.Tensor.__index__, part) if has_no_value(part) else part for part in parts))

    def require_guesses(self) -> None:
        """Whoever decides here may do so.

        Raises
        ------
        InputError
            The program itself decides, or its optimizer, and guesses are not allowed.
        """
        file = asker()
        decides_work = not file.startswith(_TORCH) or (file.startswith(_OPTIM) and not file.startswith(_SCHEDULES))
        may_decide = self.guesses or not decides_work
        if not may_decide or max(self.lines.values(), default=0) > _ENDLESS:
            raise InputError(
                "the program decides by a value that only a real run has",
                where=own_line() or "torch",
                fix="take the decision out for this run, or pass --guess-values: every value read is then taken as 1",
            )


def asker() -> str:
    """The file that asks for a value."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_code.co_filename)


def _make_nested_list(shape: list[int], make: Callable[[], Any]) -> Any:
    return [_make_nested_list(shape[1:], make) for _ in range(shape[0])] if shape else make()


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _slices(values: Any) -> Iterator[slice]:
    """A number alone, or a list of them, picks rows without changing how large each is."""
    for value in values:
        if isinstance(value, tuple):
            yield from _slices(value)
        elif isinstance(value, slice):
            yield value


class _Number(NamedTuple):
    """A whole number by how far it lies from one that nothing has computed, which is shown as 1."""

    unknown: object
    offset: int = 0


def _number(value: Any) -> _Number | None:
    """What is known of a whole number that has no value; None of one that has."""
    if isinstance(value, WholeStandIn):
        return value.number
    if not has_no_value(value) or value.numel() != 1 or value.dtype.is_floating_point:
        return None
    if not hasattr(value, _NUMBER):
        setattr(value, _NUMBER, _Number(object()))
    result: _Number = getattr(value, _NUMBER)
    return result


def _offset_number(name: str, args: Any) -> _Number | None:
    """The number that is some known distance from another one; None of anything else."""
    if name not in _SUMS or len(args) != _BOUNDS or type(args[1]) is not int:
        return None
    number = _number(args[0])
    return None if number is None else _Number(number.unknown, number.offset + _SUMS[name] * args[1])


def _has_length(span: slice) -> bool:
    """Whether a slice is as long whatever its numbers are: none is unknown, or one lies a known distance behind one."""
    bounds = [_number(span.start), _number(span.stop)]
    if _number(span.step) is not None or (None in bounds and bounds != [None, None]):
        return False
    return bounds[0] is None or bounds[1] is None or bounds[0].unknown is bounds[1].unknown


class StandIn(float):
    """A number that stands for one that is not known."""

    values: Values

    def of(self, values: Values) -> StandIn:
        """Say whose it is."""
        self.values = values
        return self


class WholeStandIn(int):
    """A whole number that stands for one that is not known."""

    values: Values
    number: _Number

    def of(self, values: Values, number: _Number | None = None) -> WholeStandIn:
        """Say whose it is."""
        self.values, self.number = values, number or _Number(object())
        return self


def _arithmetic(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def calculate(self: Any, *others: Any) -> Any:
        result = original(self, *others)
        if type(result) is int:
            return WholeStandIn(result).of(self.values, _offset_number(name, (self, *others)))
        return StandIn(result).of(self.values) if type(result) is float else result

    return calculate


def _decision(original: Callable[..., Any]) -> Callable[..., Any]:
    def decide(self: Any, *others: Any) -> Any:
        self.values.require_guesses()
        return original(self, *others)

    return decide


for _kind, _plain in ((StandIn, float), (WholeStandIn, int)):
    for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
        setattr(_kind, f"__{_name}__", _arithmetic(_name, getattr(_plain, f"__{_name}__")))
    for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool"):
        setattr(_kind, f"__{_name}__", _decision(getattr(_plain, f"__{_name}__")))
    _kind.__hash__ = _plain.__hash__  # type: ignore[method-assign]
StandIn.__int__ = _decision(float.__int__)  # type: ignore[method-assign]


_CONVERSIONS: dict[Any, Callable[[Any], Any]] = {
    torch.Tensor.__float__: lambda value: value,
    torch.Tensor.__int__: int,
    torch.Tensor.__index__: int,
    torch.Tensor.__bool__: bool,
}
READS: set[Any] = {torch.Tensor.item, torch.Tensor.tolist, *_TO_ARRAYS, *_CONVERSIONS}
"""What brings a value to Python."""


def value_of_fake(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value of a fake tensor that the program itself has computed."""
    return value_of(tensor) if isinstance(tensor, FakeTensor) else None


def read_known(function: Callable[..., Any], value: torch.Tensor) -> Any:
    """What a program reads of a known value; an array is its own copy."""
    with _disable_current_modes():
        return function(value.clone() if function in _TO_ARRAYS else value)


def has_no_value(value: Any) -> bool:
    """Whether a tensor is fake and nothing has computed its value, or holds one of that kind."""
    if isinstance(value, FakeTensor):
        return value_of(value) is None
    if not isinstance(value, torch.Tensor):
        return False
    within: Any = value
    names = within.__tensor_flatten__()[0] if is_traceable_wrapper_subclass_type(type(value)) else ()
    return any(has_no_value(getattr(value, name)) for name in names)
