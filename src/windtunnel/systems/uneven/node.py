"""One node of a real run: a process that computes, sends and receives.

In: a ``NodeOrders``. Out: a ``NodeReport``. The main thread computes gradients and delays each until its step would end
on a worker of that speed, by an absolute schedule. Other threads handle messages and timers as they come. Not here:
strategies, links.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.measure.links import sleep_until
from windtunnel.measure.workers import Place
from windtunnel.systems.uneven.endpoint import Endpoint, Outward
from windtunnel.systems.uneven.fleet import Fleet
from windtunnel.systems.uneven.job import FlatModel, Samples, step_seed
from windtunnel.systems.uneven.jobs import train_job
from windtunnel.systems.uneven.partitions import split
from windtunnel.systems.uneven.policy import Finished, Message, Probe, Send, Step
from windtunnel.systems.uneven.post import Post

__all__ = ["NodeOrders", "NodeReport", "main"]

_PATIENCE_S = 7200.0
_LATE_NS = 5_000_000


@dataclass(frozen=True)
class NodeOrders:
    """The orders that all nodes of a run share."""

    job: str
    fleet: Fleet
    strategy: str
    numbers: dict[str, Any]
    seed: int
    duration_ns: int
    every_ns: int
    addresses: tuple[str, ...] = ()


@dataclass
class NodeReport:
    """What one node did; times in ns from the beginning of the run."""

    steps: list[tuple[int, int, int, int]] = field(default_factory=list)
    messages: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    looks: list[tuple[int, NDArray[np.float32], NDArray[np.float32], int]] = field(default_factory=list)
    computed_ns: list[int] = field(default_factory=list)
    num_late: int = 0
    under_way: int | None = None
    lost_workers: dict[int, int] = field(default_factory=dict)
    serves: bool = False
    warnings: list[str] = field(default_factory=list)


def main(process: Place) -> None:
    """Train until the time is over, then report to the parent process."""
    torch.set_num_threads(1)
    process.join(_PATIENCE_S)
    node = _RealNode(process.config, process.rank)
    process.tell(node.fingerprint())
    report = node.run(int(process.order()), vanish=partial(_vanish, process))
    dist.destroy_process_group()
    process.tell(report)


def _vanish(process: Place, report: NodeReport) -> None:
    """Report what the node did, then kill this process, as if its machine were removed."""
    process.tell(report)
    os.kill(os.getpid(), signal.SIGKILL)


class _RealNode:
    def __init__(self, orders: NodeOrders, rank: int) -> None:
        self._orders, self._rank, self._fleet = orders, rank, orders.fleet
        job = train_job(orders.job)
        num = self._fleet.num_workers
        self._job, self._flat = job, FlatModel(job, orders.seed)
        self._is_worker = rank < num
        parts = split(job.sample_labels(), num, self._fleet.partition)
        part = parts[rank] if self._is_worker else np.empty(0, np.int64)
        self._part = part
        self._probes: list[Probe] = []
        self._samples = Samples(part, orders.seed, rank)
        policy = registry.get("strategy", orders.strategy).function(**orders.numbers)
        self._end = Endpoint(self._flat.node(rank, num, len(part)), policy, over_server=self._fleet.has_server)
        self._post = Post(rank, self._fleet, self._deliver, self._gone, orders.addresses)
        self._report = NodeReport(serves=self._end.serves)
        self._lock = threading.RLock()  # the strategy's state
        self._ordered = threading.Condition(self._lock)
        self._begin_ns: int | None = None  # of a step that is asked for
        self._clock = _Alarm(self._post.now_ns, self._ordered)
        if self._is_worker:  # the first pass through a network takes longer
            selected = torch.as_tensor(part[: job.batch_size])
            for _ in range(2):
                self._flat.gradient(self._flat.initial, self._flat.initial_buffers.clone(), selected, 0)

    def fingerprint(self) -> str:
        """Of what it begins with, which all nodes share."""
        started = torch.cat([self._flat.initial, self._flat.initial_buffers.to(self._flat.initial.dtype)])
        return hashlib.sha256(started.numpy().tobytes()).hexdigest()

    def run(self, zero_ns: int, vanish: Callable[[NodeReport], None]) -> NodeReport:
        self._post.start(zero_ns)
        self._clock.start()
        sleep_until(zero_ns)
        for at_ns in range(0, self._orders.duration_ns, self._orders.every_ns):
            self._clock.call_at(at_ns, self._look)
        lost_ns = self._fleet.workers[self._rank].lost_ns if self._is_worker else None
        if lost_ns is not None:
            self._clock.call_at(lost_ns, partial(vanish, self._report))
        with self._lock:
            self._do(self._end.start(), 0)
        while self._is_worker and self._step():
            pass
        if self._clock.error is None:
            sleep_until(zero_ns + self._orders.duration_ns)
        self._clock.close()
        self._look()
        self._post.close()
        if self._clock.error is not None:
            raise self._clock.error
        self._report.warnings = self._end.node.warnings
        return self._report

    def _step(self) -> bool:
        """Wait for the next step and do it; False when the time is over."""
        with self._ordered:
            while self._begin_ns is None and not self._probes:
                left_ns = self._orders.duration_ns - self._post.now_ns()
                if left_ns <= 0 or self._clock.error is not None:
                    return False
                self._ordered.wait(left_ns / 1e9)
            if self._probes:
                return self._probe(self._probes.pop(0))
            assert self._begin_ns is not None
            begun_ns, self._begin_ns = self._begin_ns, None
            num_samples, weights = self._end.batch_size, self._end.node.weights.clone()
        selected = self._samples.draw(num_samples)
        seed = step_seed(self._orders.seed, self._rank, len(self._report.steps))
        gradient, loss = self._flat.gradient(weights, self._end.node.buffers, selected, seed)
        self._report.computed_ns.append(self._post.now_ns() - begun_ns)
        end_ns = self._fleet.step_end_ns(self._rank, begun_ns, num_samples / self._job.batch_size)
        self._report.num_late += self._post.now_ns() > end_ns
        sleep_until(self._post.zero_ns + min(end_ns, self._orders.duration_ns))
        if end_ns > self._orders.duration_ns:
            self._report.under_way = begun_ns
            return False
        with self._lock:
            now_ns = self._post.now_ns()
            now_ns = end_ns if now_ns - end_ns < _LATE_NS else now_ns  # an absolute schedule does not drift
            self._report.steps.append((self._rank, begun_ns, now_ns, num_samples))
            self._do(self._end.on_step(Finished(gradient, loss, num_samples, begun_ns), now_ns), now_ns)
        return True

    def _probe(self, probe: Probe) -> bool:
        """Evaluate weights, for as long as a worker of that speed would take; the caller holds the lock."""
        begun_ns = self._post.now_ns()
        self._lock.release()
        try:
            result = self._flat.probe(probe, self._part)
            ratio = probe.num_samples / self._job.batch_size
            end_ns = min(self._fleet.probe_end_ns(self._rank, begun_ns, ratio), self._orders.duration_ns)
            sleep_until(self._post.zero_ns + end_ns)
        finally:
            self._lock.acquire()
        now_ns = self._post.now_ns()
        self._do(self._end.on_probe(probe.tag, *result, now_ns), now_ns)
        return now_ns < self._orders.duration_ns

    def _do(self, actions: Sequence[Outward], now_ns: int) -> None:
        for action in actions:
            if isinstance(action, Step):
                self._begin_ns = now_ns
                self._ordered.notify()
            elif isinstance(action, Probe):
                self._probes.append(action)
                self._ordered.notify()
            elif isinstance(action, Send):
                self._post.send(action)
            else:
                due_ns, tag = now_ns + max(action.delay_ns, 0), action.tag
                self._clock.call_at(due_ns, partial(self._fire, tag, due_ns))

    def _fire(self, tag: str, due_ns: int) -> None:
        self._do(self._end.on_timer(tag, due_ns), due_ns)

    def _deliver(self, message: Message, due_ns: int) -> None:
        self._clock.call_at(due_ns, lambda: self._arrive(message, due_ns))

    def _arrive(self, message: Message, due_ns: int) -> None:
        self._report.messages.append((message.source, self._rank, message.sent_ns, due_ns, message.size_bytes))
        self._do(self._end.on_message(message, due_ns), due_ns)

    def _gone(self, rank: int) -> None:
        """Handle a node that no longer answers."""
        now_ns = self._post.now_ns()
        if now_ns < self._orders.duration_ns:
            self._clock.call_at(now_ns, partial(self._lose, rank, now_ns))

    def _lose(self, rank: int, now_ns: int) -> None:
        self._report.lost_workers[rank] = now_ns
        self._do(self._end.on_worker_lost(rank, now_ns), now_ns)

    def _look(self) -> None:
        weights = self._end.model().numpy().copy()
        buffers = self._end.node.buffers.numpy().copy()
        self._report.looks.append((self._post.now_ns(), weights, buffers, len(self._report.steps)))


class _Alarm:
    """Calls functions when they are due, in order of time, under the lock of a condition that is notified of errors."""

    def __init__(self, now_ns: Callable[[], int], state: threading.Condition) -> None:
        self._now_ns, self._state = now_ns, state
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._changed = threading.Condition()
        self._count, self._is_open = 0, True
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call_at(self, due_ns: int, call: Callable[[], None]) -> None:
        with self._changed:
            self._count += 1
            heapq.heappush(self._heap, (due_ns, self._count, call))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._is_open and (not self._heap or self._heap[0][0] > self._now_ns()):
                    left_ns = self._heap[0][0] - self._now_ns() if self._heap else None
                    self._changed.wait(None if left_ns is None else max(left_ns, 0) / 1e9)
                if not self._is_open:
                    return
                _, _, call = heapq.heappop(self._heap)
            with self._state:
                try:
                    call()
                except Exception as error:  # the main thread raises it
                    self.error = error
                    self._state.notify()
                    return
