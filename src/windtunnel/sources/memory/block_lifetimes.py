"""From notes to books: what every block was for, from when to when.

In: the allocator's ``Log``, ``Sightings`` and what was ``Learned``. Out: a ``Life`` per storage, and rows of a
``MemoryProfile``. Notes and blocks are joined by address and time. Not here: how they were taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from windtunnel.sources.memory.allocator_log import Block, Log
from windtunnel.sources.memory.observations import LEFT, Learned, Mark, Outside, Sightings
from windtunnel.sources.memory.profile import CATEGORIES
from windtunnel.sources.memory.storages import (
    BACKWARD,
    BEFORE,
    BIRTH,
    CATEGORY,
    DATA,
    DEATH,
    EVENTS,
    FORWARD,
    INPUT,
    PHASES,
    STATE,
    TEMPORARY,
    UPDATE,
    WORKSPACE,
    NodeLayers,
)

__all__ = ["Life", "lives_of", "rows_of"]

SLACK_NS = 1_000  # between the clock of hooks and that of the profiler
_OUTSIDE = -2  # of any autograd node


@dataclass(slots=True)
class Life:
    """One storage or block."""

    begin_ns: int
    end_ns: int | None
    size_bytes: int
    address: int
    name: str
    phase: int
    maker: str = ""  # the operator
    layer: int = 0
    line: str = ""
    call: int = 0
    category: int = TEMPORARY
    is_foreign: bool = False  # no block of an allocator
    first_category: int = TEMPORARY
    changes: list[tuple[int, int]] = field(default_factory=list)  # time_ns, category

    @property
    def was_there(self) -> bool:
        """Whether it was there before."""
        return self.phase == BEFORE

    def become(self, category: int, time_ns: int) -> None:
        """It is of this category from now on."""
        self.category = category
        self.changes.append((time_ns, category))


class _Clock:
    """Phase, layer and iteration at any time."""

    def __init__(self, log: Log, sightings: Sightings) -> None:
        self._forced = sightings.forced
        self._iterations = sightings.iterations
        self._node_begins = [begin_ns for begin_ns, _, _ in log.nodes]
        self._node_ends = list(accumulate((end_ns for _, end_ns, _ in log.nodes), max))
        self._times, self._tops = self._stacks(sightings.calls)
        self._nodes = NodeLayers()
        for time_ns, sequence, node in log.operators:
            self._nodes.bound(sequence, self.layer(time_ns, node))

    def _stacks(self, calls: list[tuple[int, int]]) -> tuple[list[int], list[tuple[int, bool]]]:
        # The layer on top after each call or return; a call in a backward pass is a recomputation (checkpoint).
        stack: list[tuple[int, bool]] = [(0, False)]
        times, tops = [], []
        for time_ns, layer in calls:
            if layer != LEFT:
                stack.append((layer if layer >= 0 else stack[-1][0], self.is_backward(time_ns)))
            elif len(stack) > 1:
                stack.pop()
            times.append(time_ns)
            tops.append(stack[-1])
        return times, tops

    def is_backward(self, time_ns: int) -> bool:
        """Whether an autograd node runs."""
        place = bisect_right(self._node_begins, time_ns) - 1
        return place >= 0 and time_ns <= self._node_ends[place]

    def layer(self, time_ns: int, node: int) -> int:
        """The module that runs, or whose forward made the node."""
        place = bisect_right(self._times, time_ns) - 1
        layer, is_again = self._tops[place] if place >= 0 else (0, False)
        if node == _OUTSIDE or (is_again and layer):
            return layer
        return self._nodes.layer(node) if node >= 0 else 0

    def phase(self, time_ns: int, *, is_backward: bool) -> int:
        """What the program does."""
        place = bisect_right(self._forced, time_ns, key=_first) - 1
        forced = self._forced[place][1] if place >= 0 else 0
        return forced or (BACKWARD if is_backward else FORWARD)

    def end_of_update(self, time_ns: int) -> int:
        """When the update that runs then ends."""
        place = bisect_right(self._forced, time_ns, key=_first)
        return self._forced[place][0] if place < len(self._forced) else time_ns

    def iteration(self, time_ns: int) -> int:
        """The number of the block, from 0."""
        return bisect_right(self._iterations, time_ns)


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def lives_of(log: Log, sightings: Sightings, learned: Learned) -> list[Life]:
    """Every storage that was used and every block, those that were there first in front.

    Parameters
    ----------
    log, sightings
        Of the same step.
    learned : Learned
        Of an iteration before.
    """
    clock = _Clock(log, sightings)
    lives = [_outside(item, clock) for item in sightings.outside]
    lives += [_inside(block, clock) for block in log.blocks()]
    lives.sort(key=lambda life: (not life.was_there, life.begin_ns))
    used = _recognize(lives, sightings, clock)
    result = [life for life in lives if not life.was_there or id(life) in used]
    _find_lines(result, clock, learned)
    return result


def _outside(one: Outside, clock: _Clock) -> Life:
    begin_ns = one.begin_ns
    phase = BEFORE if begin_ns is None else clock.phase(begin_ns, is_backward=clock.is_backward(begin_ns))
    life = Life(begin_ns or 0, one.end_ns, one.size_bytes, one.address, one.name, phase, line=one.line)
    life.is_foreign = begin_ns is not None
    life.category = life.first_category = one.category
    return life


def _inside(block: Block, clock: _Clock) -> Life:
    at_ns, node = block.begin_ns, block.node
    phase = clock.phase(at_ns, is_backward=node != _OUTSIDE)
    life = Life(at_ns, block.end_ns, block.size_bytes, block.address, block.operator, phase, block.operator)
    life.call = block.call
    life.layer = 0 if phase in (UPDATE, DATA) else clock.layer(at_ns, node)
    category = WORKSPACE if block.is_within else INPUT if phase == DATA else TEMPORARY
    life.category = life.first_category = category
    return life


class _Index:
    """Lives by address and time."""

    def __init__(self, lives: list[Life]) -> None:
        self._at: dict[int, list[Life]] = {}
        for life in sorted(lives, key=_begin):
            self._at.setdefault(life.address, []).append(life)

    def find(self, address: int, time_ns: int) -> Life | None:
        """What lay there then."""
        # Addresses are used again and again: of all blocks that lay there, the last one that began by then. Clocks
        # of hooks and profiler differ by up to a µs, so that the one before may be meant.
        there = self._at.get(address, [])
        place = bisect_right(there, time_ns + SLACK_NS, key=_begin) - 1
        if place > 0 and there[place].begin_ns > time_ns and (there[place - 1].end_ns or time_ns) >= time_ns:
            place -= 1
        if place < 0 or (there[place].end_ns or time_ns) < time_ns - SLACK_NS:
            return None
        return there[place]


def _begin(life: Life) -> int:
    return life.begin_ns


def _recognize(lives: list[Life], sightings: Sightings, clock: _Clock) -> set[int]:
    """Give every storage its categories; the identities of those that were seen."""
    index = _Index(lives)
    seen: set[int] = set()
    for mark in sightings.all_marks():
        life = index.find(mark.address, mark.time_ns)
        if life is None:
            continue
        is_first = id(life) not in seen
        seen.add(id(life))
        if mark.category <= STATE and (mark.category < life.category):
            life.name, life.layer = mark.name, mark.layer or 0
        elif life.was_there and is_first:
            life.name = mark.name or f"storage of {life.size_bytes} bytes"
        if mark.category < life.category and not (mark.category == INPUT and life.layer):
            _become(life, mark, sightings.begin_ns, clock)
    return seen


def _become(life: Life, mark: Mark, begin_ns: int, clock: _Clock) -> None:
    at_ns = max(mark.time_ns, life.begin_ns)
    if at_ns <= begin_ns:
        life.category = life.first_category = mark.category
        return
    if mark.category == STATE and life.phase == UPDATE:  # it is looked for when the iteration is over
        at_ns = min(at_ns, clock.end_of_update(life.begin_ns))
    life.become(mark.category, at_ns if life.end_ns is None else min(at_ns, life.end_ns - 1))


def _find_lines(lives: list[Life], clock: _Clock, learned: Learned) -> None:
    """Lines as they were learnt, iteration by iteration; what an operator needs for itself has its result's."""
    by_iteration: dict[int, list[Life]] = {}
    for life in lives:
        if not (life.was_there or life.is_foreign or life.first_category == WORKSPACE):
            by_iteration.setdefault(clock.iteration(life.begin_ns), []).append(life)
    of_call: dict[int, str] = {}
    for same in by_iteration.values():
        # The allocator knows no Python. Lines were learned in another iteration, in which Python watched; births
        # of both are aligned by phase, operator and size.
        births = [(life.phase, life.maker, life.size_bytes) for life in same]
        for life, line in zip(same, learned.lines(births), strict=True):
            life.line = line
            of_call.setdefault(life.call, line)
    for life in lives:
        if life.first_category == WORKSPACE:
            life.line = of_call.get(life.call, "")


def rows_of(
    log: Log, sightings: Sightings, learned: Learned, *, workspace: bool
) -> tuple[list[tuple[Any, ...]], list[Life]]:
    """Rows of a ``MemoryProfile``, and whose they are: ``storage`` is the place in the second list."""
    lives = lives_of(log, sightings, learned)
    if not workspace:
        lives = [life for life in lives if life.category != WORKSPACE]
    clock = _Clock(log, sightings)
    events = sorted((event for number, life in enumerate(lives) for event in _events(number, life)), key=_time)
    begin_ns = next((time_ns for time_ns, *_ in events if time_ns), 0)
    about = [(PHASES[life.phase], life.name, sightings.layers.texts[life.layer], life.line) for life in lives]
    rows = [
        (max(time_ns - begin_ns, 0), EVENTS[event], number, CATEGORIES[category], size, clock.iteration(time_ns))
        for time_ns, event, number, category, size in events
    ]
    return [(*row, *about[row[2]]) for row in rows], lives


def _time(event: tuple[int, int, int, int, int]) -> int:
    return event[0]


def _events(number: int, life: Life) -> Iterator[tuple[int, int, int, int, int]]:
    yield (0 if life.was_there else life.begin_ns), BIRTH, number, life.first_category, life.size_bytes
    for time_ns, category in life.changes:
        yield time_ns, CATEGORY, number, category, life.size_bytes
    if life.end_ns is not None:
        yield life.end_ns, DEATH, number, life.category, 0
