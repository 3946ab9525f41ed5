"""End work of this process when its time is up.

In: work that may take for ever, such as a script of the user, and how long it may take. Out: the same work, or an
``OutOfTimeError`` in the middle of it. Not here: processes of a flight, which are ended from outside (``turns``).
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from windtunnel.errors import FlightError

__all__ = ["OutOfTimeError", "interrupt_after"]

_AGAIN_S = 30.0  # a program that catches everything is interrupted again
_FIX = "give it more time with --time-limit, or let less run on this machine meanwhile"


class OutOfTimeError(FlightError):
    """Something was not done before its deadline."""

    def __init__(self, message: str = "", *, where: str = "", fix: str = _FIX, log_tail: str = "") -> None:
        super().__init__(message, where=where, fix=fix, log_tail=log_tail)


class _TimeIsUpError(BaseException):
    """Not an ``Exception``: programs that go on after any of those must end, too."""


@contextmanager
def interrupt_after(limit_s: float, what: str) -> Iterator[None]:
    """Interrupt what runs within after this time, on the main thread of the process.

    Parameters
    ----------
    limit_s : float
        Seconds; infinity for no limit.
    what : str
        What runs, for the message.

    Raises
    ------
    OutOfTimeError
        It was not done, or there is no time for it at all.
    """
    if limit_s <= 0:
        raise OutOfTimeError(f"{what} was not begun: the time was up")
    # signals reach only the main thread: anything else runs without a limit
    if math.isinf(limit_s) or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_running, is_up = True, False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_up
        if is_running:
            is_up = True
            raise _TimeIsUpError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # no further interrupt: it would only hit what cleans up
        is_running = False
        if is_up:
            raise OutOfTimeError(
                f"{what} was not done when the time was up", where=getattr(error, "where", "")
            ) from error
        raise
    finally:
        is_running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
