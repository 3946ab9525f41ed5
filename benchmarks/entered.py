"""Which files of the package a program enters, in all its processes.

A file is entered when one of its functions runs; what runs while a module is imported does not count. Copied as
``sitecustomize.py`` onto the path of a program, this begins with the interpreter, so also in each process that the
program starts. The log gets a line per process and file. Loops that numba compiled run outside of what is seen.
"""

import os
import sys
import threading
from inspect import CO_NEWLOCALS, CO_OPTIMIZED
from pathlib import Path

LOG, SOURCE = "WINDTUNNEL_ENTERED_LOG", "WINDTUNNEL_ENTERED_SOURCE"
_IS_FUNCTION = CO_OPTIMIZED | CO_NEWLOCALS


def watch(source: str, log: str) -> None:
    """Note every file below ``source`` from now on, in all threads and in forks."""
    source, seen, importing = source + os.sep, set(), threading.local()

    def on_event(frame, event, _) -> None:
        code = frame.f_code
        if code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            step = {"call": 1, "return": -1}.get(event, 0)
            importing.depth = max(0, getattr(importing, "depth", 0) + step)
        elif event == "call" and code.co_filename.startswith(source) and not getattr(importing, "depth", 0):
            key = os.getpid(), code.co_filename
            if key not in seen and code.co_flags & _IS_FUNCTION == _IS_FUNCTION:
                seen.add(key)
                note(key)

    def note(key: tuple[int, str]) -> None:
        with open(log, "a", encoding="utf-8") as file:  # noqa: PTH123 - nothing of pathlib may be entered here
            file.write(f"{key[0]} {key[1].removeprefix(source)}\n")

    threading.setprofile(on_event)
    sys.setprofile(on_event)


def entered(log: Path) -> dict[int, set[str]]:
    """Files by process."""
    found: dict[int, set[str]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        process, _, path = line.partition(" ")
        found.setdefault(int(process), set()).add(path)
    return found


if __name__ == "sitecustomize" and LOG in os.environ:
    watch(os.environ[SOURCE], os.environ[LOG])
