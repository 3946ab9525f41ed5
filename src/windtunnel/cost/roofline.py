"""Price work by what it computes and what it moves (room cost, cost model "roofline").

In: a graph whose tasks say their flops and bytes, and a device. Out: durations that no such device can beat. Good for
"which chip", too hopeful for "how long": nothing here knows launches, caches or the shape of a matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.bounds import Bounds, bounds_on
from windtunnel.errors import PriceError
from windtunnel.graph import Graph, Kind
from windtunnel.hardware import Device, Machine

__all__ = ["price", "roofline", "roofline_ns"]


def roofline_ns(device: Device, flops: int, bytes_moved: int, dtype: str = "fp32") -> int:
    """The time that computing or moving takes, whichever is longer.

    Raises
    ------
    InputError
        The device has no peak rate for the type.

    Examples
    --------
    >>> chip = Device("toy", 2**30, bandwidth_bytes_per_s=1e9, peak_flops_per_s={"fp32": 1e12})
    >>> roofline_ns(chip, flops=5_000_000, bytes_moved=1_000)
    5000
    >>> roofline_ns(chip, flops=5_000_000, bytes_moved=8_000)
    8000
    """
    if not flops:
        return round(1e9 * bytes_moved / device.bandwidth_bytes_per_s)
    return round(float(_plain(device, np.array([flops]), np.array([bytes_moved]), dtype).bound_ns[0]))


def price(graph: Graph, machine: Machine | Device, model: str = "roofline") -> Graph:
    """Set the durations of the tasks that compute as they would be on a machine.

    Parameters
    ----------
    graph : Graph
    machine : Machine or Device
        Of a machine, its first device.
    model : str
        A registered cost model.

    Returns
    -------
    Graph
        ``cost_source`` says which tasks the model priced.

    Raises
    ------
    PriceError
        The model has no price for these tasks, or the machine has no device.
    """
    priced: Graph = registry.get("cost_model", model).function(graph, machine)
    return priced


@registry.cost_model("roofline", source="Williams, Waterman and Patterson, Roofline, CACM 2009")
def roofline(graph: Graph, machine: Machine | Device, dtype: str = "fp32") -> Graph:
    """Price tasks by the flops and bytes that they state.

    Raises
    ------
    PriceError
        No task that computes states either; lists operators.
    InputError
        The device has no peak rate for the type.
    """
    device = _device(machine)
    flops, moved = _column(graph, "flops"), _column(graph, "bytes_read") + _column(graph, "bytes_written")
    computes = graph.select(kind=Kind.COMPUTE)
    known = computes & ((flops > 0) | (moved > 0))
    if not known.any():
        raise PriceError(
            f"none of {int(computes.sum())} tasks that compute states its flops or bytes",
            where=_operators(graph, computes),
        )
    took = _plain(device, flops[known], moved[known], dtype).bound_ns
    return graph.set_duration(known, np.rint(took).astype(np.int64), cost_source="roofline")


def _plain(device: Device, flops: NDArray[Any], moved: NDArray[Any], dtype: str) -> Bounds:
    return bounds_on(device, flops, moved, dtype=dtype, overhead_ns=0.0, is_cached=False)


def _device(machine: Machine | Device) -> Device:
    if isinstance(machine, Device):
        return machine
    if not machine.devices:
        raise PriceError(f"{machine.name} has no device to price for", fix="name a device of the catalogue")
    return machine.devices[0]


def _column(graph: Graph, name: str) -> NDArray[np.float64]:
    column = graph.tasks.get(name)
    return np.zeros(graph.num_tasks) if column is None else column.astype(np.float64)


def _operators(graph: Graph, mask: NDArray[np.bool_]) -> str:
    names = graph.tasks.strings("op" if "op" in graph.tasks else "name").to_numpy()[mask]
    return ", ".join(sorted(set(names.tolist()))[:5])
