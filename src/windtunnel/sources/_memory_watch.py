"""Put on the instruments, take them off, make the table (room sources, private).

In: models and optimisers. Out: a ``MemoryProfile`` of what ran in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import torch

from windtunnel.errors import InputError
from windtunnel.sources._memory_places import DATA, PHASES
from windtunnel.sources._memory_storages import BIRTH, EVENTS
from windtunnel.sources._memory_tracker import StorageTracker
from windtunnel.sources._memory_workspace import Allocation, AllocatorLog, hidden
from windtunnel.sources._torch_annotate import Discovery
from windtunnel.sources.memory_profile import CATEGORIES, COLUMNS, MemoryProfile
from windtunnel.units import format_size

__all__ = ["Watch"]

_INCLUDED = "storages of tensors and blocks of torch's CPU allocator; not the buffers that MKL and oneDNN keep"
_INCLUDED_STORAGES = "storages of tensors; not what operators allocate for themselves"


class Watch:
    """Follow what runs within the ``with`` block."""

    def __init__(self, *, is_fake: bool = False, workspace: bool = False, limit_bytes: int | None = None) -> None:
        self.discovery = Discovery()
        self.tracker: StorageTracker | None = None
        self._is_fake = is_fake
        self._log = AllocatorLog() if workspace and not is_fake else None
        self._limit_bytes = limit_bytes
        self._end_ns = 0

    def __enter__(self) -> Watch:
        self.tracker = StorageTracker(
            self.discovery,
            limit_bytes=self._limit_bytes,
            on_excess=refuse,
            has_log=self._log is not None,
        )
        if self._log is not None:
            self._log.__enter__()
        self.tracker.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.tracker is not None
        self.tracker.stop()
        if self._log is not None:
            self._log.__exit__()

    def next_iteration(self) -> None:
        """Another iteration begins."""
        assert self.tracker is not None
        self.tracker.next_iteration()

    def expect_data(self) -> None:
        """The program is fetching a batch now; what it makes is input until a module is called."""
        assert self.tracker is not None
        self.tracker.places.forced_phase = DATA

    def profile(self) -> MemoryProfile:
        """What was seen."""
        assert self.tracker is not None
        ledger = self.tracker.ledger
        extra: list[Allocation] = []
        foreign: set[int] = set()
        if self._log is not None:
            births = [(entry[0], place, entry[2]) for place, entry in enumerate(ledger.entries) if entry[1] == BIRTH]
            extra, foreign = hidden(self._log.allocations(), ledger, births)
        meta = {
            "is_fake": self._is_fake,
            "included": _INCLUDED if self._log is not None else _INCLUDED_STORAGES,
            "num_iterations": self.tracker.iteration + 1,
            "num_hidden_allocations": len(extra),
            "torch": torch.__version__,
        }
        profile = MemoryProfile.of(_rows(self.tracker, extra), meta)
        if self._log is not None:
            own = ~np.isin(profile.events.column("storage").to_numpy(), list(foreign))
            meta["allocator_peak_bytes"] = MemoryProfile(profile.events.filter(pa.array(own))).peak_bytes
        return MemoryProfile(profile.events, meta)


def _rows(tracker: StorageTracker, extra: list[Allocation]) -> list[tuple[Any, ...]]:
    ledger, places = tracker.ledger, tracker.places
    begin_ns = min([entry[0] for entry in ledger.entries[:1]] + [one.begin_ns for one in extra], default=0)
    about = [
        (PHASES[phase], _named(name), places.layers.texts[layer], places.lines.texts[line])
        for phase, name, layer, line in zip(ledger.phases, ledger.names, ledger.layers, ledger.lines, strict=True)
    ]
    first = [
        (0, EVENTS[BIRTH], number, CATEGORIES[ledger.first_categories[number]], ledger.first_sizes[number], 0)
        for number in ledger.initial
    ]
    later = [
        (time_ns - begin_ns, EVENTS[event], number, CATEGORIES[category], size, iteration)
        for time_ns, event, number, category, size, iteration in ledger.entries
    ]
    return [(*row, *about[row[2]]) for row in first] + sorted(
        [(*row, *about[row[2]]) for row in later] + _hidden_rows(extra, len(about), tracker, begin_ns),
        key=lambda row: row[0],
    )


def _hidden_rows(extra: list[Allocation], number: int, tracker: StorageTracker, begin_ns: int) -> list[tuple[Any, ...]]:
    """Rows of blocks that are no storage."""
    rows: list[tuple[Any, ...]] = []
    ordered = sorted(extra, key=lambda one: one.begin_ns)
    for one, (phase, layer, line, iteration) in zip(ordered, _surroundings(ordered, tracker), strict=True):
        about = iteration, phase, one.operator, layer, line
        category = "workspace" if one.is_within else "temporary"
        rows.append((one.begin_ns - begin_ns, "birth", number, category, one.size_bytes, *about))
        if one.end_ns is not None:
            rows.append((one.end_ns - begin_ns, "death", number, category, 0, *about))
        number += 1
    return rows


def _surroundings(ordered: list[Allocation], tracker: StorageTracker) -> Iterator[tuple[str, str, str, int]]:
    """Phase, layer, line and iteration of blocks: the update's that they lie in, else the next birth's."""
    ledger, places = tracker.ledger, tracker.places
    births = sorted(entry for entry in ledger.entries if entry[1] == BIRTH)
    times = [entry[0] for entry in births]
    for one in ordered:
        update = bisect_right(ledger.updates, one.begin_ns, key=lambda update: update[0]) - 1
        if update >= 0 and one.begin_ns <= ledger.updates[update][1]:
            yield "update", "", places.lines.texts[ledger.updates[update][2]], ledger.updates[update][3]
        elif births:
            entry = births[min(bisect_right(times, one.begin_ns), len(births) - 1)]
            near = entry[2]
            layer, line = places.layers.texts[ledger.layers[near]], places.lines.texts[ledger.lines[near]]
            yield PHASES[ledger.phases[near]], layer, line, entry[5]
        else:
            yield "forward", "", "", 0


def _named(name: Any) -> str:
    return name if isinstance(name, str) else str(name._schema.name)


def refuse(held_bytes: int, tracker: StorageTracker) -> NoReturn:
    """End a program that would not fit."""
    ledger = tracker.ledger
    held = [0] * len(CATEGORIES)
    for number, _ in tracker.storages_alive():
        held[ledger.categories[number]] += ledger.sizes[number]
    largest = max(range(len(held)), key=held.__getitem__)
    raise InputError(
        f"this job holds {format_size(held_bytes)} already, more than it may",
        where=f"{format_size(held[largest])} of it {CATEGORIES[largest]}",
        fix="use a smaller batch, checkpoint activations, or give it more with --device-memory",
    )


assert len(COLUMNS) == 10
