"""Network namespaces of this host, cables between them, and wires of unequal rates, shaped by its kernel.

In: names; which wires lie on the way between any two nodes, and their rates. Out: namespaces that are gone afterwards,
whatever happens (what others left that were killed is removed first); how each node is started, and a way to change a
rate while they run. A node sends over its first wire, and hears over the last one, so that a class of the kernel's
token buckets holds each: of the node's own interface or of its port at the switch. Only what goes to one port is
shaped; what processes need besides goes as fast as the host. Not here: what is sent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from windtunnel.errors import InputError
from windtunnel.measure.workers import check_command_output, run_to_end

__all__ = [
    "ENVIRONMENT",
    "INTERFACE",
    "SHAPED",
    "WIRE_PORT",
    "ShapedWires",
    "address",
    "cable",
    "can_shape",
    "do",
    "is_done",
    "machine",
    "prefix",
    "require_spaces",
    "shape",
    "shape_wires",
    "spaces",
    "switch",
]

INTERFACE = "eth0"
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": INTERFACE, "TP_SOCKET_IFNAME": INTERFACE}
_PREFIX = "windtunnel"
_NUMBERS = itertools.count()
_BURST_S, _MIN_BURST_BYTES = 0.002, 16_000
_QUEUE_S, _MIN_QUEUE_BYTES = 0.5, 1 << 20
SHAPED = "network namespaces with tc htb"
WIRE_PORT = 47_114
_MIN_RATE_BYTES_PER_S = 1.0
_MIN_PACKET_BYTES, _MAX_PACKET_BYTES, _PACKET_S = 1_514, 65_536, 0.0005


@contextlib.contextmanager
def spaces(num: int) -> Iterator[list[str]]:
    """So many names for namespaces; what was made under them is deleted afterwards."""
    folder = Path("/run/netns")
    for entry in folder.glob(f"{_PREFIX}-*") if folder.is_dir() else ():  # of processes that were killed
        result = re.fullmatch(rf"{_PREFIX}-(\d+)-[\w-]+", entry.name)
        if result and not Path(f"/proc/{result[1]}").exists():
            run_to_end(["ip", "netns", "delete", entry.name])
    which = next(_NUMBERS)  # two jobs may run at the same time
    names = [f"{_PREFIX}-{os.getpid()}-{which}-{number}" for number in range(num)]
    try:
        yield names
    finally:
        for name in names:
            run_to_end(["ip", "netns", "delete", name])


@cache
def can_shape() -> bool:
    """Whether this process may make network namespaces and shape links in them."""
    if not sys.platform.startswith("linux") or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        return is_done("ip", "netns", "add", name) and is_done(
            "ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", *_tbf(1e6)
        )
    finally:
        run_to_end(["ip", "netns", "delete", name])


def require_spaces(fix: str) -> None:
    """Refuse to go on where links cannot be shaped.

    Raises
    ------
    InputError
        This process may make no network namespaces.
    """
    if not can_shape():
        raise InputError("this process may make no network namespaces", fix=fix)


def prefix(name: str) -> tuple[str, ...]:
    """What comes before a command that shall run in a namespace."""
    return ("ip", "netns", "exec", name)


def address(rank: int) -> str:
    """Of a machine that a cable joins to others."""
    return f"10.77.{(rank + 1) // 250}.{(rank + 1) % 250 + 1}"


def machine(name: str, rank: int, switch_name: str, port: str) -> None:
    """A namespace with a cable to a switch, and an address."""
    _namespace(name)
    cable(name, INTERFACE, switch_name, port)
    do("ip", "-n", name, "address", "add", f"{address(rank)}/16", "dev", INTERFACE)


def switch(name: str) -> None:
    """A namespace with a bridge."""
    _namespace(name)
    do("ip", "-n", name, "link", "add", "bridge", "type", "bridge")
    do("ip", "-n", name, "link", "set", "bridge", "up")


def cable(space: str, device: str, switch_name: str, port: str) -> None:
    """A cable from a namespace to a switch, as fast as the host."""
    do("ip", "-n", space, "link", "add", device, "type", "veth", "peer", "name", port, "netns", switch_name)
    do("ip", "-n", switch_name, "link", "set", port, "master", "bridge")
    for where, end in ((space, device), (switch_name, port)):
        do("ip", "-n", where, "link", "set", end, "up")


def shape(space: str, device: str, switch_name: str, port: str, bandwidth_bytes_per_s: float) -> None:
    """Let both ends of a cable send at this rate and no faster."""
    for where, end in ((space, device), (switch_name, port)):
        do("tc", "-n", where, "qdisc", "add", "dev", end, "root", "handle", "1:", *_tbf(bandwidth_bytes_per_s))


def is_done(*command: str) -> bool:
    """Whether a command of the system could be done."""
    done = run_to_end(command)
    return done is not None and done.code == 0


def do(*command: str) -> None:
    """Do a command of the system.

    Raises
    ------
    InputError
        It failed; with what it said.
    """
    check_command_output(command, "a link cannot be shaped", "shape links in user space")


def _namespace(name: str) -> None:
    do("ip", "netns", "add", name)
    do("ip", "-n", name, "link", "set", "lo", "up")


def _tbf(bandwidth_bytes_per_s: float) -> list[str]:
    queue = max(_MIN_QUEUE_BYTES, round(_QUEUE_S * bandwidth_bytes_per_s))
    burst = max(_MIN_BURST_BYTES, round(_BURST_S * bandwidth_bytes_per_s))
    return ["tbf", "rate", f"{round(8 * bandwidth_bytes_per_s)}bit", "burst", f"{burst}", "limit", f"{queue}"]


@dataclass(frozen=True)
class ShapedWires:
    """How nodes are started on their wires.

    Attributes
    ----------
    prefixes : tuple of str tuples
        What comes before the command of each node (``Workers(prefixes=...)``).
    addresses : tuple of str
        Of each node; what comes to its ``WIRE_PORT`` is shaped.
    environment : dict
        What gloo needs to find the others.
    ends : mapping of a wire's number to (namespace, device)
        Where its rate is kept, of wires that some way leads over.
    """

    prefixes: tuple[tuple[str, ...], ...]
    addresses: tuple[str, ...]
    environment: Mapping[str, str]
    ends: Mapping[int, tuple[str, str]]

    def set_rate(self, wire: int, bandwidth_bytes_per_s: float) -> None:
        """Let a wire be as fast as this from now on, headers of packets counted."""
        _hold("change", *self.ends[wire], wire, bandwidth_bytes_per_s)


@contextlib.contextmanager
def shape_wires(
    num_nodes: int, routes: Mapping[tuple[int, int], tuple[int, ...]], rates_bytes_per_s: Sequence[float]
) -> Iterator[ShapedWires]:
    """Join nodes by a switch, each wire with its own rate.

    Parameters
    ----------
    num_nodes : int
    routes : mapping of (source, target) to numbers of wires
        One, which the source sends over, or two, the second of which the target hears over.
    rates_bytes_per_s : sequence of float

    Raises
    ------
    InputError
        A rate means nothing, a way has more wires, or this process may make no namespaces.
    """
    require_spaces("run as root with iproute2, or leave it out")
    if not all(_MIN_RATE_BYTES_PER_S <= rate < float("inf") for rate in rates_bytes_per_s):
        raise InputError("the kernel shapes wires of at least a byte per second", fix="give each such a rate")
    if any(len(route) > 2 for route in routes.values()):
        raise InputError("a way over three wires cannot be shaped here", fix="let it be a wire out and a wire in")
    with spaces(num_nodes + 1) as names:
        *nodes, middle = names
        switch(middle)
        for node, name in enumerate(nodes):
            machine(name, node, middle, f"port{node}")
            for space, device in ((name, INTERFACE), (middle, f"port{node}")):
                do("tc", "-n", space, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb")
            size = f"{min(map(_packet_bytes, rates_bytes_per_s), default=_MAX_PACKET_BYTES)}"
            do("ip", "-n", name, "link", "set", INTERFACE, "gso_max_size", size)
        ends: dict[int, tuple[str, str]] = {}
        for (source, target), route in sorted(routes.items()):
            # A wire is shaped where its packets leave: the source's own at its interface, the target's at the switch's
            # port towards it. Several routes over one wire are several filters into one class, so that they share its
            # rate.
            outward, inward = (nodes[source], INTERFACE, "dst", target), (middle, f"port{target}", "src", source)
            for wire, (space, device, way, other) in zip(route, (outward, inward), strict=False):
                if wire not in ends:
                    ends[wire] = space, device
                    _hold("add", space, device, wire, rates_bytes_per_s[wire])
                if ends[wire] != (space, device):
                    raise InputError(f"wire {wire} has two ends", fix="give each node wires of its own")
                _lead(space, device, wire, way, address(other))
        yield ShapedWires(tuple(map(prefix, nodes)), tuple(map(address, range(num_nodes))), ENVIRONMENT, ends)


def _hold(verb: str, space: str, device: str, wire: int, bandwidth_bytes_per_s: float) -> None:
    """Make or change the bucket of a wire."""
    burst = f"{_packet_bytes(bandwidth_bytes_per_s)}"
    rate = f"{round(8 * bandwidth_bytes_per_s)}bit"
    do("tc", "-n", space, "class", verb, "dev", device, "parent", "1:", "classid", f"1:{wire + 1:x}", "htb",
       "rate", rate, "burst", burst, "cburst", burst, "quantum", "1514")  # fmt: skip


def _packet_bytes(bandwidth_bytes_per_s: float) -> int:
    """What may go at once: the first packet of a message does not wait, so that it is early by as much."""
    return int(min(max(_MIN_PACKET_BYTES, _PACKET_S * bandwidth_bytes_per_s), _MAX_PACKET_BYTES))


def _lead(space: str, device: str, wire: int, way: str, other: str) -> None:
    """Lead what goes to a port, to or from a node, over a wire."""
    match = ["match", "ip", way, f"{other}/32", "match", "ip", "dport", str(WIRE_PORT), "0xffff"]
    do("tc", "-n", space, "filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "prio", "1", "u32",
       *match, "flowid", f"1:{wire + 1:x}")  # fmt: skip
