"""Memory over time, and a caching allocator of device memory, simulated.

Held: of a played graph with ``output_bytes`` and ``workspace_bytes``, how many bytes are held when, and by whom at the
peak. A task's output is held from its start to the end of its last DATA consumer (its own end, if there is none), its
workspace while it runs, and ``meta.memory_base_bytes`` (parameters, optimizer state) always, with
``meta.rank_base_bytes`` of the ranks that are looked at.

Reserved: of requests and releases, in order, how many bytes are handed out (each request rounded up) and how many are
reserved from the device. It follows PyTorch's allocator for CUDA in its default settings: requests are rounded to
512 bytes; those of at most 1 MiB are cut from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, larger
ones get a segment of their own, rounded to 2 MiB; the smallest free block that fits is taken, of equals the lowest;
what is left of it is split off if it is at least 512 bytes (small) or above 1 MiB (large); neighbors that are both
free are joined; each stream has its own free blocks. Where the device is full, segments that are wholly free are given
back and the request is tried again. cuBLAS asks it for its scratch memory, too. Not here: what a driver holds.

Source: c10/cuda/CUDACachingAllocator.cpp (DeviceCachingAllocator::malloc, free_block, should_split) and
aten/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize), PyTorch 2.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windtunnel.errors import InfeasibleError
from windtunnel.graph import EdgeKind, Graph
from windtunnel.simulate.arrays import column
from windtunnel.units import format_duration, format_size

__all__ = [
    "ROUNDING_BYTES",
    "Block",
    "CachingAllocator",
    "MemoryCurve",
    "compute_reserved_bytes",
    "cublas_bytes",
    "memory_of",
    "round_size",
]

ROUNDING_BYTES = 512
_MIB = 2**20
_SMALL_LIMIT_BYTES = _MIB  # at most this comes from the small pool
_SMALL_SEGMENT_BYTES = 2 * _MIB
_LARGE_SEGMENT_BYTES = 20 * _MIB
_OWN_SEGMENT_BYTES = 10 * _MIB  # from here on a request gets a segment of its own size
_SEGMENT_ROUNDING_BYTES = 2 * _MIB
_WIDE_ARCHITECTURES = ("hopper", "blackwell")
Int = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Bytes held over time.

    Attributes
    ----------
    time_ns : int64 [M]
        When the number changes, increasing.
    size_bytes : int64 [M]
        Bytes held from each of those times on.
    base_bytes : int
        What is held all the time.
    free_ns : int64 [T]
        When each task's output is released.
    """

    graph: Graph = field(repr=False)
    start_ns: NDArray[np.int64] = field(repr=False)
    finish_ns: NDArray[np.int64] = field(repr=False)
    free_ns: NDArray[np.int64] = field(repr=False)
    time_ns: NDArray[np.int64] = field(repr=False)
    size_bytes: NDArray[np.int64] = field(repr=False)
    base_bytes: int

    def __str__(self) -> str:
        return f"peak {format_size(self.peak_bytes)} at {format_duration(self.peak_ns)}"

    @cached_property
    def peak_bytes(self) -> int:
        """The most that is held at any time."""
        return int(self.size_bytes.max(initial=self.base_bytes))

    @cached_property
    def peak_ns(self) -> int:
        """When that is, for the first time."""
        return int(self.time_ns[np.argmax(self.size_bytes)]) if len(self.time_ns) else 0

    def alive_at(self, time_ns: int) -> NDArray[np.int64]:
        """Bytes that each task holds from ``time_ns`` on, int64 [T]."""
        has_begun = self.start_ns <= time_ns
        output = np.where(has_begun & (time_ns < self.free_ns), column(self.graph, "output_bytes", np.int64), 0)
        runs = has_begun & (time_ns < self.finish_ns)
        return output + np.where(runs, column(self.graph, "workspace_bytes", np.int64), 0)

    def alive_at_peak(self) -> pa.Table:
        """What the peak consists of: one row per task that holds bytes then, largest first."""
        held = self.alive_at(self.peak_ns)
        rows = np.flatnonzero(held)
        rows = rows[np.argsort(-held[rows], kind="stable")]
        names = self.graph.tasks.strings("name")
        return pa.table({"task": rows, "name": [names.decode(row) for row in rows.tolist()], "size_bytes": held[rows]})

    def table(self) -> pa.Table:
        """One row per change: time, bytes."""
        return pa.table({"time_ns": self.time_ns, "size_bytes": self.size_bytes})


def memory_of(
    graph: Graph,
    start_ns: NDArray[np.int64],
    finish_ns: NDArray[np.int64],
    where: NDArray[np.bool_] | None = None,
) -> MemoryCurve:
    """Add up allocations and releases; ``where`` keeps only some tasks (those of one worker)."""
    selected = graph.all_tasks if where is None else where
    output = np.where(selected, column(graph, "output_bytes", np.int64), 0)
    workspace = np.where(selected, column(graph, "workspace_bytes", np.int64), 0)
    free_ns = finish_ns.copy()
    is_data = graph.edges["kind"] == EdgeKind.DATA
    np.maximum.at(free_ns, graph.edges["src"][is_data], finish_ns[graph.edges["dst"][is_data]])
    base_bytes = graph.meta.memory_base_bytes + _of_ranks(graph, selected)
    time_ns, change = _merge_instants(
        np.concatenate([start_ns, finish_ns, free_ns]),
        np.concatenate([output + workspace, -workspace, -output]),
    )
    size_bytes = base_bytes + np.cumsum(change)
    return MemoryCurve(graph, start_ns, finish_ns, free_ns, time_ns, size_bytes, base_bytes)


def _of_ranks(graph: Graph, mask: NDArray[np.bool_]) -> int:
    """What the ranks of some tasks have all the time, each its own."""
    bases = graph.meta.rank_base_bytes
    ranks = np.unique(column(graph, "rank", np.int32)[mask]).tolist() if bases else ()
    return sum(bases[rank] for rank in ranks if rank < len(bases))


def _merge_instants(
    time_ns: NDArray[np.int64], change: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Merge the changes at an instant, as an allocator reuses a block that is released when another is allocated."""
    order = np.argsort(time_ns[change != 0], kind="stable")
    time_ns, change = time_ns[change != 0][order], change[change != 0][order]
    is_first = np.diff(time_ns, prepend=-1) != 0
    if not len(time_ns):
        return time_ns, change
    return time_ns[is_first], np.add.reduceat(change, np.flatnonzero(is_first))


def cublas_bytes(architecture: str) -> int:
    """What PyTorch keeps for cuBLAS in every thread that multiplies matrices, by default.

    Examples
    --------
    >>> cublas_bytes("hopper"), cublas_bytes("ampere")
    (33554432, 8519680)
    """
    return 32 * _MIB if architecture in _WIDE_ARCHITECTURES else 8 * _MIB + 128 * 1024


def round_size(size_bytes: int) -> int:
    """Round a request up to the size that the allocator hands out."""
    return max(ROUNDING_BYTES, -(-size_bytes // ROUNDING_BYTES) * ROUNDING_BYTES)


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, handed out or free."""

    address: int
    size_bytes: int
    stream: int
    is_small: bool
    is_free: bool = True
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)

    @property
    def key(self) -> tuple[int, int, int]:
        """Order in the list of free blocks: best fit is the first of its stream that is large enough."""
        return self.stream, self.size_bytes, self.address


class CachingAllocator:
    """Hand out and take back blocks as PyTorch's allocator for CUDA does.

    Parameters
    ----------
    limit_bytes : int or None
        What the device has; None for a device without end.

    Attributes
    ----------
    live_bytes, reserved_bytes : int
        Handed out, rounded; taken from the device.
    peak_live_bytes, peak_reserved_bytes : int
        The most of each so far.

    Examples
    --------
    >>> allocator = CachingAllocator()
    >>> block = allocator.allocate(1000)
    >>> allocator.live_bytes, allocator.reserved_bytes
    (1024, 2097152)
    >>> allocator.free(block)
    >>> allocator.live_bytes, allocator.reserved_bytes
    (0, 2097152)
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.live_bytes = self.reserved_bytes = 0
        self.peak_live_bytes = self.peak_reserved_bytes = 0
        self._free: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
        self._blocks: dict[int, Block] = {}
        self._end = 0

    def allocate(self, size_bytes: int, stream: int = 0) -> Block:
        """Hand out at least ``size_bytes``.

        Raises
        ------
        InfeasibleError
            The device is full, also after all wholly free segments have been given back.
        """
        size = round_size(size_bytes)
        is_small = size <= _SMALL_LIMIT_BYTES
        block = self._best_fit(size, stream, is_small) or self._reserve(size, stream, is_small)
        block.is_free = False
        self._split_block(block, size)
        self.live_bytes += block.size_bytes
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)
        return block

    def free(self, block: Block) -> None:
        """Take a block back and join it with its free neighbors."""
        if block.is_free or self._blocks.get(block.address) is not block:
            raise ValueError("this block is not handed out")
        self.live_bytes -= block.size_bytes
        block.is_free = True
        # Joining with the block before gives one block, which may be joined with the one after: the loop goes on
        # with the joined block.
        for near in (block.before, block.after):
            if near is not None and near.is_free:
                self._forget(near)
                block = (
                    self._join_blocks(near, block) if near.address < block.address else self._join_blocks(block, near)
                )
        insort(self._free[block.is_small], block.key)

    def give_back(self) -> None:
        """Return every segment that is wholly free to the device (``torch.cuda.empty_cache``)."""
        for block in [block for block in self._blocks.values() if block.is_free]:
            if block.before is None and block.after is None:
                self._forget(block)
                del self._blocks[block.address]
                self.reserved_bytes -= block.size_bytes

    def segments(self) -> Iterator[list[Block]]:
        """Every reserved segment as its blocks, in order of address."""
        for first in sorted(self._blocks.values(), key=lambda block: block.address):
            if first.before is None:
                blocks = [first]
                while (following := blocks[-1].after) is not None:
                    blocks.append(following)
                yield blocks

    def _best_fit(self, size: int, stream: int, is_small: bool) -> Block | None:
        # Sorted by (stream, size, address): bisection finds the smallest that fits, of equals the lowest.
        free = self._free[is_small]
        index = bisect_left(free, (stream, size, -1))
        if index == len(free) or free[index][0] != stream:
            return None
        return self._blocks[free.pop(index)[2]]

    def _reserve(self, size: int, stream: int, is_small: bool) -> Block:
        # Size of the segment that is reserved when no free block fits.
        if size <= _SMALL_LIMIT_BYTES:
            segment = _SMALL_SEGMENT_BYTES
        elif size < _OWN_SEGMENT_BYTES:
            segment = _LARGE_SEGMENT_BYTES
        else:
            segment = -(-size // _SEGMENT_ROUNDING_BYTES) * _SEGMENT_ROUNDING_BYTES
        if self._is_full(segment):
            self.give_back()
        if self._is_full(segment):
            raise InfeasibleError(
                f"{format_size(segment)} more do not fit: {format_size(self.reserved_bytes)} are reserved, "
                f"{format_size(self.live_bytes)} of them in use",
                where=f"a device of {format_size(self.limit_bytes or 0)}",
            )
        block = Block(self._end, segment, stream, is_small)
        self._end += segment + _SEGMENT_ROUNDING_BYTES  # segments never touch, so that nothing joins over their ends
        self._blocks[block.address] = block
        self.reserved_bytes += segment
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block

    def _is_full(self, segment_bytes: int) -> bool:
        return self.limit_bytes is not None and self.reserved_bytes + segment_bytes > self.limit_bytes

    def _split_block(self, block: Block, size: int) -> None:
        left = block.size_bytes - size
        if left < ROUNDING_BYTES if block.is_small else left <= _SMALL_LIMIT_BYTES:
            return
        rest = Block(block.address + size, left, block.stream, block.is_small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size_bytes = rest, size
        self._blocks[rest.address] = rest
        insort(self._free[rest.is_small], rest.key)

    def _forget(self, block: Block) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, block.key)]

    def _join_blocks(self, low: Block, high: Block) -> Block:
        low.size_bytes += high.size_bytes
        low.after = high.after
        if high.after is not None:
            high.after.before = low
        del self._blocks[high.address]
        return low


def compute_reserved_bytes(storage: Int, size_bytes: Int, *, limit_bytes: int | None = None) -> Int:
    """Compute the bytes reserved after each of a series of events.

    Parameters
    ----------
    storage : int64 [E]
        Whose size changes.
    size_bytes : int64 [E]
        Its size from then on; 0 where it is released.
    limit_bytes : int or None
        As in :class:`CachingAllocator`.

    Returns
    -------
    int64 [E]

    Raises
    ------
    InfeasibleError
        It does not fit into ``limit_bytes``.
    """
    allocator = CachingAllocator(limit_bytes)
    held: dict[int, Block] = {}
    sizes: dict[int, int] = {}
    reserved = np.zeros(len(storage), dtype=np.int64)
    for row, (number, size) in enumerate(zip(storage.tolist(), size_bytes.tolist(), strict=True)):
        if sizes.get(number, 0) != size:
            if number in held:
                allocator.free(held.pop(number))
            if size:
                held[number] = allocator.allocate(size)
            sizes[number] = size
        reserved[row] = allocator.reserved_bytes
    return reserved
