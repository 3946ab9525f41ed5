"""The event loop of a cluster simulation, compiled.

In: a state and rules. Out: the changed state, and why the loop returned: all jobs have finished, a speed is missing
(the caller supplies it and calls again), an array is full, a Python function has to decide. Not here: offers
(``offers.py``), order (``queue_order.py``), the arrays (``state.py``).

Between two events a job advances at its speed, so the only events are arrivals, ends of segments, returns of GPUs and
timers. All events of one time are handled before anything is decided. A pass over the waiting jobs can be restarted at
any point, because jobs that it has started no longer wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel.base.ordering import stable_order
from windtunnel.systems.cluster.offers import add_pick, best_machine, offer, pick_any, pick_rack
from windtunnel.systems.cluster.queue_order import rank_waiting, set_key
from windtunnel.systems.cluster.running import end_quantum, end_segment, give_back, has_room, is_final, start
from windtunnel.systems.cluster.sharing import is_running
from windtunnel.systems.cluster.state import (
    ASK,
    DONE,
    EAGER,
    IS_DUE,
    IS_SERVED,
    IS_STOPPED,
    LATER,
    MAX_OPEN,
    NEED_ROOM,
    NEED_SPEED,
    NEVER,
    NEXT_ARRIVAL,
    NOBODY,
    NOW,
    NUM_DECLINED,
    NUM_EVENTS,
    NUM_HOLDING,
    NUM_OVER,
    NUM_WAITING,
    OPEN,
    PICKED,
    PICKED_TIER,
    POPPED,
    RESERVER,
    RETURN,
    STUCK,
    TIMED,
    TIMER,
    WAITING,
    WAKES,
    WATCHED,
    enqueue,
    entry,
    keep_for,
    kernel,
    note_open,
    pop_event,
    push_event,
    speed_of,
)
from windtunnel.systems.cluster.timers import MARGINAL, hold_ends, next_timer, predict_frees

_WAKE_NS = 60_000_000_000  # as published: without a pending event, look again after a minute


@entry
def run_events(state: Any, rules: Any, max_events: int, until: int) -> int:
    """Run until all jobs have finished, something is missing, or no event is left until a time; see the module."""
    # The loop can return at any point and be called again: all of its progress is in ``state``.
    #      decide, if something changed  ->  advance to the next time  ->  take all its arrivals and events
    # NEED_SPEED and NEED_ROOM ask the caller, in Python, for what compiled code cannot do: look up the
    # speed of a placement that was never seen, or enlarge arrays.
    scalars = state.scalars
    while True:
        if scalars[IS_DUE]:
            if rules.asks and scalars[NUM_WAITING]:
                return ASK
            code = schedule(state, rules)
            if code != DONE:
                return int(code)
            scalars[IS_DUE] = scalars[IS_SERVED] = 0
        if scalars[NUM_OVER] == len(state.jobs):
            return DONE
        if not has_room(state):
            return NEED_ROOM
        if scalars[POPPED] >= max_events:
            return STUCK
        # Arrivals are sorted and never in the heap, which so holds a few events per running job at most.
        next_arrival = state.jobs[scalars[NEXT_ARRIVAL]].arrival if scalars[NEXT_ARRIVAL] < len(state.jobs) else NEVER
        next_event = state.events[0].time if scalars[NUM_EVENTS] else NEVER
        time = min(next_arrival, next_event)
        if time > until or (time == NEVER and until < NEVER):
            scalars[NOW] = max(scalars[NOW], until)
            return LATER
        # Jobs wait, nothing runs, and no timer is set, as with policies that decline every offer.
        if time == NEVER:
            if scalars[WAKES] >= (1_000 if rules.asks else 1_000_000):
                return STUCK
            scalars[WAKES] += 1
            scalars[NOW] += _WAKE_NS
            scalars[IS_DUE] = 1
            continue
        scalars[WAKES] = 0
        scalars[NOW] = time
        while scalars[NEXT_ARRIVAL] < len(state.jobs) and state.jobs[scalars[NEXT_ARRIVAL]].arrival == time:
            job = scalars[NEXT_ARRIVAL]
            scalars[NEXT_ARRIVAL] += 1
            scalars[POPPED] += 1
            state.jobs[job].since = time
            set_key(state, rules, job)
            enqueue(state, job)
            scalars[IS_DUE] = 1
        while scalars[NUM_EVENTS] and state.events[0].time == time:
            if not has_room(state):
                return NEED_ROOM
            kind, item = pop_event(state)
            scalars[POPPED] += 1
            handle(state, rules, kind, item)


@kernel
def handle(state: Any, rules: Any, kind: int, item: int) -> None:
    """Handle one event."""
    # An event may be stale: a job was preempted, or its speed changed, after the event was pushed.
    # Events are never removed from the heap; those that can be stale are checked against the state.
    scalars = state.scalars
    if kind == RETURN:
        give_back(state, item)
        scalars[IS_DUE] = 1
    elif kind == TIMER:
        if state.jobs[item].status == WAITING and state.jobs[item].timer == scalars[NOW]:
            state.jobs[item].timer = NEVER
            scalars[IS_DUE] = 1
            scalars[TIMED] += 1
    elif is_running(state, item):
        job = state.segments[item].job
        if state.jobs[job].quantum > 0:
            end_quantum(state, rules, job)
        elif state.jobs[job].stop == scalars[NOW]:
            end_segment(state, rules, job, state.jobs[job].stop <= state.jobs[job].expires and is_final(state, job))


@kernel
def schedule(state: Any, rules: Any) -> int:
    """Offer free GPUs to the waiting jobs in order."""
    scalars = state.scalars
    if scalars[NUM_WAITING] == 0:
        return int(migrate(state, rules)) if rules.migrates else DONE
    if not scalars[IS_SERVED]:  # once per pass, even if the pass is restarted
        if rules.reserve_after != NEVER:
            code = serve_reservation(state, rules)
            if code != DONE:
                return int(code)
        if rules.tuner == MARGINAL:
            predict_frees(state, rules)
        scalars[IS_SERVED] = 1
    if scalars[OPEN] == 0:
        return DONE
    rank_waiting(state, rules)
    # EASY backfilling: behind the first job that cannot start, others may start if they end before it can start (its
    # shadow time), or use GPUs that are left over then (extra)
    shadow, extra = NEVER, 1 << 40
    for row in range(scalars[NUM_WAITING]):
        if scalars[OPEN] == 0:
            break
        job = state.ranked[row]
        if state.jobs[job].gpus > scalars[OPEN]:
            if rules.backfills and shadow == NEVER:
                shadow, extra = shadow_of(state, rules, job)
            continue
        if not offer(state, rules, job):
            return NEED_SPEED
        if scalars[PICKED] == 0:
            if job == scalars[WATCHED] and not note_declined_offer(state, rules, job):
                return NEED_SPEED
            if rules.backfills and shadow == NEVER:
                shadow, extra = shadow_of(state, rules, job)
            if rules.has_timers:
                time = next_timer(state, rules, job)
                if time < state.jobs[job].timer:
                    if not has_room(state):
                        return NEED_ROOM
                    state.jobs[job].timer = time
                    push_event(state, time, TIMER, job)
            continue
        if shadow != NEVER:
            speed = speed_of(state, job, scalars[PICKED])
            if np.isnan(speed):
                return NEED_SPEED
            if scalars[NOW] + (state.jobs[job].work - state.jobs[job].done) / speed > shadow:
                if state.jobs[job].gpus > extra:
                    continue
                extra -= state.jobs[job].gpus
        code = start(state, rules, job)
        if code != DONE:
            return int(code)
    if rules.migrates:
        return int(migrate(state, rules))
    return DONE


@kernel
def note_declined_offer(state: Any, rules: Any, job: int) -> bool:
    """Record what the watched job could accept now, once per time. Return False if a speed is missing."""
    scalars, declined = state.scalars, state.declined
    # Pretends for one offer that all timers of this job are over (EAGER = now), and restores that.
    row, eager = scalars[NUM_DECLINED], scalars[EAGER]
    if row == len(declined) or (row > 0 and declined[row - 1].time == scalars[NOW]):
        return True
    scalars[EAGER] = scalars[NOW]
    is_known = offer(state, rules, job)
    scalars[EAGER] = eager
    if not is_known:
        return False
    if scalars[PICKED]:
        speed = speed_of(state, job, scalars[PICKED])
        if np.isnan(speed):
            return False
        declined[row].time, declined[row].tier = scalars[NOW], scalars[PICKED_TIER]
        declined[row].machines, declined[row].speed = scalars[PICKED], speed
        scalars[NUM_DECLINED] += 1
        scalars[PICKED] = 0
    return True


@kernel
def shadow_of(state: Any, rules: Any, job: int) -> tuple[int, int]:
    """Return when the first job that cannot start will have enough GPUs, and how many are left over then."""
    scalars = state.scalars
    # Segments end in this order if nothing is preempted; the job can start when enough have ended.
    ends, free = hold_ends(state, rules), scalars[OPEN]
    for position in stable_order(ends):
        free += state.jobs[state.segments[state.holding[position]].job].gpus
        if free >= state.jobs[job].gpus:
            return int(ends[position]), int(free - state.jobs[job].gpus)
    return int(NEVER) - 1, 0


@kernel
def migrate(state: Any, rules: Any) -> int:
    """Move spread jobs to one machine that has become free, at no cost, in order of their numbers."""
    scalars = state.scalars
    # Collected first and then sorted by number: starts and stops change ``holding`` while it is walked.
    jobs = np.empty(scalars[NUM_HOLDING], np.int64)
    num = 0
    for position in range(scalars[NUM_HOLDING]):
        segment = state.holding[position]
        if (
            is_running(state, segment)
            and state.segments[segment].tier > 0
            and state.segments[segment].start < scalars[NOW]
        ):
            jobs[num] = state.segments[segment].job
            num += 1
    for row in stable_order(jobs[:num]):
        job = jobs[row]
        if state.jobs[job].gpus > scalars[MAX_OPEN]:
            continue
        scalars[PICKED] = 0
        add_pick(
            state,
            best_machine(state, rules, state.jobs[job].gpus, 0, len(state.machines), NOBODY),
            state.jobs[job].gpus,
        )
        scalars[PICKED_TIER] = 0
        # What may ask the caller for something is asked before the state changes, so that the pass can be
        # repeated from its beginning.
        if np.isnan(speed_of(state, job, np.int64(1))):
            return NEED_SPEED
        if not has_room(state):
            return NEED_ROOM
        machine = state.pick[0].machine
        # A migration is a stop and a start at one time. It counts as no preemption.
        end_segment(state, rules, job, IS_STOPPED)
        state.jobs[job].preempted -= 1
        scalars[PICKED] = 0
        add_pick(state, machine, state.jobs[job].gpus)
        code = start(state, rules, job)
        if code != DONE:
            return int(code)
    return DONE


@kernel
def serve_reservation(state: Any, rules: Any) -> int:
    """Drain machines for the multi-machine job that exceeds the wait limit most; start it when they suffice."""
    scalars = state.scalars
    # At most one job reserves at a time. Its machines take no other job (``kept_for``) and so become
    # free one after the other; without this a job of many machines could wait forever behind small ones.
    per_machine, per_rack = len(state.open_count) - 1, state.frees.shape[1] - 1
    if scalars[RESERVER] < 0:
        oldest, since = NOBODY, scalars[NOW] - rules.reserve_after + 1
        for row in range(scalars[NUM_WAITING]):
            job = state.waiting[row]
            if state.jobs[job].gpus > per_machine and state.jobs[job].since < since:
                oldest, since = job, state.jobs[job].since
        if oldest < 0:
            return DONE
        scalars[RESERVER] = oldest
        choose_drain(state, rules, oldest)
    job = scalars[RESERVER]
    num, scalars[PICKED] = state.jobs[job].gpus, 0
    free = 0
    for machine in range(len(state.machines)):
        if state.machines[machine].kept_for == job:
            free += state.machines[machine].free
    if free < num:
        return DONE
    if num <= per_rack:
        if not pick_rack(state, rules, num, job):
            return DONE
    else:
        pick_any(state, rules, num, job)
    return int(start(state, rules, job))


@kernel
def choose_drain(state: Any, rules: Any, job: int) -> None:
    """Drain the machines of one rack, or of the cluster, that become free the soonest."""
    scalars, num = state.scalars, state.jobs[job].gpus
    per_machine, per_rack = len(state.open_count) - 1, state.frees.shape[1] - 1
    # A machine is ready when the last of its segments has ended.
    ready = np.empty(len(state.machines), np.int64)
    for machine in range(len(ready)):
        ready[machine] = scalars[NOW]
    ends = hold_ends(state, rules)
    for position in range(len(ends)):
        first = state.segments[state.holding[position]].placement
        for row in range(first, first + state.segments[state.holding[position]].width):
            machine = state.placements[row].machine
            ready[machine] = max(ready[machine], ends[position])
    needed = (num + per_machine - 1) // per_machine
    target_rack, best = -1, NEVER
    if num <= per_rack:
        for rack in range(len(state.rack_open)):
            # A rack is ready when its n-th machine is: the earliest such rack is drained.
            in_rack = ready[state.rack_first[rack] : state.rack_first[rack + 1]]
            sufficient = in_rack[stable_order(in_rack)[needed - 1]]
            if sufficient < best:
                target_rack, best = rack, sufficient
    for machine in stable_order(ready):
        if needed and (target_rack < 0 or state.machines[machine].rack == target_rack):
            keep_for(state, machine, job)
            needed -= 1
    note_open(state)
