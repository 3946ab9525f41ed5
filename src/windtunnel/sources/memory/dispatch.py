"""What every mode that follows operators through torch's dispatcher shares.

In: calls of operators below autograd. Out: ``DispatchTracer``, the base class of these modes, and the helpers that say
which calls are operators, and which tensors are among their arguments. Not here: what a mode does with a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

__all__ = ["DispatchTracer", "is_device_query", "is_of_wrappers", "tensors_in"]

_DEVICE = torch.ops.prim.device.default


class DispatchTracer(TorchDispatchMode):
    """A mode that is entered for a whole program, so that its cost per call matters."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that keeps the compiler off costs as much as a small mode


def is_of_wrappers(types: Iterable[type]) -> bool:
    """Whether a call is on tensors that wrap others (DTensor): they call operators on these, which a mode sees next."""
    return any(is_traceable_wrapper_subclass_type(kind) for kind in types)


def is_device_query(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether C++ asks where a fake tensor lies: half of all calls of a dry run, whose answer is ``args[0].device``."""
    return func is _DEVICE and isinstance(args[0], FakeTensor)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results of an operator, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
