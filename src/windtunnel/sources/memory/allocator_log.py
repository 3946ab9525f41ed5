"""What torch's allocator and profiler write down while a step runs.

In: events of torch's own allocators and of operators, recorded in C++. Out: ``Log``: every block from birth to death
with the operator call and the autograd node around it. What a library takes from the C library directly (packing
buffers of MKL, scratch pads and packed weights of oneDNN) passes these allocators by and is in no number here. Not
here: what the blocks are for (``block_lifetimes``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from windtunnel.sources.torch.profile import quiet_native_log

__all__ = ["AllocatorLog", "Block", "Change", "Log"]

_NODE = "autograd::engine::evaluate_function: "
_MEMORY = "[memory]"
_NUMBER_BYTES = 16  # a number that becomes a tensor for an operator's sake does so outside of its call
_WITH_KERNELS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


class Change(NamedTuple):
    """One event of an allocator: bytes are negative where a block goes; ``held_bytes`` is its own count."""

    time_ns: int
    size_bytes: int
    address: int
    held_bytes: int
    call: int  # of an operator, 0 outside of any
    operator: str
    node: int  # sequence number of the running autograd node; -1 where it has none, -2 outside of any


@dataclass(slots=True)
class Block:
    """One block: when it came and went (None if it stayed), in which operator call, whether within it alone."""

    begin_ns: int
    size_bytes: int
    address: int
    operator: str
    call: int
    node: int
    end_ns: int | None = None
    is_within: bool = False


@dataclass
class Log:
    """What was recorded, in order of time."""

    changes: list[Change] = field(default_factory=list)
    nodes: list[tuple[int, int, int]] = field(default_factory=list)  # begin_ns, end_ns, sequence number
    operators: list[tuple[int, int, int]] = field(default_factory=list)  # begin_ns, next sequence number, node

    def blocks(self) -> list[Block]:
        """Every block that came while the log was open."""
        result: list[Block] = []
        live: dict[int, Block] = {}
        for change in self.changes:
            gone = live.pop(change.address, None)
            if gone is not None:
                gone.end_ns, gone.is_within = change.time_ns, _is_within(gone, change)
            if change.size_bytes > 0:
                came = Block(*change[:3], change.operator, change.call, change.node)
                live[change.address] = came
                result.append(came)
        return result

    def peak_bytes(self, since_ns: int = 0) -> int:
        """The most that was held at once, from that time on, of what came while the log was open."""
        live: dict[int, int] = {}
        held = most = 0
        for change in self.changes:
            held -= live.pop(change.address, 0)
            if change.size_bytes > 0:
                live[change.address] = change.size_bytes
                held += change.size_bytes
            most = max(most, held) if change.time_ns >= since_ns else held
        return most


def _is_within(block: Block, end: Change) -> bool:
    if not block.call:
        return block.size_bytes <= _NUMBER_BYTES
    return block.call == end.call


class AllocatorLog:
    """Every event of torch's allocators on this thread while it is open."""

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

    def read(self) -> Log:
        """What was recorded; takes about as long as the steps took."""
        results: Any = self._profile.kineto_results
        log = Log()
        _read_tree(results.experimental_event_tree(), log)
        log.changes.sort(key=attrgetter("time_ns"))
        log.nodes.sort()
        log.operators.sort()
        return log


def _read_tree(tree: Iterable[Any], log: Log) -> None:
    waiting = [(event, 0, "", -2) for event in tree]
    count = 0
    while waiting:
        event, call, operator, node = waiting.pop()
        name = event.name
        if name == _MEMORY:
            typed = event.typed[1]
            sizes = typed.alloc_size, typed.ptr or 0, typed.total_allocated or 0
            log.changes.append(Change(event.start_time_ns, *sizes, call, operator, node))
            continue
        if name.startswith(_NODE):
            call, operator, node = 0, "", event.typed[1].sequence_number
            log.nodes.append((event.start_time_ns, event.end_time_ns, node))
        elif not call:
            sequence = getattr(event.typed[1], "sequence_number", -1)
            if sequence >= 0 and "Backward" not in name:
                log.operators.append((event.start_time_ns, sequence, node))
            if name in _kernels() and not _is_composed(event):
                count += 1
                call, operator = count, name
        children = event.children
        if children:
            waiting += [(child, call, operator, node) for child in children]


def _is_composed(event: Any) -> bool:
    """Some overloads of an operator only call another of the same name."""
    return any(child.name == event.name for child in event.children)


@lru_cache(maxsize=1)
def _kernels() -> frozenset[str]:
    """Operators that are dispatched as a whole, not as the operators that they are composed of."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    composed = {name.partition(".")[0] for name in registered("CompositeImplicitAutograd")}
    own = set(_bases(name for key in _WITH_KERNELS for name in registered(key)))
    return frozenset({name.partition(".")[0] for name in registered("")} - (composed - own))


def _bases(names: Iterable[str]) -> Iterator[str]:
    """Without overloads; variants that write into what they are given are left out."""
    for name in names:
        base, _, overload = name.partition(".")
        if not overload.endswith("out"):
            yield base
