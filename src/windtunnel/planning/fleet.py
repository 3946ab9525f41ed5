"""Devices by name (room planning): ``2xh100,1xcpu`` as device types, and a graph priced for each of them.

In: a list of catalogue names with counts. Out: ``DeviceType``s with their memory, one priced graph per type, and the
problem that they make. Not here: the catalogue, prices.
"""

from __future__ import annotations

import math
import re

from windtunnel.cost import price
from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.hardware import Device, device
from windtunnel.planning.from_graph import layers_of
from windtunnel.planning.minmax import DeviceType
from windtunnel.planning.problem import Problem

__all__ = ["fleet_of", "priced_for", "problem_on"]

_ENTRY = re.compile(r"(?:(\d+)x)?(.+)")
_MEASURED = ("here", "cpu")


def fleet_of(text: str, memory_bytes: float | None = None) -> tuple[tuple[DeviceType, ...], list[Device | None]]:
    """Device types of a list, with the chip of each; None where the graph's own durations count.

    ``here`` is an accelerator as fast as what was captured, ``cpu`` a host that runs it so without any transfer.

    Raises
    ------
    InputError
        An entry cannot be read, or a device is not in the catalogue.

    Examples
    --------
    >>> types, chips = fleet_of("2xh100,1xcpu")
    >>> [(one.name, one.count, one.comm_scale) for one in types]
    [('h100', 2, 1.0), ('cpu', 1, 0.0)]
    """
    types: list[DeviceType] = []
    chips: list[Device | None] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.fullmatch(entry)
        assert match is not None  # everything matches
        count, name = int(match[1] or 1), match[2]
        chip = None if name in _MEASURED else device(name)
        own = math.inf if chip is None else float(chip.memory_bytes)
        limit = math.inf if name == "cpu" else (own if memory_bytes is None else memory_bytes)
        types.append(DeviceType(name, count, limit, comm_scale=0.0 if name == "cpu" else 1.0))
        chips.append(chip)
    if not types:
        raise InputError("no devices are named", where="devices", fix="2xh100,1xcpu, or 4xhere as fast as captured")
    return tuple(types), chips


def priced_for(graph: Graph, chips: list[Device | None]) -> list[Graph]:
    """The graph once per chip; raises as ``price`` does."""
    return [graph if chip is None else price(graph, chip) for chip in chips]


def problem_on(graph: Graph, devices: str, bandwidth_bytes_per_s: float, memory_bytes: float | None = None) -> Problem:
    """The layers of a graph, to be placed on a list of devices; raises as ``fleet_of``, ``price``, ``layers_of`` do."""
    types, chips = fleet_of(devices, memory_bytes)
    return layers_of(priced_for(graph, chips), types, bandwidth_bytes_per_s).problem
