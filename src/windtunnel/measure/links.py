"""Links between processes of one host that are really as slow as asked for (room measure).

In: how many ranks, a rate, a latency. Out: how each rank is started so that what it sends goes over such a link, and
which mechanism that is. Where the process may, every rank gets a network namespace of its own, joined to the others by
a bridge and shaped in the kernel (token bucket filter); else a bucket of tokens in user space holds messages back. Not
here: what is sent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from windtunnel.errors import InputError
from windtunnel.measure.workers import required, run_to_end

__all__ = [
    "KERNEL",
    "USER_SPACE",
    "Bucket",
    "ShapedLink",
    "can_shape",
    "receive_bytes",
    "send_bytes",
    "shaped_link",
    "shaped_racks",
    "sleep_until",
]

KERNEL, USER_SPACE = "network namespaces with tc tbf", "token bucket in user space"
_PREFIX = "windtunnel"
_NUMBERS = itertools.count()
_INTERFACE, _UPLINK, _PORT = "eth0", "uplink", 47_113
_BURST_S, _LEAST_BURST_BYTES = 0.002, 16_000
_QUEUE_S, _LEAST_QUEUE_BYTES = 0.5, 1 << 20


class Bucket:
    """A link in user space that carries one message after the other; its tokens are the time at which it is free.

    Parameters
    ----------
    bandwidth_bytes_per_s : float
    """

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._free_ns = 0

    def due_ns(self, size_bytes: float, now_ns: int, latency_ns: int = 0) -> int:
        """Reserve the link for a message that is ready now; when it will have arrived.

        The latency keeps the link busy, as each step of a ring waits for the one before.
        """
        taken_ns = round(size_bytes / self.bandwidth_bytes_per_s * 1e9) + latency_ns
        self._free_ns = max(self._free_ns, now_ns) + taken_ns
        return self._free_ns


def sleep_until(due_ns: int) -> None:
    """Sleep until a moment of the monotonic clock; not at all if it is past."""
    left_ns = due_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)


def receive_bytes(address: str, size_bytes: int, when_ready: Callable[[], object]) -> float:
    """Take bytes from a plain socket at this address; the rate at which they came, bytes per second.

    ``when_ready`` is called when somebody may begin to send (``send_bytes``).
    """
    with socket.create_server((address, _PORT)) as server:
        when_ready()
        line, _ = server.accept()
        with line:
            left = size_bytes - len(line.recv(min(size_bytes, 1 << 16)))
            begun_ns, timed_bytes = time.perf_counter_ns(), left
            while left:
                left -= len(line.recv(min(left, 1 << 20)))
            took_ns = time.perf_counter_ns() - begun_ns
            line.sendall(b"x")
    return timed_bytes / took_ns * 1e9


def send_bytes(address: str, size_bytes: int) -> None:
    """Send bytes to ``receive_bytes``; returns when all of them are there."""
    with socket.create_connection((address, _PORT)) as line:
        line.sendall(bytes(size_bytes))
        line.recv(1)


@dataclass(frozen=True)
class ShapedLink:
    """How ranks are started on a link.

    Attributes
    ----------
    how : str
        ``KERNEL``: the kernel shapes what goes through it. ``USER_SPACE``: whoever sends asks a ``Bucket`` of this rate
        when a message is due.
    prefixes : tuple of str tuples
        What comes before the command of each rank (``Workers(prefixes=...)``).
    addresses : tuple of str
        Of each rank.
    environment : dict
        What gloo needs to find the link.
    bandwidth_bytes_per_s : float
    delay_ns : int
        Latency that the kernel does not give; the sender has to wait for it.
    """

    how: str
    prefixes: tuple[tuple[str, ...], ...]
    addresses: tuple[str, ...]
    environment: dict[str, str]
    bandwidth_bytes_per_s: float
    delay_ns: int = 0


@contextlib.contextmanager
def shaped_link(
    num_ranks: int, bandwidth_bytes_per_s: float, latency_ns: int = 0, *, is_in_kernel: bool | None = None
) -> Iterator[ShapedLink]:
    """Join ranks by links of this rate, one each to a common switch, in both directions.

    Parameters
    ----------
    num_ranks : int
    bandwidth_bytes_per_s : float
    latency_ns : int
        One way.
    is_in_kernel : bool, optional
        By default, where this process may.

    Raises
    ------
    InputError
        A number means nothing, or the kernel is asked for and cannot do it.
    """
    if num_ranks < 1 or not 0 < bandwidth_bytes_per_s < float("inf") or latency_ns < 0:
        raise InputError(
            f"no link joins {num_ranks} ranks at {bandwidth_bytes_per_s:g} bytes/s and {latency_ns} ns",
            fix="give at least one rank, a rate above 0 and a latency of 0 or more",
        )
    if is_in_kernel and not can_shape():
        raise InputError(
            "this process may make no network namespaces", fix="run as root with iproute2, or leave it out"
        )
    if is_in_kernel is False or not can_shape():
        local = ("127.0.0.1",) * num_ranks
        yield ShapedLink(USER_SPACE, ((),) * num_ranks, local, {}, bandwidth_bytes_per_s, latency_ns)
        return
    _sweep()
    which = next(_NUMBERS)  # two jobs may run beside each other
    names = [f"{_PREFIX}-{os.getpid()}-{which}-{number}" for number in range(num_ranks + 1)]  # the last is the switch
    try:
        delay_ns = _built(names, bandwidth_bytes_per_s, latency_ns)
        prefixes = tuple(("ip", "netns", "exec", name) for name in names[:-1])
        addresses = tuple(_address(rank) for rank in range(num_ranks))
        environment = {"GLOO_SOCKET_IFNAME": _INTERFACE, "TP_SOCKET_IFNAME": _INTERFACE}
        yield ShapedLink(KERNEL, prefixes, addresses, environment, bandwidth_bytes_per_s, delay_ns)
    finally:
        for name in names:
            run_to_end(["ip", "netns", "delete", name])


@contextlib.contextmanager
def shaped_racks(
    num_racks: int, machines_per_rack: int, rack_bytes_per_s: float, network_bytes_per_s: float
) -> Iterator[ShapedLink]:
    """Join machines by a switch in each rack, and racks by one over them; machines are counted rack by rack.

    Parameters
    ----------
    num_racks, machines_per_rack : int
    rack_bytes_per_s : float
        Of each machine's cable.
    network_bytes_per_s : float
        Of each rack's cable to the upper switch, which its machines share.

    Raises
    ------
    InputError
        A number means nothing, or the kernel cannot do it here.
    """
    rates = (rack_bytes_per_s, network_bytes_per_s)
    if min(num_racks, machines_per_rack) < 1 or not all(0 < rate < float("inf") for rate in rates):
        raise InputError(f"no cables join {num_racks} racks of {machines_per_rack} machines at {rates} bytes/s")
    if not can_shape():
        raise InputError("this process may make no network namespaces", fix="run as root with iproute2")
    _sweep()
    begin = f"{_PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
    machines = [f"{begin}-{number}" for number in range(num_racks * machines_per_rack)]
    racks, top = [f"{begin}-rack{rack}" for rack in range(num_racks)], f"{begin}-top"
    try:
        for name in (*racks, top):
            _switch(name)
        for rack, name in enumerate(racks):
            _cable(name, _UPLINK, top, f"port{rack}", network_bytes_per_s)
            _do("ip", "-n", name, "link", "set", _UPLINK, "master", "bridge")
        for machine, name in enumerate(machines):
            _namespace(name)
            _cable(name, _INTERFACE, racks[machine // machines_per_rack], f"port{machine}", rack_bytes_per_s)
            _do("ip", "-n", name, "address", "add", f"{_address(machine)}/16", "dev", _INTERFACE)
        prefixes = tuple(("ip", "netns", "exec", name) for name in machines)
        addresses = tuple(_address(machine) for machine in range(len(machines)))
        environment = {"GLOO_SOCKET_IFNAME": _INTERFACE, "TP_SOCKET_IFNAME": _INTERFACE}
        yield ShapedLink(KERNEL, prefixes, addresses, environment, rack_bytes_per_s)
    finally:
        for name in (*machines, *racks, top):
            run_to_end(["ip", "netns", "delete", name])


@cache
def can_shape() -> bool:
    """Whether this process may make network namespaces and shape links in them."""
    if not sys.platform.startswith("linux") or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        return _is_done("ip", "netns", "add", name) and _is_done(
            "ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", *_tbf(1e6)
        )
    finally:
        run_to_end(["ip", "netns", "delete", name])


def _built(names: list[str], bandwidth_bytes_per_s: float, latency_ns: int) -> int:
    """Namespaces, a bridge in the last, shaped cables; latency that is left to user space, in ns."""
    *ranks, switch = names
    for name in ranks:
        _namespace(name)
    _switch(switch)
    is_delayed = bool(latency_ns)
    for rank, name in enumerate(ranks):
        _cable(name, _INTERFACE, switch, f"port{rank}", bandwidth_bytes_per_s)
        _do("ip", "-n", name, "address", "add", f"{_address(rank)}/16", "dev", _INTERFACE)
        if is_delayed:  # once per way: where a rank sends
            netem = ["netem", "delay", f"{latency_ns // 1000}us", "limit", "100000"]
            is_delayed = _is_done("tc", "-n", name, "qdisc", "add", "dev", _INTERFACE, "parent", "1:", *netem)
    return 0 if is_delayed else latency_ns


def _namespace(name: str) -> None:
    _do("ip", "netns", "add", name)
    _do("ip", "-n", name, "link", "set", "lo", "up")


def _switch(name: str) -> None:
    """A namespace with a bridge."""
    _namespace(name)
    _do("ip", "-n", name, "link", "add", "bridge", "type", "bridge")
    _do("ip", "-n", name, "link", "set", "bridge", "up")


def _cable(space: str, device: str, switch: str, port: str, bandwidth_bytes_per_s: float) -> None:
    """A shaped cable from a namespace to a switch."""
    _do("ip", "-n", space, "link", "add", device, "type", "veth", "peer", "name", port, "netns", switch)
    _do("ip", "-n", switch, "link", "set", port, "master", "bridge")
    for where, end in ((space, device), (switch, port)):
        _do("ip", "-n", where, "link", "set", end, "up")
        shape = ["tc", "-n", where, "qdisc", "add", "dev", end]
        _do(*shape, "root", "handle", "1:", *_tbf(bandwidth_bytes_per_s))


def _tbf(bandwidth_bytes_per_s: float) -> list[str]:
    burst = max(_LEAST_BURST_BYTES, round(_BURST_S * bandwidth_bytes_per_s))
    queue = max(_LEAST_QUEUE_BYTES, round(_QUEUE_S * bandwidth_bytes_per_s))
    return ["tbf", "rate", f"{round(8 * bandwidth_bytes_per_s)}bit", "burst", f"{burst}", "limit", f"{queue}"]


def _address(rank: int) -> str:
    return f"10.77.{(rank + 1) // 250}.{(rank + 1) % 250 + 1}"


def _sweep() -> None:
    """Remove what processes left that were killed."""
    folder = Path("/run/netns")
    for entry in folder.glob(f"{_PREFIX}-*") if folder.is_dir() else ():
        found = re.fullmatch(rf"{_PREFIX}-(\d+)-[\w-]+", entry.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            run_to_end(["ip", "netns", "delete", entry.name])


def _is_done(*command: str) -> bool:
    done = run_to_end(command)
    return done is not None and done.code == 0


def _do(*command: str) -> None:
    required(command, "a link cannot be shaped", "is_in_kernel=False")
