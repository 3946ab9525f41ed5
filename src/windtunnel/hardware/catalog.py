"""The catalog: chips, links and machines by name.

In: CSV files in this folder, each row with its source. Out: ``Device``, ``Link`` and ``Machine`` values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from windtunnel.errors import InputError
from windtunnel.hardware.accelerator_sheet import accelerators
from windtunnel.hardware.accelerators import is_template_name, parse_template
from windtunnel.hardware.host import matching, this_host
from windtunnel.hardware.parts import Device, Link, Topology
from windtunnel.hardware.rows import rows_of
from windtunnel.hardware.sheet import device_of_row, read_link, read_sheet
from windtunnel.hardware.systems import Instance, Machine, Target

__all__ = [
    "THIS_HOST",
    "bandwidth_ratio",
    "device",
    "devices",
    "efficiency_ratios",
    "instance",
    "instances",
    "link",
    "links",
    "machine",
    "machines",
    "recognize",
    "target",
    "topology",
]

THIS_HOST = "this host"
_GIB = 2**30

Value = TypeVar("Value")


@cache
def devices() -> Mapping[str, Device]:
    """Every chip of the catalog by name."""
    return {row["name"]: device_of_row(row) for row in rows_of("devices.csv")}


@cache
def _aliases() -> Mapping[str, str]:
    """Short names, such as ``h100``, and names that published tables use."""
    return {alias: row["name"] for row in rows_of("devices.csv") for alias in row["aliases"].split()}


@cache
def links() -> Mapping[str, Link]:
    """Every link of the catalog by name."""
    return {
        row["name"]: Link(
            name=row["name"],
            bandwidth_bytes_per_s=float(row["bandwidth_gb_per_s"]) * 1e9,
            latency_ns=round(float(row["latency_us"]) * 1000),
            is_duplex=row["is_duplex"] == "yes",
            source=row["source"],
        )
        for row in rows_of("links.csv")
    }


@cache
def machines() -> Mapping[str, Machine]:
    """Every machine of the catalog by name."""
    return {row["name"]: _machine(row) for row in rows_of("machines.csv")}


@cache
def instances() -> Mapping[str, Instance]:
    """Every machine of the catalog that can be rented, by name."""
    return {row["name"]: _instance(row) for row in rows_of("instances.csv")}


def instance(name: str) -> Instance:
    """Find a machine that can be rented.

    Raises
    ------
    InputError
        None has this name; the nearest three are offered.

    Examples
    --------
    >>> print(instance("g5.xlarge"))
    g5.xlarge, 1x a10g, 1.01 USD per h
    """
    return _find("instance", name, instances())


def _instance(row: dict[str, str]) -> Instance:
    return Instance(
        name=row["name"],
        device=device(row["device"]),
        num_devices=int(row["num_devices"]),
        num_vcpus=int(row["num_vcpus"]),
        memory_bytes=int(row["memory_gib"]) * _GIB,
        device_link=link(row["device_link"]) if row["device_link"] else None,
        network_bytes_per_s=float(row["network_gbit_per_s"]) * 1e9 / 8,
        price_usd_per_h=float(row["price_usd_per_h"]),
        price_date=row["price_date"],
        source=row["source"],
    )


def _machine(row: dict[str, str]) -> Machine:
    return Machine(
        name=row["name"],
        cpu_name=row["cpu_name"],
        num_cores=int(row["num_cores"]),
        num_threads=int(row["num_threads"]),
        memory_bytes=int(row["memory_gib"]) * _GIB,
        devices=(device(row["device"]),) * int(row["num_devices"]),
        host_link=link(row["host_link"]),
        device_link=link(row["device_link"]),
        network_link=link(row["network_link"]),
        source=row["source"],
    )


def _find(kind: str, name: str, known: Mapping[str, Value]) -> Value:
    if name in known:
        return known[name]
    parts = [key for key in known if name.lower() in key]
    near = parts or sorted({*known, *(alias for alias, key in _aliases().items() if key in known)},
                           key=lambda key: (*_distance(name.lower(), key), key))  # fmt: skip
    raise InputError(f"no {kind} is called {name!r}", where="catalog", fix=f"did you mean {', '.join(near[:3])}?")


def _distance(name: str, key: str) -> tuple[int, bool]:
    """How many characters have to be changed, added or removed, and whether the first differs."""
    # row i of the table of Wagner and Fischer: name[:i] to every beginning of key
    row = list(range(len(key) + 1))
    for i, char in enumerate(name, 1):
        changed = [i]
        for j, other in enumerate(key):
            changed.append(min(row[j] + (char != other), row[j + 1] + 1, changed[j] + 1))
        row = changed
    return row[-1], name[:1] != key[:1]


def device(name: str) -> Device:
    """Find a chip by its name, by a short name, or in a sheet of one's own.

    Parameters
    ----------
    name : str
        Such as ``h100-pcie-80g`` or ``h100``; ``tpu-v4-like`` or a template that is spelled out, which say what they
        are built of; a name that ends in ``.json`` is the path of a sheet.

    Raises
    ------
    InputError
        No chip has this name; the nearest three are offered. Or the sheet lacks fields, which are listed.

    Examples
    --------
    >>> device("t4").flops_per_s("fp16")
    65000000000000.0
    >>> device("h100").name
    'h100-sxm5-80g'
    """
    if name.endswith(".json"):
        return read_sheet(Path(name))
    if is_template_name(name):
        return parse_template(name)
    return _find("device", _aliases().get(name.lower(), name), {**devices(), **accelerators()})


def target(name: str) -> Target:
    """Find a device, several equal ones, or all of a machine.

    Parameters
    ----------
    name : str
        Such as ``h100``, ``8xh100`` or ``dgx-h100``.

    Raises
    ------
    InputError
        No device and no machine has this name; the nearest three are offered. Or there are 0 of them.

    Examples
    --------
    >>> str(target("8xh100")), target("8xh100").machine.name
    ('8x h100-sxm5-80g', 'dgx-h100')
    """
    if name in machines():
        result = machines()[name]
        return Target(name, result.devices[0], len(result.devices), result)
    several = re.fullmatch(r"(\d+)\s*x\s*(.+)", name, re.IGNORECASE)
    if several is None:
        return Target(name, device(name))
    chip, count = device(several[2]), int(several[1])
    if count < 1:
        raise InputError(f"{name} is no device", where="catalog", fix=f"name one or more: 8x{several[2]}")
    alike = [machine_ for machine_ in machines().values() if machine_.devices == (chip,) * count]
    return Target(name, chip, count, alike[0] if alike else None)


def recognize(name: str, memory_bytes: int) -> Device | None:
    """Find the chip that a driver or a trace calls ``name``, by its memory among variants; None if it is not known.

    Examples
    --------
    >>> recognize("Tesla V100-SXM2-32GB", 34_079_637_504).name
    'v100-sxm2-32g'
    """
    return matching(name, memory_bytes, devices())


@cache
def _read_achieved_ratios() -> list[tuple[Device, str, float]]:
    """Chip, class of operator, share of the peak, as published."""
    return [
        (chip := device(row["device"]), row["class"], 1e12 * float(row["tflops"]) / chip.flops_per_s(row["dtype"]))
        for row in rows_of("achieved.csv")
        if row["tflops"]
    ]


def efficiency_ratios(chip: Device) -> dict[tuple[str, str], float]:
    """The share of its peak that the best kernels were measured to reach, by class of operator and type.

    Of the chip itself where that was published, else the mean over chips of its architecture; 16 bits are 16 bits.

    Examples
    --------
    >>> round(efficiency_ratios(device("h200"))["product", "bf16"], 2)
    0.8
    """
    alike = [row for row in _read_achieved_ratios() if row[0].architecture == chip.architecture]
    result: dict[tuple[str, str], float] = {}
    for kind in {kind for _, kind, _ in alike}:
        rows = [(known.name, share) for known, of, share in alike if of == kind]
        shares = [share for name, share in rows if name == chip.name] or [share for _, share in rows]
        result |= dict.fromkeys([(kind, "bf16"), (kind, "fp16")], sum(shares) / len(shares))
    return result


def bandwidth_ratio(chip: Device) -> float:
    """The share of its memory bandwidth that passes over large tensors were measured to reach; 1 where none was.

    Of the chip itself where that was published, else the mean over chips of its architecture.

    Examples
    --------
    >>> round(bandwidth_ratio(device("v100")), 2)
    0.89
    """
    rows = [(device(row["device"]), 1e9 * float(row["gb_per_s"])) for row in rows_of("achieved.csv") if row["gb_per_s"]]
    alike = [(known, rate) for known, rate in rows if known.architecture == chip.architecture]
    reached = [rate / known.bandwidth_bytes_per_s for known, rate in alike if known.name == chip.name]
    reached = reached or [rate / known.bandwidth_bytes_per_s for known, rate in alike]
    return sum(reached) / len(reached) if reached else 1.0


def link(name: str) -> Link:
    """Find a link by its name, or in a sheet of one's own.

    Parameters
    ----------
    name : str
        A name that ends in ``.json`` is the path of a sheet.

    Raises
    ------
    InputError
        No link has this name; the nearest three are offered. Or the sheet is none.

    Examples
    --------
    >>> link("nvlink4").bandwidth_bytes_per_s
    450000000000.0
    """
    if name.endswith(".json"):
        return read_link(Path(name))
    return _find("link", name, links())


def topology(sizes: str, wires: tuple[Link, ...], sharers: str = "") -> Topology:
    """A network from its text.

    Parameters
    ----------
    sizes : str
        Members per dimension, innermost first, as ``8x4``.
    wires : tuple of Link
        One per dimension, or one for all.
    sharers : str
        Members per port of each dimension, as ``1x8``; empty: 1 each.

    Raises
    ------
    InputError
        A text is no list of numbers, or they do not belong together.

    Examples
    --------
    >>> str(topology("8x4", (link("nvlink4"), link("infiniband-ndr"))))
    '8 over nvlink4 x 4 over infiniband-ndr'
    """
    members = _numbers(sizes)
    wires_by_dimension = wires * len(members) if len(wires) == 1 else wires
    return Topology(members, wires_by_dimension, _numbers(sharers) if sharers else ())


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not all(part.isdigit() for part in parts):
        raise InputError(f"{text!r} are no sizes of dimensions", fix="write them as 8x4")
    return tuple(int(part) for part in parts)


def machine(name: str = THIS_HOST) -> Machine:
    """Look at this host, or find a machine of the catalog.

    Parameters
    ----------
    name : str
        ``"this host"`` (the default) or a name of the catalog.

    Raises
    ------
    InputError
        No machine has this name; the nearest three are offered.

    Examples
    --------
    >>> machine("dgx-a100").devices[0].name
    'a100-sxm4-80g'
    """
    if name in (THIS_HOST, "this-host", "localhost"):
        return this_host(devices())
    return _find("machine", name, machines())
