"""What every iteration of a capture is used for, what was measured, and what ``meta`` says of it.

In: how many iterations are to be measured. Out: a slot for each, in turn; ``Recording``, the raw measurements; which
iterations other programs disturbed, by how long each waited for a core, so that they are measured again; the times,
overhead, memory and host that the graph states. Not here: the instruments (``recorder``), counting disturbances
(``measure.disturbance``), tasks (``build``).
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import compress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from windtunnel import hardware
from windtunnel.hardware.host import processor_name
from windtunnel.measure.disturbance import MAX_WAITED_RATIO, DisturbanceClock, Neighbors, disturbance_log_error
from windtunnel.sources.memory.profile import MemoryProfile
from windtunnel.sources.torch.annotate import Discovery
from windtunnel.sources.torch.device_traces import DeviceTraces
from windtunnel.sources.torch.messages import Message, is_distributed
from windtunnel.sources.torch.overhead import Correction, precision, select_validation_iterations
from windtunnel.sources.torch.profile import Events
from windtunnel.sources.torch.timeline_points import Marks

__all__ = [
    "OF_ONE_FORM",
    "PROFILED",
    "SLOWED",
    "TIMED",
    "WITHOUT_TIMES",
    "QuietWatch",
    "Recording",
    "Slot",
    "disturbance_facts",
    "facts_of",
    "host_facts",
    "quiet_iterations",
    "schedule",
    "schedule_in_a_row",
    "schedule_on_device",
    "summary_ns",
]

_FEWEST = 4  # quiet iterations that stand for all
_AS_IS = 4  # iterations before the heap is held
_BLOCK = 2  # measured iterations between two changes of instrument
_MAX_TRACED = 8  # iterations of a step on a device
# A short step takes longer after a change of instrument, or after anything else that runs between two iterations:
# caches and threads need several iterations until they are as a training loop has them.
_SHORT_NS, _IN_A_ROW_NS = 20e6, 200e6
_SETTLING_IN_A_ROW, _MIN_IN_A_ROW, _MAX_IN_A_ROW = 10, 16, 400
_PER_ITERATION = (
    *("bare_ns", "bare_faults", "bare_marks", "bare_pauses_ns", "bare_waits_ns", "bare_lost"),
    *("light_ns", "light_marks", "light_waits_ns", "light_lost"),
)


class QuietWatch:
    """Says of each iteration how much of it others took, and whether it should be measured again.

    Parameters
    ----------
    max_repeats : int
        How many iterations may be measured again; a host that stays busy must not keep a script running forever.
    """

    def __init__(self, max_repeats: int) -> None:
        self._repeats_left = max_repeats
        self._clock = DisturbanceClock()
        self._neighbors: Neighbors | None = None
        self.num_repeated = 0

    def begin(self) -> None:
        """An iteration begins."""
        self._neighbors = self._neighbors or Neighbors()
        self._clock.begin()

    def end(self) -> float:
        """The iteration has ended: the share of it that others took."""
        stretch = self._clock.end()
        is_own = stretch.is_disturbed and self._neighbors is not None and self._neighbors.are_quiet
        return 0.0 if is_own else stretch.lost_ratio

    def wants_again(self, lost_ratio: float) -> bool:
        """Whether to measure the iteration again; ranks of one job must not disagree about it, so they never do."""
        if lost_ratio <= MAX_WAITED_RATIO or not self._repeats_left or is_distributed():
            return False
        self._repeats_left -= 1
        self.num_repeated += 1
        return True


def quiet_iterations(lost_ratios: Sequence[float]) -> NDArray[np.bool_]:
    """Which iterations to keep: the quiet ones where there are enough, else the less disturbed half, bool [I].

    Chosen by how long an iteration waited for a core, never by how long it took.

    Examples
    --------
    >>> quiet_iterations([0.0, 0.4, 0.0, 0.01, 0.0]).tolist()
    [True, False, True, True, True]
    >>> quiet_iterations([0.5, 0.4, 0.6, 0.7]).tolist()
    [True, True, False, False]
    """
    missing = np.asarray(lost_ratios, dtype=np.float64)
    quiet: NDArray[np.bool_] = missing <= MAX_WAITED_RATIO
    if quiet.sum() >= min(_FEWEST, len(missing)):
        return quiet
    least: NDArray[np.bool_] = missing <= np.median(missing)
    return least


def disturbance_facts(bare: Sequence[float], light: Sequence[float], num_repeated: int) -> dict[str, Any]:
    """What ``meta`` says of the iterations that were kept: ``lost_ratio`` is 0 where they were quiet."""
    median = max((float(np.median(missing)) for missing in (bare, light) if len(missing)), default=0.0)
    result: dict[str, Any] = {"lost_ratio": median} if median > MAX_WAITED_RATIO else {}
    return result | ({"num_repeated": num_repeated} if num_repeated else {})


class Slot(Enum):
    """What one iteration is used for."""

    WARMUP = "warm-up"
    DISCOVER = "discover"
    AS_IS = "allocator as it is"
    RICH = "structure"
    OPERATORS = "operators of what is compiled"
    LEARN_MEMORY = "memory, learnt slowly"
    MEMORY = "memory"
    PRIME = "settle, profiled, thrown away"
    SETTLE_BARE = "settle"
    BARE = "bare"
    IN_A_ROW = "bare, in a row"
    UNMARKED = "bare, in a row, without marks"
    SETTLE_LIGHT = "settle, profiled"
    LIGHT = "profiled"


@dataclass(frozen=True, slots=True)
class BareIteration:
    """One iteration without a profiler: its duration and parts, and its page faults."""

    elapsed_ns: int
    marks: Marks
    waits_ns: int
    pauses_ns: int
    num_faults: int


@dataclass
class Recording:
    """Everything that was measured, raw; ``light`` holds whole profiles of several iterations each."""

    as_is_ns: list[int] = field(default_factory=list)
    as_is_faults: list[int] = field(default_factory=list)
    bare_ns: list[int] = field(default_factory=list)
    bare_faults: list[int] = field(default_factory=list)
    bare_marks: list[Marks] = field(default_factory=list)
    bare_pauses_ns: list[int] = field(default_factory=list)
    row_lost: float = 0.0
    row: list[BareIteration] = field(default_factory=list)
    unmarked_lost: float = 0.0
    unmarked_ns: list[int] = field(default_factory=list)
    light_ns: list[int] = field(default_factory=list)
    light_marks: list[Marks] = field(default_factory=list)
    bare_waits_ns: list[int] = field(default_factory=list)
    light_waits_ns: list[int] = field(default_factory=list)
    bare_lost: list[float] = field(default_factory=list)
    light_lost: list[float] = field(default_factory=list)
    num_repeated: int = 0
    fetch_ns: int = 0
    num_workers: int = 0
    rich_ns: int = 0
    light: list[tuple[Events, list[bool]]] = field(default_factory=list)
    rich: Events | None = None
    lines: dict[int, str] = field(default_factory=dict)  # by record of the rich iteration
    operators: Events | None = None  # of one more iteration, in which nothing ran compiled
    compiled: dict[str, Any] = field(default_factory=dict)
    memory: MemoryProfile | None = None
    discovery: Discovery = field(default_factory=Discovery)
    messages: list[Message] = field(default_factory=list)
    device: DeviceTraces | None = None  # of a step that computes on a GPU
    shapes: dict[str, Any] = field(default_factory=dict)
    num_dropped: int = 0
    is_heap_held: bool = False
    is_complete: bool = False

    def with_row(self) -> Recording:
        """A copy whose bare iterations are those that ran in a row, if the step is short and nothing disturbed them."""
        if len(self.row) < _MIN_IN_A_ROW or self.row_lost > MAX_WAITED_RATIO:
            return self
        ratio = self._compute_unmarked_ratio()
        return replace(
            self,
            bare_ns=[round(ratio * item.elapsed_ns) for item in self.row],
            bare_marks=[tuple((name, round(ratio * mark_ns)) for name, mark_ns in item.marks) for item in self.row],
            bare_waits_ns=[item.waits_ns for item in self.row],
            bare_pauses_ns=[item.pauses_ns for item in self.row],
            bare_faults=[item.num_faults for item in self.row],
            bare_lost=[self.row_lost] * len(self.row),
        )

    def _compute_unmarked_ratio(self) -> float:
        """Which part of an iteration in a row is left without its marks, readings of a clock that cool the caches."""
        if len(self.unmarked_ns) < _MIN_IN_A_ROW or self.unmarked_lost > MAX_WAITED_RATIO:
            return 1.0
        marked_ns = float(np.median([item.elapsed_ns for item in self.row]))
        return min(1.0, float(np.median(self.unmarked_ns)) / marked_ns)

    def quietest(self) -> Recording:
        """A copy with only those measured iterations that other programs disturbed least."""
        bare, light = quiet_iterations(self.bare_lost), quiet_iterations(self.light_lost)
        of_kind = {name: bare if name.startswith("bare_") else light for name in _PER_ITERATION}
        columns: dict[str, Any] = {name: [*compress(getattr(self, name), keep)] for name, keep in of_kind.items()}
        left = iter(light.tolist())
        profiles = [(events, [regular and next(left) for regular in valid]) for events, valid in self.light]
        return replace(self, light=profiles, **columns)


TIMED = (Slot.BARE, Slot.LIGHT)
PROFILED = (Slot.PRIME, Slot.SETTLE_LIGHT, Slot.LIGHT)
OF_ONE_FORM = (Slot.RICH, Slot.OPERATORS, Slot.LEARN_MEMORY, Slot.MEMORY, Slot.BARE, Slot.LIGHT)

SLOWED = (
    Slot.WARMUP,
    Slot.DISCOVER,
    Slot.RICH,
    Slot.OPERATORS,
    Slot.LEARN_MEMORY,
    Slot.MEMORY,
)  # their times say nothing


WITHOUT_TIMES = [Slot.DISCOVER, Slot.RICH]  # of fake tensors


def schedule(iterations: int, warmup: int) -> Iterator[Slot]:
    """The use of every iteration in turn: warm-up, structure, then rounds of bare and profiled ones."""
    yield from [Slot.WARMUP] * max(0, warmup - 1)
    yield Slot.DISCOVER
    yield from [Slot.AS_IS] * min(_AS_IS, iterations)
    yield Slot.RICH
    yield Slot.LEARN_MEMORY
    yield Slot.MEMORY
    yield from [Slot.PRIME] * _BLOCK
    for first in range(0, iterations, _BLOCK):
        size = min(_BLOCK, iterations - first)
        yield from [Slot.SETTLE_BARE, *[Slot.BARE] * size]
        yield from [Slot.SETTLE_LIGHT, *[Slot.LIGHT] * size]


def schedule_in_a_row(bare_ns: list[int]) -> list[Slot]:
    """What follows where the step is short: iterations in a row, with nothing between them but readings of the clock.

    The second half is without the marks of phases. Each half takes so long that a hiccup of the host is little of it.

    Examples
    --------
    >>> [slot.value for slot in schedule_in_a_row([30_000_000])]
    []
    >>> sum(slot is Slot.IN_A_ROW for slot in schedule_in_a_row([2_000_000]))
    100
    """
    step_ns = float(np.median(bare_ns)) if bare_ns else _SHORT_NS
    if step_ns >= _SHORT_NS:
        return []
    count = min(max(int(_IN_A_ROW_NS / max(step_ns, 1.0)), _MIN_IN_A_ROW), _MAX_IN_A_ROW)
    return [Slot.SETTLE_BARE] * _SETTLING_IN_A_ROW + [Slot.IN_A_ROW] * count + [Slot.UNMARKED] * count


def schedule_on_device(iterations: int) -> Iterator[Slot]:
    """The same of a step on a device, after discovery.

    A device runs behind its host, so that bare and profiled iterations do not alternate.
    """
    yield Slot.RICH
    yield Slot.LEARN_MEMORY
    yield from [Slot.SETTLE_BARE] * _SETTLING_IN_A_ROW
    yield from [Slot.BARE] * iterations
    yield from [Slot.PRIME] * _BLOCK
    yield from [Slot.LIGHT] * min(iterations, _MAX_TRACED)


def summary_ns(samples: list[int]) -> dict[str, Any]:
    """Median, quartiles and every sample, for ``meta``."""
    if not samples:
        return {}
    low, median, high = np.percentile(samples, [25, 50, 75])
    return {"median": int(median), "low": int(low), "high": int(high), "samples": list(samples)}


def facts_of(
    recording: Recording,
    settled: Recording,
    correction: Correction,
    disturbance: dict[str, Any],
    replayed_ns: int,
    num_unlike: int,
    num_samples: int,
) -> dict[str, Any]:
    """All of it; ``settled`` holds the bare iterations as a training loop has them."""
    bare = settled.bare_ns
    aside = [elapsed for elapsed, unseen in zip(bare, select_validation_iterations(len(bare)), strict=True) if unseen]
    profiled = summary_ns(recording.light_ns or [recording.rich_ns])
    overhead: dict[str, Any] = correction.as_meta()
    overhead["num_profiled_iterations"] = num_samples
    overhead["num_unlike_iterations"] = num_unlike
    overhead["num_irregular_iterations"] = recording.num_dropped
    overhead["rich_iteration_ns"] = recording.rich_ns
    if bare:
        overhead["profiled_ratio"] = profiled["median"] / float(np.median(recording.bare_ns))
        overhead["rich_ratio"] = recording.rich_ns / float(np.median(bare))
        overhead |= precision(bare)
    if aside and "lost_ratio" not in disturbance:
        overhead["held_out_ns"] = aside
        overhead["held_out_error_ratio"] = replayed_ns / float(np.median(aside)) - 1.0
    measured = summary_ns(bare) or profiled
    if missing := disturbance.get(
        "lost_ratio"
    ):  # what a quiet machine is estimated to take, and how well that is known
        factor = math.exp(disturbance_log_error(missing))
        ends = {"low": int(replayed_ns / factor), "high": int(replayed_ns * factor)}
        measured = {**measured, "median": replayed_ns, **ends}
    return {
        "source": "torch step",
        "hardware": host_facts(),
        "disturbance": disturbance,
        "iteration_ns": measured,
        "profiled_iteration_ns": profiled,
        "overhead": overhead,
        "allocator": _allocator(recording),
        "shapes": recording.shapes,
        "gc_pause_ns": _median(settled.bare_pauses_ns),
        "memory_base_bytes": recording.discovery.resident_bytes(),
        "memory": {} if recording.memory is None else recording.memory.summary(),
        "is_complete": recording.is_complete,
    }


def _allocator(recording: Recording) -> dict[str, Any]:
    """What holding the heap changed: before it, and with it."""
    return {
        "is_held": recording.is_heap_held,
        "page_faults": _median(recording.bare_faults),
        "page_faults_before": _median(recording.as_is_faults),
        "iteration_before_ns": summary_ns(recording.as_is_ns),
    }


def _median(counts: list[int]) -> int:
    return int(np.median(counts)) if counts else 0


def host_facts() -> dict[str, Any]:
    """What ``meta`` says of this host."""
    return {
        "machine": platform.machine(),
        "processor": processor_name(),
        "num_cores": hardware.machine().num_cores,
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
