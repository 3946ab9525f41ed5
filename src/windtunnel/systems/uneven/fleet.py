"""Machines of unequal speed and the links between them, read from a cluster file.

In: TOML. Out: a ``Fleet``: workers, optionally a server, wires with a rate and a latency, the partition of the samples.
Not here: what is trained.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.errors import InputError
from windtunnel.hardware import Link
from windtunnel.systems.uneven.partitions import Partition
from windtunnel.systems.uneven.trace import Trace, read_trace
from windtunnel.units import parse_duration, parse_rate

__all__ = ["Fleet", "FleetWorker", "Wire", "read_fleet"]

_RATE_COLUMN, _SPEED_COLUMN = "bytes_per_s", "speed"
_KNOWN = {
    "": {"name", "step_time", "overhead_time", "partition", "workers", "server", "links"},
    "workers": {"name", "speed", "count", "lost_at", "up", "down", "latency"},
    "server": {"up", "down", "latency"},
    "links": {"from", "to", "rate", "latency", "one_way"},
}


@dataclass(frozen=True)
class Wire:
    """One direction of a link whose rate changes while a job runs.

    Parameters
    ----------
    link : Link
        Name, latency and initial rate.
    bytes_per_s : Trace
        Rate by time.
    """

    link: Link
    bytes_per_s: Trace

    @classmethod
    def of(cls, name: str, bytes_per_s: Trace, latency_ns: int = 0) -> Wire:
        """Create a wire from a name, rates and a latency."""
        return cls(Link(name, bytes_per_s.value_at(0), latency_ns), bytes_per_s)

    @property
    def name(self) -> str:
        """Name of the link."""
        return self.link.name

    @property
    def latency_ns(self) -> int:
        """Latency of the link, at any rate."""
        return self.link.latency_ns


@dataclass(frozen=True)
class FleetWorker:
    """One worker; a step takes ``step_ns / speed``, and the worker leaves the run at ``lost_ns``."""

    name: str
    speed: Trace
    lost_ns: int | None = None


@dataclass(frozen=True)
class Fleet:
    """The workers of a training job, an optional server, and the network between them.

    Parameters
    ----------
    name : str
    workers : tuple of FleetWorker
    wires : tuple of Wire
    routes : mapping of (source, target) to a tuple of numbers of wires
        The server is the node after the last worker.
    has_server : bool
    step_ns : int
        Duration of a step with the job's batch at speed 1.
    overhead_ns : int
        Part of ``step_ns`` that does not grow with the batch.
    partition : Partition
    """

    name: str
    workers: tuple[FleetWorker, ...]
    wires: tuple[Wire, ...]
    routes: Mapping[tuple[int, int], tuple[int, ...]]
    has_server: bool
    step_ns: int
    overhead_ns: int = 0
    partition: Partition = field(default_factory=Partition)

    @property
    def num_workers(self) -> int:
        """Number of workers, without the server."""
        return len(self.workers)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, including the server if there is one."""
        return len(self.workers) + self.has_server

    def node_name(self, node: int) -> str:
        """Return the name of a worker or the server."""
        return self.workers[node].name if node < self.num_workers else "server"

    def step_end_ns(self, worker: int, now_ns: int, batch_ratio: float = 1.0) -> int:
        """Return when a step that begins now ends; ``batch_ratio`` is its batch size over the job's."""
        work_ns = self.overhead_ns + (self.step_ns - self.overhead_ns) * batch_ratio
        return self.workers[worker].speed.finish_ns(now_ns, work_ns)

    def probe_end_ns(self, worker: int, now_ns: int, batch_ratio: float) -> int:
        """Return when a probe that begins now ends; it takes a third of the time of steps on its samples."""
        work_ns = (self.step_ns - self.overhead_ns) * batch_ratio / 3
        return self.workers[worker].speed.finish_ns(now_ns, self.overhead_ns + work_ns)

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the wires from one node to another.

        Raises
        ------
        InputError
            There is no route.
        """
        if (source, target) not in self.routes:
            ends = f"{self.node_name(source)} → {self.node_name(target)}"
            raise InputError(
                f"no route {ends}",
                where=f"cluster {self.name}",
                fix="add a [[links]] entry, give both workers `up` and `down`, or choose a strategy over a server",
            )
        return self.routes[source, target]

    def latency_ns(self, source: int, target: int) -> int:
        """Return the latency of a route."""
        return sum(self.wires[item].latency_ns for item in self.route(source, target))


def read_fleet(path: Path) -> Fleet:
    """Read a cluster file.

    ``step_time`` and ``overhead_time`` are durations (``"20 ms"``), ``[partition]`` has a ``kind`` and its numbers,
    each ``[[workers]]`` a ``speed`` (a number, or a CSV file ``t_s,speed``), ``count``, perhaps ``lost_at`` (a time at
    which it is gone), and the rates ``up`` and ``down`` of its card (or a CSV file ``t_s,bytes_per_s``) with a
    ``latency``; ``[server]`` has a card likewise; ``[[links]]`` of
    two names (``from``, ``to``, ``rate``, ``latency``; both directions unless ``one_way``) come before cards.

    Raises
    ------
    InputError
        A field is missing, unknown or invalid; the message names it.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"the cluster file cannot be read: {error}", where=str(path), fix="check its path") from error
    try:
        return _fleet(document, path)
    except InputError as error:
        raise InputError(error.message, where=f"{path}: {error.where}".rstrip(": "), fix=error.fix) from error


def _fleet(document: Mapping[str, Any], path: Path) -> Fleet:
    _check(document, "")
    tables = [dict(table) for table in _tables(document, "workers") for _ in range(_count(table))]
    if not tables:
        raise InputError("there are no workers", where="[[workers]]", fix='add "[[workers]]" with a speed')
    names = [str(table.get("name", "w")) + (str(index) if table.get("count") or "name" not in table else "")
             for index, table in enumerate(tables)]  # fmt: skip
    if len(set(names)) < len(names):
        twice = next(item for item in names if names.count(item) > 1)
        raise InputError(f"two workers are called {twice}", where="[[workers]]", fix="give each its own name")
    workers = tuple(
        FleetWorker(
            name,
            _trace(table.get("speed", 1.0), _SPEED_COLUMN, path, f"speed of {name}"),
            _duration(table, "lost_at") if "lost_at" in table else None,
        )
        for name, table in zip(names, tables, strict=True)
    )
    if all(worker.lost_ns is not None for worker in workers):
        raise InputError("all workers are lost", where="lost_at", fix="let one stay")
    server = document.get("server")
    if server is not None:
        _check(server, "server")
    cards = [*tables, *([server] if server is not None else [])]
    nodes = [*names, *(["server"] if server is not None else [])]
    wires, routes = _read_wires(cards, nodes, _tables(document, "links"), path)
    about = dict(document.get("partition", {}))
    partition = Partition(str(about.pop("kind", "iid")), seed=int(about.pop("seed", 0)), parameters=about)
    step_ns = _duration(document, "step_time")
    overhead_ns = _duration(document, "overhead_time") if "overhead_time" in document else 0
    if not 0 <= overhead_ns < step_ns:
        raise InputError("overhead_time is a part of step_time", where="overhead_time", fix="make it the smaller one")
    name = str(document.get("name", path.stem))
    return Fleet(name, workers, wires, routes, server is not None, step_ns, overhead_ns, partition)


def _read_wires(
    cards: Sequence[Mapping[str, Any]], nodes: Sequence[str], links: Sequence[Mapping[str, Any]], path: Path
) -> tuple[tuple[Wire, ...], dict[tuple[int, int], tuple[int, ...]]]:
    """Return the wires and the routes between nodes; a dedicated link takes precedence over network cards."""
    wires: list[Wire] = []
    index: dict[tuple[int, str], int] = {}
    for node, card in enumerate(cards):
        # half of a card's latency is the sender's, half the receiver's
        latency_ns = parse_duration(str(card["latency"])) if "latency" in card else 0
        for way, own_ns in (("up", latency_ns - latency_ns // 2), ("down", latency_ns // 2)):
            if way in card:
                name = f"{nodes[node]} {way}"
                index[node, way] = len(wires)
                wires.append(Wire.of(name, _trace(card[way], _RATE_COLUMN, path, name), own_ns))
    routes: dict[tuple[int, int], tuple[int, ...]] = {
        (position, other): (index[position, "up"], index[other, "down"])
        for position in range(len(nodes))
        for other in range(len(nodes))
        if position != other and (position, "up") in index and (other, "down") in index
    }
    for link in links:
        ends = [str(link.get(end, "")) for end in ("from", "to")]
        strangers = [end for end in ends if end not in nodes]
        if strangers or ends[0] == ends[1] or "rate" not in link:
            what = f"{strangers[0]!r} is no node" if strangers else "it needs two ends and a rate"
            raise InputError(f"no such link: {what}", where="[[links]]", fix=f"nodes: {', '.join(nodes)}")
        source, target = map(nodes.index, ends)
        latency_ns = parse_duration(str(link["latency"])) if "latency" in link else 0
        for item, other in ((source, target),) if link.get("one_way") else ((source, target), (target, source)):
            name = f"{nodes[item]} → {nodes[other]}"
            routes[item, other] = (len(wires),)
            wires.append(Wire.of(name, _trace(link["rate"], _RATE_COLUMN, path, name), latency_ns))
    return tuple(wires), routes


def _tables(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    tables = document.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(item, Mapping) for item in tables):
        raise InputError(f"{name} must be tables", where=name, fix=f"write [[{name}]]")
    for table in tables:
        _check(table, name)
    return tables


def _check(table: Mapping[str, Any], name: str) -> None:
    unknown = set(table) - _KNOWN[name]
    if unknown:
        raise InputError(
            f"{sorted(unknown)[0]!r} is no field here", where=name, fix=f"known: {', '.join(sorted(_KNOWN[name]))}"
        )


def _count(table: Mapping[str, Any]) -> int:
    count = table.get("count", 1)
    if not isinstance(count, int) or count < 1:
        raise InputError(f"count must be 1 or more, not {count}", where="[[workers]]", fix="leave the entry out")
    return count


def _duration(document: Mapping[str, Any], field_name: str) -> int:
    if field_name not in document:
        raise InputError(
            f"{field_name} is missing", where="cluster file", fix=f'{field_name} = "20 ms", of a worker of speed 1'
        )
    return parse_duration(str(document[field_name]))


def _trace(value: Any, column: str, path: Path, where: str) -> Trace:
    """Read a number, a rate such as ``"10 MB/s"``, or the name of a CSV file in the folder of the cluster file."""
    try:
        if isinstance(value, str) and value.endswith(".csv"):
            return read_trace(path.parent / value, column)
        if isinstance(value, str):
            value = parse_rate(value)
        return Trace.constant(float(value))
    except (InputError, TypeError, ValueError) as error:
        message = error.message if isinstance(error, InputError) else f"{value!r} is not a number"
        raise InputError(message, where=where, fix="a number above 0, or a CSV file") from error
