"""What the categories of Kineto events mean, and which functions of the user's program were seen (sources, Kineto).

In: a `Trace`. Out: the category of every row; of events of category ``python_function``, which torch.profiler records
with ``with_stack`` (``FILE(NUMBER): FUNCTION``, where NUMBER is the first line of the function), and of the marks of
our own captures, with exact lines, those that are neither of Python nor of PyTorch, as ``FILE:NUMBER``. Names are
looked at once per distinct string, never per event.
"""

from __future__ import annotations

import re
import sys

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.kineto.trace import COMPLETE, Trace
from windtunnel.sources.timeline.events import MISSING, Category, Sparse
from windtunnel.sources.timeline.names import HOST_COLLECTIVE, STEP, matching

__all__ = ["find_categories", "find_frames", "is_program"]

_UNKNOWN = 255  # to be inferred from arguments and neighboring rows
_CATEGORIES = {
    "": _UNKNOWN,
    "user_annotation": Category.ANNOTATION,
    "cpu_op": Category.OPERATOR,
    "operator": Category.OPERATOR,
    "kernel": Category.KERNEL,
    "concurrent_kernel": Category.KERNEL,
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "memcpy", "memset"), Category.COPY),
    "cuda_sync": Category.SYNC,
    **dict.fromkeys(
        (
            *("gpu_user_annotation", "python_function", "overhead", "trace", "cpu_instant_event"),
            *("external_correlation", "cuda_profiler_range", "gpu_pm_counter", "mtia_insight", "critical_path"),
        ),
        Category.IGNORED,
    ),
}
_HOST_COLLECTIVE = HOST_COLLECTIVE.removeprefix("^")  # an annotation may have words before it
_MARK = "wt:line:"
_FRAME = re.compile(r"^(?P<file>.+)\((?P<number>\d+)\): ")
_LIBRARY = re.compile(
    r"(^|/)(torch|torchvision|torchaudio|torch_xla|triton|numpy|tqdm)/|^<|/lib/python[\d.]+/(?!.*packages/)"
    r"|(^|/)c[a-z2-7]{40,}\.py$"  # what torch.compile generated
)


def _category_of(text: str) -> int:
    name = text.lower()
    if name.endswith(("runtime", "driver")):
        return Category.CALL
    return _CATEGORIES.get(name, _UNKNOWN)


def find_categories(trace: Trace) -> NDArray[np.uint8]:
    """`Category` of every row [N]; an unknown one is inferred from its arguments and its neighbors on the thread."""
    category = np.array([_category_of(text) for text in trace.strings], np.uint8)[trace.cat]
    category[trace.letter != COMPLETE] = Category.NO_EVENT
    is_python = np.array([text == "python_function" for text in trace.strings])[trace.cat]
    category[is_python & matching(trace.strings, r"^nn\.Module: ")[trace.name]] = Category.MODULE
    # marks of our own captures: operators to the profiler
    is_mark = matching(trace.strings, "^wt:")[trace.name] & (trace.letter == COMPLETE)
    category[is_mark] = Category.ANNOTATION
    category[is_mark & matching(trace.strings, "^wt:module:")[trace.name]] = Category.MODULE
    is_collective = matching(trace.strings, _HOST_COLLECTIVE)[trace.name]
    category[(category == Category.ANNOTATION) & is_collective] = Category.OPERATOR
    # before there were annotations, profilers wrote the marks of steps as operators
    is_step = matching(trace.strings, STEP)[trace.name]
    category[((category == Category.OPERATOR) | (category == _UNKNOWN)) & is_step] = Category.ANNOTATION
    unknown = np.flatnonzero(category == _UNKNOWN)
    if len(unknown):
        stream = trace.argument("stream")[unknown]
        is_call = category == Category.CALL
        host_threads = np.unique(trace.thread[(category == Category.OPERATOR) | is_call])
        launched = np.isin(trace.correlation[unknown], trace.correlation[is_call])
        launched &= trace.correlation[unknown] != MISSING
        on_device = (stream != MISSING) | (launched & ~np.isin(trace.thread[unknown], host_threads))
        is_copy = matching(trace.strings, "(?i)memcpy|memset")[trace.cat[unknown]]
        device = np.where(is_copy, Category.COPY, Category.KERNEL)
        host = np.where(trace.correlation[unknown] != MISSING, Category.CALL, Category.OPERATOR)
        category[unknown] = np.where(on_device, device, host)
    return category


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
