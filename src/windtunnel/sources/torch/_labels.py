"""Names that torch's exports do not break at (room sources, private).

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

__all__ = ["escaped", "escaped_labels", "plain"]

_UNSAFE = re.compile(r'["\\\x00-\x1f\x7f%]')


def escaped(name: str) -> str:
    """A name as JSON can hold it within quotes."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02x}", name)


def plain(name: str) -> str:
    """The name that was escaped."""
    return unquote(name) if "%" in name else name


@contextmanager
def escaped_labels() -> Iterator[None]:
    """While this lasts, ``record_function`` blocks are recorded with escaped names."""
    enter = record_function.__enter__

    @functools.wraps(enter)
    def entered(block: Any) -> Any:
        if isinstance(block.name, str):
            block.name = escaped(block.name)
        return enter(block)

    record_function.__enter__ = entered  # type: ignore[method-assign]
    try:
        yield
    finally:
        record_function.__enter__ = enter  # type: ignore[method-assign]
