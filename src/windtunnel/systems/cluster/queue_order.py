"""Sort keys of waiting jobs, compiled.

In: a state. Out: keys; the job with the smallest key is served first. Not here: offers to jobs (``offers.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel.base.ordering import stable_order
from windtunnel.systems.cluster.state import (
    NOW,
    NUM_WAITING,
    RUNNING,
    WAITING,
    kernel,
)

NW_SENS, LAS, SRTF, FIFO, QUEUES, GITTINS, MIXED, ENDS, FTF, MAX_MIN = range(10)
DYNAMIC = FTF  # from here on keys change while jobs wait

# GPU-seconds served: a job of 8 GPUs for an hour has 28,800
_NS_PER_S = 1e9


@kernel
def sensitivity(state: Any, job: int) -> float:
    """Return the fraction of its full speed that a job had so far; 0 if it never ran."""
    share: float = state.jobs[job].done / max(state.jobs[job].run, 1)
    return share


@kernel
def attained_service(state: Any, job: int) -> float:
    """Return the GPU-seconds that a job ran."""
    served: float = state.jobs[job].run * state.jobs[job].gpus / _NS_PER_S
    return served


@kernel
def num_reached(levels: Any, value: float) -> int:
    """Return how many of the levels, which increase, a value has reached."""
    low, high = 0, len(levels)
    while low < high:
        middle = (low + high) >> 1
        if levels[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def set_key(state: Any, rules: Any, job: int) -> None:
    """Set the key and the second key of a job that begins to wait.

    Aging subtracts ``aging`` from the key per unit of waiting. As all jobs age alike, adding ``aging`` times the start
    of the wait gives the same order with a key that is constant while the job waits.
    """
    key, second = 0.0, state.jobs[job].arrival
    if rules.order == NW_SENS:
        # rounded, so that jobs without communication tie although their times were rounded to whole ns
        key, second = np.rint(sensitivity(state, job) * 1e9) / 1e9, state.jobs[job].since
    elif rules.order == LAS:
        key = attained_service(state, job)
    elif rules.order == SRTF:
        key = state.jobs[job].work - state.jobs[job].done
    elif rules.order == QUEUES:
        key = float(num_reached(state.thresholds, attained_service(state, job)))
        ran = state.jobs[job].run
        if rules.promote > 0 and ran > 0 and state.jobs[job].longest_wait >= rules.promote * ran:
            key = 0.0
    elif rules.order == GITTINS:
        index = num_reached(state.gittins[0], attained_service(state, job)) - 1
        key = -state.gittins[1, max(index, 0)]
    elif rules.order == MIXED:
        key = attained_service(state, job) * (1.0 - rules.weight * (1.0 - sensitivity(state, job)))
    elif rules.order == ENDS:
        second = -np.int64(state.jobs[job].work)  # of jobs that never ran, the longest first: they decide the tail
        left = (state.jobs[job].work - state.jobs[job].done) * state.jobs[job].gpus / _NS_PER_S
        key = min(attained_service(state, job), left) * (1.0 - rules.weight * (1.0 - sensitivity(state, job)))
        key /= (state.jobs[job].work * state.jobs[job].gpus / _NS_PER_S) ** rules.tail
    if rules.aging > 0:
        key += rules.aging * (state.jobs[job].since / rules.unit)
    state.jobs[job].key, state.jobs[job].second = key, second


@kernel
def rank_waiting(state: Any, rules: Any) -> None:
    """Write the waiting jobs into ``ranked``, in the order of this pass."""
    # Most policies give keys that are constant while a job waits, so that ``waiting`` is kept sorted. Only
    # two policies compare jobs by the present time and sort anew in each pass.
    num = state.scalars[NUM_WAITING]
    for row in range(num):
        state.ranked[row] = state.waiting[row]
    if rules.order < DYNAMIC or num < 2:
        return
    keys = np.empty(num)
    now, num_gpus = state.scalars[NOW], float(len(state.machines) * (len(state.open_count) - 1))
    if rules.order == FTF:
        present = 0
        for job in range(len(state.jobs)):
            present += state.jobs[job].status == RUNNING or state.jobs[job].status == WAITING
        # Finish-time fairness: the time until now and what is left, over the time with an equal share of the
        # cluster. The job with the worst ratio goes first (stable, so that ties keep their order).
        share = num_gpus / present
        for row in range(num):
            job = state.waiting[row]
            alone = state.jobs[job].work * max(1.0, state.jobs[job].gpus / share)
            keys[row] = -(now - state.jobs[job].arrival + state.jobs[job].work - state.jobs[job].done) / alone
    else:
        share = water_level(state, num_gpus)
        for row in range(num):
            job = state.waiting[row]
            got = (state.jobs[job].run / max(now - state.jobs[job].arrival, 1)) if state.jobs[job].run else 0.0
            fair = min(1.0, share / state.jobs[job].gpus)
            keys[row] = -fair / got if got > 0 else -1e18 * fair
    order = stable_order(keys)
    for row in range(num):
        state.ranked[row] = state.waiting[order[row]]


@kernel
def water_level(state: Any, num_gpus: float) -> float:
    """Return the GPUs of each present job under max-min fair sharing, where no job gets more than it requests.

    With one type of GPU this equals the optimum of Gavel's linear program for least attained service.
    """
    # Raise the level: jobs that request at most ``count`` are satisfied, the others share what is left equally.
    histogram = np.zeros(int(num_gpus) + 1)
    for job in range(len(state.jobs)):
        if state.jobs[job].status == RUNNING or state.jobs[job].status == WAITING:
            histogram[state.jobs[job].gpus] += 1.0
    left, sharers = num_gpus, 0.0
    for count in range(len(histogram)):
        sharers += histogram[count]
    for count in range(1, len(histogram)):
        if sharers <= 0 or left / sharers <= count:
            break
        left -= count * histogram[count]
        sharers -= histogram[count]
    return left / sharers if sharers > 0 else num_gpus
