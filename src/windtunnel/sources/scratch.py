# ruff: noqa: PTH100, PTH112, PTH113, PTH118, PTH120 - pathlib goes through the very functions that are replaced here
"""Let a script write, and keep its files away from the user's (room sources).

In: a folder. Out: a context in which what Python, ``torch.save`` and ``shutil`` write, rename or remove lies below that
folder, at the path it would have had; what was written there is what is read back, all else is read where it is.
Devices and temporary files stay as they are, unless the script itself works in the temporary folder. What a library in
another language opens by itself is not caught, and folders are listed as they are without the written files.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windtunnel.sources.writes import WRITE_FLAGS, UserFiles

__all__ = ["ScratchFolder", "files_kept_away", "writes_below"]


class ScratchFolder:
    """Where a path is written to, and read from.

    Parameters
    ----------
    folder : Path
        Must exist.
    script : Path
        Its folder, and the current one, are never written to.
    """

    def __init__(self, folder: Path, script: Path) -> None:
        self.folder = os.path.realpath(folder)
        self._user_files = UserFiles(script)
        self._stat, self._copy = os.stat, shutil.copyfile
        self._removed: set[str] = set()

    def path_to_read(self, path: Any) -> Any:
        """The written file, where there is one, else the path as it is.

        Raises
        ------
        FileNotFoundError
            The script removed it.
        """
        full = self._full(path)
        if full is None:
            return path
        if full in self._removed:
            raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
        below = self._below(full)
        return below if self._exists(below) else path

    def to_write(self, path: Any, *, keeps_content: bool) -> Any:
        """The path below the folder; with ``keeps_content`` the file that is there is copied first."""
        full = self._full(path)
        if full is None:
            return path
        below = self._below(full)
        if self._exists(os.path.dirname(full)):  # else it fails as it would
            folder = os.path.dirname(below)
            if not self._exists(folder) or not os.path.isdir(folder):
                _makedirs(folder, exist_ok=True)
        if keeps_content and not self._exists(below) and full not in self._removed and os.path.isfile(full):
            self._copy(full, below)
        self._removed.discard(full)
        return below

    def forget(self, path: Any) -> str | None:
        """Remove the written file, if there is one, and hide the user's; returns what is to be removed, or None."""
        full = self._full(path)
        if full is None:
            return str(path)
        self.path_to_read(path)  # what is not there cannot be removed
        below = self._below(full)
        self._removed.add(full)
        return below if self._exists(below) else None

    def hide(self, path: Any) -> None:
        """The script moved it away."""
        full = self._full(path)
        if full is not None:
            self._removed.add(full)

    def list_written_paths(self) -> list[Path]:
        """All files that were written, at the paths that they would have had."""
        result = [path for path in Path(self.folder).rglob("*") if path.is_file()]
        return sorted(Path(os.sep) / path.relative_to(self.folder) for path in result)

    def _full(self, path: Any) -> str | None:
        """The absolute path; None of what is written where it is: files by number, devices, temporary files."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        full = os.path.abspath(os.fsdecode(path))
        is_below = f"{full}{os.sep}".startswith(f"{self.folder}{os.sep}")
        return full if full in self._user_files and not is_below else None

    def _below(self, full: str) -> str:
        return os.path.join(self.folder, full.lstrip(os.sep))

    def _exists(self, full: str) -> bool:
        for path in (full, self._below(full)):
            try:
                self._stat(path)
            except OSError:
                continue
            return True
        return False


_makedirs = os.makedirs


@contextmanager
def files_kept_away(script: Path) -> Iterator[ScratchFolder]:
    """Send what a script writes in this block to a temporary folder that goes at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="windtunnel-scratch-") as folder,
        writes_below(Path(folder), script) as files,
    ):
        yield files


@contextmanager
def writes_below(folder: Path, script: Path) -> Iterator[ScratchFolder]:
    """Send what a script writes in this block below a folder that exists."""
    import torch

    scratch = ScratchFolder(folder, script)
    patched: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, wrap(getattr(owner, name)))

    opening = _opening(scratch)(builtins.open)
    patch(builtins, "open", lambda _: opening)
    patch(io, "open", lambda _: opening)
    patch(os, "open", _opening_by_flags(scratch))
    patch(os, "mkdir", _making(scratch))
    for name in ("rename", "replace"):
        patch(os, name, _moving(scratch))
    for name in ("remove", "unlink", "rmdir"):
        patch(os, name, _removing(scratch))
    for name in ("stat", "lstat"):
        patch(os, name, _reading(scratch))
    patch(shutil, "rmtree", _removing(scratch))
    patch(torch, "save", _saving(scratch))
    patch(torch, "load", _reading(scratch))
    try:
        yield scratch
    finally:
        for owner, name, original in reversed(patched):
            setattr(owner, name, original)


Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def _opening(scratch: ScratchFolder) -> Wrapper:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if set(mode) & set("wax+"):
                return original(scratch.to_write(file, keeps_content="w" not in mode), mode, *args, **kwargs)
            return original(scratch.path_to_read(file), mode, *args, **kwargs)

        return open_

    return wrap


def _opening_by_flags(scratch: ScratchFolder) -> Wrapper:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is not None:
                return original(path, flags, *args, **kwargs)
            writes = flags & WRITE_FLAGS
            result = (
                scratch.to_write(path, keeps_content=not flags & os.O_TRUNC) if writes else scratch.path_to_read(path)
            )
            return original(result, flags, *args, **kwargs)

        return open_

    return wrap


def _making(scratch: ScratchFolder) -> Wrapper:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> Any:
            if os.path.isdir(path):
                raise FileExistsError(17, "File exists", os.fsdecode(path))
            return original(scratch.to_write(path, keeps_content=False), *args, **kwargs)

        return mkdir

    return wrap


def _moving(scratch: ScratchFolder) -> Wrapper:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def move(src: Any, dst: Any, **kwargs: Any) -> Any:
            source = scratch.to_write(src, keeps_content=True)
            done = original(source, scratch.to_write(dst, keeps_content=False), **kwargs)
            scratch.hide(src)
            return done

        return move

    return wrap


def _removing(scratch: ScratchFolder) -> Wrapper:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            result = scratch.forget(path)
            return None if result is None else original(result, *args, **kwargs)

        return remove

    return wrap


def _reading(scratch: ScratchFolder) -> Wrapper:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(path: Any, *args: Any, **kwargs: Any) -> Any:
            by_folder = kwargs.get("dir_fd") is not None
            return original(path if by_folder else scratch.path_to_read(path), *args, **kwargs)

        return read

    return wrap


def _saving(scratch: ScratchFolder) -> Wrapper:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(obj, scratch.to_write(f, keeps_content=False), *args, **kwargs)

        return save

    return wrap
