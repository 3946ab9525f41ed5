"""What a net runs, found without running it (room cost).

In: a model and example inputs. Out: ``Kernel``s, in their order: each an operator with everything that its time
depends on, so that equal ones cost the same. Fake tensors carry the shapes; nothing is computed. Not here: times
(``lookup``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from windtunnel.errors import PriceError
from windtunnel.extras import require

if TYPE_CHECKING:
    import torch

__all__ = ["Kernel", "TensorShape", "trace", "usual_stride"]


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
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def _tensors(value: Any) -> Iterable[TensorShape]:
    if isinstance(value, TensorShape):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)


def trace(model: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> list[Kernel]:
    """The kernels of one inference in their order; nothing is computed, on fake tensors only shapes flow.

    Parameters
    ----------
    model : callable
        A module in ``eval`` mode.
    inputs : sequence
        Positional arguments; tensors give their shapes.
    keywords : mapping

    Raises
    ------
    PriceError
        The model decides by values, which fake tensors do not have.
    MissingExtraError
        PyTorch is not installed.
    """
    torch = require("torch", extra="torch")
    from torch._subclasses import FakeTensorMode

    recorder = _recorder()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with _quietly(), torch.inference_mode(), fake:
            values, named = [_faked(one, fake) for one in inputs], {}
            for name, one in (keywords or {}).items():
                named[name] = _faked(one, fake)
            with recorder:
                model(*values, **named)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise PriceError(
            f"the model does not run on fake tensors: {reason}",
            where=type(model).__name__,
            fix="take out what depends on values, or measure the model instead",
        ) from error
    found: list[Kernel] = recorder.kernels
    return found


@contextmanager
def _quietly() -> Iterator[None]:
    """What fails on fake tensors is told by our own error, not by torch's log as well."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _faked(value: Any, fake: Any) -> Any:
    import torch

    return fake.from_tensor(value) if isinstance(value, torch.Tensor) else value


def _recorder() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        """Notes every operator that Python calls."""

        def __init__(self) -> None:
            super().__init__()
            self.kernels: list[Kernel] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace != "prim":
                named = tuple((name, _described(value)) for name, value in (kwargs or {}).items())
                self.kernels.append(Kernel(_name(func), tuple(map(_described, args)), named))
            return func(*args, **(kwargs or {}))

    return Recorder()


def _name(func: Any) -> str:
    return f"{func.namespace}::{func._opname}.{func._overloadname}"


def _described(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return TensorShape(tuple(value.shape), tuple(value.stride()), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    return value
