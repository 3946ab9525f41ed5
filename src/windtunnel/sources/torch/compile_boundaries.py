"""Python that a compiler leaves alone.

In: functions of ours that a program's compiled code may call, and stretches in which nothing is to run compiled. Out:
the same, outside of what Dynamo traces. Without Dynamo in the program nothing of it is imported.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

__all__ = ["SuspendedCall", "aside", "exclude_from_compilation", "run_eagerly"]


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Within, everything that ``torch.compile`` made runs as plain Python; what is compiled stays so and is used again.

    Module hooks are called then, and no guard of compiled code fails because of them.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    import torch

    with torch.compiler.set_stance("force_eager"), _quiet_about_hooks():
        yield


@contextmanager
def _quiet_about_hooks() -> Iterator[None]:
    """Within, torch does not warn of hooks on all modules, which are ours.

    They are called once more for the wrapper of what is compiled, which does no harm here.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using `torch.compile")
        yield


class SuspendedCall:
    """A call of the program that a function of ours holds back, and makes by calling this.

    Parameters
    ----------
    call : partial
        The program's call with the program's arguments.
    frames, callback : optional
        Dynamo, and what it had in place where the call was held back: it is there again while the call runs.
    """

    def __init__(self, call: partial[Any], frames: Any = None, callback: Any = None) -> None:
        self._call = call
        self._frames = frames
        self._callback = callback

    @property
    def takes_function(self) -> bool:
        """Whether the program gave a function, such as the closure of ``optimizer.step(closure)``."""
        return any(map(callable, (*self._call.args, *self._call.keywords.values())))

    @property
    def is_compiled(self) -> bool:
        """Whether compiled code makes the call."""
        return self._callback is not None

    def __call__(self) -> Any:
        """Make the call, under the compiler where it was."""
        if self._frames is None:
            return self._call()
        self._frames.set_eval_frame(self._callback)
        try:
            return self._call()
        finally:
            self._frames.set_eval_frame(None)


def exclude_from_compilation(function: Callable[..., Any]) -> None:
    """Exclude this function from compilation; the functions that it calls may still be compiled."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        frames.skip_code(function.__code__)
        frames.skip_code(aside.__code__)
        frames.skip_code(SuspendedCall.__call__.__code__)


def aside(act: Callable[[Any, SuspendedCall], Any], subject: Any, call: partial[Any]) -> Any:
    """``act(subject, call)``, unseen by a compiler that is at work; the call itself goes on under it."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return act(subject, SuspendedCall(call))
    callback = frames.set_eval_frame(None)
    try:
        return act(subject, SuspendedCall(call, frames, callback))
    finally:
        frames.set_eval_frame(callback)
