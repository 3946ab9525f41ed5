"""Messages between the nodes of a real run over gloo, delayed to the rates and latencies of a fleet's links.

In: sends of one node, in order; a fleet. Out: the messages at the other node, not before a link of that rate and
latency would have delivered them. Each wire that a node sends over has a thread with a token bucket; messages to
several nodes over one wire are interleaved by chunks. An incoming message waits for the token bucket of the receiving
card from its first byte on, so that it is not delayed twice. If the kernel shapes the wires, as many bytes as the
message has are sent over a TCP socket instead, and the message arrives with the last of them. Not here: the content of
messages.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.measure.links import Bucket, sleep_until
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.policy import Message, Send
from windtunnel.systems.uneven.sockets import Sockets

__all__ = ["Post"]

_CHUNK_BYTES = 64 << 10
_BYE = "bye"


@dataclass
class _Parcel:
    """A message that waits to be sent."""

    target: int
    send: Send
    left_bytes: float
    begun_ns: int = -1


class _WireSender:
    """A wire that this node sends over; its thread sends waiting messages, one chunk per target, round robin."""

    def __init__(self, post: Post, number: int) -> None:
        self._post, self._number = post, number
        self._bucket = Bucket(1.0)
        self._waiting: dict[int, deque[_Parcel]] = {}
        self._changed = threading.Condition()
        self._is_open = True
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def put(self, parcel: _Parcel) -> None:
        with self._changed:
            self._waiting.setdefault(parcel.target, deque()).append(parcel)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_open = False
            self._waiting.clear()
            self._changed.notify()
        self.thread.join()

    def _work(self) -> None:
        while (result := self._next()) is not None:
            target, queue = result
            self._pass(queue[0])
            with self._changed:
                if queue[0].left_bytes <= 0:
                    queue.popleft()
                queue.extend(self._waiting.pop(target, ()))
                if queue:  # behind the other targets
                    self._waiting[target] = queue

    def _next(self) -> tuple[int, deque[_Parcel]] | None:
        """Remove and return the queue of the target that has waited longest; None once the wire is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._is_open)
            if not self._is_open:
                return None
            target = next(iter(self._waiting))
            return target, self._waiting.pop(target)

    def _pass(self, parcel: _Parcel) -> None:
        """Send one chunk; the message is transmitted with its last chunk."""
        now_ns = self._post.now_ns()
        if parcel.begun_ns < 0:
            parcel.begun_ns = now_ns
        self._bucket.bandwidth_bytes_per_s = self._post.fleet.wires[self._number].bytes_per_s.value_at(now_ns)
        chunk_bytes = min(parcel.left_bytes, _CHUNK_BYTES)
        due_ns = self._bucket.due_ns(chunk_bytes, now_ns)
        sleep_until(due_ns + self._post.zero_ns)
        parcel.left_bytes -= chunk_bytes
        if parcel.left_bytes <= 0:
            self._post.transmit(parcel, due_ns)


class _Line:
    """A route to one node that the kernel shapes; its thread sends one message after the other."""

    def __init__(self, post: Post, sockets: Sockets, target: int) -> None:
        self._post, self._sockets, self._target = post, sockets, target
        self._waiting: queue.SimpleQueue[_Parcel | None] = queue.SimpleQueue()
        self._is_open = True
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def put(self, parcel: _Parcel) -> None:
        self._waiting.put(parcel)

    def close(self) -> None:
        self._is_open = False
        self._waiting.put(None)
        self.thread.join()

    def _work(self) -> None:
        while (parcel := self._waiting.get()) is not None and self._is_open:
            parcel.begun_ns = self._post.now_ns()
            self._post.transmit(parcel, parcel.begun_ns)
            if not self._sockets.send(self._target, parcel.send.size_bytes):
                return


class Post:
    """The routes from one node to all others.

    Parameters
    ----------
    rank : int
    fleet : Fleet
    deliver : callable
        Called with a message and its arrival time (ns from ``zero_ns``), from any thread and possibly before that
        time.
    gone : callable
        Called once with a node that no longer answers, from any thread.
    addresses : tuple of str
        Addresses of all nodes, if the kernel shapes the wires between them.
    """

    def __init__(
        self, rank: int, fleet: Fleet, deliver: Callable[[Message, int], None], gone: Callable[[int], None],
        addresses: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.fleet, self.zero_ns = fleet, 0
        self._rank, self._deliver, self._tell_gone = rank, deliver, gone
        self._lost: set[int] = set()
        self._targets = {target: route for (source, target), route in sorted(fleet.routes.items()) if source == rank}
        sources = [source for source, target in sorted(fleet.routes) if target == rank]
        self._sockets = Sockets(rank, addresses, sources, self._targets, self.now_ns) if addresses else None
        self._lines: dict[int, _WireSender | _Line] = {}  # by target
        self._cards: dict[int, Bucket] = {}
        self._card_lock = threading.Lock()
        others = [index for index in range(fleet.num_nodes) if index != rank]
        self._send_locks = {item: threading.Lock() for item in others}
        self._receivers = [threading.Thread(target=self._receive, args=(item,), daemon=True) for item in others]
        self._others = others

    def start(self, zero_ns: int) -> None:
        """Start to receive; ``zero_ns`` is the time of the monotonic clock at which the run begins."""
        self.zero_ns = zero_ns
        wires: dict[int, _WireSender] = {}
        for target, route in self._targets.items():
            if self._sockets is not None:
                self._lines[target] = _Line(self, self._sockets, target)
            else:
                if route[0] not in wires:
                    wires[route[0]] = _WireSender(self, route[0])
                self._lines[target] = wires[route[0]]
        if self._sockets is not None:
            self._sockets.start()
        for receiver in self._receivers:
            receiver.start()

    def now_ns(self) -> int:
        """Return the ns since the run began."""
        return time.monotonic_ns() - self.zero_ns

    def send(self, send: Send) -> None:
        """Queue a message behind earlier ones to the same node.

        Raises
        ------
        InputError
            There is no route to the node.
        """
        self.fleet.route(self._rank, send.target)
        self._lines[send.target].put(_Parcel(send.target, send, float(send.size_bytes)))

    def close(self) -> None:
        """Drop messages that are not sent, and wait until the other nodes have closed, too."""
        if self._sockets is not None:
            self._sockets.close()
        for line in set(self._lines.values()):
            line.close()
        for item in self._others:
            self._send_object(item, _BYE)
        for thread in self._receivers:
            thread.join()

    def transmit(self, parcel: _Parcel, left_ns: int) -> None:
        """Transmit a message whose last byte leaves now."""
        send = parcel.send
        self._send_object(
            parcel.target, (send.tag, send.values, send.size_bytes, dict(send.about), parcel.begun_ns, left_ns)
        )

    def _send_object(self, target: int, what: Any) -> None:
        if target in self._lost:
            return
        body = torch.frombuffer(bytearray(pickle.dumps(what, protocol=5)), dtype=torch.uint8)
        with self._send_locks[target]:  # the two parts of a message stay together
            try:
                dist.send(torch.tensor([len(body)]), target)
                dist.send(body, target)
            except RuntimeError:
                pass  # the thread that receives from this node reports the loss

    def _receive(self, source: int) -> None:
        try:
            self._listen(source)
        except RuntimeError:
            self._lost.add(source)
            self._tell_gone(source)

    def _listen(self, source: int) -> None:
        route = self.fleet.routes.get((source, self._rank), ())
        latency_ns = sum(self.fleet.wires[item].latency_ns for item in route)
        size = torch.zeros(1, dtype=torch.int64)
        while True:
            dist.recv(size, source)
            body = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(body, source)
            what = pickle.loads(body.numpy().tobytes())
            if what == _BYE:
                return
            tag, values, size_bytes, about, begun_ns, left_ns = what
            if self._sockets is None:
                arrived_ns = left_ns
                for card in route[1:]:
                    arrived_ns = max(arrived_ns, self._through_card(card, size_bytes, begun_ns))
            elif (came_ns := self._sockets.arrival_ns(source)) is not None:
                arrived_ns = came_ns
            else:
                continue  # the message was cut off; the next receive raises the reason
            message = Message(source, tag, values, size_bytes, about, begun_ns)
            self._deliver(message, arrived_ns + latency_ns)

    def _through_card(self, number: int, size_bytes: int, begun_ns: int) -> int:
        with self._card_lock:
            bucket = self._cards.setdefault(number, Bucket(1.0))
            bucket.bandwidth_bytes_per_s = self.fleet.wires[number].bytes_per_s.value_at(max(begun_ns, 0))
            return bucket.due_ns(size_bytes, begun_ns)
