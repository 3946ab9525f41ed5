"""Cycles of a lane per element, by operator, forward and backward.

In: names of operators, as captured or short. Out: cycles per element; 0 for what only renames memory, 1 for what is
not in the table. Not here: lanes and rounds (``engine``).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

__all__ = ["cycles_per_element", "short_name"]

_FREE = frozenset(
    (
        *("view", "reshape", "_unsafe_view", "transpose", "permute", "t", "expand", "unsqueeze", "squeeze", "slice"),
        *("select", "split", "detach", "alias", "as_strided", "unbind", "chunk", "narrow", "contiguous", "embedding"),
    )
)
_ALIASES = {
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "native_layer_norm": "layer_norm",
    "native_batch_norm": "norm",
    "native_group_norm": "layer_norm",
    "native_dropout": "dropout",
    "threshold": "relu",
    "rsqrt": "sqrt",
    "reciprocal": "div",
    "exp": "softmax",
}
_BACKWARD = ("_backward_data", "_backward")


@cache
def _table() -> Mapping[str, tuple[float, float]]:
    text = (
        resources.files("windtunnel.systems.chips.accelerators")
        .joinpath("vector_cycles.csv")
        .read_text(encoding="utf-8")
    )
    rows = csv.DictReader(text.splitlines())
    return {row["operator"]: (float(row["forward"]), float(row["backward"])) for row in rows}


def short_name(operator: str) -> tuple[str, bool]:
    """The operator of the table that a captured name means, and whether it is its backward.

    Examples
    --------
    >>> short_name("aten::_softmax_backward_data"), short_name("aten::gelu.default"), short_name("add_")
    (('softmax', True), ('gelu', False), ('add', False))
    """
    name = operator.rpartition("::")[2].partition(".")[0]
    name = name.rstrip("_") if name.rstrip("_") else name
    is_backward = name.endswith(_BACKWARD)
    for end in _BACKWARD:
        name = name.removesuffix(end)
    return _ALIASES.get(name, name), is_backward


def cycles_per_element(operators: Sequence[str], *, is_backward: bool = False) -> NDArray[np.float64]:
    """Cycles of one lane for one element [V].

    Examples
    --------
    >>> cycles_per_element(["aten::tanh", "tanh_backward", "view", "aten::where"]).tolist()
    [27.0, 2.0, 0.0, 1.0]
    """
    result = []
    for operator in operators:
        name, backward = short_name(operator)
        forward = (0.0, 0.0) if name in _FREE else _table().get(name, (1.0, 1.0))
        result.append(forward[backward or is_backward])
    return np.array(result)
