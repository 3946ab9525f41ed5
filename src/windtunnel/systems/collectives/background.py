"""Reduce-scatter and all-gather of flat tensors in a thread of their own, over gloo's send and receive.

In: flat tensors, in an order that is the same on all ranks. Out: jobs that can be waited for. Gloo's reduce-scatter on
CPUs is an all-reduce, with all of its bytes, so both are the plans' rings (``rings``), cut into pieces: a piece travels
on as soon as it has been added. For two ranks the ring is a direct exchange. Not here: which tensors, and why
(``sliced``).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from windtunnel.systems.collectives.layouts import block
from windtunnel.systems.collectives.plan import Receive, ReceiveReduce, Send, View
from windtunnel.systems.collectives.rings import Hop, RingPlace, gather_hops, reduce_hops

if TYPE_CHECKING:
    import torch

__all__ = ["BackgroundRing", "Job"]

RingPlan = tuple[Send | Receive | ReceiveReduce, ...]
FLAT, PARTIAL = "flat", "partial"  # buffers of plans: the tensor, and sums on their way


@cache
def ring_plan(rank: int, num_ranks: int, size: int, num_pieces: int, is_gather: bool) -> RingPlan:
    """A ring over a flat tensor, whose pieces travel independently.

    Each message has a tag of its own, the same on both of its ranks.

    Examples
    --------
    >>> [str(item) for item in ring_plan(0, 2, 6, 1, True)]
    ['send flat[0:3] to rank 1 (tag 0)', 'receive flat[3:6] from rank 1 (tag 0)']
    """
    full, place, width = View(FLAT, 0, (size,)), RingPlace(rank, num_ranks), block(size, 0, num_ranks)[1]

    def hops(piece: int) -> list[Hop]:
        def part(chunk: int) -> View:
            start, stop = block(size, chunk, num_ranks)
            first, last = block(stop - start, piece, num_pieces)
            return full.part(start + first, last - first)

        first, last = block(width, piece, num_pieces)
        work = [View(PARTIAL, offset + first, (last - first,)) for offset in (0, width)]
        return gather_hops(place, part, 0) if is_gather else reduce_hops(place, part, part(rank), work, 0)

    items: list[Any] = []
    pieces = [hops(piece) for piece in range(num_pieces)]
    for step in range(num_ranks):
        for piece, steps in enumerate(pieces):  # what has arrived is added, and travels on at once
            arrived: list[Any] = steps[step - 1].rest if step else []
            following: list[Any] = steps[step].sends if step < len(steps) else []
            items += [replace(item, tag=(step - 1) * num_pieces + piece) for item in arrived]
            items += [replace(item, tag=step * num_pieces + piece) for item in following]
    return tuple(items)


class Job:
    """Something that the thread does; ``wait`` raises what it raised."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._done = threading.Event()
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def run(self) -> None:
        """Do it, in the thread."""
        try:
            self._work()
        except BaseException as error:  # raised again where a thread waits for it
            self._error = error
        self._done.set()

    def wait(self) -> None:
        """Wait until it has ended."""
        self._done.wait()
        if self._error is not None:
            raise self._error


class BackgroundRing:
    """A thread and a process group of its own that carry one tensor after the other.

    Parameters
    ----------
    group : ProcessGroup
        Nothing else may use it. Creating it is a collective call of all ranks.
    piece_bytes : int
        A message has at most this size, so that adding a piece overlaps receiving the next one.
    """

    def __init__(self, group: Any, *, piece_bytes: int = 1 << 20) -> None:
        self.rank: int = group.rank()
        self.num_ranks: int = group.size()
        self._group, self._piece_bytes = group, piece_bytes
        self._tag = 0
        self._scratch: torch.Tensor | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._carry, name="background ring", daemon=True)
        self._thread.start()

    def reduce_scatter(self, flat: torch.Tensor) -> Job:
        """Let this rank's chunk become the mean over all ranks."""
        return self._submit(lambda: self._run(flat, is_gather=False))

    def all_gather(self, flat: torch.Tensor) -> Job:
        """Let each chunk become that of its rank."""
        return self._submit(lambda: self._run(flat, is_gather=True))

    def all_reduce(self, value: torch.Tensor) -> Job:
        """Let a small tensor become its sum over all ranks."""
        return self._submit(lambda: self._group.allreduce([value]).wait())

    def close(self) -> None:
        """End the thread once it has done everything."""
        self._jobs.put(None)
        self._thread.join()

    def _submit(self, work: Callable[[], None]) -> Job:
        job = Job(work)
        self._jobs.put(job)
        return job

    def _carry(self) -> None:
        import torch

        with torch.no_grad():
            while (job := self._jobs.get()) is not None:
                job.run()

    def _run(self, flat: torch.Tensor, *, is_gather: bool) -> None:
        """Do what the plan says.

        All receives are posted before anything is sent: gloo announces them on the connection that the data uses, and
        behind data they would come late.
        """
        import torch

        count = max(1, -(-len(flat) * flat.element_size() // (self.num_ranks * self._piece_bytes)))
        plan = ring_plan(self.rank, self.num_ranks, len(flat), count, is_gather)
        base, self._tag = self._tag, (self._tag + count * self.num_ranks) % (1 << 30)
        arrivals = [item for item in plan if not isinstance(item, Send)]
        ends = [item.target.start + item.target.size for item in arrivals if item.target.buffer == PARTIAL]
        sizes = [item.target.size * isinstance(item, ReceiveReduce) for item in arrivals]
        scratch = self._scratch_like(flat, max(ends, default=0) + sum(sizes))
        buffers, free = {FLAT: flat, PARTIAL: scratch}, max(ends, default=0)

        def memory(view: View) -> torch.Tensor:
            return buffers[view.buffer][view.start : view.start + view.size]

        messages = []
        for arrival, size in zip(arrivals, sizes, strict=True):
            message = scratch[free : free + size] if size else memory(arrival.target)
            free += size
            messages.append((self._group.recv([message], arrival.peer, base + arrival.tag), message))
        coming, sends = iter(messages), dict[tuple[str, int], Any]()
        for item in plan:
            if isinstance(item, Send):
                sends[item.source.buffer, item.source.start] = self._group.send(
                    [memory(item.source)], item.peer, base + item.tag
                )
                continue
            work, message = next(coming)
            work.wait()
            if (leaving := sends.pop((item.target.buffer, item.target.start), None)) is not None:
                leaving.wait()  # a sum of two steps ago may still be on its way
            if isinstance(item, ReceiveReduce):
                total = torch.add(memory(item.own), message, out=memory(item.target))
                if item.target.buffer == FLAT:  # it is this rank's own, and still in the cache
                    total /= self.num_ranks
        for work in sends.values():
            work.wait()

    def _scratch_like(self, flat: torch.Tensor, size: int) -> torch.Tensor:
        """Room for at least this number of elements."""
        import torch

        scratch: torch.Tensor | None = self._scratch
        if scratch is None or scratch.dtype != flat.dtype or len(scratch) < size:
            scratch = torch.empty(size, dtype=flat.dtype)
            self._scratch = scratch
        return scratch
