"""A cluster as schedulers see it: racks of machines of GPUs, and the links between them.

In: a JSON file or numbers. Out: a validated ``Cluster``. Not here: jobs (``jobs``), placements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.base.reading import ReadLimit, format_value, read_json
from windtunnel.errors import InputError
from windtunnel.hardware import Link

__all__ = ["TIERS", "Cluster", "read_cluster"]

TIERS = ("machine", "rack", "network")
"""The tiers that a placement can span, from inner to outer."""

_NS_PER_S = 10**9
_FIELDS = {"name", "tiers", "lease_s", "checkpoint_s_per_gpu", "restart_s_per_gpu", "shares_links"}
_TIER_FIELDS = {"name", "count", "link"}
_LINK_FIELDS = {"gbytes_s", "latency_us", "kind"}


@dataclass(frozen=True)
class Cluster:
    """Equal racks of equal machines.

    Parameters
    ----------
    gpus_per_machine, machines_per_rack, num_racks : int
    links : three of Link
        Links between the GPUs of a machine, between the machines of a rack, between the racks.
    lease_ns : int
        How long a job keeps its GPUs before they are offered again.
    checkpoint_ns_per_gpu, restart_ns_per_gpu : int
        Time per GPU until the GPUs of a stopped job are free, and until a restarted job makes progress.
    shares_links : bool
        Whether jobs that send over one card or uplink at the same time slow each other down; False: S ignores other
        jobs, as published.
    name : str

    Raises
    ------
    InputError
        A number is not above 0.
    """

    gpus_per_machine: int
    machines_per_rack: int
    num_racks: int
    links: tuple[Link, Link, Link]
    lease_ns: int = 3600 * _NS_PER_S
    checkpoint_ns_per_gpu: int = _NS_PER_S
    restart_ns_per_gpu: int = 0
    name: str = "cluster"
    shares_links: bool = False

    def __post_init__(self) -> None:
        for field in ("gpus_per_machine", "machines_per_rack", "num_racks", "lease_ns"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} must be 1 or more, not {getattr(self, field)}", where=f"cluster {self.name}")
        if min(self.checkpoint_ns_per_gpu, self.restart_ns_per_gpu) < 0:
            raise InputError(
                "the time of a checkpoint or a restart is negative",
                where=f"cluster {self.name}",
                fix="give checkpoint_s_per_gpu and restart_s_per_gpu of 0 or more",
            )

    def __str__(self) -> str:
        racks = f"{self.num_racks} racks" if self.num_racks > 1 else "1 rack"
        return f"{self.num_gpus} GPUs: {racks} of {self.machines_per_rack} machines of {self.gpus_per_machine}"

    @property
    def num_machines(self) -> int:
        """Number of machines in all racks."""
        return self.machines_per_rack * self.num_racks

    @property
    def gpus_per_rack(self) -> int:
        """Number of GPUs in one rack."""
        return self.gpus_per_machine * self.machines_per_rack

    @property
    def num_gpus(self) -> int:
        """Number of GPUs in the cluster."""
        return self.gpus_per_machine * self.num_machines

    def machine_name(self, machine: int) -> str:
        """Return the name of a machine, by its rack and its number in the rack."""
        return f"rack {machine // self.machines_per_rack} machine {machine % self.machines_per_rack}"

    def json(self) -> dict[str, Any]:
        """Return the cluster in the format of :func:`read_cluster`."""
        counts = (self.gpus_per_machine, self.machines_per_rack, self.num_racks)
        tiers = [
            {
                "name": name,
                "count": count,
                "link": {
                    "gbytes_s": link.bandwidth_bytes_per_s / 1e9,
                    "latency_us": link.latency_ns / 1e3,
                    "kind": "ring",
                },
            }
            for name, count, link in zip(TIERS, counts, self.links, strict=True)
        ]
        return {
            "name": self.name,
            "tiers": tiers,
            "lease_s": self.lease_ns / _NS_PER_S,
            "checkpoint_s_per_gpu": self.checkpoint_ns_per_gpu / _NS_PER_S,
            "restart_s_per_gpu": self.restart_ns_per_gpu / _NS_PER_S,
            "shares_links": self.shares_links,
        }


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file.

    ``{"tiers": [{"name": "machine", "count": 8, "link": {"gbytes_s": 50, "latency_us": 0, "kind": "ring"}}, ...],
    "lease_s": 3600, "checkpoint_s_per_gpu": 1, "restart_s_per_gpu": 0, "shares_links": false}``
    with the tiers ``machine`` (GPUs in one), ``rack`` (machines in one) and ``network`` (racks).

    Raises
    ------
    InputError
        A field is missing, unknown or invalid; the message names it.
    """
    document = read_json(ReadLimit(path))
    try:
        return _cluster(document, path.stem)
    except InputError as error:
        raise InputError(error.message, where=f"{path}: {error.where}".rstrip(": "), fix=error.fix) from error


def _cluster(document: Any, stem: str) -> Cluster:
    _check(document, _FIELDS, "the file")
    tiers = document.get("tiers")
    if not isinstance(tiers, list):
        raise InputError("a cluster has tiers", where="tiers", fix='write "tiers": [{"name": "machine", "count": 8}]')
    for tier in tiers:
        _check(tier, _TIER_FIELDS, "tiers")
    names = tuple(str(tier.get("name")) for tier in tiers)
    if names != TIERS:
        raise InputError(
            f"the tiers are {', '.join(names) or 'none'}",
            where="tiers",
            fix=f"give these three, inner to outer: {', '.join(TIERS)}; one machine or rack has a count of 1",
        )
    counts = []
    for tier in tiers:
        count = tier.get("count")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InputError(f"count must be 1 or more, not {format_value(count)}", where=f"tier {tier['name']}")
        counts.append(count)
    links = [_link(tier.get("link", {}), str(tier["name"])) for tier in tiers]
    return Cluster(
        counts[0],
        counts[1],
        counts[2],
        (links[0], links[1], links[2]),
        lease_ns=_seconds(document, "lease_s", 3600.0),
        checkpoint_ns_per_gpu=_seconds(document, "checkpoint_s_per_gpu", 1.0),
        restart_ns_per_gpu=_seconds(document, "restart_s_per_gpu", 0.0),
        name=str(document.get("name", stem)),
        shares_links=_flag(document, "shares_links"),
    )


def _link(table: Any, tier: str) -> Link:
    _check(table, _LINK_FIELDS, f"link of tier {tier}")
    rate, latency, kind = table.get("gbytes_s"), table.get("latency_us", 0), table.get("kind", "ring")
    if kind != "ring":
        raise InputError(
            f"links of kind {format_value(kind)} are not supported",
            where=f"tier {tier}",
            fix='use "ring"',
        )
    if not _is_number(rate) or rate <= 0 or not _is_number(latency) or latency < 0:
        raise InputError(
            f"a link of {format_value(rate)} GB/s and {format_value(latency)} µs cannot be",
            where=f"tier {tier}",
            fix='write "link": {"gbytes_s": 1.25, "latency_us": 5, "kind": "ring"}',
        )
    return Link(tier, float(rate) * 1e9, latency_ns=round(1000 * latency))


def _check(table: Any, known: set[str], where: str) -> None:
    if not isinstance(table, Mapping):
        raise InputError(f"{format_value(table)} is not a JSON object", where=where)
    unknown = sorted(set(table) - known)
    if unknown:
        raise InputError(f"unknown field {unknown[0]!r}", where=where, fix=f"known: {', '.join(sorted(known))}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18  # NaN compares False


def _flag(document: Mapping[str, Any], field: str) -> bool:
    value = document.get(field, False)
    if not isinstance(value, bool):
        raise InputError(f"{field} is true or false, not {format_value(value)}", where=field)
    return value


def _seconds(document: Mapping[str, Any], field: str, default: float) -> int:
    value = document.get(field, default)
    if not _is_number(value) or value < 0:
        raise InputError(f"{field} must be seconds of 0 or more, not {format_value(value)}", where=field)
    return round(float(value) * _NS_PER_S)
