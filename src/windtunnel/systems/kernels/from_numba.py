"""The LLVM IR of a numba function, as one function of pointers and numbers.

In: a Python function that numba compiles, and types of its arguments. Out: a module with one function, whose arguments
are one pointer per array and then the numbers: the extents of each array, in order, before what follows it. Lines of
the Python source stay with the instructions. Not here: running it (``run``).
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numba
import numpy as np
from numba import types

from windtunnel.errors import InputError
from windtunnel.systems.kernels.cases import Out, Value
from windtunnel.systems.kernels.compiling import optimize, read_module

config: Any = numba.core.config

__all__ = ["flatten_arguments", "module_of"]

NAME = "kernel"


@contextlib.contextmanager
def _disable_numba_optimizer() -> Iterator[None]:
    """Turn off numba's own optimizer."""
    kept = config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE
    config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE = type(kept[0])(0), 0, 0
    try:
        yield
    finally:
        config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE = kept


def flatten_arguments(values: Sequence[Value]) -> tuple[Value, ...]:
    """Arguments of the numba function as those of the module's: each array is followed by its extents."""
    flat: list[Value] = []
    for value in values:
        flat.append(value)
        if isinstance(value, np.ndarray | Out):
            flat += [int(extent) for extent in value.shape]
    return tuple(flat)


def module_of(
    function: Callable[..., Any], values: Sequence[Value], *, fastmath: bool = False, is_simplified: bool = True
) -> str:
    """Text of a module that does what numba makes of the function for arguments like these.

    Parameters
    ----------
    function : callable
        Plain, or decorated with ``numba.njit``; it returns nothing and writes into its arrays.
    values : sequence
        Arguments of the types that it is called with: arrays in C order, ``Out``, whole numbers, floats.
    fastmath : bool
    is_simplified : bool
        Whether everything is done that leaves loops as they are written; else nothing is.

    Raises
    ------
    InputError
        It needs Python, returns something, or has an argument of another type.
    """
    plain = getattr(function, "py_func", function)
    name = getattr(plain, "__name__", "kernel")
    signature = tuple(_type_of(value, f"argument {index + 1} of {name}") for index, value in enumerate(values))
    jitted = numba.njit(error_model="numpy", boundscheck=False, fastmath=fastmath, debug=True)(plain)
    try:
        with _disable_numba_optimizer(), warnings.catch_warnings():
            warnings.simplefilter("ignore", numba.core.errors.NumbaDebugInfoWarning)  # then there are no lines
            jitted.compile(signature)
    except numba.core.errors.NumbaError as error:
        reported = str(error).strip().splitlines()
        raise InputError(f"numba cannot compile it: {reported[0] if reported else error}", where=name,
                         fix="a kernel uses arrays, numbers and math only") from error  # fmt: skip
    created: Any = jitted.overloads[jitted.signatures[0]]
    if created.signature.return_type is not types.none:
        raise InputError(f"it returns {created.signature.return_type}", where=name,
                         fix="write the result into an array that is an argument")  # fmt: skip
    text = created.library.get_llvm_str()
    own = created.fndesc.llvm_func_name
    text = re.sub(r"^define (?:linkonce_odr |internal )?", "define internal ", text, flags=re.MULTILINE)
    whole = _without_marks(text) + _entry(own, signature)
    if not is_simplified:
        return whole
    module = read_module(whole)
    optimize(module, is_widened=False)
    return _alone(str(module))


def _without_marks(text: str) -> str:
    """Functions may be inlined and thrown away."""
    text = re.sub(r"\b(noinline|optnone)\b ?", "", text)
    text = re.sub(r"^attributes (#\d+) = \{ *\}$", r"attributes \1 = { nounwind }", text, flags=re.MULTILINE)
    return re.sub(r"^@llvm\.(compiler\.)?used = .*$", "", text, flags=re.MULTILINE)


def _type_of(value: Value, where: str) -> Any:
    if isinstance(value, Out):
        return types.Array(numba.from_dtype(np.dtype(value.dtype)), len(value.shape), "C")
    if isinstance(value, np.ndarray) and value.flags.c_contiguous:
        return types.Array(numba.from_dtype(value.dtype), value.ndim, "C")
    number: Any = value
    if isinstance(number, int | np.integer) and not isinstance(number, bool):
        return types.int64
    if isinstance(number, float | np.floating):
        return types.float32 if isinstance(number, np.float32) else types.float64
    raise InputError(f"a kernel cannot take {type(value).__name__}", where=where,
                     fix="arrays in C order, whole numbers and floats")  # fmt: skip


def _entry(own: str, signature: Sequence[Any]) -> str:
    """A function of pointers and numbers that calls numba's with its structures of arrays."""
    parameters, lines, passed = [], [], ["ptr %.ret", "ptr %.exc"]
    for index, kind in enumerate(signature):
        if not isinstance(kind, types.Array):
            typed = {types.int64: "i64", types.float32: "float", types.float64: "double"}[kind]
            parameters.append(f"{typed} %v{index}")
            passed.append(f"{typed} %v{index}")
            continue
        size = int(np.dtype(str(kind.dtype)).itemsize)
        parameters.append(f"ptr %p{index}")
        extents = [f"%n{index}.{dim}" for dim in range(kind.ndim)]
        parameters += [f"i64 {extent}" for extent in extents]
        strides, last = [str(size)], str(size)
        for dim in range(kind.ndim - 1, 0, -1):
            lines.append(f"  %s{index}.{dim} = mul nsw i64 {last}, {extents[dim]}")
            last = f"%s{index}.{dim}"
            strides.insert(0, last)
        count = "1"
        for dim, extent in enumerate(extents):
            lines.append(f"  %c{index}.{dim} = mul nsw i64 {count}, {extent}")
            count = f"%c{index}.{dim}"
        passed += ["ptr null", "ptr null", f"i64 {count}", f"i64 {size}", f"ptr %p{index}"]
        passed += [f"i64 {item}" for item in (*extents, *strides)]
    body = "\n".join(lines)
    return (f"\ndefine void @{NAME}({', '.join(parameters)}) {{\n  %.ret = alloca ptr\n  %.exc = alloca ptr\n{body}\n"
            f"  %.code = call i32 @{own}({', '.join(passed)})\n  ret void\n}}\n")  # fmt: skip


def _alone(text: str) -> str:
    """The module without globals that nothing of the function uses."""
    lines = text.splitlines()
    body = text[text.index("\ndefine ") :]
    return "\n".join(line for line in lines if not (line.startswith("@") and line.split(" ")[0] not in body)) + "\n"
