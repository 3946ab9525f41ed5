"""Write whole files or none.

In: where a file shall lie. Out: a path next to it to write to, which takes its place at the end and never stays behind;
an error that says whether the disk is full. Not here: what is written, and what may be overwritten.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windtunnel.errors import InputError

__all__ = ["MAKE_ROOM", "cannot_write", "is_full", "replacing", "whole"]

MAKE_ROOM = "free some space, or write elsewhere with --out; TMPDIR says where temporary files lie"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Whether there was no room for what was written."""
    return error.errno in _FULL


def cannot_write(path: Path, error: OSError) -> InputError:
    """The error of a file that could not be written."""
    fix = MAKE_ROOM if is_full(error) else "check the path and its permissions"
    return InputError(f"{path} cannot be written: {error.strerror}", where=str(path.parent), fix=fix)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path next to ``path`` to write to, which becomes it where the block ends well and is removed where not.

    Raises
    ------
    OSError
        The system's own, where the file cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:60]}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        scratch.chmod(0o644)  # scratch files are private, results are not
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Replace ``path`` as above, creating its folder, and report what goes wrong as errors of this package.

    Raises
    ------
    InputError
        The folder cannot be written, or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            yield scratch
    except OSError as error:
        raise cannot_write(path, error) from error
