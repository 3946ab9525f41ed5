"""The beginning of a process that ``workers`` started.

In: the number of its line's file, its parent, its cores; over the line a module and what it shall do. Out: what that
module's ``main(place)`` does. Cores are kept to before any thread is started; where the system can, the process and
what it forks are killed when its parent ends.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the system kill this process when its parent ends, where it can."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be heard of
        os._exit(1)


def _tie_children() -> None:
    """Let what this process forks die with it, too; fork returns here only once the child is tied."""
    forks: list[tuple[int, int, int]] = []

    def before() -> None:
        forks.append((os.getpid(), *os.pipe()))

    def in_child() -> None:
        parent, heard, reported = forks.pop()
        os.close(heard)
        die_with(parent)
        os.close(reported)

    def in_parent() -> None:
        _, heard, reported = forks.pop()
        os.close(reported)
        os.read(heard, 1)  # ends when the child has closed its side
        os.close(heard)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def main(line_fd: int, parent: int, cores: str) -> int:
    """Wait for what to do, and do it."""
    die_with(parent)
    _tie_children()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends this process
    if cores != "-" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    line = Connection(line_fd)
    module, sys.path[:], rank, num_ranks, rendezvous = pickle.loads(line.recv_bytes())
    from windtunnel.measure.workers import Place

    place = Place(rank, num_ranks, rendezvous, line.recv(), line)
    return int(importlib.import_module(module).main(place) or 0)


def _leave(code: int) -> None:
    """End without the destructors of libraries: gloo's threads abort a process that has done its work."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
