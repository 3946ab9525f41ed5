"""Machines and clusters of them.

In: devices and links. Out: frozen values; a machine knows its fingerprint, by which receipts and prices are filed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from windtunnel.errors import InputError
from windtunnel.hardware.parts import Device, Link, check_positive
from windtunnel.units import format_size

__all__ = ["Instance", "Machine", "Target"]

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Machine:
    """One host with its cores, memory and devices.

    Parameters
    ----------
    name : str
    cpu_name : str
    num_cores, num_threads : int
        Cores and hardware threads that a process may use here.
    memory_bytes : int
    cache_bytes : mapping of level to int
        Size of one instance, by ``l1d``, ``l2``, ``l3``.
    isa_flags : tuple of str
        Instruction sets that matter for speed, sorted.
    devices : tuple of Device
    host_link, device_link, network_link : Link, optional
        Host to device, device to device, machine to machine.
    """

    name: str
    cpu_name: str
    num_cores: int
    num_threads: int
    memory_bytes: int
    cache_bytes: Mapping[str, int] = field(default_factory=dict)
    isa_flags: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    host_link: Link | None = None
    device_link: Link | None = None
    network_link: Link | None = None
    source: str = ""

    def __post_init__(self) -> None:
        check_positive(
            f"machine {self.name}",
            num_cores=self.num_cores,
            num_threads=self.num_threads,
            memory_bytes=self.memory_bytes,
        )
        if self.num_threads < self.num_cores:
            raise InputError(
                f"{self.num_threads} threads on {self.num_cores} cores",
                where=f"machine {self.name}",
                fix="count hardware threads, at least one per core",
            )

    def __str__(self) -> str:
        chips = f", {len(self.devices)}x {self.devices[0].name}" if self.devices else ""
        return f"{self.cpu_name}, {self.num_cores} cores, {format_size(self.memory_bytes)}{chips}"

    def json(self) -> dict[str, Any]:
        """Every field, in plain types."""
        parts = {
            name: getattr(self, name)
            for name in ("name", "cpu_name", "num_cores", "num_threads", "memory_bytes", "source")
        }
        wires = {name: getattr(self, name) for name in ("host_link", "device_link", "network_link")}
        return {
            **parts,
            "cache_bytes": dict(self.cache_bytes),
            "isa_flags": list(self.isa_flags),
            "devices": [device.json() for device in self.devices],
            **{name: None if wire is None else asdict(wire) for name, wire in wires.items()},
        }

    def fingerprint(self) -> str:
        """Twelve hex digits that two hosts share when their measurements may be compared.

        Name, links and odd megabytes of memory do not count: what sets the speed does.
        """
        facts = {
            "cpu": self.cpu_name,
            "cores": self.num_cores,
            "threads": self.num_threads,
            "memory_gib": round(self.memory_bytes / _GIB),
            "cache": dict(sorted(self.cache_bytes.items())),
            "isa": sorted(self.isa_flags),
            "devices": [device.name for device in self.devices],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine that can be rented.

    Parameters
    ----------
    name : str
    device : Device
    num_devices : int
    num_vcpus : int
        Hardware threads.
    memory_bytes : int
        Of the host.
    device_link : Link, optional
        Between its devices, if it has several.
    network_bytes_per_s : float
        Of the whole machine.
    price_usd_per_h : float
    price_date, source : str
        When and where that was its price.
    """

    name: str
    device: Device
    num_devices: int
    num_vcpus: int
    memory_bytes: int
    device_link: Link | None
    network_bytes_per_s: float
    price_usd_per_h: float
    price_date: str
    source: str

    def __post_init__(self) -> None:
        check_positive(
            f"instance {self.name}", num_devices=self.num_devices, price_usd_per_h=self.price_usd_per_h,
            network_bytes_per_s=self.network_bytes_per_s,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.name}, {self.num_devices}x {self.device.name}, {self.price_usd_per_h:.2f} USD per h"


@dataclass(frozen=True, slots=True)
class Target:
    """Equal devices that a job can run on.

    Parameters
    ----------
    name : str
        As it was asked for, such as ``h100``, ``8xh100`` or ``dgx-h100``.
    device : Device
    count : int
    machine : Machine, optional
        That holds them, where the catalog has one.
    """

    name: str
    device: Device
    count: int = 1
    machine: Machine | None = None

    def __str__(self) -> str:
        return self.device.name if self.count == 1 else f"{self.count}x {self.device.name}"

    @property
    def owner(self) -> Machine | Device:
        """What says which links they have."""
        return self.machine or self.device
