"""TCP sockets between the nodes of a real run, over wires that the kernel shapes.

In: the addresses of all nodes, the pairs that communicate. Out: the nominal number of bytes of each message is sent,
and the arrival time of the last byte is recorded. The content of a message travels separately over gloo, so that
serialization does not change its transfer time. Not here: the content (``post``), the wires (``measure.spaces``).
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterable

from windtunnel.measure.spaces import WIRE_PORT

__all__ = ["Sockets"]

_CHUNK = memoryview(bytes(64 << 10))
_PATIENCE_S = 60.0
_NUMBER = struct.Struct("<q")


class Sockets:
    """The sockets of one node.

    Parameters
    ----------
    rank : int
    addresses : sequence of str
        Addresses of all nodes.
    sources, targets : iterable of int
        Nodes that send to this node, and nodes that it sends to.
    now_ns : callable
    """

    def __init__(
        self, rank: int, addresses: tuple[str, ...], sources: Iterable[int], targets: Iterable[int],
        now_ns: Callable[[], int],
    ) -> None:  # fmt: skip
        self._rank, self._addresses, self._now_ns = rank, addresses, now_ns
        self._arrivals: dict[int, queue.SimpleQueue[int | None]] = {source: queue.SimpleQueue() for source in sources}
        self._targets = tuple(targets)
        self._out: dict[int, socket.socket] = {}
        self._in: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server((addresses[rank], WIRE_PORT), backlog=len(addresses))
        self._server.settimeout(_PATIENCE_S)

    def start(self) -> None:
        """Connect to all targets and accept all sources."""
        for target in self._targets:
            line = socket.create_connection((self._addresses[target], WIRE_PORT))
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.sendall(_NUMBER.pack(self._rank))
            self._out[target] = line
        for _ in self._arrivals:
            line, _ = self._server.accept()
            line.settimeout(None)
            self._in.append(line)
            self._threads.append(threading.Thread(target=self._listen, args=(line,), daemon=True))
            self._threads[-1].start()
        self._server.close()

    def send(self, target: int, size_bytes: int) -> bool:
        """Send ``size_bytes`` bytes; return False if either end is closed."""
        line = self._out[target]
        try:
            line.sendall(_NUMBER.pack(size_bytes))
            for begin in range(0, size_bytes, len(_CHUNK)):
                line.sendall(_CHUNK[: min(len(_CHUNK), size_bytes - begin)])
        except OSError:
            return False
        return True

    def arrival_ns(self, source: int) -> int | None:
        """Wait for the last byte of the next message from a node and return its arrival; None if the link is closed."""
        return self._arrivals[source].get()

    def close(self) -> None:
        """Close all sockets and end the receiving threads."""
        for line in (*self._out.values(), *self._in):
            with contextlib.suppress(OSError):  # the other end was quicker
                line.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for line in (*self._out.values(), *self._in):
            line.close()

    def _listen(self, line: socket.socket) -> None:
        source = _read_number(line)
        if source is None:
            return
        arrivals = self._arrivals[source]
        while (size_bytes := _read_number(line)) is not None and _drain(line, size_bytes):
            arrivals.put(self._now_ns())
        arrivals.put(None)


def _read_number(line: socket.socket) -> int | None:
    result = b""
    while len(result) < _NUMBER.size:
        try:
            more = line.recv(_NUMBER.size - len(result))
        except OSError:
            return None
        if not more:
            return None
        result += more
    return int(_NUMBER.unpack(result)[0])


def _drain(line: socket.socket, size_bytes: int) -> bool:
    while size_bytes:
        try:
            got = len(line.recv(min(size_bytes, 1 << 20)))
        except OSError:
            return False
        if not got:
            return False
        size_bytes -= got
    return True
