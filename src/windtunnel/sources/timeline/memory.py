"""Allocations of a timeline: which task made them, and which one gave them back (sources, timeline).

In: `MemoryRecords`. Out: bytes per host slice, and pairs of slices (allocates, frees). Not here: memory over
time (simulate).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.timeline.events import MISSING, Category, MemoryRecords
from windtunnel.sources.timeline.host import Host
from windtunnel.sources.timeline.slices import inherit

__all__ = ["Memory", "find_memory"]

# S slices, M records, P pairs
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Columns [S] by name (empty without records), pairs of slices [P], and what was held before the first record.

    ``source`` allocated what ``target`` freed; what no one freed is held until the last slice of its thread. What an
    operator frees before it returns is its workspace. What was there before and is freed is held by early slices.
    """

    columns: dict[str, Int64s]
    source: Int64s
    target: Int64s
    base_bytes: int


def find_memory(memory: MemoryRecords, host: Host) -> Memory:
    """Charge allocations to the slices that made them: those on the device if there are any, else those of the host."""
    if not len(memory.time_ns) or not host.num_slices:
        return Memory({}, np.empty(0, np.int64), np.empty(0, np.int64), 0)
    rows = np.flatnonzero(memory.on_device) if memory.on_device.any() else np.arange(len(memory.time_ns))
    rows = rows[np.argsort(memory.time_ns[rows], kind="stable")]
    change, total = memory.change_bytes[rows], memory.total_bytes[rows]
    base = 0 if total[0] == MISSING else max(int(total[0] - change[0]), 0)
    owner = _slice_of(host, memory.thread[rows], memory.time_ns[rows])
    pairs, freed = _pairs(memory.address[rows].tolist(), change.tolist(), owner.tolist())
    early = _early_holders(host, freed)
    base = max(base - sum(size for _, _, size in early), 0)
    return _columns(host, owner, change, np.array([*early, *pairs], np.int64).reshape(-1, 3), base)


def _early_holders(host: Host, freed: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Pairs for blocks that were there before: each is held by an early slice of its own, if there is one."""
    first = np.argsort(host.start, kind="stable")[: len(freed)].tolist()
    pairs = []
    for index, (task, size) in enumerate(freed):
        holder = first[min(index, len(first) - 1)]
        holder = holder if host.end[holder] <= host.start[task] else first[0]
        pairs.append((holder, task, size))
    return pairs


def _slice_of(host: Host, thread: NDArray[np.int32], time_ns: Int64s) -> Int64s:
    """The slice that ran, or ran last, on the thread of each record; -1 before its first."""
    owner = np.full(len(thread), -1, np.int64)
    for code in np.unique(thread):
        begin, end = np.searchsorted(host.thread, [code, code + 1])
        rows = np.flatnonzero(thread == code)
        index = np.searchsorted(host.start[begin:end], time_ns[rows], side="right") - 1
        owner[rows] = np.where(index >= 0, index + begin, -1)
    return owner


def _pairs(
    address: list[int], change: list[int], owner: list[int]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """(allocating slice, freeing slice or -1, bytes) of slices' blocks; (freeing slice, bytes) of other blocks."""
    alive: dict[int, tuple[int, int]] = {}
    pairs: list[tuple[int, int, int]] = []
    freed: list[tuple[int, int]] = []
    for where, size, task in zip(address, change, owner, strict=True):
        if where in alive:
            source, held = alive.pop(where)
            pairs.append((source, task, held))
        elif size < 0 and task >= 0:
            freed.append((task, -size))
        if size > 0 and task >= 0:
            alive[where] = (task, size)
    return pairs + [(source, -1, held) for source, held in alive.values()], freed


def _columns(host: Host, owner: Int64s, change: Int64s, pairs: Int64s, base: int) -> Memory:
    source, target, size = pairs.T
    last = np.searchsorted(host.thread, host.thread[source], side="right") - 1
    is_kept = target < 0
    target = np.where(is_kept, last, target)
    is_op = host.category == Category.OPERATOR
    operator = inherit(host.parent, np.where(is_op, np.arange(len(is_op)), -1).astype(np.int32))[host.event]
    is_outside = operator[source] < 0
    outlives = (operator[target] != operator[source]) | is_kept | (is_outside & (target != source))
    output, freed, workspace = (np.zeros(host.num_slices, np.int64) for _ in range(3))
    np.add.at(output, source[outlives | is_kept], size[outlives | is_kept])
    np.add.at(freed, target[outlives & ~is_kept], size[outlives & ~is_kept])
    np.maximum.at(workspace, owner[owner >= 0], _bytes_above_start(owner, change)[owner >= 0])
    columns = {
        "output_bytes": output,
        "workspace_bytes": np.maximum(workspace - output, 0),
        "freed_bytes": freed,
    }
    return Memory(columns, source[outlives], target[outlives], base)


def _bytes_above_start(owner: Int64s, change: Int64s) -> Int64s:
    """Bytes at each record [M] above those when its slice made its first change."""
    order = np.argsort(owner, kind="stable")
    total = np.cumsum(change[order])
    first = np.concatenate([[True], owner[order][1:] != owner[order][:-1]])
    before = (total - change[order])[first][np.cumsum(first) - 1]
    risen = np.empty(len(owner), np.int64)
    risen[order] = total - before
    return risen
