"""Pointwise stages that run as one loop over memory, compiled by numba or tile by tile with NumPy.

In: source, stages and arguments of a kernel. Out: a function of arrays. Both forms round each operator alike, so that
fused and single stages agree bit for bit. Not here: writing the source (``kernel_source``), memory (``lower``).

Sums are added element by element in float64, so that a tensor that is worked on in pieces has the sum of the whole.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.measure.database import default_database_path
from windtunnel.systems.collectives.dropout import keep_mask, stays
from windtunnel.systems.collectives.layouts import numpy_dtype
from windtunnel.systems.collectives.program import Stage
from windtunnel.systems.collectives.reference import apply_pointwise
from windtunnel.systems.collectives.rules import REDUCTIONS

__all__ = ["Argument", "Kernel"]

Array = NDArray[Any]

_TILE = 8192  # elements that the form without a compiler works on at a time, so that they stay in the cache


@dataclass(frozen=True, slots=True)
class Argument:
    """An array that a kernel reads or writes.

    Attributes
    ----------
    name : str
        Of the memory, as the maker of the kernel calls it.
    symbol : str
        In the source.
    role : str
        ``range``: element i of the call's range is element i of the array. ``whole``: all of an operand that
        broadcasts. ``scalar``: one element. ``sum``: a float64 to which a sum is added.
    dtype : str
    """

    name: str
    symbol: str
    role: Literal["range", "whole", "scalar", "sum"]
    dtype: str


@dataclass(frozen=True)
class Kernel:
    """One loop over a range of elements.

    Attributes
    ----------
    name, source : str
    arguments : tuple of Argument
    stages : tuple of Stage
    dtypes : mapping of str to str
        Element types of the values of the stages.
    reads : mapping of str to str
        The memory of each value that comes from outside.
    writes : mapping of str to str
        The value that each memory holds afterwards.
    indices : mapping of str to str
        Expression of the element of each memory of role ``whole``, and of ``""``, its place in the full tensor.
    """

    name: str
    source: str
    arguments: tuple[Argument, ...]
    stages: tuple[Stage, ...] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=dict)
    writes: Mapping[str, str] = field(default_factory=dict)
    indices: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_compilable(self) -> bool:
        """Whether the compiler knows all element types; otherwise NumPy computes tile by tile."""
        return not {"float16", "bfloat16"} & {*self.dtypes.values(), *(item.dtype for item in self.arguments)}

    @property
    def function(self) -> Callable[..., None]:
        """The compiled loop ``f(first, base, *arrays)``; the same source is compiled once per process."""
        return _compile(self.name, self.source, tuple(item.dtype for item in self.arguments))

    def __call__(self, arrays: Sequence[Array], first: int = 0, base: int = 0, *, compiled: bool = True) -> None:
        """Work on one range.

        Parameters
        ----------
        arrays : sequence of arrays
            One-dimensional and contiguous, in the order of ``arguments``; those of role ``range`` are of one size.
        first : int
            The range's first element, counted in what the rank stores of the tensor.
        base : int
            ``kernel_source.place_of_rank``: where the rank's first element is in the full tensor.
        compiled : bool
            False computes the same with NumPy.
        """
        if compiled and self.is_compilable:
            self.function(first, base, *arrays)
            return
        if not self.stages:
            _execute(self.name, self.source)(first, base, *arrays)
            return
        sizes = [array.size for item, array in zip(self.arguments, arrays, strict=True) if item.role == "range"]
        size = sizes[0] if sizes else 1
        for start in range(0, size, _TILE):
            stop = min(start + _TILE, size)
            memory = {
                item.name: array[start:stop] if item.role == "range" else array
                for item, array in zip(self.arguments, arrays, strict=True)
            }
            self._interpret(memory, first + np.arange(start, stop), base)

    def _interpret(self, memory: Mapping[str, Array], local: Array, base: int) -> None:
        """Compute a tile stage by stage; ``local`` counts its elements in what the rank stores."""
        values: dict[str, Any] = {}
        roles = {item.name: item.role for item in self.arguments}
        for value, name in self.reads.items():
            if roles[name] == "whole":
                values[value] = memory[name][_evaluate(self.indices[name], local, base)]
            else:
                values[value] = memory[name][0] if roles[name] == "scalar" else memory[name].copy()
        for stage in self.stages:
            needed = stage.operands[1:] if stage.op == "update" else stage.operands
            operands: list[Any] = [values[item] if isinstance(item, str) else item for item in needed]
            if stage.op in REDUCTIONS:
                _add_terms(stage.op, operands[0], memory[stage.name])
            elif stage.op == "dropout":
                where = _evaluate(self.indices[""], local, base)
                values[stage.name] = _drop(stage, operands[0], where, *operands[1:])
            elif stage.op in ("cast", "update"):
                values[stage.name] = np.asarray(operands[0]).astype(numpy_dtype(self.dtypes[stage.name]))
            else:
                values[stage.name] = apply_pointwise(stage.op, operands, numpy_dtype(self.dtypes[stage.name]))
        for name, value in self.writes.items():
            memory[name][...] = values[value]


def _evaluate(expression: str, local: Array, base: int) -> Array:
    """An index expression of a kernel, for an array of local elements."""
    result = eval(expression, {"first": local, "i": 0, "base": base})  # noqa: S307 - made by kernel_source
    return np.asarray(result)


def _add_terms(op: str, values: Array, total: Array) -> None:
    """Add values, or their squares, one after the other, as the compiled loop does."""
    wide = np.asarray(values, dtype=np.float64).reshape(-1)
    terms = wide * wide if op == "sum_squares" else wide
    total[0] = np.cumsum(np.concatenate([total[:1], terms]))[-1]


def _drop(stage: Stage, values: Array, where: Array, step: float = 0.0) -> Array:
    probability = stage.setting("probability")
    scale = np.asarray(1 / (1 - probability), dtype=values.dtype)
    kept = keep_mask(stage.setting("seed"), where, probability, int(step))
    return np.where(kept, values * scale, np.zeros((), values.dtype))


@functools.lru_cache(maxsize=512)
def _execute(name: str, source: str) -> Callable[..., None]:
    """The function of a source, not compiled."""
    dtypes = ("float16", "float32", "float64", *(["bfloat16"] if "bfloat16" in source else []))
    scope: dict[str, Any] = {dtype: numpy_dtype(dtype).type for dtype in dtypes}
    scope.update(np=np, stays=stays)
    exec(compile(source, f"<kernel {name}>", "exec"), scope)  # noqa: S102 - made by kernel_source
    function: Callable[..., None] = scope[name]
    return function


@functools.lru_cache(maxsize=512)
def _compile(name: str, source: str, dtypes: tuple[str, ...]) -> Callable[..., None]:
    from numba import njit, types

    arrays = [getattr(types, dtype)[::1] for dtype in dtypes]
    signature = types.void(types.int64, types.int64, *arrays)
    # no fastmath: sums keep their order, products and sums are rounded one by one
    compiler = njit(signature, nogil=True, error_model="numpy", cache=True)
    result: Callable[..., None] = compiler(_import_from_file(name, source))
    return result


def _import_from_file(name: str, source: str) -> Callable[..., None]:
    """The function of a source in a file of its own: what was compiled of it is kept for other processes."""
    text = (
        f"import numpy as np\nfrom numpy import float16, float32, float64\n\nfrom {stays.__module__} import stays\n\n\n"
    )
    text += source
    digest = hashlib.sha256(f"{text}{inspect.getsource(stays.py_func)}".encode()).hexdigest()[:16]
    path = default_database_path().parent / "kernels" / f"windtunnel_{name}_{digest}.py"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # what the compiler keeps names the module
    spec.loader.exec_module(module)
    function: Callable[..., None] = getattr(module, name)
    return function
