"""The state of a simulated scheduler as arrays, and its elementary operations, compiled.

In: sizes. Out: a ``State`` of arrays that the event loop (``engine.py``) and policies (``offers.py``) share. Not here:
the order of events, scheduling decisions.

Legend: J jobs, M machines, R racks, G GPUs of a machine, D distinct demands, N segments (a job on its GPUs from a start
to a stop), P machines of all placements, H pending events. A segment links to its machines and a job to its segment:

    jobs[j].segment -> segments[s].placement, .width -> placements[p : p + width] = (machine, gpus)
    segments[s].hold -> holding[h] = s, while the GPUs of the segment are not free
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.experimental import structref
from numpy.typing import NDArray

Array = NDArray[Any]

NEVER = np.int64(1 << 61)
COMING, WAITING, RUNNING, OVER = 0, 1, 2, 3  # status of a job
# Typed constants instead of literals: numba compiles a function again for every literal type that it is called with.
STOP, RETURN, TIMER = np.int64(0), np.int64(1), np.int64(2)  # a segment ends, its GPUs come back, a job may take worse
NOBODY = np.int64(-1)  # a job for which a machine is drained
FIRST_ROW: Any = np.int64(0)
NO_MACHINE: Any = np.int64(-1)
SPANS_RACK, SPANS_NETWORK = np.int64(0), np.int64(1)  # what a job takes when its timer is over
IS_LAST, IS_STOPPED = np.bool_(True), np.bool_(False)  # its work is done with a segment, or it waits again

# rows of ``scalars``
NOW, NUM_WAITING, NUM_EVENTS, SEQUENCE, NUM_SEGMENTS, NUM_PLACEMENTS, NEXT_ARRIVAL, IS_DUE, NUM_OVER, POPPED = range(10)
PICKED, PICKED_TIER, OPEN, MAX_OPEN, MAX_OPEN_RACK, RESERVER, NUM_HOLDING, IS_SERVED, STARTED, TIMED, WAKES = range(
    10, 21
)
ASKING = 21  # whose speed was looked up last
WATCHED, EAGER, NUM_DECLINED = (
    22,
    23,
    24,
)  # a job whose offers are noted (-1: none); when it takes whatever it is offered
SHARES = 25  # 1: links that several jobs send over are shared
NUM_SCALARS = 26

DONE, NEED_SPEED, NEED_ROOM, ASK, STUCK, LATER = 0, 1, 2, 3, 4, 5  # why the loop returned


JOB = np.dtype(
    [
        ("gpus", np.int64), ("profile", np.int64),  # model and batch, by number
        ("demand", np.int64),  # which of the D demands
        ("arrival", np.int64), ("work", np.float64),  # ns if communication were free
        ("quantum", np.float64),  # ns of work between two looks; 0: at any time
        ("is_skewed", np.bool_),  # may not be spread
        ("done", np.float64), ("run", np.int64),  # ns of work; ns that it computed or communicated
        ("restarting", np.int64), ("first", np.int64), ("end", np.int64),  # first start, end: -1 before
        ("since", np.int64),  # arrival, start or preemption, whichever was last
        ("status", np.int64), ("begin", np.int64),  # of progress in its segment
        ("expires", np.int64),  # end of its lease
        ("stop", np.int64),  # when its segment ends unless it is preempted
        ("speed", np.float64), ("segment", np.int64), ("quanta", np.int64),  # -1: none; in this segment
        ("rated", np.int64), ("carried", np.float64),  # since when it has this speed; ns of work in its segment before
        ("alone", np.float64),  # its speed without contention
        ("card", np.float64), ("uplink", np.float64), ("load", np.float64), ("both", np.float64),  # as in ``SPEED``
        ("timer", np.int64),  # when it is looked at again, or NEVER
        ("num_starts", np.int64), ("preempted", np.int64), ("longest_wait", np.int64),
        ("key", np.float64), ("second", np.int64),
    ]
)  # fmt: skip
MACHINE = np.dtype(
    [("rack", np.int64), ("free", np.int64), ("kept_for", np.int64)]
)  # job for which it is drained, or -1
EVENT = np.dtype([("time", np.int64), ("rank", np.int64), ("kind", np.int64), ("subject", np.int64)])  # segment or job
SEGMENT = np.dtype(
    [
        ("job", np.int64), ("start", np.int64), ("begin", np.int64), ("end", np.int64),
        ("back", np.int64),  # when its GPUs were free again
        ("speed", np.float64), ("done", np.float64),  # work in it
        ("tier", np.int64), ("placement", np.int64), ("width", np.int64),  # first of its machines, their number
        ("hold", np.int64),  # row of ``holding``
        ("wait", np.float64), ("wait_time", np.int64), ("wait_next", np.int64),  # leases waited before it; next record
    ]
)  # fmt: skip
PLACEMENT = np.dtype([("machine", np.int64), ("gpus", np.int64)])
SPEED = np.dtype(
    [
        ("profile", np.int64), ("first", np.uint64), ("second", np.uint64), ("speed", np.float64),
        # Parts of an iteration in which a job alone sends over machines' cards and racks' uplinks; what it adds to the
        # load of a card; the part on uplinks that grows with the load of its cards (``sharing.py``).
        ("card", np.float64), ("uplink", np.float64), ("load", np.float64), ("both", np.float64),
    ]
)  # fmt: skip
WAITS = np.dtype([("head", np.int64), ("tail", np.int64), ("is_stale", np.bool_), ("leases", np.float64)])


DECLINED = np.dtype([("time", np.int64), ("tier", np.int64), ("machines", np.int64), ("speed", np.float64)])


class State(NamedTuple):
    """See the legend above; times in ns. Columns share a few record arrays, as compile time grows with their number."""

    scalars: Array  # int64 [NUM_SCALARS], counters and flags; see the constants above
    machines: Array  # MACHINE [M]
    rack_first: Array  # int64 [R + 1], first machine of each
    rack_open: Array  # int64 [R], free GPUs of machines that are not drained
    open_count: Array  # int64 [G + 1], those machines by their free GPUs
    jobs: Array  # JOB [J]
    waiting: Array  # int64 [J], jobs in order
    ranked: Array  # int64 [J], scratch: jobs in the order of this pass
    events: Array  # EVENT [H], a heap
    segments: Array  # SEGMENT [N]
    placements: Array  # PLACEMENT [P]
    holding: Array  # int64 [M * G], segments whose GPUs are not free
    pick: Array  # PLACEMENT [M + 1]
    table: Array  # SPEED [K], NaN: nothing
    waits: Array  # WAITS [2, D], of a machine, a rack: records of waits, and the timer made of them
    frees: Array  # int64 [2, rack + 1], predicted time at which a machine, a rack has that many GPUs free
    scratch: Array  # int64 [max(M, R)]
    thresholds: Array  # float64, of attained service
    gittins: Array  # float64 [2, K], ages and the index from there on
    declined: Array  # DECLINED, what the watched job was offered and did not take
    loads: Array  # float64 [M + R], of machines' cards and racks' uplinks by jobs that send over them
    loss: Array  # float64 [G + 1, G + 1], of future placements by free GPUs and GPUs taken


def entry(function: Any) -> Any:
    """Compile a function that Python calls, with a cache.

    Numba invalidates the cache of a function by its own file alone, not by the files of the functions that it calls.
    """
    return njit(cache=True, nogil=True)(function)


def kernel(function: Any) -> Any:
    """Compile a function that only compiled functions call; without a Python wrapper it compiles a fifth faster."""
    return njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)  # type: ignore[call-overload]


@structref.register
class StateType(types.StructRef):
    """The numba type of ``StateRef``."""


class StateRef(structref.StructRefProxy):
    """A reference to the arrays of a ``State``, for compiled functions; Python reads the ``State`` itself."""


structref.define_proxy(StateRef, StateType, State._fields)


@entry
def by_reference(state: Any) -> Any:
    """Return a reference to a state.

    A tuple of 22 arrays is 150 arguments of every call of a compiled function. A reference is one, which halves both
    the time of a run and the code.
    """
    return StateRef(*state)


@entry
def push_event(state: Any, time: int, kind: int, item: int) -> None:
    """Add an event to the binary heap, which is ordered by time, then by sequence number."""
    scalars, events = state.scalars, state.events
    # The hole rises, and parents move down into it; the event is written once, at its final position.
    hole = scalars[NUM_EVENTS]
    scalars[NUM_EVENTS] += 1
    while hole > 0:
        above = (hole - 1) >> 1
        if events[above].time <= time:  # equal times keep their order, as sequence numbers only grow
            break
        copy_event(events, above, hole)
        hole = above
    events[hole].time, events[hole].rank = time, scalars[SEQUENCE]
    events[hole].kind, events[hole].subject = kind, item
    scalars[SEQUENCE] += 1


@kernel
def copy_event(events: Any, source: int, target: int) -> None:
    """Move an event in the heap."""
    events[target].time, events[target].rank = events[source].time, events[source].rank
    events[target].kind, events[target].subject = events[source].kind, events[source].subject


@kernel
def comes_first(events: Any, event: int, other: int) -> bool:
    """Whether an event is before another."""
    # Ranks are sequence numbers: events of one time are taken in the order in which they were pushed.
    if events[event].time != events[other].time:
        return bool(events[event].time < events[other].time)
    return bool(events[event].rank < events[other].rank)


@kernel
def pop_event(state: Any) -> tuple[int, int]:
    """Remove the next event; return its kind and its subject."""
    scalars, events = state.scalars, state.events
    kind, item = events[0].kind, events[0].subject
    scalars[NUM_EVENTS] -= 1
    last = scalars[NUM_EVENTS]  # stays where it is until its final position is known
    hole = FIRST_ROW
    while True:
        below = 2 * hole + 1
        if below >= last:
            break
        if below + 1 < last and comes_first(events, below + 1, below):
            below += 1
        if comes_first(events, last, below):
            break
        copy_event(events, below, hole)
        hole = below
    copy_event(events, last, hole)
    return kind, item


@kernel
def note_open(state: Any) -> None:
    """Update the largest number of open GPUs of a machine and of a rack."""
    # A histogram of machines by free GPUs: the largest is found in G steps, however many machines there are.
    most = 0
    for count in range(len(state.open_count) - 1, 0, -1):
        if state.open_count[count]:
            most = count
            break
    state.scalars[MAX_OPEN] = most
    max_in_rack = 0
    for rack in range(len(state.rack_open)):
        max_in_rack = max(max_in_rack, state.rack_open[rack])
    state.scalars[MAX_OPEN_RACK] = max_in_rack


@kernel
def change_free(state: Any, machine: int, count: int) -> None:
    """Free (``count`` > 0) or take GPUs of a machine; totals count open machines only."""
    #      OPEN = sum over racks of rack_open = sum over open machines of free
    # Drained machines count nowhere, so that offers need not look at them.
    old = state.machines[machine].free
    state.machines[machine].free = old + count
    if state.machines[machine].kept_for < 0:
        state.open_count[old] -= 1
        state.open_count[old + count] += 1
        state.rack_open[state.machines[machine].rack] += count
        state.scalars[OPEN] += count


@kernel
def keep_for(state: Any, machine: int, job: int) -> None:
    """Drain a machine for a job; -1 opens it again."""
    free = state.machines[machine].free
    if (state.machines[machine].kept_for < 0) != (job < 0):
        sign = 1 if job < 0 else -1
        state.open_count[free] += sign
        state.rack_open[state.machines[machine].rack] += sign * free
        state.scalars[OPEN] += sign * free
    state.machines[machine].kept_for = job


@kernel
def is_before(state: Any, job: int, other: int) -> bool:
    """Whether a waiting job comes before another: by key, then second key, then number."""
    if state.jobs[job].key != state.jobs[other].key:
        return bool(state.jobs[job].key < state.jobs[other].key)
    if state.jobs[job].second != state.jobs[other].second:
        return bool(state.jobs[job].second < state.jobs[other].second)
    return job < other


@kernel
def place_of(state: Any, job: int) -> int:
    """Return the number of waiting jobs before a job, by bisection."""
    # ``waiting`` is sorted by (key, second, number), a total order: bisection finds the exact position.
    low, high = 0, state.scalars[NUM_WAITING]
    while low < high:
        middle = (low + high) >> 1
        if is_before(state, state.waiting[middle], job):
            low = middle + 1
        else:
            high = middle
    return int(low)


@kernel
def enqueue(state: Any, job: int) -> None:
    """Insert a job into the waiting list at the position of its key."""
    # Passes walk the queue in order, so that it is an array; shifting some thousand numbers is cheap.
    low = place_of(state, job)
    for index in range(state.scalars[NUM_WAITING], low, -1):
        state.waiting[index] = state.waiting[index - 1]
    state.waiting[low] = job
    state.scalars[NUM_WAITING] += 1
    state.jobs[job].status = WAITING


@entry
def dequeue(state: Any, job: int) -> None:
    """Remove a job from the waiting list."""
    low = place_of(state, job)
    state.scalars[NUM_WAITING] -= 1
    for index in range(low, state.scalars[NUM_WAITING]):
        state.waiting[index] = state.waiting[index + 1]


@kernel
def mix_bits(value: Any, salt: Any) -> Any:
    """Hash to 64 bits with the finalizer of splitmix64."""
    bits = np.uint64(value) + np.uint64(salt) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@entry
def shape_keys(state: Any, num: int) -> tuple[int, int]:
    """Return two hashes of the picked placement's shape, independent of the order of racks and machines.

    The hash of a rack is a sum over its machines, and the key a sum over the mixed hashes of racks: sums commute. Two
    keys of 64 bits make a collision practically impossible, so the table stores no shapes. Machines are grouped by
    rack.
    """
    first, second = np.uint64(0), np.uint64(0)
    rack_first, rack_second, rack = np.uint64(0), np.uint64(0), -1
    for index in range(num):
        own = state.machines[state.pick[index].machine].rack
        if own != rack and rack >= 0:
            first += mix_bits(rack_first, np.uint64(5))
            second += mix_bits(rack_second, np.uint64(7))
            rack_first, rack_second = np.uint64(0), np.uint64(0)
        rack = own
        rack_first += mix_bits(np.uint64(state.pick[index].gpus), np.uint64(1))
        rack_second += mix_bits(np.uint64(state.pick[index].gpus), np.uint64(3))
    first += mix_bits(rack_first, np.uint64(5))
    second += mix_bits(rack_second, np.uint64(7))
    return first, second


@entry
def table_slot(state: Any, profile: Any, first: Any, second: Any) -> Any:
    """Return the slot of a profile and a shape in the hash table, by linear probing; NaN marks an empty slot."""
    # A power of two, so that the remainder is a mask. The caller keeps empty slots, so that a probe ends.
    mask = np.uint64(len(state.table) - 1)
    slot = mix_bits(first ^ np.uint64(profile), np.uint64(11)) & mask
    while not np.isnan(state.table[slot].speed) and not (
        state.table[slot].profile == profile and state.table[slot].first == first and state.table[slot].second == second
    ):
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def speed_of(state: Any, job: int, num: int) -> float:
    """Return S of a job on the picked machines; NaN: the caller has to supply it."""
    # A job on one GPU does not communicate.
    if state.jobs[job].gpus == 1:
        return 1.0
    state.scalars[ASKING] = job
    first, second = shape_keys(state, num)
    return float(state.table[table_slot(state, state.jobs[job].profile, first, second)].speed)
