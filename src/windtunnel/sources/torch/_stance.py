"""Python that a compiler leaves alone (room sources, private).

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

__all__ = ["aside", "not_compiled", "quiet_about_hooks", "uncompiled"]


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within, everything that ``torch.compile`` made runs as plain Python; what is compiled stays so and is used again.

    Module hooks are called then, and no guard of compiled code fails because of them.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    import torch

    with torch.compiler.set_stance("force_eager"), quiet_about_hooks():
        yield


@contextmanager
def quiet_about_hooks() -> Iterator[None]:
    """Within, torch does not warn of hooks on all modules, which are ours.

    They are called once more for the wrapper of what is compiled, which does no harm here.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using `torch.compile")
        yield


def not_compiled(function: Callable[..., Any]) -> None:
    """Have the compiler run this function as it is; what it calls may still be compiled."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        frames.skip_code(function.__code__)
        frames.skip_code(aside.__code__)
        frames.skip_code(_as_before.__code__)


def aside(act: Callable[..., Any], subject: Any, call: Callable[[], Any]) -> Any:
    """``act(subject, call)``, unseen by a compiler that is at work; the call itself goes on under it."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return act(subject, call)
    before = frames.set_eval_frame(None)
    try:
        return act(subject, partial(_as_before, frames, before, call))
    finally:
        frames.set_eval_frame(before)


def _as_before(frames: Any, before: Any, call: Callable[[], Any]) -> Any:
    frames.set_eval_frame(before)
    try:
        return call()
    finally:
        frames.set_eval_frame(None)
