"""Links that several jobs send over at once, compiled.

In: a state in which a job has begun or ended to send. Out: the speeds of all jobs whose links are loaded otherwise now,
and when they will end. Not here: what a job sends alone (``search.speeds``), starts and stops (``running.py``).

A job on several machines sends over each machine's card, one on several racks over each rack's uplink besides, for a
part of every iteration. Two jobs that send at the same time get half a link each. With phases by chance a job meets
another on a link for the part of the time that the other sends there alone, and loses as much of its own sending; that
is exact for two equal jobs, for one that sends often and shortly beside one that sends long, and for jobs that do
nothing but send. What a job sends takes as long as its most loaded link lets it:

    iteration = alone * (1 + card * L_card + max(uplink * L_uplink, both * L_card))

where L is the largest load by others, a sum of their parts. Beyond the paper, whose S ignores other jobs (A12.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel.systems.cluster.state import (
    NOW,
    NUM_HOLDING,
    RUNNING,
    STOP,
    kernel,
    push_event,
    shape_keys,
    table_slot,
)

__all__ = ["final_stop", "is_running", "share_links", "use_of"]

_NO_CHANGE = 1e-12


@kernel
def is_running(state: Any, segment: int) -> bool:
    """Whether a segment is the one that its job is in."""
    job = state.segments[segment].job
    return bool(state.jobs[job].status == RUNNING and state.jobs[job].segment == segment)


@kernel
def final_stop(state: Any, job: int) -> int:
    """When a running job's work is done if nobody interferes, in whole ns."""
    left = state.jobs[job].work - state.jobs[job].done - state.jobs[job].carried
    return int(state.jobs[job].rated + max(np.int64(np.ceil(left / state.jobs[job].speed)), 1))


@kernel
def use_of(state: Any, job: int, num: int) -> None:
    """Note how a job uses links on the machines that are picked; its speed there is known."""
    first, second = shape_keys(state, num)
    slot = table_slot(state, state.jobs[job].profile, first, second)
    state.jobs[job].card, state.jobs[job].uplink = state.table[slot].card, state.table[slot].uplink
    state.jobs[job].load, state.jobs[job].both = state.table[slot].load, state.table[slot].both


@kernel
def share_links(state: Any) -> None:
    """Loads of all links anew, then speeds that have changed, from now on."""
    scalars = state.scalars
    state.loads[:] = 0.0
    for position in range(scalars[NUM_HOLDING]):
        segment = state.holding[position]
        if state.segments[segment].tier > 0 and is_running(state, segment):
            add_load(state, segment)
    for position in range(scalars[NUM_HOLDING]):
        segment = state.holding[position]
        if state.segments[segment].tier > 0 and is_running(state, segment):
            change_speed(state, segment, contended_speed(state, segment))


@kernel
def add_load(state: Any, segment: int) -> None:
    """What a job sends, on each of its links; its machines stand rack by rack."""
    job, first, last_rack = state.segments[segment].job, state.segments[segment].placement, -1
    for row in range(first, first + state.segments[segment].width):
        machine = state.placements[row].machine
        rack = state.machines[machine].rack
        state.loads[machine] += state.jobs[job].load
        if state.segments[segment].tier == 2 and rack != last_rack:
            state.loads[len(state.machines) + rack] += state.jobs[job].uplink
        last_rack = rack


@kernel
def contended_speed(state: Any, segment: int) -> float:
    """S beside the others that send now."""
    job, first = state.segments[segment].job, state.segments[segment].placement
    card, uplink = 0.0, 0.0
    for row in range(first, first + state.segments[segment].width):
        machine = state.placements[row].machine
        card = max(card, state.loads[machine] - state.jobs[job].load)
        if state.segments[segment].tier == 2:
            load = state.loads[len(state.machines) + state.machines[machine].rack]
            uplink = max(uplink, load - state.jobs[job].uplink)
    between = max(state.jobs[job].uplink * uplink, state.jobs[job].both * card)
    return float(state.jobs[job].alone / (1.0 + state.jobs[job].card * card + between))


@kernel
def change_speed(state: Any, segment: int, speed: float) -> None:
    """Let a job go on at another speed from now on."""
    job, now = state.segments[segment].job, state.scalars[NOW]
    old = state.jobs[job].speed
    if abs(speed - old) <= _NO_CHANGE * old:
        return
    state.jobs[job].carried += max(now - state.jobs[job].rated, 0) * old
    state.jobs[job].rated = max(now, state.jobs[job].rated)
    state.jobs[job].speed = speed
    stop = min(final_stop(state, job), state.jobs[job].expires)
    if stop != state.jobs[job].stop:
        state.jobs[job].stop = stop
        push_event(state, stop, STOP, segment)
