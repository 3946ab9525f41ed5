"""A job that a file of the user makes.

In: ``my_job.py``, ``my_job.py:make`` or ``my_job.py:make --width 64`` as one text. Out: what the function returns. The
file is run with these arguments, and only if it defines the function: a training script would train.
"""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from windtunnel.errors import InputError, WindtunnelError

__all__ = ["call_user_function", "is_job_file"]

T = TypeVar("T")
_MAKER = "make"
_JOB = re.compile(r"(?P<path>.*?\.py)(?::(?P<function>\w*))?(?:\s+(?P<arguments>.*))?")


def is_job_file(text: str) -> bool:
    """Whether a job is named by a Python file, with or without a function and arguments."""
    return _JOB.fullmatch(text) is not None


def call_user_function(text: str, kind: type[T]) -> T:
    """Call a function of a user's file that has to return a ``kind``, and return its result.

    Parameters
    ----------
    text : str
        File, function (default: ``make``) and arguments, as on a command line.
    kind : type

    Raises
    ------
    InputError
        There is no such file or function, the file or the function fails, or returns something else.
    """
    parts = _JOB.fullmatch(text)
    if parts is None:
        raise InputError(f"{text!r} names no Python file", where=text, fix="give file.py:function")
    path, function = Path(parts["path"]), parts["function"] or _MAKER
    try:
        argv = shlex.split(parts["arguments"] or "")
    except ValueError as error:
        raise InputError(f"the arguments cannot be read: {error}", where=text, fix="close the quotation") from error
    if not path.is_file():
        raise InputError("there is no such file", where=str(path), fix="give file.py:function")
    if not _defines(path, function):
        raise InputError(
            f"{path.name} defines no function {function!r}",
            where=str(path),
            fix=f"define one that returns a {kind.__module__}.{kind.__qualname__}; a training script as it is goes "
            "to windtunnel capture",
        )
    created = _run(path, function, argv)
    if not isinstance(created, kind):
        raise InputError(
            f"{function} returned a {type(created).__name__}",
            where=str(path),
            fix=f"return a {kind.__module__}.{kind.__qualname__}",
        )
    return created


def _defines(path: Path, function: str) -> bool:
    """Whether a name is bound at the top level of a file, as far as reading it can tell."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        raise InputError(
            f"{path.name} is not valid Python: {error}", where=f"{path}:{line}", fix="correct it"
        ) from error
    return not {function, "*"}.isdisjoint(_names(tree.body))


def _names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in statement.names)
        else:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id
            for field in ("body", "orelse", "finalbody"):
                yield from _names(getattr(statement, field, None) or [])


def _run(path: Path, function: str, argv: Sequence[str]) -> Any:
    """Run the file with its arguments, then its function; its failures become errors of this package."""
    kept = sys.argv, sys.path[:]
    sys.argv = [str(path), *argv]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        maker = runpy.run_path(str(path)).get(function)
        if not callable(maker):
            raise InputError(f"{function!r} is no function", where=str(path), fix="give file.py:function")
        return maker()
    except WindtunnelError:
        raise
    except SystemExit as error:
        raise InputError(
            f"{path.name} ended itself (exit code {error.code}) with the arguments {shlex.join(argv) or 'none'}",
            where=str(path),
            fix=f"its own words stand above; give its arguments behind it, in quotes: '{path}:{function} --width 64'",
        ) from error
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        raise InputError(
            f"{path.name} raised {type(error).__name__}: {error}",
            where=f"{path}:{own[-1].lineno}" if own else str(path),
            fix=f"make {function}() run by itself first",
        ) from error
    finally:
        sys.argv, sys.path[:] = kept
