"""Which kernels a net runs, found without running it.

In: a model and example inputs. Out: ``Kernel``s in their order. Fake tensors carry the shapes; nothing is computed.
Not here: times (``cost.lookup``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from windtunnel.base.extras import require
from windtunnel.cost.kernels import Kernel, TensorShape
from windtunnel.errors import PriceError

__all__ = ["trace"]


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
            values, named = [_to_fake(tensor, fake) for tensor in inputs], {}
            for name, keyword in (keywords or {}).items():
                named[name] = _to_fake(keyword, fake)
            with recorder:
                model(*values, **named)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise PriceError(
            f"the model does not run on fake tensors: {reason}",
            where=type(model).__name__,
            fix="take out what depends on values, or measure the model instead",
        ) from error
    result: list[Kernel] = recorder.kernels
    return result


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence torch's log while fake tensors run: failures are reported by our own error."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _to_fake(value: Any, fake: Any) -> Any:
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
                named = tuple((name, _describe_value(value)) for name, value in (kwargs or {}).items())
                self.kernels.append(
                    Kernel(
                        f"{func.namespace}::{func._opname}.{func._overloadname}",
                        tuple(map(_describe_value, args)),
                        named,
                    )
                )
            return func(*args, **(kwargs or {}))

    return Recorder()


def _describe_value(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return TensorShape(tuple(value.shape), tuple(value.stride()), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_describe_value, value))
    return value
