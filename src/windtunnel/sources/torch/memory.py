"""Which task allocates, keeps and frees how much.

In: the allocator's events of the rich iteration. Out: bytes per slice: kept by its result, needed only while it
runs, freed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.torch.dataflow import Flow
from windtunnel.sources.torch.kernels import COMPILED
from windtunnel.sources.torch.ops import Operator, Role
from windtunnel.sources.torch.profile import Events
from windtunnel.sources.torch.timeline_points import Points

__all__ = ["MemoryUse", "account"]

Int = NDArray[np.int64]


@dataclass
class MemoryUse:
    """Bytes per slice, int64 [P - 1] each."""

    output: Int
    workspace: Int
    freed: Int


@dataclass(frozen=True, slots=True)
class _Block:
    task: int
    operator: int  # event of the operator that computes, -1 outside of any
    num_bytes: int


def account(
    events: Events,
    points: Points,
    operators: list[Operator],
    main_slice: list[int],
    flow: Flow,
    thread: int,
    names: list[str],
) -> MemoryUse:
    """Lay the allocator's events of one thread over its slices."""
    use = MemoryUse(*(np.zeros(points.num_slices, dtype=np.int64) for _ in range(3)))
    if len(events.memory_address) != len(events.memory_ns):
        return use
    local = (events.memory_thread == thread) & (events.memory_ns >= points.times_ns[0])
    local &= events.memory_ns < points.times_ns[-1]
    compiled = _CompiledBuffers(points, operators, main_slice, names)
    live: dict[int, _Block] = {}
    held: dict[int, int] = {}  # operator -> bytes of its own that it holds now
    for row in np.flatnonzero(local).tolist():
        place = int(np.searchsorted(points.times_ns, events.memory_ns[row], side="right")) - 1
        place = min(max(place, 0), points.num_slices - 1)
        num_bytes, address = int(events.memory_bytes[row]), int(events.memory_address[row])
        if num_bytes > 0:
            block = compiled.block(place, num_bytes)
            block = block or _assign_allocation(points, operators, main_slice, flow, place, num_bytes)
            live[address] = block
            use.output[block.task] += num_bytes
            held[block.operator] = held.get(block.operator, 0) + num_bytes
        else:
            _free(use, points, live.pop(address, None), held, place, -num_bytes)
    return use


class _CompiledBuffers:
    """Finds who fills a buffer that compiled code has made: the first operator behind that writes a storage so large.

    Such code makes its buffers without an operator that could name their storage.
    """

    def __init__(self, points: Points, operators: list[Operator], main_slice: list[int], names: list[str]) -> None:
        self._points, self._main_slice = points, main_slice
        self._region = [event if name.startswith(COMPILED) else -1 for event, name in enumerate(names)]
        self._writes: dict[int, list[tuple[int, int, int]]] = {}  # region -> (slice, size, event), in order
        for event, parent in enumerate(points.parent.tolist()):
            if self._region[event] < 0 and parent >= 0:
                self._region[event] = self._region[parent]
            if self._region[event] >= 0 and operators[event].role is Role.COMPUTE:
                sizes = {span.storage: span.high for span in (*operators[event].mutates, *operators[event].writes)}
                rows = self._writes.setdefault(self._region[event], [])
                rows += [(main_slice[event], size, event) for size in sizes.values()]

    def block(self, place: int, num_bytes: int) -> _Block | None:
        """Whose block one is that is made in this slice; None where it belongs to no compiled code itself."""
        event = int(self._points.owner[place])
        if event < 0 or self._region[event] != event:
            return None
        for row in self._writes.get(event, []):
            if row[0] >= place and row[1] == num_bytes:
                self._writes[event].remove(row)
                return _Block(row[0], -1, num_bytes)
        return None


def _assign_allocation(
    points: Points, operators: list[Operator], main_slice: list[int], flow: Flow, index: int, num_bytes: int
) -> _Block:
    """Memory belongs to the operator that computes around it, or to the first that writes into it."""
    event = int(points.owner[index])
    allocator = event
    while event >= 0 and operators[event].role is not Role.COMPUTE:
        event = int(points.parent[event])
    if event >= 0:
        return _Block(main_slice[event], event, num_bytes)
    if allocator >= 0:
        for span in operators[allocator].writes:
            key = (span.storage, main_slice[allocator])
            if key in flow.first_writer:
                return _Block(flow.first_writer[key], -1, num_bytes)
    return _Block(index, -1, num_bytes)


def _free(
    use: MemoryUse, points: Points, block: _Block | None, held: dict[int, int], place: int, num_bytes: int
) -> None:
    if block is not None and block.operator >= 0 and place < points.leave[block.operator]:
        # came and went inside of one operator
        use.workspace[block.task] = max(int(use.workspace[block.task]), held[block.operator])
        held[block.operator] -= num_bytes
        use.output[block.task] -= num_bytes
        return
    use.freed[place] += num_bytes
