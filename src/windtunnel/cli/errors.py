"""Errors as people read them: what, where, what to do."""

from __future__ import annotations

import shlex
import sys
import tempfile
import traceback
from typing import Any

from windtunnel.base.outputs import MAKE_ROOM, is_full
from windtunnel.cli.console import apply_style, clean
from windtunnel.errors import WindtunnelError

__all__ = ["show_crash", "show_error", "show_usage_error"]

UNEXPECTED = 2
MAX_CHARACTERS = 2000
LOG_LINES = 12
# Old option names and new ones, to be removed at 1.0; the first that the command has is suggested.
_RENAMED_OPTIONS = {
    "--output": ("--out", "--html"), "--report": ("--html",), "--page": ("--html",), "--picture": ("--html",),
    "--budget": ("--time-limit",), "--batch": ("--batch-size",), "--batches": ("--batch-sizes",),
    "--fly": ("--verify",), "--flown": ("--measured",), "--at-least": ("--min-throughput",), "--devices": ("--on",),
    "--disk": ("--disk-bandwidth",), "--limit": ("--slo",), "--share": ("--percentile",), "--few": ("--max-cells",),
    "--most": ("--max-splits",), "--most-downsets": ("--max-downsets",), "--machines": ("--max-machines",),
    "--turns": ("--rounds",), "--every": ("--eval-interval", "--checkpoint-interval"),
}  # fmt: skip


def show_error(error: Exception, *, is_debug: bool) -> int:
    """Print an error on stderr; returns the exit code."""
    if is_debug:
        traceback.print_exception(error)
    if isinstance(error, WindtunnelError):
        _print_log(_script_traceback(error.__cause__))
        _print(error.message, error.where, error.fix)
        _print_log(getattr(error, "log_tail", ""))
        return error.exit_code
    if isinstance(error, OSError) and is_full(error):
        _print(error.strerror or str(error), str(error.filename or tempfile.gettempdir()), MAKE_ROOM)
        return UNEXPECTED
    if isinstance(error, OSError):
        name = str(error.filename or "")
        _print(error.strerror or str(error), name, "check the path and its permissions")
        return UNEXPECTED
    if isinstance(error, MemoryError):
        _print("out of memory", "", "slice the graph first: windtunnel slice GRAPH --iteration 0")
        return UNEXPECTED
    _print(
        f"internal error in windtunnel: {type(error).__name__}: {error}",
        _last_place(error),
        "run it again with --debug and report the traceback",
    )
    return UNEXPECTED


def show_crash(script: str, killer: str) -> int:
    """Print that a script took the whole process with it; returns the exit code."""
    if killer == "SIGKILL":
        fix = f"it may have run out of memory: windtunnel memory --fake {shlex.quote(script)} predicts its peak"
    else:
        fix = (
            f"a native library may have crashed: run python -X faulthandler {shlex.quote(script)} without "
            f"windtunnel first"
        )
    _print(f"{script} was killed by {killer}; nothing was written", script, fix)
    return UNEXPECTED


def show_usage_error(error: Any, *, is_debug: bool) -> int:
    """Print what is wrong with the arguments; returns the exit code."""
    if is_debug:
        traceback.print_exception(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "windtunnel"
    message = str(error.format_message()).strip().rstrip(".")
    possibilities = [str(option) for option in getattr(error, "possibilities", None) or ()][:3]
    option = str(getattr(error, "option_name", ""))
    known = {name for param in getattr(getattr(context, "command", None), "params", ()) for name in param.opts}
    possibilities = [name for name in _RENAMED_OPTIONS.get(option, ()) if name in known][:1] or possibilities
    if possibilities:
        message = f"no such option: {option}"
    fix = f"did you mean {', '.join(possibilities)}?" if possibilities else f"see {command} --help"
    _print(message[:1].lower() + message[1:], command, fix)
    return UNEXPECTED


def _print(message: str, where: str, fix: str) -> None:
    lines = [apply_style("error:", "bold red") + f" {clean(message, MAX_CHARACTERS)}"]
    if where:
        lines.append(f"  where: {clean(where, MAX_CHARACTERS)}")
    if fix:
        lines.append(f"  fix:   {clean(fix, MAX_CHARACTERS)}")
    print("\n".join(lines), file=sys.stderr)  # noqa: T201


def _print_log(log_tail: str) -> None:
    lines = log_tail.strip().splitlines()[-LOG_LINES:]
    for line in lines:
        print(f"  | {clean(line, 200).rstrip()}", file=sys.stderr)  # noqa: T201


def _script_traceback(failure: BaseException | None) -> str:
    """What a script's own failure looks like without us: its traceback from its first line on."""
    if failure is None or isinstance(failure, KeyboardInterrupt | SystemExit):
        return ""
    frames = traceback.extract_tb(failure.__traceback__)
    entries = [
        index
        for index, frame in enumerate(frames)
        if frame.filename.endswith("runpy.py") or "<frozen runpy" in frame.filename
    ]
    if not entries:
        return ""
    own = traceback.format_list(frames[entries[-1] + 1 :])
    return "".join([*own, *traceback.format_exception_only(failure)])


def _last_place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
