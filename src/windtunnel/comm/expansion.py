"""Collectives of a graph as sends and receives.

In: a graph with COMM tasks, and how they are to be carried. Out: the graph in which each of these collectives is its
messages: a SEND on the port that it leaves by, and a RECV on the port that it comes in by, which begins a latency after
the send has begun. Built in bulk. Not here: which algorithm is best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.comm.instances import Instances
from windtunnel.comm.schedule import Schedule
from windtunnel.errors import InputError
from windtunnel.graph import UNPLACED, Discipline, EdgeKind, Graph, Kind, ResourceKind, Strings, Table, starts
from windtunnel.graph.schema import RESOURCE_COLUMNS
from windtunnel.hardware import Topology

__all__ = ["SOURCE", "Transport", "expand"]

# K collectives, n members, P parts, M transfers of a part, D dimensions of the network, N its members
Ints = NDArray[Any]
SOURCE = "link model"
_SEND, _RECV, _SUM, _JOIN, _HUB, _END = range(6)
_OPS = ("send", "recv", "sum", "arrivals", "all ready", "end")
_KINDS = np.array([Kind.COMM, Kind.COMM, Kind.COMPUTE, Kind.VIRTUAL, Kind.VIRTUAL, Kind.SYNC], dtype=np.int8)


@dataclass(frozen=True, slots=True)
class Transport:
    """How messages are carried.

    Parameters
    ----------
    topology : Topology
    num_parts : int
        Parts that a message is cut into; each is sent separately, and they are pipelined through the network.
    sum_bytes_per_s : float, optional
        How fast a rank adds what arrives to what it has; at once by default.
    """

    topology: Topology
    num_parts: int = 1
    sum_bytes_per_s: float | None = None

    def sum_ns(self, size_bytes: Ints) -> Ints:
        """Duration of adding ``size_bytes``, in ns."""
        if self.sum_bytes_per_s is None:
            return np.zeros(np.shape(size_bytes), dtype=np.int64)
        return np.rint(1e9 * size_bytes / self.sum_bytes_per_s).astype(np.int64)


def expand(graph: Graph, instances: Instances, schedule: Schedule, transport: Transport) -> Graph:
    """Replace collectives of one operation and one number of members by their messages.

    The task of each member stays as the moment at which the member is ready; a new one stands for the moment at which
    it has all that the collective brings it, and takes over what waited for the old one. No rank sends before the last
    member is ready, except where arrivals are added up as they come.

    Parameters
    ----------
    graph : Graph
    instances : Instances
        K collectives of n members.
    schedule : Schedule
        Of n ranks.
    transport : Transport

    Raises
    ------
    InputError
        A rank has no place in the network.
    """
    if instances.ranks.max(initial=-1) >= transport.topology.num_members:
        raise InputError(
            f"rank {instances.ranks.max()} has no place in {transport.topology}", fix="give sizes of as many workers"
        )
    extended = graph if "rank" in graph.tasks else graph.with_columns(rank=np.zeros(graph.num_tasks, np.int32))
    extended, ports = _with_ports(extended, transport.topology, schedule.by_arrival)
    rows = _Rows(extended.num_tasks, int(extended.tasks["tag"].max(initial=0)) + 1 if "tag" in extended.tasks else 1)
    ready, used = instances.rows, np.unique(instances.rows)
    end_of = np.full(extended.num_tasks, -1, dtype=np.int64)
    end_of[used] = rows.add(_END, used, rank=extended.tasks["rank"][used], resource=extended.tasks["resource"][used])
    rows.connect(used, end_of[used], EdgeKind.DATA)
    begin = ready if schedule.by_arrival else _gates(rows, ready)
    parts = transport.num_parts
    part_bytes = np.diff(instances.size_bytes[:, None] * np.arange(parts + 1) // parts, axis=1)  # [K, P]
    _Carrier(rows, schedule, transport, ports, instances, begin, end_of[ready]).carry(part_bytes)
    return _extend_graph(extended, rows, used, end_of)


class _Rows:
    """New tasks and edges while they are collected; ``next_row`` is where the next task goes."""

    def __init__(self, next_row: int, next_tag: int) -> None:
        self.next_row, self.next_tag = next_row, next_tag
        self.columns: dict[str, list[Ints]] = {}
        self.edges: dict[EdgeKind, list[tuple[Ints, ...]]] = {}

    def add(self, what: int, like: Ints, **given: Any) -> Ints:
        """Append tasks of one sort that share phase, iteration, layer and priority with ``like``; their rows."""
        columns = {
            "duration_ns": 0,
            "message_bytes": 0,
            "tag": -1,
            "peer": -1,
            "part": 0,
            "resource": UNPLACED,
            **given,
        }
        for name, values in {**columns, "what": what, "like": like}.items():
            self.columns.setdefault(name, []).append(np.broadcast_to(values, like.shape).ravel())
        rows = self.next_row + np.arange(like.size).reshape(like.shape)
        self.next_row += like.size
        return rows

    def connect(self, src: Ints, dst: Ints, kind: EdgeKind, lag_ns: Any = 0, from_start: bool = False) -> None:
        """Append edges between rows of one shape."""
        parts = np.broadcast_arrays(src, dst, lag_ns, from_start)
        self.edges.setdefault(kind, []).append(tuple(part.ravel() for part in parts))

    def tags(self, shape: tuple[int, ...]) -> Ints:
        """A number for each message, that no other has."""
        count = int(np.prod(shape))
        self.next_tag += count
        return np.arange(self.next_tag - count, self.next_tag).reshape(shape)


@dataclass(frozen=True, slots=True)
class _Ports:
    """Rows of the resources by which members of the network send and receive [D, N], and add up as servers [N]."""

    out: Ints
    into: Ints
    server: Ints


def _with_ports(graph: Graph, topology: Topology, with_servers: bool) -> tuple[Graph, _Ports]:
    """Two ports per dimension and group of ranks that shares them; one where a link carries one way at a time.

    A port sends the first parts first: what is ready but of a later part would hold up all that waits for an earlier.
    """
    count = topology.num_members
    names: list[list[str]] = []
    for wire, sharers in zip(topology.links, topology.sharers, strict=True):
        who = "rank" if sharers == 1 else "host"
        ways = ("out", "in") if wire.is_duplex else ("both ways",) * 2
        names += [[f"{who} {member // sharers} {wire.name} {way}" for member in range(count)] for way in ways]
    names.append([f"rank {member} server" for member in range(count)])
    row_of = {name: row for row, name in enumerate(graph.resources.strings("name").to_numpy())}
    requested = dict.fromkeys(name for item in (names if with_servers else names[:-1]) for name in item)
    new = [name for name in requested if name not in row_of]
    row_of |= {name: graph.num_resources + index for index, name in enumerate(new)}
    kind = [int(ResourceKind.POOL if name.endswith(" server") else ResourceKind.LINK) for name in new]
    common = {"discipline": [int(Discipline.PRIORITY)] * len(new), "slots": [1] * len(new)}
    added = Table.from_columns({"name": new, "kind": kind, **common}, RESOURCE_COLUMNS)
    extended = graph.with_resources(dict(graph.resources.concat(added, RESOURCE_COLUMNS))) if new else graph
    rows = np.array([[row_of.get(name, UNPLACED) for name in item] for item in names])
    return extended, _Ports(rows[:-1:2], rows[1:-1:2], rows[-1])


def _gates(rows: _Rows, ready: Ints) -> Ints:
    """What each member waits for before it sends [K, n]: one task per collective that waits for all members."""
    if (ready == ready[:, :1]).all():  # one task stands for all
        return ready
    hub = rows.add(_HUB, ready[:, :1], rank=0)
    rows.connect(ready, np.broadcast_to(hub, ready.shape), EdgeKind.MESSAGE)
    return np.broadcast_to(hub, ready.shape)


@dataclass(frozen=True, slots=True)
class _Carrier:
    """One schedule for all parts of K messages."""

    rows: _Rows
    schedule: Schedule
    transport: Transport
    ports: _Ports
    instances: Instances
    begin: Ints  # [K, n] task behind which each member may send
    end: Ints  # [K, n]

    def carry(self, part_bytes: Ints) -> None:
        """Append sends, receives, sums and their edges; ``part_bytes`` int64 [K, P]."""
        schedule, topology = self.schedule, self.transport.topology
        if not len(schedule):
            return
        shape = (*part_bytes.shape, len(schedule))  # [K, P, M]
        size = schedule.sizes(part_bytes)
        src, dst = (
            self._each(self.instances.ranks, schedule.src, shape),
            self._each(self.instances.ranks, schedule.dst, shape),
        )
        dimension = _dimension(src, dst, topology.sizes)
        rate = np.array([wire.bandwidth_bytes_per_s for wire in topology.links])[dimension]
        lag_ns = np.array([wire.latency_ns for wire in topology.links])[dimension]
        message = {
            "message_bytes": size,
            "duration_ns": np.rint(1e9 * size / rate).astype(np.int64),
            "tag": self.rows.tags(shape),
            "part": np.broadcast_to(np.arange(shape[1])[:, None], shape),
        }
        ready = (
            self._each(self.instances.rows, schedule.src, shape),
            self._each(self.instances.rows, schedule.dst, shape),
        )
        send = self.rows.add(_SEND, ready[0], rank=src, peer=dst, resource=self.ports.out[dimension, src], **message)
        recv = self.rows.add(_RECV, ready[1], rank=dst, peer=src, resource=self.ports.into[dimension, dst], **message)
        self.rows.connect(send, recv, EdgeKind.MESSAGE, lag_ns, from_start=True)
        if schedule.by_arrival:
            self._serve(send, recv, size, lag_ns)
        else:
            self._order(send, self._add_sums(recv, size, ready[1], dst))

    @staticmethod
    def _each(of_member: Ints, members: Ints, shape: tuple[int, ...]) -> Ints:
        """What each member has, for one end of every transfer [K, P, M]."""
        return np.broadcast_to(of_member[:, None, members], shape)

    def _add_sums(self, recv: Ints, size: Ints, like: Ints, rank: Ints) -> Ints:
        """Rows at which what has arrived is in place: after a sum where the receiver adds and that takes time."""
        adds = np.flatnonzero(self.schedule.reduces)
        if self.transport.sum_bytes_per_s is None or not len(adds):
            return recv
        used = self.transport.sum_ns(size[:, :, adds])
        total = self.rows.add(_SUM, like[:, :, adds], rank=rank[:, :, adds], duration_ns=used)
        self.rows.connect(recv[:, :, adds], total, EdgeKind.DATA)
        placed = recv.copy()
        placed[:, :, adds] = total
        return placed

    def _order(self, send: Ints, placed: Ints) -> None:
        """Who has sends; who is done has received, and has sent its last."""
        schedule, shape = self.schedule, send.shape
        first, last, needs = schedule.first_of_ranks(), schedule.last_of_ranks(), schedule.needs
        begin, from_end, to_end = (
            self._each(of, ends, shape)
            for of, ends in ((self.begin, schedule.src), (self.end, schedule.src), (self.end, schedule.dst))
        )
        self.rows.connect(begin[:, :, first], send[:, :, first], EdgeKind.DATA)
        self.rows.connect(placed[:, :, needs[:, 1]], send[:, :, needs[:, 0]], EdgeKind.DATA)
        self.rows.connect(placed[:, :, last], to_end[:, :, last], EdgeKind.DATA)
        final = len(schedule) - 1 - np.unique(schedule.src[::-1], return_index=True)[1]
        self.rows.connect(send[:, :, final], from_end[:, :, final], EdgeKind.DATA)

    def _serve(self, send: Ints, recv: Ints, size: Ints, lag_ns: Ints) -> None:
        """Sums at the servers in the order of arrival, including the server's own share; each pull asks for its sum.

        Legend: n servers and as many workers, w = n - 1 of them others; arrays are [K, P, n, w], or n in the end.
        """
        num = self.schedule.num_ranks
        apart = (*send.shape[:2], 2, num, num - 1)
        (push, pull), (pushed, pulled) = (np.moveaxis(item.reshape(apart), 2, 0) for item in (send, recv))
        requested = np.moveaxis(lag_ns.reshape(apart), 2, 0)[0]
        shape = (*apart[:2], num, num)
        like, rank = (
            np.broadcast_to(item[:, None, :, None], shape) for item in (self.instances.rows, self.instances.ranks)
        )
        join = self.rows.add(_JOIN, like[..., :1], rank=rank[..., :1])
        used = self.transport.sum_ns(np.broadcast_to(size.reshape(apart)[:, :, 0, :, :1], shape))
        total = self.rows.add(_SUM, like, rank=rank, duration_ns=used, resource=self.ports.server[rank])
        worker = self.schedule.src[: num * (num - 1)].reshape(num, num - 1)
        begin, end = (np.broadcast_to(item[:, None], shape[:3]) for item in (self.begin, self.end))
        connect = self.rows.connect
        connect(begin[:, :, worker], push, EdgeKind.DATA)
        connect(pushed, np.broadcast_to(join, pushed.shape), EdgeKind.MESSAGE)
        connect(begin[..., None], join, EdgeKind.DATA)
        connect(np.broadcast_to(join, shape), total, EdgeKind.DATA)  # the i-th arrival lets the i-th of these begin
        connect(total[..., :-1], total[..., 1:], EdgeKind.DATA)
        connect(np.broadcast_to(total[..., -1:], pull.shape), pull, EdgeKind.DATA)
        connect(pushed, pull, EdgeKind.MESSAGE, 2 * requested)  # an acknowledgment, and the request for the sum
        connect(pulled, end[:, :, worker], EdgeKind.DATA)
        connect(total[..., -1], end, EdgeKind.DATA)


def _dimension(src: Ints, dst: Ints, sizes: tuple[int, ...]) -> Ints:
    """The outermost dimension in which two places differ: the link that a message between them takes."""
    result, below = np.zeros(src.shape, dtype=np.int64), 1
    for number, size in enumerate(sizes):
        result = np.where(src // below % size != dst // below % size, number, result)
        below *= size
    return result


def _extend_graph(graph: Graph, rows: _Rows, used: Ints, end_of: Ints) -> Graph:
    """The graph with new tasks and edges; what waited for a collective waits for its end."""
    columns = {name: np.concatenate(parts) for name, parts in rows.columns.items()}
    what, like, part = (columns.pop(name) for name in ("what", "like", "part"))
    # dense ranks, times the number of parts: the collective's place first, then the part within it
    priority = np.unique(graph.tasks["priority"], return_inverse=True)[1][like] if "priority" in graph.tasks else 0
    tasks: dict[str, Any] = {
        **columns,
        "name": _names(graph, what, like, columns["rank"], columns["peer"]),
        "op": Strings(what.astype(np.int32), _OPS),
        "kind": _KINDS[what],
        "cost_source": Strings.repeat(SOURCE, len(what)),
        "is_arrival_join": what == _JOIN,
        "priority": priority * (int(part.max(initial=0)) + 1) + part,
    }
    for name in ("phase", "iteration"):
        if name in graph.tasks:
            tasks[name] = graph.tasks[name][like]
    if "layer" in graph.tasks:
        tasks["layer"] = graph.tasks.strings("layer").take(like)
    if not tasks["is_arrival_join"].any():
        del tasks["is_arrival_join"]
    extended = _move_edges_to_ends(_empty_collectives(graph, used).insert(tasks), end_of)
    for kind, parts in rows.edges.items():
        src, dst, lag_ns, from_start = (np.concatenate(item) for item in zip(*parts, strict=True))
        extended = extended.connect(src, dst, kind, lag_ns, from_start)
    return extended


def _empty_collectives(graph: Graph, used: Ints) -> Graph:
    """With collectives that only say when their member is ready."""
    mask = np.isin(np.arange(graph.num_tasks), used)
    kind = np.where(mask, np.int8(Kind.SYNC), graph.tasks["kind"]).astype(np.int8)
    moved = np.where(mask, 0, graph.tasks["message_bytes"])
    return graph.set_duration(mask, 0, SOURCE).with_columns(kind=kind, message_bytes=moved)


def _move_edges_to_ends(graph: Graph, end_of: Ints) -> Graph:
    """With edges that leave the end of a collective leaving its new end."""
    edges = graph.edges
    leaves = (end_of[edges["src"]] >= 0) & ~starts(edges)
    if not leaves.any():
        return graph
    kept = graph.disconnect(leaves)
    moved = edges.take(leaves)
    lag_ns, size_bytes = moved.get("lag_ns", np.zeros(moved.num_rows, np.int64)), moved.get("size_bytes")
    for kind in np.unique(moved["kind"]):
        local = moved["kind"] == kind
        sizes = None if size_bytes is None else size_bytes[local]
        src = end_of[moved["src"][local]]
        kept = kept.connect(src, moved["dst"][local], EdgeKind(kind), lag_ns[local], size_bytes=sizes)
    return kept


def _names(graph: Graph, what: Ints, like: Ints, rank: Ints, peer: Ints) -> Strings:
    """``send 3 to 4``, ``end of all-reduce bucket 0``: each text once."""
    known = graph.tasks.strings("name")
    width = max(int(rank.max(initial=0)), int(peer.max(initial=0))) + 2
    # messages are distinguished by their ranks, other tasks by the collective that they belong to
    by_ranks = what <= _SUM
    key = np.where(by_ranks, rank * width + peer + 1, known.codes[like].astype(np.int64))
    pairs, codes = np.unique(what * (max(width * width, len(known.values)) + 1) + key, return_inverse=True)
    top = max(width * width, len(known.values)) + 1
    strings = []
    for pair, rest in zip((pairs // top).tolist(), (pairs % top).tolist(), strict=True):
        if pair > _SUM:
            strings.append(f"{_OPS[pair]} of {known.values[rest]}")
        else:
            to = {_SEND: " to ", _RECV: " from "}.get(pair, " ")
            strings.append(f"{_OPS[pair]} {rest // width}" + (f"{to}{rest % width - 1}" if pair != _SUM else ""))
    return Strings(codes.reshape(-1).astype(np.int32), tuple(strings))
