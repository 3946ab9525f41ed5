"""Reduce-scatter and all-gather of flat tensors in a thread of their own, over gloo's send and receive.

In: flat tensors, in an order that is the same on all ranks. Out: jobs that can be waited for. Gloo has no reliable
reduce-scatter on CPUs, so both are rings on point-to-point messages, cut into pieces: a piece travels on as soon as it
has been added. For two ranks the ring is a direct exchange. Not here: which tensors, and why (``sliced``).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["BackgroundRing", "Job", "chunk_bounds"]


def chunk_bounds(size: int, num_ranks: int, rank: int) -> tuple[int, int]:
    """First element of a rank's chunk of a flat tensor, and the first behind it.

    All chunks have the same size but for the last ones, which may be shorter.

    Examples
    --------
    >>> [chunk_bounds(10, 4, rank) for rank in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    length = -(-size // num_ranks)
    return min(rank * length, size), min((rank + 1) * length, size)


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
        """Let this rank's chunk become the mean over all ranks; the other chunks are overwritten with partial sums."""
        return self._submit(lambda: self._reduce_scatter(flat))

    def all_gather(self, flat: torch.Tensor) -> Job:
        """Let each chunk become that of its rank."""
        return self._submit(lambda: self._all_gather(flat))

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

    def _reduce_scatter(self, flat: torch.Tensor) -> None:
        # Chunk c starts at rank c + 1 and ends, reduced, at rank c: rank r sends chunk r - 1 - j in step j.
        chunks = self._chunks(flat)
        scratch = self._scratch_like(flat)
        length = max(map(len, chunks))
        incoming = [
            scratch[step * length :][: len(self._chunk(chunks, -2 - step))] for step in range(self.num_ranks - 1)
        ]

        def add(step: int, start: int, stop: int) -> torch.Tensor:
            part = self._chunk(chunks, -2 - step)[start:stop]
            part += incoming[step][start:stop]
            if step == self.num_ranks - 2:  # it is this rank's own, and still in the cache
                part /= self.num_ranks
            return part

        self._go_round(self._chunk(chunks, -1), incoming, add)

    def _all_gather(self, flat: torch.Tensor) -> None:
        chunks = self._chunks(flat)
        incoming = [self._chunk(chunks, -1 - step) for step in range(self.num_ranks - 1)]
        self._go_round(self._chunk(chunks, 0), incoming, lambda step, start, stop: incoming[step][start:stop])

    def _go_round(
        self, first: torch.Tensor, incoming: list[torch.Tensor], arrive: Callable[[int, int, int], torch.Tensor]
    ) -> None:
        """Send a chunk to the next rank, and in each step what ``arrive`` makes of the piece that came before.

        All receives are posted before anything is sent: gloo announces them on the connection that the data uses, and
        behind data they would come late.
        """
        piece = max(1, self._piece_bytes // first.element_size())
        after, before = (self.rank + 1) % self.num_ranks, (self.rank - 1) % self.num_ranks
        # every rank counts tags alike, though chunks may differ in length: a chunk has as many tags as the longest
        width = -(-max(len(first), *map(len, incoming), 1) // piece) if incoming else 1
        tag, self._tag = self._tag, (self._tag + width * self.num_ranks) % (1 << 30)
        receives = [
            [
                (start, min(start + piece, len(chunk)), self._group.recv([part], before, tag + step * width + index))
                for index, start in enumerate(range(0, len(chunk), piece))
                for part in (chunk[start : start + piece],)
            ]
            for step, chunk in enumerate(incoming)
        ]
        sends = []
        if incoming:
            parts = first.split(piece) if len(first) else ()
            sends = [self._group.send([part], after, tag + index) for index, part in enumerate(parts)]
        for step, works in enumerate(receives):
            for index, (start, stop, work) in enumerate(works):
                work.wait()
                part = arrive(step, start, stop)
                if step + 1 < len(receives):
                    sends.append(self._group.send([part], after, tag + (step + 1) * width + index))
        for work in sends:
            work.wait()

    def _chunks(self, flat: torch.Tensor) -> list[torch.Tensor]:
        bounds = (chunk_bounds(len(flat), self.num_ranks, rank) for rank in range(self.num_ranks))
        return [flat[start:stop] for start, stop in bounds]

    def _chunk(self, chunks: list[torch.Tensor], offset: int) -> torch.Tensor:
        return chunks[(self.rank + offset) % self.num_ranks]

    def _scratch_like(self, flat: torch.Tensor) -> torch.Tensor:
        """Room for the chunks that come in, and maybe more."""
        import torch

        length = (self.num_ranks - 1) * -(-len(flat) // self.num_ranks)
        scratch: torch.Tensor | None = self._scratch
        if scratch is None or scratch.dtype != flat.dtype or len(scratch) < length:
            scratch = torch.empty(length, dtype=flat.dtype)
            self._scratch = scratch
        return scratch
