"""What the thread of a GPU's host needs to call operators, for graphs that were never run.

In: a graph whose tasks take no time. Out: nanoseconds of each task on the thread: calling an operator and launching its
kernel, as timed on the host of an H200 (16 cores of an Intel Xeon, PyTorch 2.11); calls that launch nothing, Python
between operators. Not here: other hosts (``--host-factor``), what a capture measured of its own host.

The times of operators are those of calls in a row whose kernel took less than half of the call. What the rest takes was
chosen so that eight recorded steps that wait for their host came out right in the median.
"""

from __future__ import annotations

import csv
import functools
import json
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.operators.facts import plain_name
from windtunnel.graph import Graph, Kind

__all__ = ["HOST_TABLE", "host_times_ns"]

HOST_TABLE = "host table"
"""Who priced tasks whose time comes from here, as ``cost_source`` says."""
_FILE = "host_times.csv"
PYTHON_NS = 12_000.0
"""Python between two operators: a module's call, an optimizer's loop."""
CALL_NS = 1_500.0
"""A call that launches nothing: a view, a reshape, a node of the backward pass."""
TENSOR_NS = 1_500.0
"""A tensor of a list that one kernel works on."""
OTHER_NS = 10_000.0
"""An operator that was not timed."""


def host_times_ns(graph: Graph) -> NDArray[np.float64]:
    """Time of each task on the thread that calls it [T]: of operators with work the call and the launch."""
    names = graph.tasks.strings("op" if "op" in graph.tasks else "name")
    table = _table()
    by_name = np.array([_call_ns(name, table) for name in names.values] or [0.0])
    launches = np.array([table.get(_name_in_table(name), OTHER_NS) for name in names.values] or [0.0])
    computes = graph.select(kind=Kind.COMPUTE)
    times = np.where(computes, launches[names.codes], by_name[names.codes])
    is_list = np.flatnonzero(computes & np.array(["_foreach" in name for name in names.values] or [False])[names.codes])
    if len(is_list) and "input_shapes" in graph.tasks:
        shapes = graph.tasks.strings("input_shapes").take(is_list).to_numpy()
        times[is_list] += [TENSOR_NS * len(json.loads(text)[0]) for text in shapes.tolist()]
    return times


def _name_in_table(name: str) -> str:
    """Attention of all implementations has one."""
    plain = plain_name(name)
    if plain.startswith("scaled_dot_product"):
        is_backward = plain.endswith("backward")
        return "scaled_dot_product_flash_attention_backward" if is_backward else "scaled_dot_product_attention"
    return plain


def _call_ns(name: str, table: dict[str, float]) -> float:
    """Of a task that launches nothing."""
    if name == "python":
        return PYTHON_NS
    is_call = name.startswith(("aten::", "torch::")) or name.endswith("Backward0")
    return CALL_NS if is_call or plain_name(name) in table else 0.0


@functools.cache
def _table() -> dict[str, float]:
    text = resources.files("windtunnel.cost").joinpath(_FILE).read_text(encoding="utf-8")
    return {row["operator"]: float(row["host_ns"]) for row in csv.DictReader(text.splitlines())}
