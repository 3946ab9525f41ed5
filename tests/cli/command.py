"""Run the command as a user does: another process, or (faster) this one with its streams caught."""

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from windtunnel.cli import main


@dataclass(frozen=True)
class Outcome:
    """What a command came to."""

    code: int
    stdout: str
    stderr: str


def windtunnel(*arguments: object) -> Outcome:
    """Run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def windtunnel_process(*arguments: object, cwd: Path | None = None, **environment: str) -> Outcome:
    """Run as a process of its own, piped."""
    command = [sys.executable, "-m", "windtunnel", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
