"""What one collective sends: transfers of chunks between ranks, and which waits for which.

In: transfers in the order of their steps. Out: a ``Schedule``, whose dependencies follow from who wrote what is sent.
Not here: which algorithm, how long a transfer takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

__all__ = ["Schedule"]

# M transfers, D dependencies, n ranks, C cells: the chunks of the message as every rank numbers them
Ints = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The transfers of one message.

    Parameters
    ----------
    num_ranks : int
    num_cells : int
        Chunks that a rank may hold.
    per_message : int
        How many of them make up the bytes of the message; cell c has the bytes of chunk ``c % per_message``.
    src, dst : int [M]
        Who sends, who receives.
    first, count : int [M]
        The cells that go.
    reduces : bool [M]
        Whether the receiver adds them to its own, else they replace it.
    needs : int [D, 2]
        (transfer, transfer whose arrival its sender waits for).
    by_arrival : bool
        Whether arrivals are added up in the order in which they come; else the order is fixed.
    """

    num_ranks: int
    num_cells: int
    per_message: int
    src: Ints
    dst: Ints
    first: Ints
    count: Ints
    reduces: Ints
    needs: Ints
    by_arrival: bool = False

    def __len__(self) -> int:
        return len(self.src)

    @classmethod
    def of_steps(
        cls, num_ranks: int, num_cells: int, steps: list[Ints], *, per_message: int = 0, in_lockstep: bool = False
    ) -> Schedule:
        """From steps whose sends all read before any of them writes.

        Parameters
        ----------
        num_ranks, num_cells : int
        steps : list of int [M_s, 5]
            Columns sender, receiver, first cell, number of cells, whether the receiver adds.
        per_message : int
            ``num_cells`` by default.
        in_lockstep : bool
            A rank begins a step when it has all of the step before, though it sends what it had from the beginning.
        """
        rows = np.concatenate(
            [np.asarray(step, dtype=np.int64).reshape(-1, 5) for step in steps] or [np.empty((0, 5), dtype=np.int64)]
        )
        step = np.repeat(np.arange(len(steps)), [len(np.reshape(item, (-1, 5))) for item in steps])
        src, dst, first, count, reduces = (np.ascontiguousarray(column) for column in rows.T)
        if in_lockstep:
            needs = _after_last_step(src, dst, step)
        else:
            needs = _who_wrote(src, dst, first, count, reduces, step, num_ranks, num_cells)
        return cls(
            num_ranks, num_cells, per_message or num_cells, src, dst, first, count, reduces.astype(bool), needs
        )  # fmt: skip

    def sizes(self, message_bytes: ArrayLike) -> Ints:
        """Bytes of every transfer for messages of these sizes, int64 [..., M]; the chunks of a message add up to it."""
        size = np.asarray(message_bytes, dtype=np.int64)[..., None]
        chunk, parts = self.first % self.per_message, self.per_message
        result: Ints = size * (chunk + self.count) // parts - size * chunk // parts
        return result

    def last_of_ranks(self) -> Ints:
        """Transfers that end the collective for their receiver: what they bring is not sent on."""
        is_last = np.ones(len(self), dtype=bool)
        is_last[self.needs[:, 1]] = False
        result: Ints = np.flatnonzero(is_last)
        return result

    def first_of_ranks(self) -> Ints:
        """Transfers that wait for no other."""
        is_first = np.ones(len(self), dtype=bool)
        is_first[self.needs[:, 0]] = False
        result: Ints = np.flatnonzero(is_first)
        return result


def _after_last_step(src: Ints, dst: Ints, step: Ints) -> Ints:
    """Each transfer after what arrived at its sender one step before."""
    by_arrival = {(int(s), int(d)): row for row, (s, d) in enumerate(zip(step, dst, strict=True))}
    pairs = [
        (row, by_arrival[s - 1, sender])
        for row, (s, sender) in enumerate(zip(step.tolist(), src.tolist(), strict=True))
        if (s - 1, sender) in by_arrival
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


@njit(cache=True)
def _who_wrote(
    src: Ints, dst: Ints, first: Ints, count: Ints, reduces: Ints, step: Ints, num_ranks: int, num_cells: int
) -> Ints:
    """Pairs (transfer, earlier transfer that wrote to the sender what is sent), each once.

    Per rank and cell a linked list of the arrivals that its content is made of: a sum has several, a copy one.
    """
    #      head[rank, cell] -> entry -> link[entry] -> ...       writer[entry]: the transfer that arrived
    # A copy starts the list anew, a sum is prepended to it: what is sent later depends on all of them.
    num = src.size
    head = np.full((num_ranks, num_cells), -1, dtype=np.int64)
    room = 0
    for m in range(num):
        room += count[m]
    link = np.empty(room, dtype=np.int64)
    writer = np.empty(room, dtype=np.int64)
    used = 0
    stamp = np.full(num, -1, dtype=np.int64)
    pairs = np.empty((max(2 * num, 16), 2), dtype=np.int64)
    result = 0
    begin = 0
    while begin < num:
        end = begin
        while end < num and step[end] == step[begin]:
            end += 1
        # All transfers of one step read before any of them writes: they happen at the same time.
        for m in range(begin, end):
            for cell in range(first[m], first[m] + count[m]):
                index = head[src[m], cell]
                while index >= 0:
                    # A transfer of many cells often depends on one earlier transfer; the pair is listed once.
                    if stamp[writer[index]] != m:
                        stamp[writer[index]] = m
                        if result == len(pairs):
                            bigger = np.empty((2 * result, 2), dtype=np.int64)
                            for pair in range(result):  # numba compiles a loop many times faster than a slice
                                bigger[pair, 0], bigger[pair, 1] = pairs[pair, 0], pairs[pair, 1]
                            pairs = bigger
                        pairs[result, 0], pairs[result, 1] = m, writer[index]
                        result += 1
                    index = link[index]
        for m in range(begin, end):
            for cell in range(first[m], first[m] + count[m]):
                writer[used] = m
                link[used] = head[dst[m], cell] if reduces[m] else -1
                head[dst[m], cell] = used
                used += 1
        begin = end
    return pairs[:result]
