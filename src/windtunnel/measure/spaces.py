"""Network namespaces of this host, and cables between them.

In: names, rates. Out: namespaces that are gone afterwards, whatever happens; what others left that were killed is
removed first. Not here: which namespaces are joined (``links``, ``wires``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from windtunnel.errors import InputError
from windtunnel.measure.workers import check_command_output, run_to_end

__all__ = [
    "ENVIRONMENT",
    "INTERFACE",
    "address",
    "cable",
    "can_shape",
    "do",
    "is_done",
    "machine",
    "prefix",
    "require_spaces",
    "shape",
    "spaces",
    "switch",
]

INTERFACE = "eth0"
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": INTERFACE, "TP_SOCKET_IFNAME": INTERFACE}
_PREFIX = "windtunnel"
_NUMBERS = itertools.count()
_BURST_S, _MIN_BURST_BYTES = 0.002, 16_000
_QUEUE_S, _MIN_QUEUE_BYTES = 0.5, 1 << 20


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
