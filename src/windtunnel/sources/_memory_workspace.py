"""What operators allocate for themselves (room sources, private).

In: the events of torch's own CPU allocator and a ledger of storages. Out: the allocations that belong to no storage
that was seen: those that begin and end within one operator call are workspace, the others temporary. What a library
takes from the C library directly (packing buffers of MKL, scratch pads and packed weights of oneDNN) passes this
allocator by and is in no number here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from windtunnel.sources._memory_storages import Ledger
from windtunnel.sources._torch_profile import quiet_native_log

__all__ = ["Allocation", "AllocatorLog", "hidden"]

SLACK_NS = 20_000  # a birth is noted after its operator has returned, on another clock


@dataclass(slots=True)
class Allocation:
    """One block: when it came and went (None if it stayed), for which operator, whether within its call."""

    begin_ns: int
    size_bytes: int
    address: int
    operator: str
    end_ns: int | None = None
    is_within: bool = False


class AllocatorLog:
    """Every event of torch's CPU allocator on this thread while it is open."""

    def __init__(self) -> None:
        self._profile = torch.autograd.profiler.profile(use_kineto=True, profile_memory=True)
        self._quiet = quiet_native_log()

    def __enter__(self) -> AllocatorLog:
        self._quiet.__enter__()
        self._profile.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._profile.__exit__(None, None, None)
        self._quiet.__exit__(None, None, None)

    def changes(self) -> list[tuple[int, int, int, int, str]]:
        """Time, bytes (negative where freed), address, number of the operator call, its name, in order."""
        results: Any = self._profile.kineto_results
        found = [
            (event.start_time_ns, event.typed[1].alloc_size, event.typed[1].ptr, call, name)
            for event, call, name in _memory_events(results.experimental_event_tree())
            if event.typed[1].device.type == "cpu"
        ]
        return sorted(found, key=lambda change: change[0])

    def allocations(self) -> list[Allocation]:
        """Every block that came while the log was open."""
        found, live = [], {}
        for time_ns, size_bytes, address, call, name in self.changes():
            if size_bytes > 0:
                allocation = Allocation(time_ns, size_bytes, address, name)
                live[address] = allocation, call
                found.append(allocation)
            elif address in live:
                allocation, began = live.pop(address)
                allocation.end_ns, allocation.is_within = time_ns, began == call and call > 0
        return found

    def peak_bytes(self, since_ns: int = 0) -> int:
        """The most that was held at once, from that time on, of what came while the log was open."""
        live: dict[int, int] = {}
        held = most = 0
        for time_ns, size_bytes, address, _, _ in self.changes():
            if size_bytes > 0:
                live[address] = size_bytes
                held += size_bytes
            else:
                held -= live.pop(address, 0)
            most = max(most, held) if time_ns >= since_ns else held
        return most


def _memory_events(tree: Iterable[Any]) -> Iterator[tuple[Any, int, str]]:
    """Allocator events, each with the outermost dispatched operator around it; 0 outside of any."""
    waiting = [(event, 0, "") for event in tree]
    count = 0
    while waiting:
        event, call, name = waiting.pop()
        if event.name == "[memory]":
            yield event, call, name
            continue
        if not call and "::" in event.name and not event.name.startswith("autograd::"):
            count += 1
            call, name = count, event.name
        waiting += [(child, call, name) for child in event.children]


def hidden(
    allocations: Iterable[Allocation], ledger: Ledger, births: list[tuple[int, int, int]]
) -> tuple[list[Allocation], set[int]]:
    """Allocations that are no seen storage, and storages that are no allocation (in an array of numpy, say).

    Births of the others are moved to when they were allocated.

    Parameters
    ----------
    births : list of (time_ns, place in ``ledger.entries``, storage)
    """
    at: dict[int, list[Allocation]] = {}
    for allocation in allocations:
        at.setdefault(allocation.address, []).append(allocation)
    seen: set[int] = set()
    foreign: set[int] = set()
    for time_ns, place, storage in births:
        there = at.get(ledger.addresses[storage], [])
        chosen = bisect_right(there, time_ns + SLACK_NS, key=lambda allocation: allocation.begin_ns) - 1
        while chosen >= 0 and (id(there[chosen]) in seen or not _is_of(there[chosen], ledger, storage, time_ns)):
            chosen -= 1
        if chosen >= 0:
            seen.add(id(there[chosen]))
            entry = ledger.entries[place]
            ledger.entries[place] = (min(there[chosen].begin_ns, time_ns), *entry[1:])
        elif ledger.first_sizes[storage]:
            foreign.add(storage)
    return [one for address in at.values() for one in address if id(one) not in seen], foreign


def _is_of(allocation: Allocation, ledger: Ledger, storage: int, time_ns: int) -> bool:
    if allocation.size_bytes < ledger.first_sizes[storage]:
        return False
    return allocation.end_ns is None or allocation.end_ns + SLACK_NS >= time_ns
