"""Delay timers, and predictions of when GPUs will be free, compiled.

In: a state. Out: how long a job waits for a machine, for a rack; when one will have enough GPUs. Not here: offers
(``offers.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel.base.ordering import stable_order
from windtunnel.systems.cluster.state import EAGER, NEVER, NOW, NUM_HOLDING, NUM_SEGMENTS, WATCHED, kernel

FIXED, AUTO, MARGINAL = 0, 1, 2  # where timers come from


@kernel
def hold_ends(state: Any, rules: Any) -> Any:
    """Return when the GPUs of each holding segment become free without preemption, int64 [NUM_HOLDING]."""
    # A segment that has stopped says when its GPUs are back; one that runs needs its checkpoint first.
    ends = np.empty(state.scalars[NUM_HOLDING], np.int64)
    for index in range(state.scalars[NUM_HOLDING]):
        segment = state.holding[index]
        job = state.segments[segment].job
        if state.segments[segment].back != NEVER:
            ends[index] = state.segments[segment].back
        else:
            ends[index] = state.jobs[job].stop + rules.checkpoint * state.jobs[job].gpus
    return ends


@kernel
def predict_frees(state: Any, rules: Any) -> None:
    """Predict when a machine, and when a rack, will have each number of GPUs free if no other job takes them.

    ``frees[0, n]`` (a machine) and ``frees[1, n]`` (a rack) are filled in the order of the ends of segments: the first
    time at which n GPUs are free is final, and holds for every smaller number that has no time yet.
    """
    scalars, frees = state.scalars, state.frees
    for level in range(2):
        for count in range(frees.shape[1]):
            frees[level, count] = NEVER
    ends = hold_ends(state, rules)
    order = stable_order(ends)
    # Walks the future: GPUs come back in the order of ends, and each new maximum of free GPUs (of a
    # machine, of a rack) is recorded with its time.
    #      free GPUs     2 ----- 4 -------- 8        frees[0, 1..2] = now, [3..4] = t1, [5..8] = t2
    #      time         now      t1         t2
    free, in_rack = state.scratch, state.rack_open.copy()
    for machine in range(len(state.machines)):
        free[machine] = state.machines[machine].free
        if state.machines[machine].kept_for < 0:
            for count in range(1, free[machine] + 1):
                frees[0, count] = scalars[NOW]
    for rack in range(len(in_rack)):
        for count in range(1, in_rack[rack] + 1):
            frees[1, count] = scalars[NOW]
    for position in order:
        segment = state.holding[position]
        first = state.segments[segment].placement
        for row in range(first, first + state.segments[segment].width):
            machine, count = state.placements[row].machine, state.placements[row].gpus
            if state.machines[machine].kept_for >= 0:
                continue
            free[machine] += count
            in_rack[state.machines[machine].rack] += count
            if frees[0, free[machine]] == NEVER:
                # Times only grow, so that the numbers below stop at the first that has one already: amortized, each
                # number is written once.
                for fewer in range(free[machine], 0, -1):
                    if frees[0, fewer] != NEVER:
                        break
                    frees[0, fewer] = ends[position]
            most = in_rack[state.machines[machine].rack]
            for fewer in range(most, 0, -1):
                if frees[1, fewer] != NEVER:
                    break
                frees[1, fewer] = ends[position]


@kernel
def retune(state: Any, rules: Any, demand: int) -> None:
    """Recompute the timers of a demand from recent waits for a machine and a rack (mean + 2 std, bounded)."""
    # ``waits[level, demand]`` is a queue linked through ``segments[].wait_next``; old records leave at its head.
    now, unit = state.scalars[NOW], rules.unit
    for level in range(2):
        head = state.waits[level, demand].head
        while head >= 0 and now - state.segments[head].wait_time > rules.history_leases * unit:
            head = state.segments[head].wait_next
            state.waits[level, demand].is_stale = True
        state.waits[level, demand].head = head
        if head < 0:
            state.waits[level, demand].tail = -1
        if not state.waits[level, demand].is_stale:
            continue
        state.waits[level, demand].is_stale = False
        total, count, row = 0.0, 0, head
        while row >= 0:
            total += state.segments[row].wait
            count += 1
            row = state.segments[row].wait_next
        estimate = 1.0
        if count and total > 0:
            mean, squares, row = total / count, 0.0, head
            while row >= 0:
                squares += (state.segments[row].wait - mean) ** 2
                row = state.segments[row].wait_next
            estimate = mean + 2.0 * np.sqrt(squares / count)
        if level == 0:
            state.waits[0, demand].leases = min(np.ceil(0.8 * rules.history_leases), max(6.0, np.ceil(estimate)))
        else:
            state.waits[1, demand].leases = min(rules.history_leases, max(12.0, np.ceil(estimate)))


@kernel
def record_wait(state: Any, rules: Any, job: int, tier: int) -> None:
    """Record how long a job waited for a machine or a rack that it accepts, if it waited a lease or longer."""
    # Records are linked through the segment that the job starts now, so that no array of its own is needed:
    #      waits[tier, demand].head -> segment -> wait_next -> ... -> tail        oldest first
    waited = (state.scalars[NOW] - state.jobs[job].since) / rules.unit
    if tier > 1 or waited < 1.0:
        return
    row, demand = state.scalars[NUM_SEGMENTS], state.jobs[job].demand
    state.segments[row].wait, state.segments[row].wait_time, state.segments[row].wait_next = (
        waited,
        state.scalars[NOW],
        -1,
    )
    tail = state.waits[tier, demand].tail
    if tail >= 0:
        state.segments[tail].wait_next = row
    else:
        state.waits[tier, demand].head = row
    state.waits[tier, demand].tail = row
    state.waits[tier, demand].is_stale = True


@kernel
def timer_of(state: Any, rules: Any, job: int, tier: int) -> int:
    """Return how long a job waits before it accepts GPUs across machines (0) or across racks (1)."""
    if job == state.scalars[WATCHED] and state.scalars[NOW] == state.scalars[EAGER]:
        return 0
    if rules.tuner == AUTO:
        return int(np.int64(state.waits[tier, state.jobs[job].demand].leases * rules.unit))
    return int(rules.rack_timer if tier == 0 else rules.network_timer)


@kernel
def next_timer(state: Any, rules: Any, job: int) -> int:
    """Return when a job that declined would accept a looser placement, or NEVER."""
    scalars, soonest = state.scalars, NEVER
    num, per_machine, per_rack = state.jobs[job].gpus, len(state.open_count) - 1, state.frees.shape[1] - 1
    for tier in range(2):
        if num > (per_machine if tier == 0 else per_rack):
            continue
        expiry = state.jobs[job].since + timer_of(state, rules, job, tier)
        if scalars[NOW] < expiry < soonest:
            soonest = expiry
    return int(soonest)
