"""Starts and stops of jobs, compiled.

In: a state with a picked placement. Out: the state after a start or a stop. Not here: which job starts (``engine.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel.systems.cluster.queue_order import set_key
from windtunnel.systems.cluster.sharing import final_stop, share_links, use_of
from windtunnel.systems.cluster.state import (
    DONE,
    IS_LAST,
    IS_STOPPED,
    NEED_ROOM,
    NEED_SPEED,
    NEVER,
    NOBODY,
    NOW,
    NUM_EVENTS,
    NUM_HOLDING,
    NUM_OVER,
    NUM_PLACEMENTS,
    NUM_SEGMENTS,
    OVER,
    PICKED,
    PICKED_TIER,
    RESERVER,
    RETURN,
    RUNNING,
    SHARES,
    STARTED,
    STOP,
    change_free,
    dequeue,
    enqueue,
    entry,
    keep_for,
    kernel,
    note_open,
    push_event,
    speed_of,
)
from windtunnel.systems.cluster.timers import AUTO, record_wait


@kernel
def has_room(state: Any) -> bool:
    """Whether the arrays have capacity for what one event or start may add."""
    # An event or a start adds a few events, and with shared links a new stop for each job whose speed
    # it changes. Checked before the state changes, since a half-done start cannot be repeated.
    scalars = state.scalars
    return bool(
        scalars[NUM_EVENTS] + 4 + scalars[SHARES] * (scalars[NUM_HOLDING] + 1) < len(state.events)
        and scalars[NUM_SEGMENTS] < len(state.segments)
        and scalars[NUM_PLACEMENTS] + len(state.machines) < len(state.placements)
    )


@kernel
def is_final(state: Any, job: int) -> bool:
    """Whether a job's work is done when its segment ends."""
    return bool(state.jobs[job].stop == final_stop(state, job))


@kernel
def quantum_end(state: Any, job: int) -> int:
    """Return when the next quantum of a running job ends."""
    # From the beginning of the segment, not from the last quantum: rounding does not add up.
    count = state.jobs[job].quanta + 1
    time = np.int64(np.rint(count * state.jobs[job].quantum / state.jobs[job].speed))
    return int(state.jobs[job].begin + max(time, count))


@kernel
def end_quantum(state: Any, rules: Any, job: int) -> None:
    """Continue with the next quantum, unless the work is done or the lease would end within it."""
    state.jobs[job].quanta += 1
    left = state.jobs[job].work - state.jobs[job].done
    if state.jobs[job].quanta * state.jobs[job].quantum >= left * (1.0 - 1e-12):
        end_segment(state, rules, job, IS_LAST)
        return
    time = quantum_end(state, job)
    if time > state.jobs[job].expires:
        end_segment(state, rules, job, IS_STOPPED)
        return
    state.jobs[job].stop = time
    push_event(state, time, STOP, state.jobs[job].segment)


@entry
def end_segment(state: Any, rules: Any, job: int, is_last: bool) -> None:
    """End the segment of a running job now: its work is done (``is_last``), or it waits again.

    The GPUs return after a checkpoint, as an event of their own, so the segment stays in ``holding`` until then.
    """
    #      start     begin                    end = now          back
    #        |restart  |== works at ``speed`` ==|-- checkpoint ----| GPUs are free
    # Progress is what the job has worked since ``begin``: whole quanta where it can only be stopped
    # between them, and at most what was left.
    scalars, segment = state.scalars, state.jobs[job].segment
    ran = max(scalars[NOW] - state.jobs[job].begin, 0)
    left = state.jobs[job].work - state.jobs[job].done
    if is_last:
        progress = left
    elif state.jobs[job].quantum > 0 and scalars[NOW] == state.jobs[job].stop:
        progress = min(state.jobs[job].quanta * state.jobs[job].quantum, left)
    else:
        here = max(scalars[NOW] - state.jobs[job].rated, 0)
        progress = min(state.jobs[job].carried + here * state.jobs[job].speed, left)
    state.segments[segment].end, state.segments[segment].done = scalars[NOW], progress
    state.jobs[job].run += ran
    state.jobs[job].restarting += min(scalars[NOW], state.jobs[job].begin) - state.segments[segment].start
    state.jobs[job].done = state.jobs[job].work if is_last else state.jobs[job].done + progress
    state.jobs[job].segment = -1
    state.jobs[job].since = scalars[NOW]
    if is_last:
        state.jobs[job].status, state.jobs[job].end = OVER, scalars[NOW]
        scalars[NUM_OVER] += 1
    else:
        state.jobs[job].preempted += 1
        set_key(state, rules, job)
        enqueue(state, job)
    # The job sends no more, which makes the jobs that shared its links faster.
    if scalars[SHARES] and state.segments[segment].tier > 0:
        state.segments[segment].speed = progress / ran if ran > 0 else state.jobs[job].alone
        share_links(state)
    back = scalars[NOW] + rules.checkpoint * state.jobs[job].gpus
    state.segments[segment].back = back
    push_event(state, back, RETURN, segment)


@kernel
def give_back(state: Any, segment: int) -> None:
    """Free the GPUs of a segment."""
    scalars = state.scalars
    first = state.segments[segment].placement
    for row in range(first, first + state.segments[segment].width):
        machine = state.placements[row].machine
        change_free(state, machine, state.placements[row].gpus)
    # remove the segment from ``holding`` by moving the last one into its position
    scalars[NUM_HOLDING] -= 1
    moved = state.holding[scalars[NUM_HOLDING]]
    position = state.segments[segment].hold
    state.holding[position] = moved
    state.segments[moved].hold = position
    note_open(state)


@entry
def start(state: Any, rules: Any, job: int) -> int:
    """Start a waiting job on the picked placement."""
    scalars = state.scalars
    speed = speed_of(state, job, scalars[PICKED])
    if np.isnan(speed):
        return NEED_SPEED
    if not has_room(state):
        return NEED_ROOM
    # Everything that can fail is checked above; from here on the state changes.
    now, segment, num = scalars[NOW], scalars[NUM_SEGMENTS], scalars[PICKED]
    if state.scalars[RESERVER] == job:
        drop_reservation(state)
    dequeue(state, job)
    if rules.tuner == AUTO:
        record_wait(state, rules, job, scalars[PICKED_TIER])
    state.segments[segment].placement, state.segments[segment].width = scalars[NUM_PLACEMENTS], num
    for row in range(num):
        machine, count = state.pick[row].machine, state.pick[row].gpus
        target = scalars[NUM_PLACEMENTS] + row
        state.placements[target].machine, state.placements[target].gpus = machine, count
        change_free(state, machine, -count)
    note_open(state)
    scalars[NUM_PLACEMENTS] += num
    scalars[NUM_SEGMENTS] += 1
    scalars[STARTED] += 1
    state.holding[scalars[NUM_HOLDING]], state.segments[segment].hold = segment, scalars[NUM_HOLDING]
    scalars[NUM_HOLDING] += 1
    # Only a job that ran before has a checkpoint to load.
    restart = rules.restart * state.jobs[job].gpus if state.jobs[job].first >= 0 else 0
    state.segments[segment].job, state.segments[segment].start, state.segments[segment].begin = job, now, now + restart
    state.segments[segment].end, state.segments[segment].back = NEVER, NEVER
    state.segments[segment].speed, state.segments[segment].tier = speed, scalars[PICKED_TIER]
    state.jobs[job].longest_wait = max(state.jobs[job].longest_wait, now - state.jobs[job].since)
    if state.jobs[job].first < 0:
        state.jobs[job].first = now
    state.jobs[job].status, state.jobs[job].segment, state.jobs[job].speed = RUNNING, segment, speed
    state.jobs[job].begin, state.jobs[job].quanta, state.jobs[job].timer = now + restart, 0, NEVER
    # Work done = carried + (now - rated) * speed, which ``change_speed`` keeps true.
    state.jobs[job].rated, state.jobs[job].carried, state.jobs[job].alone = now + restart, 0.0, speed
    state.jobs[job].num_starts += 1
    state.jobs[job].expires = NEVER if rules.lease == NEVER else now + rules.lease
    if state.jobs[job].quantum > 0:
        state.jobs[job].stop = quantum_end(state, job)
    else:
        state.jobs[job].stop = min(final_stop(state, job), state.jobs[job].expires)
    push_event(state, state.jobs[job].stop, STOP, segment)
    if scalars[SHARES] and scalars[PICKED_TIER] > 0:
        use_of(state, job, scalars[PICKED])
        share_links(state)
    return DONE


@kernel
def drop_reservation(state: Any) -> None:
    """Open all drained machines again."""
    for machine in range(len(state.machines)):
        if state.machines[machine].kept_for >= 0:
            keep_for(state, machine, NOBODY)
    state.scalars[RESERVER] = -1
    note_open(state)


@entry
def stop_job(state: Any, rules: Any, job: int) -> bool:
    """Preempt a running job now, by the decision of a Python function."""
    if state.jobs[job].status != RUNNING or not has_room(state):
        return False
    end_segment(state, rules, job, IS_STOPPED)
    return True
