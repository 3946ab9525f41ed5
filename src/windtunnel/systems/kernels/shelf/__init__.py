"""Kernels that are at hand: loops as one would write them, with inputs to search on and to judge by.

In: a name. Out: a ``Kernel``. Not here: how a function of numba becomes one (``from_numba``).
Source of the definitions: the Rodinia suite, and layers of networks as naive loops.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.errors import InputError
from windtunnel.systems.kernels.cases import FITNESS, Case, Cases, Value
from windtunnel.systems.kernels.from_numba import flatten_arguments, module_of
from windtunnel.systems.kernels.ir import parse
from windtunnel.systems.kernels.model import Kernel
from windtunnel.systems.kernels.shelf import dense, distances, layers, stencils, tables

__all__ = ["NAMES", "kernel_from", "shelf_entry", "shelf_kernel"]

Inputs = Callable[[str], dict[str, tuple[Value, ...]]]
"""Arguments by the name of a case, for a split."""


@dataclass(frozen=True)
class Entry:
    """A function, and what it is tried on."""

    function: Callable[..., None]
    inputs: Inputs


_SHELF = {
    "hotspot": Entry(stencils.hotspot, stencils.hotspot_inputs),
    "srad": Entry(stencils.srad, stencils.srad_inputs),
    "conv3x3": Entry(stencils.conv3x3, stencils.conv3x3_inputs),
    "nw": Entry(tables.nw, tables.nw_inputs),
    "pathfinder": Entry(tables.pathfinder, tables.pathfinder_inputs),
    "lud": Entry(dense.lud, dense.lud_inputs),
    "backprop": Entry(dense.backprop, dense.backprop_inputs),
    "nn": Entry(distances.nn, distances.nn_inputs),
    "kmeans": Entry(distances.kmeans, distances.kmeans_inputs),
    "svm-rbf": Entry(distances.svm_rbf, distances.svm_rbf_inputs),
    "layernorm": Entry(layers.layernorm, layers.layernorm_inputs),
    "softmax": Entry(layers.softmax, layers.softmax_inputs),
    "cross-entropy": Entry(layers.cross_entropy, layers.cross_entropy_inputs),
}
NAMES = tuple(_SHELF)


def shelf_kernel(name: str) -> Kernel:
    """The kernel of a name.

    Raises
    ------
    InputError
        There is none of that name.
    """
    entry = shelf_entry(name)
    return kernel_from(entry.function, entry.inputs, name)


def shelf_entry(name: str) -> Entry:
    """The Python function of a name, and its arguments.

    Raises
    ------
    InputError
        There is none of that name.
    """
    if name not in _SHELF:
        raise InputError(f"there is no kernel {name!r}", fix=f"there are {', '.join(NAMES)}, or give a .ll or .py file")
    return _SHELF[name]


def kernel_from(function: Callable[..., Any], inputs: Inputs, name: str = "") -> Kernel:
    """A kernel from a function that numba compiles.

    Raises
    ------
    InputError
        Numba cannot compile it, or it calls what a kernel may not call.
    """
    first = next(iter(inputs(FITNESS).values()))
    plain = getattr(function, "py_func", function)
    text = module_of(function, first)
    raw = module_of(function, first, is_simplified=False)
    return Kernel(name or plain.__name__, parse(text), _flat(inputs), raw, Path(inspect.getfile(plain)).name)


def _flat(inputs: Inputs) -> Cases:
    def cases(split: str) -> Sequence[Case]:
        return [Case(f"{split} {name}", flatten_arguments(values)) for name, values in inputs(split).items()]

    return cases
