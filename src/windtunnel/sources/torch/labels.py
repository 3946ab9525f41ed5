"""Names that torch's exports do not break at.

In: names of modules and of ``record_function`` blocks, which may hold anything. Out: the same with quotes, backslashes
and control characters written as ``%22``, and back. Torch writes names into JSON as they are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from torch.autograd.profiler import record_function

__all__ = ["escape_label", "escape_labels", "plain"]

_OF_TORCH = ("Optimizer.", "enumerate(DataLoader)", "Torch-Compiled", "## Call Compiled", "DistributedDataParallel.")
_UNSAFE = re.compile(r'["\\\x00-\x1f\x7f%]')


def escape_label(name: str) -> str:
    """Escape the characters of a name that a JSON string cannot hold."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02x}", name)


def plain(name: str) -> str:
    """The name that was escaped."""
    return unquote(name) if "%" in name else name


@contextmanager
def escape_labels(*, keeps_all: bool = True) -> Iterator[None]:
    """While this lasts, ``record_function`` blocks have escaped names.

    Parameters
    ----------
    keeps_all : bool
        Without it only torch's own blocks are recorded. A block of a script may be open where an iteration begins or
        ends; torch then writes to memory that is gone, and the process crashes at some later time.
    """
    enter, leave = record_function.__enter__, record_function.__exit__

    @functools.wraps(enter)
    def enter_block(block: Any) -> Any:
        block.is_kept = keeps_all or str(block.name).startswith(_OF_TORCH)
        if not block.is_kept:
            return block
        block.name = escape_label(str(block.name))
        return enter(block)

    @functools.wraps(leave)
    def leave_block(block: Any, *failure: Any) -> Any:
        return leave(block, *failure) if getattr(block, "is_kept", True) else None

    record_function.__enter__, record_function.__exit__ = enter_block, leave_block  # type: ignore[method-assign]
    try:
        yield
    finally:
        record_function.__enter__, record_function.__exit__ = enter, leave  # type: ignore[method-assign]
