"""Values that a program reads where there are none (room sources, private).

In: calls that bring a tensor's value to Python. Out: a stand-in, which can be printed, added up and passed on; whoever
decides by it gets an error with the program's line. Questions whose answer is known of every healthy run are answered:
nothing is infinite or not a number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from windtunnel.errors import InputError

__all__ = ["READS", "StandIn", "Values", "asker", "has_no_value", "own_line"]

_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parents[2])
_NEVER = {torch.isnan, torch.isinf, torch.isneginf, torch.isposinf, torch.Tensor.isnan, torch.Tensor.isinf}
_ALWAYS = {torch.isfinite, torch.Tensor.isfinite}
_KEEPS = {torch.any, torch.all, torch.logical_or, torch.logical_and, torch.Tensor.any, torch.Tensor.all}
_KEEPS |= {torch.Tensor.__or__, torch.Tensor.__and__, torch.Tensor.to, torch.Tensor.sum, torch.sum}
_TURNS = {torch.logical_not, torch.Tensor.logical_not, torch.Tensor.__invert__, torch.bitwise_not}
_MARK = "_windtunnel_known"


def own_line() -> str:
    """The innermost line of the program itself, outside of torch and of this package."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _OWN, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@dataclass
class Values:
    """Answers reads, and keeps where they were.

    Parameters
    ----------
    guesses : bool
        Decide by stand-ins, too.
    """

    guesses: bool = False
    lines: dict[str, int] = field(default_factory=dict)

    def seen(self, function: Any, args: tuple[Any, ...], result: Any) -> None:
        """Mark what is known of a result."""
        if not isinstance(result, torch.Tensor):
            return
        if function in _NEVER or function in _ALWAYS:
            setattr(result, _MARK, function in _ALWAYS)
        elif function in _KEEPS or function in _TURNS:
            known = [getattr(one, _MARK, None) for one in args if isinstance(one, torch.Tensor)]
            if known and None not in known:
                setattr(result, _MARK, any(known) != (function in _TURNS))

    def read(self, function: Any, tensor: torch.Tensor) -> Any:
        """The value of a tensor that has none."""
        known = getattr(tensor, _MARK, None)
        if known is not None:
            return known if function in (torch.Tensor.item, torch.Tensor.__bool__) else int(known)
        self.lines[own_line()] = self.lines.get(own_line(), 0) + 1
        if function is torch.Tensor.tolist:
            return _nested(list(tensor.shape), self)
        value = StandIn(1.0).of(self)
        return value if function is torch.Tensor.item else _CONVERSIONS[function](value)

    def require_guesses(self) -> None:
        """Whoever decides here may do so.

        Raises
        ------
        InputError
            The program itself decides, and nobody asked for guesses.
        """
        if not self.guesses and not asker().startswith(_TORCH):
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


def _nested(shape: list[int], values: Values) -> Any:
    if not shape:
        return StandIn(1.0).of(values)
    return [_nested(shape[1:], values) for _ in range(shape[0])]


class StandIn(float):
    """A number that stands for one that is not known."""

    values: Values

    def of(self, values: Values) -> StandIn:
        """Say whose it is."""
        self.values = values
        return self

    def __bool__(self) -> bool:
        self.values.require_guesses()
        return float.__bool__(self)

    def __int__(self) -> int:
        self.values.require_guesses()
        return float.__int__(self)

    __index__ = __int__

    def __hash__(self) -> int:
        return float.__hash__(self)


def _arithmetic(name: str) -> Callable[..., Any]:
    original = getattr(float, name)

    def calculate(self: StandIn, *others: Any) -> Any:
        result = original(self, *others)
        return StandIn(result).of(self.values) if type(result) is float else result

    return calculate


def _comparison(name: str) -> Callable[..., Any]:
    original = getattr(float, name)

    def compare(self: StandIn, other: Any) -> Any:
        self.values.require_guesses()
        return original(self, other)

    return compare


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
    setattr(StandIn, f"__{_name}__", _arithmetic(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(StandIn, f"__{_name}__", _comparison(f"__{_name}__"))


_CONVERSIONS: dict[Any, Callable[[Any], Any]] = {
    torch.Tensor.__float__: lambda value: value,
    torch.Tensor.__int__: int,
    torch.Tensor.__index__: int,
    torch.Tensor.__bool__: bool,
}
READS = {torch.Tensor.item, torch.Tensor.tolist, *_CONVERSIONS}
"""What brings a value to Python."""


def has_no_value(value: Any) -> bool:
    """Whether a tensor is fake, or holds one that is."""
    if isinstance(value, FakeTensor):
        return True
    if not isinstance(value, torch.Tensor):
        return False
    within: Any = value
    names = within.__tensor_flatten__()[0] if is_traceable_wrapper_subclass_type(type(value)) else ()
    return any(has_no_value(getattr(value, name)) for name in names)
