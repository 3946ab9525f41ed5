"""Links between processes of one host that are really as slow as asked for.

In: how many ranks, a rate, a latency. Out: how each rank is started so that what it sends goes over such a link, and
which mechanism that is. Where the process may, every rank gets a network namespace of its own, joined to the others by
a bridge and shaped in the kernel (token bucket filter); else a bucket of tokens in user space holds messages back. Not
here: what is sent.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from windtunnel.errors import InputError
from windtunnel.measure.spaces import (
    ENVIRONMENT,
    INTERFACE,
    address,
    cable,
    can_shape,
    do,
    is_done,
    machine,
    prefix,
    require_spaces,
    shape,
    spaces,
    switch,
)

__all__ = [
    "KERNEL",
    "USER_SPACE",
    "Bucket",
    "ShapedLink",
    "receive_bytes",
    "send_bytes",
    "shape_link",
    "shape_racks",
    "sleep_until",
]

KERNEL, USER_SPACE = "network namespaces with tc tbf", "token bucket in user space"
_UPLINK, _PORT = "uplink", 47_113


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
        ``KERNEL``: the kernel shapes what goes through it. ``USER_SPACE``: the sender asks a ``Bucket`` of this rate
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
def shape_link(
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
    if is_in_kernel:
        require_spaces("run as root with iproute2, or leave it out")
    if is_in_kernel is False or not can_shape():
        local = ("127.0.0.1",) * num_ranks
        yield ShapedLink(USER_SPACE, ((),) * num_ranks, local, {}, bandwidth_bytes_per_s, latency_ns)
        return
    with spaces(num_ranks + 1) as names:  # the last is the switch
        delay_ns = _build_star(names, bandwidth_bytes_per_s, latency_ns)
        prefixes = tuple(prefix(name) for name in names[:-1])
        addresses = tuple(address(rank) for rank in range(num_ranks))
        yield ShapedLink(KERNEL, prefixes, addresses, ENVIRONMENT, bandwidth_bytes_per_s, delay_ns)


@contextlib.contextmanager
def shape_racks(
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
    require_spaces("run as root with iproute2")
    num_machines = num_racks * machines_per_rack
    with spaces(num_machines + num_racks + 1) as names:
        machines, racks, top = names[:num_machines], names[num_machines:-1], names[-1]
        for name in (*racks, top):
            switch(name)
        for rack, name in enumerate(racks):
            cable(name, _UPLINK, top, f"port{rack}")
            do("ip", "-n", name, "link", "set", _UPLINK, "master", "bridge")
            shape(name, _UPLINK, top, f"port{rack}", network_bytes_per_s)
        for number, name in enumerate(machines):
            rack_name = racks[number // machines_per_rack]
            machine(name, number, rack_name, f"port{number}")
            shape(name, INTERFACE, rack_name, f"port{number}", rack_bytes_per_s)
        prefixes = tuple(prefix(name) for name in machines)
        addresses = tuple(address(number) for number in range(num_machines))
        yield ShapedLink(KERNEL, prefixes, addresses, ENVIRONMENT, rack_bytes_per_s)


def _build_star(names: list[str], bandwidth_bytes_per_s: float, latency_ns: int) -> int:
    """Machines and a switch, the last, with shaped cables; latency that is left to user space, in ns."""
    *ranks, middle = names
    switch(middle)
    is_delayed = bool(latency_ns)
    for rank, name in enumerate(ranks):
        machine(name, rank, middle, f"port{rank}")
        shape(name, INTERFACE, middle, f"port{rank}", bandwidth_bytes_per_s)
        if is_delayed:  # once per way: where a rank sends
            netem = ["netem", "delay", f"{latency_ns // 1000}us", "limit", "100000"]
            is_delayed = is_done("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "parent", "1:", *netem)
    return 0 if is_delayed else latency_ns
