"""See which files a script writes, and keep them away from the user's (room sources).

In: a script's text, or the script while it runs, and a folder. Out: the lines that save files, before it runs; while it
runs, the files that it opens for writing, each with a word before an existing one is overwritten; or a context in which
what Python, ``torch.save`` and ``shutil`` write, rename or remove lies below that folder, at the path it would have
had; what was written there is what is read back, all else is read where it is. Devices and temporary files stay as they
are, unless the script itself works in the temporary folder. What a library in another language opens by itself is not
caught, and folders are listed as they are without the written files.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "WRITE_FLAGS",
    "FileWrites",
    "ScratchFolder",
    "UserFiles",
    "files_kept_away",
    "lines_that_save",
    "watch_writes",
    "writes_below",
]

# ruff: noqa: PTH109, PTH113, PTH120 - paths are texts here, as the interpreter hands them over


_SAVERS = {"save", "save_pretrained", "save_model", "save_file", "savez", "savetxt", "dump", "to_csv", "SummaryWriter"}
_WRITERS = {"write_text", "write_bytes"}
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_listeners: list[Callable[[str, tuple[Any, ...]], None]] = []
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def lines_that_save(script: Path) -> list[tuple[int, str]]:
    r"""Line and call of what looks as if it wrote a file, as far as reading the script can tell.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "train.py"
    >>> _ = path.write_text("import torch\ntorch.save({}, 'a.pt')\nopen('log.txt', 'a')\nopen('data.txt')\n")
    >>> lines_that_save(path)
    [(2, 'torch.save'), (3, 'open')]
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []  # what is wrong with it is said where it is run
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted({(call.lineno, ast.unparse(call.func)) for call in calls if _saves(call)})


def _saves(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "open":
        arguments = [*call.args[:2], *(word.value for word in call.keywords if word.arg == "mode")]
        modes = [
            argument.value
            for argument in arguments
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        ]
        return any(0 < len(mode) <= 3 and set(mode) <= set("wax+bt") and set(mode) & set("wax+") for mode in modes)
    return name in _SAVERS | _WRITERS


class UserFiles:
    """Which paths may be the user's own: not devices, temporary files or packages, unless the script lies there.

    Parameters
    ----------
    script : Path
        All in its folder, and in the current one, is the user's.
    """

    def __init__(self, script: Path) -> None:
        self._own = tuple(f"{path}{os.sep}" for path in (os.getcwd(), os.path.dirname(os.path.realpath(script))))
        elsewhere = ("/dev", "/proc", "/sys", tempfile.gettempdir(), sysconfig.get_path("purelib"))
        self._others = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in elsewhere)

    def __contains__(self, full: str) -> bool:
        as_folder = f"{full}{os.sep}"
        return "__pycache__" not in full and (as_folder.startswith(self._own) or not as_folder.startswith(self._others))


class FileWrites:
    """What a script opened for writing, in order; ``on_overwrite`` hears of each existing file before it is opened."""

    def __init__(self, script: Path, on_overwrite: Callable[[Path], None] | None = None) -> None:
        self.created: list[Path] = []
        self.overwritten: list[Path] = []
        self._on_overwrite = on_overwrite
        self._seen: set[str] = set()
        self._home = (os.getpid(), threading.get_ident())
        self._user_files = UserFiles(script)

    def note(self, path: Any) -> None:
        """A file is about to be opened for writing."""
        if (os.getpid(), threading.get_ident()) != self._home or not isinstance(path, str | bytes | os.PathLike):
            return
        full = os.path.realpath(os.fsdecode(path))
        if full in self._seen or full not in self._user_files:
            return
        self._seen.add(full)
        if os.path.isfile(full):
            self.overwritten.append(Path(full))
            if self._on_overwrite is not None:
                self._on_overwrite(Path(full))
        else:
            self.created.append(Path(full))

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event of the interpreter."""
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITE_FLAGS:
            self.note(arguments[0])
        elif event == "os.rename":
            self.note(arguments[1])


@contextmanager
def watch_writes(writes: FileWrites) -> Iterator[FileWrites]:
    """Watch what is opened for writing in the block, by Python and by ``torch.save``, which opens files itself."""
    import torch

    if not hasattr(watch_writes, "is_hooked"):
        sys.addaudithook(_tell)  # it can never be removed, so there is one for all
        watch_writes.is_hooked = True  # type: ignore[attr-defined]
    original = torch.save

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        writes.note(f)
        return original(obj, f, *args, **kwargs)

    torch.save = save
    _listeners.append(writes.hear)
    try:
        yield writes
    finally:
        _listeners.remove(writes.hear)
        torch.save = original


def _tell(event: str, arguments: tuple[Any, ...]) -> None:
    if _listeners and event in ("open", "os.rename"):
        for listener in _listeners:
            listener(event, arguments)


# ruff: noqa: PTH100, PTH112, PTH113, PTH118, PTH120 - pathlib goes through the very functions that are replaced here


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
