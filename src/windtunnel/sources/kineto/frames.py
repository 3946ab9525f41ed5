"""Which functions of the user's program a Kineto trace saw (sources, Kineto).

In: events of category ``python_function``, which torch.profiler records with ``with_stack``: ``FILE(NUMBER):
FUNCTION``, where NUMBER is the first line of the function; and the marks of our own captures, with exact lines. Out:
those that are neither of Python nor of PyTorch, as ``FILE:NUMBER``.
"""

from __future__ import annotations

import re
import sys

import numpy as np

from windtunnel.sources.kineto.trace import COMPLETE, Trace
from windtunnel.sources.timeline.events import Sparse

__all__ = ["find_frames", "is_program"]

_MARK = "wt:line:"
_FRAME = re.compile(r"^(?P<file>.+)\((?P<number>\d+)\): ")
_LIBRARY = re.compile(
    r"(^|/)(torch|torchvision|torchaudio|torch_xla|triton|numpy|tqdm)/|^<|/lib/python[\d.]+/(?!.*packages/)"
    r"|(^|/)c[a-z2-7]{40,}\.py$"  # what torch.compile generated
)


def find_frames(trace: Trace) -> tuple[Sparse, tuple[str, ...]]:
    """Rows of the program's own functions with codes of their lines, and the lines."""
    is_python = np.array([text == "python_function" for text in trace.strings], bool)[trace.cat]
    is_mark = np.array([text.startswith(_MARK) for text in trace.strings], bool)[trace.name]
    rows = np.flatnonzero(is_python | (is_mark & (trace.letter == COMPLETE)))
    names = np.unique(trace.name[rows])
    lines: list[str] = []
    code = np.full(len(trace.strings), -1, np.int64)
    for name in names.tolist():
        text = trace.strings[name]
        match = _FRAME.match(text)
        if text.startswith(_MARK) and len(text) > len(_MARK):
            code[name] = len(lines)
            lines.append(text.removeprefix(_MARK))
            continue
        if match is not None and is_program(match["file"]):
            code[name] = len(lines)
            lines.append(f"{match['file']}:{match['number']}")
    rows = rows[code[trace.name[rows]] >= 0]
    return Sparse(rows.astype(np.int32), code[trace.name[rows]]), tuple(lines)


def is_program(file: str) -> bool:
    """Whether a file is of the program rather than of Python or of PyTorch.

    Examples
    --------
    >>> is_program("train.py"), is_program("torch/nn/functional.py"), is_program("threading.py")
    (True, False, False)
    """
    module = file.partition("/")[0].removesuffix(".py")
    return _LIBRARY.search(file) is None and module not in sys.stdlib_module_names
