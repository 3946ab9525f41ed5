"""The command line: one thin file per verb.

In: arguments. Out: the answer on stdout, progress and advice on stderr, an exit code: 0 fine, 1 the answer is no, 2 bad
usage or input, 130 interrupted. May not enter: logic.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

_OF_SCRIPTS = ("capture", "memory", "verify")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    from windtunnel.cli.app import run

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    if argv is None:  # as a command: a process of its own, which a script may crash
        _outlive_scripts(sys.argv[1:])
    try:
        code = run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _outlive_scripts(arguments: Sequence[str]) -> None:
    """Where somebody's script runs in this process, let a crash of it end in words."""
    script = next((word for word in arguments[1:] if word.endswith(".py")), "")
    if not script or arguments[0] not in _OF_SCRIPTS:
        return
    from windtunnel.cli.errors import show_crash
    from windtunnel.measure.sandbox import outlive

    outlive(lambda killer: show_crash(script, killer.name))
