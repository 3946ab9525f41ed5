"""A long-running server that answers requests while its instances change.

In: what is served, a ``Server``, requests one by one, other splits. Out: replies, each request's once. A thread makes
batches by the rule of ``tail`` and deals them out; another starts new instances while the old ones serve, lets all new
batches go to them from the moment on at which they are ready, and then ends the old ones. Not here: its
processes (``pool``), which split (``adapt``), a network (``web``).

References
----------
Packrat, ICML 2025: aggregator, partitioner, allocator; active-passive change.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from windtunnel.errors import FlightError, InputError, WindtunnelError
from windtunnel.measure.together import moment_in
from windtunnel.measure.workers import WorkerError
from windtunnel.systems.serving.instances import Order, fitting
from windtunnel.systems.serving.job import Answer
from windtunnel.systems.serving.model import Instance, Split
from windtunnel.systems.serving.pool import Running, close_all, is_warm, match_running, start_instances
from windtunnel.systems.serving.record import Batch, Change, Reply
from windtunnel.systems.serving.tail import Server

__all__ = ["LiveServer"]

_TRIES = 2  # a request that two instances died of is not given to a third
_KEPT = 100_000
_Active = list[tuple[Instance, Running]]


@dataclass(eq=False)
class _Request:
    body: Any
    arrived_ns: int
    future: Future[Reply]
    tries: int = 0


class LiveServer:
    """Instances that answer requests. On exit the context manager answers waiting requests, then ends the instances.

    Parameters
    ----------
    job : str
        As for ``served``.
    server : Server
        Its split at first, and how long a request waits for others.
    max_inputs : int
        The largest batch that any split will have; by default this one's.

    Attributes
    ----------
    batches : deque of Batch
        The last ones.
    changes : list of Change
        The first instances' start is not one.

    Raises
    ------
    InputError
        A split wants more threads than there are cores; names both.
    FlightError
        On entering: an instance did not start.
    """

    def __init__(self, job: str, server: Server, *, max_inputs: int = 0) -> None:
        fitting([server.split.threads])
        self.job, self._wait_ns = job, server.wait_ns
        self._max_inputs = max(max_inputs, server.split.batch)
        self.batches: deque[Batch] = deque(maxlen=_KEPT)
        self.changes: list[Change] = []
        # all that follows is shared by the threads, under this lock
        self._moved = threading.Condition()
        self._queue: deque[_Request] = deque()
        self._num_begun = 0
        self._split = self._target = server.split
        self._active: _Active = []
        self._busy: _Active = []
        self._state = "warming"
        self._failure: WindtunnelError | None = None
        self._is_closing = self._has_answered_all = False
        self._threads = [threading.Thread(target=item, daemon=True) for item in (self._answer, self._change)]

    def __enter__(self) -> LiveServer:
        for thread in self._threads:
            thread.start()
        try:
            self.settle()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what others ask of it ------------------------------------------------------------------------------

    @property
    def split(self) -> Split:
        """The split that serves now."""
        return self._split

    @property
    def state(self) -> str:
        """``serving``, ``warming`` (new instances start while the old ones serve), ``draining`` or ``failed``."""
        return self._state

    @property
    def num_ready(self) -> int:
        """Number of instances that can answer a batch."""
        return len(self._active)

    @property
    def num_unanswered(self) -> int:
        """Number of waiting requests and of those in the current batch."""
        return len(self._queue) + self._num_begun

    def submit(self, body: Any = None, arrived_ns: int | None = None) -> Future[Reply]:
        """Submit a request.

        Parameters
        ----------
        body : any, optional
            What it brings, for ``Served.preprocess``.
        arrived_ns : int, optional
            When it came; now by default.

        Returns
        -------
        future of Reply
            Raises ``InputError`` where this request could not be answered, ``FlightError`` where instances died of it.

        Raises
        ------
        FlightError
            The server takes no requests: it is closing, or no instance is left and none could be started.
        """
        request = _Request(body, moment_in(0) if arrived_ns is None else arrived_ns, Future())
        with self._moved:
            if self._failure is not None:
                raise self._failure
            if self._is_closing:
                raise FlightError("the server is closing", where=self.job)
            self._queue.append(request)
            self._moved.notify_all()
        return request.future

    def change(self, split: Split) -> None:
        """Serve with a split as soon as its instances are ready; this cancels a change to a split of other threads.

        Instances that both have stay. Errors as of the class.
        """
        fitting([split.threads])
        with self._moved:
            if split != self._target:
                self._target = split
            self._moved.notify_all()

    def settle(self) -> None:
        """Wait until the server uses the split that was set last.

        Raises
        ------
        FlightError
            No instance is left, and none could be started.
        """
        with self._moved:
            self._moved.wait_for(lambda: self._failure is not None or self._is_settled())
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Answer waiting requests, accept no more, and end all instances; idempotent."""
        with self._moved:
            self._is_closing = True
            self._moved.notify_all()
        for thread in self._threads:
            thread.join()

    # --- batches --------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        while True:
            with self._moved:
                # batch and split are taken in one step under the lock: a change holds from the next batch on
                batch = self._next_batch()
                split, active = self._split, list(self._active)
                self._busy, self._num_begun = (active, len(batch)) if batch else ([], 0)
                if not batch:
                    self._has_answered_all = True
                    self._moved.notify_all()
                    return
            begun_ns = moment_in(0)
            died = self._deal(batch, split, active)
            with self._moved:
                self.batches.append(Batch(split, len(batch), begun_ns, moment_in(0)))
                self._active = [pair for pair in self._active if pair[1] not in died]
                self._busy, self._num_begun = [], 0
                self._moved.notify_all()

    def _next_batch(self) -> list[_Request]:
        """Wait, under the lock, for the next batch of requests; empty once the server is closed."""
        while True:
            if self._failure is not None:
                for request in self._queue:
                    _give(request, self._failure)
                self._queue.clear()
            if self._queue and self._active:
                left_ns = self._queue[0].arrived_ns + self._wait_ns - moment_in(0)
                if len(self._queue) >= self._split.batch or left_ns <= 0 or self._is_closing:
                    # whose instance has died is tried alone: others shall not share its fate
                    most = 1 if self._queue[0].tries else min(len(self._queue), self._split.batch)
                    used = [self._queue.popleft() for _ in range(most)]
                    batch = [item for item in used if item.tries or item.future.set_running_or_notify_cancel()]
                    if batch:
                        return batch
                    continue
                self._moved.wait(left_ns / 1e9)
            elif self._is_closing and not self._queue:
                return []
            else:
                self._moved.wait()

    def _deal(self, batch: list[_Request], split: Split, active: _Active) -> list[Running]:
        """Let all instances answer their parts; return those that died, whose requests are queued again."""
        parts = Split(tuple(item for item, _ in active), split.batch).parts(len(batch))
        moment_ns, index = moment_in(0), 0
        requested: list[tuple[Running, list[_Request]]] = []
        for (_, process), part in zip(active, parts, strict=True):
            own, index = batch[index : index + part], index + part
            if own and self._is_sent(process, own, moment_ns):
                requested.append((process, own))
        answers: list[tuple[_Request, Answer]] = []
        died, again = [], []
        # all have their parts before any answer is awaited, so that instances work side by side
        for process, own in requested:
            try:
                _, result, _ = process.workers.receive()
                answers += zip(own, result or [Answer(None)] * len(own), strict=True)
            except WorkerError as error:
                died.append(process)
                again += _again(own, error)
        answered_ns = moment_in(0)
        for request, answer in answers:
            if answer.error:
                _give(request, InputError(f"this request cannot be answered: {answer.error}", where=self.job))
            else:
                request.future.set_result(Reply(answer.output, request.arrived_ns, answered_ns))
        with self._moved:
            # in front, in their old order: they have waited longest
            self._queue.extendleft(reversed(again))
        return died

    def _is_sent(self, process: Running, own: list[_Request], moment_ns: int) -> bool:
        bodies = [item.body for item in own]
        try:
            process.workers.send(
                Order(len(own), moment_ns, bodies if any(body is not None for body in bodies) else None)
            )
        except WorkerError:
            pass  # it is heard of when its answer is waited for
        except Exception as error:  # of pickle, before a byte is sent
            for request in own:
                _give(request, InputError(f"what these requests bring cannot be sent: {error}", where=self.job))
            return False
        return True

    # --- changes --------------------------------------------------------------------------------------------

    def _is_settled(self) -> bool:
        return (
            self._state == "serving"
            and self._split is self._target
            and [item for item, _ in self._active] == list(self._target.instances)
        )

    def _change(self) -> None:
        held: list[Running] = []
        while True:
            with self._moved:
                self._moved.wait_for(lambda: self._has_answered_all or not (self._is_settled() or self._failure))
                if self._has_answered_all:
                    break
                before, target = self._split, self._target
            begun_ns = moment_in(0)
            try:
                held = self._change_split(held, before, target, begun_ns)
            except WindtunnelError as error:
                self._fail(before, target, begun_ns, error)
            except OSError as error:
                failure = FlightError(f"an instance could not be started: {error}", where=self.job)
                self._fail(before, target, begun_ns, failure)
        close_all(held)

    def _change_split(self, held: list[Running], before: Split, target: Split, begun_ns: int) -> list[Running]:
        """Change to the target split unless the target changes meanwhile; return the running instances."""
        with self._moved:
            alive = [process for _, process in self._active]
            self._state = "warming"
        new = start_instances(self.job, target, alive, self._max_inputs)
        try:
            is_ready = is_warm(new, target, lambda: self._is_like(target) and not self._has_answered_all)
        except BaseException:
            close_all(new)
            raise
        with self._moved:
            if not is_ready or not self._is_like(target):
                self._state = "serving"
                close_all(new)
                return held
            # who has died meanwhile is missing, which is the next change
            target, alive = self._target, [process for _, process in self._active]
            pairs = zip(target.instances, match_running(target, [*alive, *new]), strict=True)
            self._active = [(instance, item) for instance, item in pairs if item is not None]
            self._split, self._state = target, "draining"
            serving_ns = moment_in(0)
            self._moved.notify_all()
            still = [process for _, process in self._active]
            self._moved.wait_for(lambda: not any(item not in still for _, item in self._busy))
        close_all([item for item in [*held, *new] if item not in still])
        with self._moved:
            if held:  # else it is the start
                self.changes.append(Change(before, target, begun_ns, serving_ns, moment_in(0)))
            self._state = "serving"
            self._moved.notify_all()
        return still

    def _is_like(self, split: Split) -> bool:
        """Whether the current target has the same threads; a fluctuating queue must not restart the warm-up."""
        return sorted(instance.threads for instance in split.instances) == sorted(
            instance.threads for instance in self._target.instances
        )

    def _fail(self, before: Split, target: Split, begun_ns: int, error: WindtunnelError) -> None:
        """Continue with the remaining instances, or fail if there are none."""
        with self._moved:
            now_ns = moment_in(0)
            self.changes.append(Change(before, target, begun_ns, now_ns, now_ns, failed=error.message))
            if self._active:
                left = tuple(item for item, _ in self._active)
                self._split = Split(left, min(before.batch, sum(item.batch for item in left)))
                self._state = "serving"
                if self._target is target:
                    self._target = self._split
            else:
                self._state, self._failure = "failed", error
            self._moved.notify_all()


def _again(own: list[_Request], error: WorkerError) -> list[_Request]:
    """Return the requests that may be retried; the others fail."""
    for request in own:
        request.tries += 1
        if request.tries >= _TRIES:
            _give(request, error)
    return [item for item in own if item.tries < _TRIES]


def _give(request: _Request, error: WindtunnelError) -> None:
    with suppress(Exception):  # who asked has gone
        request.future.set_exception(error)
