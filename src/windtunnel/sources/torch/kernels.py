"""Kernels that a compiler has generated for the CPU, by name in the profile.

In: the Python modules that Inductor has written and loaded, warm from its cache or new. Out: while marks are on, an
event around every call of a kernel, with its tensors; what such an event reads, writes and computes. Nothing is
compiled anew, and without marks a kernel is called as before. Kernels on a GPU are in every profile by themselves.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from windtunnel.sources.torch.ops import Operator, Role, Span, describe, spans_of, text_of
from windtunnel.sources.torch.profile import annotate
from windtunnel.sources.torch.timeline_points import Points

__all__ = ["COMPILED", "KERNEL", "KernelMarks", "describe_event", "describe_kernel", "kernel_name", "opaque_events"]

KERNEL = "wt:kernel:"
COMPILED = "## Call CompiledFxGraph"  # torch's own event around a call of generated code
_DEFINITION = re.compile(
    r"^(?P<name>\w+) = async_compile\.cpp_pybinding\(.*?\bkernel\((?P<parameters>[^)]*)\)", re.MULTILINE | re.DOTALL
)
# how the generated code names the pointers that it is given
_ACCESS = (("in_out_ptr", "b"), ("in_ptr", "r"), ("out_ptr", "w"))
# in a kernel's name, after what it is for: what only changes form or lays out
_NO_WORK = frozenset({"clone", "copy", "expand", "permute", "slice", "squeeze", "t", "transpose", "unsqueeze", "view"})
_PREFIX = re.compile(r"^(cpp|triton_[a-z]+)_fused_")


class KernelMarks:
    """Puts an event around every call of a generated kernel while it is on."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def on(self) -> None:
        """Mark every kernel that is loaded by now."""
        if self._undo or "torch._inductor.codecache" not in sys.modules:
            return
        for module in _list_generated_modules():
            for name, access in _accesses(str(module.__file__)).items():
                kernel = vars(module).get(name)
                if callable(kernel):
                    setattr(module, name, _annotate_kernel(f"{KERNEL}{name}:{access}", kernel))
                    self._undo.append(functools.partial(setattr, module, name, kernel))

    def off(self) -> None:
        """Call every kernel as before."""
        for undo in self._undo:
            undo()
        self._undo = []


def _list_generated_modules() -> list[Any]:
    from torch._inductor.codecache import PyCodeCache

    modules = {id(module): module for module in PyCodeCache.modules}
    return [module for module in modules.values() if getattr(module, "__file__", None)]


@functools.lru_cache(maxsize=1024)
def _accesses(path: str) -> Mapping[str, str]:
    """What every kernel of a generated file does with each of its arguments."""
    try:
        source = Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return {}
    return kernel_accesses(source)


def kernel_accesses(source: str) -> dict[str, str]:
    r"""Per kernel one letter for every argument: it is read, written, both, or is no tensor (-).

    Examples
    --------
    >>> kernel_accesses("cpp_fused_add_0 = async_compile.cpp_pybinding(['float*', 'const float*', 'float*'], r'''\n"
    ...                 "void  kernel(float* in_out_ptr0, const float* in_ptr0, float* out_ptr1, const int64_t ks0)")
    {'cpp_fused_add_0': 'brw-'}
    """
    return {
        result["name"]: "".join(_access(parameter) for parameter in result["parameters"].split(","))
        for result in _DEFINITION.finditer(source)
    }


def _access(parameter: str) -> str:
    return next((letter for name, letter in _ACCESS if name in parameter), "-")


def _annotate_kernel(label: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with annotate(label, [value for value in args if isinstance(value, torch.Tensor)]):
            return kernel(*args)

    return call


def kernel_name(name: str) -> str:
    """The name of a kernel as its task has it; any other name as it is."""
    return name.removeprefix(KERNEL).rpartition(":")[0] if name.startswith(KERNEL) else name


def describe_event(node: dict[str, Any] | None) -> Operator:
    """What an event of an execution trace does, an operator or a marked kernel."""
    return describe_kernel(node) if node is not None and node["name"].startswith(KERNEL) else describe(node)


def opaque_events(names: list[str], points: Points, operators: list[Operator]) -> frozenset[int]:
    """Calls of generated code that show none of their kernels: the call itself is all that is known."""
    shows = {int(parent) for event, parent in enumerate(points.parent) if operators[event].role is Role.COMPUTE}
    return frozenset(event for event, name in enumerate(names) if name.startswith(COMPILED) and event not in shows)


def describe_kernel(node: Mapping[str, Any]) -> Operator:
    """What a marked kernel does, from its event in an execution trace."""
    inputs = node["inputs"]
    letters = [letter for letter in node["name"].rpartition(":")[2] if letter != "-"]
    strides = inputs.get("strides", [])
    spans = [
        spans_of(value, inputs["shapes"][row], strides[row] if row < len(strides) else None)
        for row, value in enumerate(inputs["values"])
    ]
    rows = list(zip(letters, spans, strict=False))
    return Operator(
        role=Role.COMPUTE,
        reads=tuple(_of(rows, "rb")),
        mutates=tuple(_of(rows, "wb")),
        shapes=text_of(inputs["shapes"]),
        dtypes=text_of(inputs["types"]),
        strides=text_of(strides),
        flops=_num_steps(node["name"]) * max((_num_elements(shape) for shape in inputs["shapes"]), default=0),
    )


def _of(rows: list[tuple[str, list[Span]]], letters: str) -> Iterator[Span]:
    return (span for letter, spans in rows if letter in letters for span in spans)


def _num_steps(name: str) -> int:
    """Operators that were fused into a kernel, by its name: an element goes through each once."""
    words = _PREFIX.sub("", kernel_name(name)).split("_")
    return max(1, sum(word not in _NO_WORK and not word.isdigit() and word != "" for word in words))


def _num_elements(shape: Any) -> int:
    count = 1
    for size in shape if isinstance(shape, list) else ():
        count *= size if isinstance(size, int) else 1
    return count
