"""Run what may crash, loop or reach out in a child of this process.

In: an action, limits. Out: how it ended, and its answer if it had one; whatever happens, this process goes on. The
child has no core file, a limit of memory and of processor time, and is killed when its time is over; once it locks
itself, opening a file, starting a process or a connection ends it. ``outlive`` runs all that follows in a child,
so that a segmentation fault of native code ends in words. Arrays with a wall on both sides tell who wrote beyond their
ends. Not here: what is run.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from windtunnel.measure.worker import die_with

__all__ = ["Ending", "GuardedArray", "Limits", "Lock", "allow_time", "outlive", "run_in_fork"]

_HEADER = struct.Struct("<8sQ")
_MAGIC = b"WTanswer"
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_X86_64 = 0xC000003E
_KILL, _ALLOW, _SIGNAL = 0x80000000, 0x7FFF0000, 234
# open, socket, connect, sendto, clone, fork, vfork, execve, kill, rename, unlink, ptrace, openat, clone3, ...
_DENIED = (2, 41, 42, 44, 56, 57, 58, 59, 62, 82, 83, 84, 85, 86, 87, 88, 90, 92, 101, 165, 200, 257, 263, 264,
           310, 311, 316, 322, 425, 435, 437)  # fmt: skip
Lock = Callable[[float], None]
"""Called by an action before what is not trusted begins, with the seconds of a core that it may take."""
_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
_BY_SIGNAL = 128
_ALIGNMENT = 64
_MARGIN = 0xA5


@dataclass(frozen=True)
class Limits:
    """What a child may take.

    Attributes
    ----------
    wall_s, cpu_s : float
    memory_bytes : int
        Address space beyond what this process has.
    """

    wall_s: float = 5.0
    cpu_s: float = 5.0
    memory_bytes: int = 1 << 30


@dataclass(frozen=True)
class Ending:
    """How a child ended.

    Attributes
    ----------
    kind : str
        ``done``, ``crash``, ``timeout``, ``forbidden`` (it reached out), ``memory``.
    answer : bytes
        What the action returned; empty unless done.
    detail : str
        The signal or the error, in words.
    """

    kind: str
    answer: bytes = b""
    detail: str = ""


def run_in_fork(action: Callable[[Lock], bytes], limits: Limits | None = None) -> Ending:
    """Run an action in a fork of this process and wait for how it ends.

    Parameters
    ----------
    action : callable
        Gets the function that locks the child.
    limits : Limits, optional
    """
    limits = limits or Limits()
    heard, reported = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        _be_child(action, limits, reported)
    # the child's copy is the only one left, so its end is heard even if it is killed
    os.close(reported)
    try:
        answer, is_late = _hear(heard, limits.wall_s)
        if is_late:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(heard)
    return _ending(answer, status, limits, is_late=is_late)


def _be_child(action: Callable[[Lock], bytes], limits: Limits, answer_pipe: int) -> None:
    """Never returns."""
    faulthandler.disable()  # its last words are the parent's, which knows the signal
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        seconds = max(1, round(limits.cpu_s + time.process_time()))  # a fork begins at zero on some systems, not on all
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - before anything else is imported
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + limits.memory_bytes, now + limits.memory_bytes))
        answer = action(_lock)
        _tell(answer_pipe, answer)
        code = 0
    except MemoryError:
        code = 3
    except BaseException as error:
        _tell(answer_pipe, b"\0" + f"{type(error).__name__}: {error}".encode())
        code = 2
    finally:
        os._exit(code)


def _tell(answer_pipe: int, answer: bytes) -> None:
    data = _HEADER.pack(_MAGIC, len(answer)) + answer
    while data:
        data = data[os.write(answer_pipe, data) :]


def _hear(heard: int, wall_s: float) -> tuple[bytes, bool]:
    """All that the child says until it ends, and whether its time was over first."""
    until_s, data = time.monotonic() + wall_s, bytearray()
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([heard], [], [], left_s)[0]:
            return bytes(data), True
        piece = os.read(heard, 1 << 16)
        if not piece:
            return bytes(data), False
        data += piece


def _ending(answer: bytes, status: int, limits: Limits, *, is_late: bool) -> Ending:
    if is_late:
        return Ending("timeout", detail=f"it did not end within {limits.wall_s:g} s")
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        name = signal.Signals(-code).name
        if -code == signal.SIGSYS:
            return Ending("forbidden", detail="it opened a file, started a process or a connection")
        if -code in (signal.SIGXCPU, signal.SIGPROF):
            return Ending("timeout", detail="it did not end within its time of a core")
        return Ending("memory" if -code == signal.SIGKILL else "crash", detail=f"killed by {name}")
    if code == 3:
        return Ending("memory", detail=f"it took more than {limits.memory_bytes >> 20} MiB")
    # what ran may have broken anything in the child: an exit code of 0 with half an answer is no success
    is_whole = len(answer) >= _HEADER.size and _HEADER.unpack_from(answer) == (_MAGIC, len(answer) - _HEADER.size)
    body = answer[_HEADER.size :]
    if code == 0 and is_whole:
        return Ending("done", body)
    return Ending("crash", detail=body[1:400].decode(errors="replace") if is_whole else f"it ended with {code}")


def allow_time(cpu_s: float) -> None:
    """Give a locked child this many seconds of a core from now on."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _lock(cpu_s: float) -> None:
    """From now on whatever reaches out of this process, or takes longer, ends it, where the system can say so."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    allow_time(cpu_s)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        return
    steps = [(0x20, 0, 0, 4), (0x15, 1, 0, _X86_64), (0x06, 0, 0, _KILL), (0x20, 0, 0, 0)]
    # a signal to itself is how a process aborts
    steps += [
        (0x15, 0, 4, _SIGNAL),
        (0x20, 0, 0, 16),
        (0x15, 0, 1, os.getpid()),
        (0x06, 0, 0, _ALLOW),
        (0x06, 0, 0, _KILL),
    ]
    steps += [(0x15, len(_DENIED) - index, 0, number) for index, number in enumerate(_DENIED)]
    steps += [(0x06, 0, 0, _ALLOW), (0x06, 0, 0, _KILL)]
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    program = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0)


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


class GuardedArray:
    """An array that ends where a page ends which nobody may touch, but for less than 64 bytes of margin.

    Parameters
    ----------
    shape : sequence of int
    dtype : dtype
    """

    def __init__(self, shape: Sequence[int], dtype: DTypeLike) -> None:
        kind = np.dtype(dtype)
        size_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        page = mmap.PAGESIZE
        inner = -(-max(size_bytes, 1) // page) * page
        self._memory = mmap.mmap(-1, inner + 2 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for index in (begin, begin + page + inner):
            if libc.mprotect(ctypes.c_void_p(index), ctypes.c_size_t(page), 0) != 0:
                raise OSError(ctypes.get_errno(), "the pages around an array cannot be protected")
        first = page + inner - -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        bytes_all = np.frombuffer(self._memory, dtype=np.uint8)
        self._front, self._back = bytes_all[page:first], bytes_all[first + size_bytes : page + inner]
        self._front[:], self._back[:] = _MARGIN, _MARGIN
        flat = np.frombuffer(self._memory, dtype=np.uint8, count=size_bytes, offset=first)
        self.array: NDArray[np.generic] = flat.view(kind).reshape(tuple(shape))
        self.address = begin + first

    def is_intact(self) -> bool:
        """Whether nobody wrote into the margins."""
        return bool((self._front == _MARGIN).all() and (self._back == _MARGIN).all())
