"""Names of torch that mean something else for a while.

In: owners and what their names shall mean, or functions and what shall be called in their place wherever a module has
them by name. Out: contexts that put everything back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["patch_attributes", "replace_functions"]

_ABSENT = object()


@contextmanager
def patch_attributes(meanings: Mapping[Any, Mapping[str, Any]]) -> Iterator[None]:
    """Set attributes of modules and classes within."""
    kept: list[tuple[Any, str, Any]] = []
    try:
        for owner, names in meanings.items():
            for name, value in names.items():
                kept.append((owner, name, vars(owner).get(name, _ABSENT)))
                setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(kept):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def replace_functions(others: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Call other functions in the place of some, in every module that has them, and in those that are loaded within."""
    ours = {original: functools.update_wrapper(other, original) for original, other in others.items()}
    _exchange(ours)
    try:
        yield
    finally:
        _exchange({other: original for original, other in ours.items()})


def _exchange(others: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
    by_name = {old.__name__: (old, new) for old, new in others.items()}
    for module in list(sys.modules.values()):
        own = getattr(module, "__dict__", {})
        for name in by_name.keys() & own.keys():
            old, new = by_name[name]
            if own[name] is old:
                setattr(module, name, new)
