"""Devices by name: ``2xh100,1xcpu`` as device types, and a graph priced for each of them.

In: a list of catalog names with counts, links between them, replicas. Out: ``DeviceType``s with their memory, one
priced graph per type, and the problem that they make. Not here: the catalog, prices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost import price
from windtunnel.cost.collective import SYNC_RATIOS
from windtunnel.cost.pricing import AUTO, comparable
from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.hardware import Device, device
from windtunnel.search.placement.from_graph import layers_of
from windtunnel.search.placement.model import Problem
from windtunnel.search.work import DeviceType
from windtunnel.units import parse_rate

__all__ = ["SyncRule", "fleet_of", "links_of", "price_for_chips", "problem_on", "with_replicas"]

SyncRule = Literal["pipedream", "ring"]

_ENTRY = re.compile(r"(?:(\d+)x)?(.+)")
_LINK = re.compile(r"([^:=]+):([^:=]+)=(.+)")
_MEASURED = ("here", "cpu")


def fleet_of(text: str, memory_bytes: float | None = None) -> tuple[tuple[DeviceType, ...], list[Device | None]]:
    """Device types of a list, with the chip of each; None where the graph's own durations count.

    ``here`` is an accelerator as fast as what was captured, ``cpu`` a host that runs it so without any transfer.

    Raises
    ------
    InputError
        An entry cannot be read, or a device is not in the catalog.

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


def price_for_chips(graph: Graph, chips: list[Device | None]) -> list[Graph]:
    """The graph once per chip; raises as ``price`` does."""
    model = comparable(AUTO, [chip for chip in chips if chip is not None])
    return [graph if chip is None else price(graph, chip, model) for chip in chips]


def problem_on(
    graph: Graph, devices: str, bandwidth_bytes_per_s: float, memory_bytes: float | None = None, links: str = ""
) -> Problem:
    """The layers of a graph, to be placed on a list of devices.

    Raises
    ------
    InputError
        As of ``fleet_of``, ``price``, ``layers_of`` and ``links_of``.
    """
    types, chips = fleet_of(devices, memory_bytes)
    factors = links_of(links, types, bandwidth_bytes_per_s)
    return layers_of(price_for_chips(graph, chips), types, bandwidth_bytes_per_s, link_scale=factors).problem


def links_of(text: str, types: Sequence[DeviceType], bandwidth_bytes_per_s: float) -> NDArray[np.float64] | None:
    """Factors on the cost of transfers between types, both ways, from bandwidths of some pairs; None for an empty list.

    Raises
    ------
    InputError
        An entry cannot be read, or names a type that is not there.

    Examples
    --------
    >>> types, _ = fleet_of("2xh100,2xa100")
    >>> links_of("h100:h100=64GB/s,h100:a100=8GB/s", types, 16e9)
    array([[0.25, 2.  ],
           [2.  , 1.  ]])
    """
    entries = [part.strip() for part in text.split(",") if part.strip()]
    if not entries:
        return None
    row_of = {type_.name: row for row, type_ in enumerate(types)}
    factors = np.ones((len(types), len(types)))
    for entry in entries:
        match = _LINK.fullmatch(entry)
        ends = [row_of.get(name) for name in match.groups()[:2]] if match else [None]
        if match is None or None in ends:
            known = ", ".join(row_of)
            raise InputError(f"{entry!r} is no link between {known}", where="links", fix="h100:a100=64GB/s")
        rate = parse_rate(match[3])
        if rate <= 0:
            raise InputError(f"a link of {match[3]}", where="links", fix="above 0")
        a, b = ends
        factors[a, b] = factors[b, a] = bandwidth_bytes_per_s / rate
    return factors


def with_replicas(
    problem: Problem, max_replicas: int, bandwidth_bytes_per_s: float, rule: SyncRule = "pipedream"
) -> Problem:
    """The same problem where a stage may run on several devices of a type, which take the samples in turn.

    In a training they agree on their weights once each has done a sample: each moves what a ring all-reduce does, once
    or by PipeDream's rule twice (``SYNC_RATIOS``), over the link between two devices of the type. CPUs share their
    memory.

    Raises
    ------
    InputError
        The rule is unknown, ``max_replicas`` is below one, or there is no bandwidth.
    """
    if rule not in SYNC_RATIOS:
        raise InputError(f"weights are not synchronized by {rule!r}", where="rule", fix=" or ".join(SYNC_RATIOS))
    if max_replicas < 1:
        raise InputError(f"{max_replicas} replicas", where="replicas", fix="one or more")
    if bandwidth_bytes_per_s <= 0:
        raise InputError(f"a bandwidth of {bandwidth_bytes_per_s:g}", where="bandwidth", fix="above 0")
    kinds = np.arange(len(problem.types))
    # ``DeviceType.agree_ns_per_byte`` has the rest of ``ring_ratio``
    per_byte = 2.0 * SYNC_RATIOS[rule] * 1e9 / bandwidth_bytes_per_s if problem.is_backward.any() else 0.0
    types = tuple(
        replace(type_, max_replicas=max_replicas, sync_ns_per_byte=per_byte * type_.comm_scale * float(link))
        for type_, link in zip(problem.types, problem.link(kinds, kinds), strict=True)
    )
    return replace(problem, types=types)
