"""Put on the instruments, take them off, make the table.

In: models and optimizers. Out: a ``MemoryProfile`` of what ran in between. Real tensors are followed by the
allocator's log and notes of what passes by; fake ones, which no allocator knows, operator by operator.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import torch

from windtunnel.errors import InputError
from windtunnel.sources.memory.allocator_log import AllocatorLog
from windtunnel.sources.memory.block_lifetimes import rows_of
from windtunnel.sources.memory.host_data import HostData
from windtunnel.sources.memory.observations import Learned, Sightings
from windtunnel.sources.memory.profile import CATEGORIES, COLUMNS, MemoryProfile
from windtunnel.sources.memory.storages import DATA, EVENTS, PHASES
from windtunnel.sources.memory.tracker import StorageTracker
from windtunnel.sources.torch.annotate import Discovery, asks_to_compile
from windtunnel.sources.torch.compile_boundaries import run_eagerly
from windtunnel.units import format_size

__all__ = ["Watch", "profile_of_tracker"]

_INCLUDED = "storages of tensors and blocks of torch's allocators; not the buffers that MKL and oneDNN keep"
_INCLUDED_STORAGES = "storages of tensors; not what operators allocate for themselves"


class Watch:
    """Follow what runs within the ``with`` block.

    Parameters
    ----------
    is_fake : bool
        Tensors are fake.
    workspace : bool
        Show what operators allocate for themselves.
    limit_bytes : int or None
        More than this held at once while learning (or by fake tensors) ends the program.
    host_data : HostData, optional
        Of fake tensors: says what stays on the host, which the profile leaves out.
    """

    def __init__(
        self,
        *,
        is_fake: bool = False,
        workspace: bool = False,
        limit_bytes: int | None = None,
        host_data: HostData | None = None,
    ) -> None:
        self.discovery = Discovery()
        self.tracker: StorageTracker | None = None
        self.sightings: Sightings | None = None
        self.log = AllocatorLog()
        self.foreign: list[int] = []  # storages of the profile that no allocator made
        self._learned = Learned()
        self._is_fake, self._workspace, self._limit_bytes = is_fake, workspace, limit_bytes
        self._host_data = host_data

    @contextmanager
    def learning(self) -> Iterator[Watch]:
        """Within, one iteration runs slowly, whose source lines and resting data are learnt for those that follow.

        Raises
        ------
        InputError
            More than ``limit_bytes`` was held.
        """
        self.tracker = self._tracker()
        with run_eagerly():  # for a tracker of operators what is compiled would be compiled anew
            self.tracker.start()
            try:
                yield self
                self._learned = Learned.of(self.tracker)
            finally:
                self.tracker.stop()
                self.tracker = None

    def _tracker(self) -> StorageTracker:
        return StorageTracker(
            self.discovery, limit_bytes=self._limit_bytes, on_excess=refuse, host_data=self._host_data
        )

    def __enter__(self) -> Watch:
        if self._is_fake:
            self.tracker = self._tracker()
            self.tracker.start()
            return self
        gc.collect()
        self.log = AllocatorLog()
        self.sightings = Sightings(self.discovery, self._learned.resting)
        self.sightings.__enter__()
        self.log.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.tracker is not None:
            self.tracker.stop()
        if self.sightings is not None:
            self.log.__exit__()
            self.sightings.__exit__()

    def next_iteration(self) -> None:
        """Another iteration begins."""
        instrument = self.tracker or self.sightings
        assert instrument is not None
        instrument.next_iteration()

    def expect_data(self) -> None:
        """The program is fetching a batch now; what it makes is input until a module is called."""
        if self.tracker is not None:
            self.tracker.places.force(DATA)
        elif self.sightings is not None:
            self.sightings.force(DATA)

    def profile(self) -> MemoryProfile:
        """What was seen."""
        if self.tracker is not None:
            return profile_of_tracker(self.tracker, is_fake=self._is_fake)
        assert self.sightings is not None
        rows, lives = rows_of(self.log.read(), self.sightings, self._learned, workspace=self._workspace)
        profile = MemoryProfile.of(rows)
        self.foreign = [number for number, life in enumerate(lives) if life.is_foreign]
        own = ~np.isin(profile.events.column("storage").to_numpy(), self.foreign)
        meta = {
            "is_fake": False,
            "included": _INCLUDED if self._workspace else _INCLUDED_STORAGES,
            "num_iterations": len(self.sightings.iterations) + 1,
            "allocator_peak_bytes": MemoryProfile(profile.events.filter(pa.array(own))).peak_bytes,
            "torch": torch.__version__,
        }
        return MemoryProfile(profile.events, meta)


def profile_of_tracker(tracker: StorageTracker, *, is_fake: bool, device: str = "") -> MemoryProfile:
    """Build the profile of what a tracker of operators has recorded; of all storages, or of those on a device.

    Of data that stay on the host, as the tracker's ``host_data`` say, only the parts that a GPU would hold are in it.
    """
    ledger, indices, host_data = tracker.ledger, tracker.places, tracker.host_data
    begin_ns = min([entry[0] for entry in ledger.entries[:1]], default=0)
    about = [
        (PHASES[phase], _operator_name(name), indices.layers.texts[layer], indices.lines.texts[line])
        for phase, name, layer, line in zip(ledger.phases, ledger.names, ledger.layers, ledger.lines, strict=True)
    ]
    first = [
        (0, EVENTS[0], number, CATEGORIES[ledger.first_categories[number]], ledger.first_sizes[number], 0)
        for number in ledger.initial
    ]
    later = [
        (time_ns - begin_ns, EVENTS[event], number, CATEGORIES[category], size, iteration)
        for time_ns, event, number, category, size, iteration in ledger.entries
    ]
    meta = {
        "is_fake": is_fake,
        "included": _INCLUDED_STORAGES,
        "num_iterations": tracker.iteration + 1,
        "torch": torch.__version__,
        **({"is_uncompiled": True} if asks_to_compile() else {}),
    }
    rows = [row for row in [*first, *later] if not device or ledger.devices[row[2]] == device]
    if host_data is not None:
        limits = [host_data.limit_bytes(ledger, number) for number in range(len(ledger.names))]
        rows = [_limit_size(row, limits[row[2]]) for row in rows if limits[row[2]] != 0]
    return MemoryProfile.of([(*row, *about[row[2]]) for row in rows], meta)


def _limit_size(row: tuple[Any, ...], limit_bytes: int | None) -> tuple[Any, ...]:
    return row if limit_bytes is None else (*row[:4], min(row[4], limit_bytes), *row[5:])


def _operator_name(name: Any) -> str:
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
