# ruff: noqa: PTH109, PTH113, PTH120 - paths are texts here, as the interpreter hands them over
"""Files that a script writes while it is captured (room sources).

In: a script's text, or the script while it runs. Out: the lines that save files, before it runs; while it runs, the
files that it opens for writing, each with a word before an existing one is overwritten. Not here: keeping the files
away (``scratch``).
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["WRITE_FLAGS", "FileWrites", "UserFiles", "lines_that_save", "watch_writes"]

_SAVERS = {"save", "save_pretrained", "save_model", "save_file", "savez", "savetxt", "dump", "to_csv", "SummaryWriter"}
_WRITERS = {"write_text", "write_bytes"}
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_listeners: list[Callable[[str, tuple[Any, ...]], None]] = []


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
