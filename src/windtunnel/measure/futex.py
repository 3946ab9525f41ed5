"""Waiting for a word of shared memory until another process has changed it.

In: a word's address and what it was. Out: nothing; the caller looks again. Linux lets a thread sleep until the writer
wakes it, so that waiting takes no processor time; elsewhere, it sleeps for a moment. Not here: what the word means.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
import time
from collections.abc import Callable

__all__ = ["wait_for_change", "wake"]

_NUMBERS = {"x86_64": 202, "aarch64": 98}  # of the system call
_WAIT, _WAKE, _PAUSE_S = 0, 1, 100e-6


@functools.cache
def _system_call() -> Callable[..., int] | None:
    """The system call; None where there is none."""
    number = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    pointer = ctypes.c_void_p
    call.argtypes = [ctypes.c_long, pointer, ctypes.c_int, ctypes.c_uint32, pointer, pointer, pointer]
    return functools.partial(call, number)


def wait_for_change(address: int, seen: int) -> None:
    """Sleep until the word at an address is woken; not at all if its lower 32 bits are not those of ``seen``."""
    call = _system_call()
    if call is None:
        time.sleep(_PAUSE_S)
    else:
        call(address, _WAIT, seen & 0xFFFFFFFF, None, None, None)


def wake(address: int) -> None:
    """Wake a thread that waits for the word at an address, after changing the word."""
    call = _system_call()
    if call is not None:
        call(address, _WAKE, 1, None, None, None)
