"""Outlive a program that may crash this process.

In: who tells of a crash. Out: nothing; what follows runs in a child of this process, which waits for it and ends as it
ends. A segmentation fault of somebody's native code then ends in words instead of silence. Not here: the words.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from windtunnel.measure.worker import die_with

__all__ = ["outlive"]

_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
_BY_SIGNAL = 128


def outlive(report_kill: Callable[[signal.Signals], int]) -> None:
    """Go on in a child; where an unexpected signal kills it, say so and end with what ``report_kill`` returns.

    To be called before any thread is started. Ctrl-C reaches the child directly; an order to end is passed on.
    """
    if not hasattr(os, "fork"):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with(parent)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(child, received))
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    killer = signal.Signals(os.WTERMSIG(status))
    os._exit(_BY_SIGNAL + killer if killer in _ASKED_TO_END else report_kill(killer))
