"""Contention of jobs for links, compiled.

In: a state in which a job has started or stopped sending. Out: new speeds of all jobs whose links have a different
load, and new ends. Not here: the traffic of an isolated job (``search.speeds``), starts and stops (``running.py``).

A job on several machines sends over the network card of each machine, and a job on several racks also over the uplink
of each rack, for a part of every iteration. Two jobs that send at the same time get half of the link each. With random
phases a job meets another on a link for the fraction of the time in which the other sends there, and loses that
fraction of its own sending. This is exact for two equal jobs, for short frequent messages against long rare ones, and
for jobs that only send. A job sends as fast as its most loaded link permits:

    iteration = alone * (1 + card * L_card + max(uplink * L_uplink, both * L_card))

where L is the largest load by other jobs, the sum of their fractions. Beyond the paper, whose S ignores other jobs
(A12.1).
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
    """Whether a segment is the current one of its job."""
    # A segment whose GPUs are being given back is held, but no longer runs.
    job = state.segments[segment].job
    return bool(state.jobs[job].status == RUNNING and state.jobs[job].segment == segment)


@kernel
def final_stop(state: Any, job: int) -> int:
    """Return when a running job finishes if it is not preempted, in whole ns."""
    # At least 1 ns later, and rounded up, so that a job never ends before its work is done.
    left = state.jobs[job].work - state.jobs[job].done - state.jobs[job].carried
    return int(state.jobs[job].rated + max(np.int64(np.ceil(left / state.jobs[job].speed)), 1))


@kernel
def use_of(state: Any, job: int, num: int) -> None:
    """Record how a job uses links on the picked machines, where its speed is known."""
    first, second = shape_keys(state, num)
    slot = table_slot(state, state.jobs[job].profile, first, second)
    state.jobs[job].card, state.jobs[job].uplink = state.table[slot].card, state.table[slot].uplink
    state.jobs[job].load, state.jobs[job].both = state.table[slot].load, state.table[slot].both


@kernel
def share_links(state: Any) -> None:
    """Recompute the loads of all links, then the speeds that changed, from now on."""
    # All loads before any speed: a speed depends on the complete load of each of the job's links.
    scalars = state.scalars
    for link in range(len(state.loads)):
        state.loads[link] = 0.0
    for position in range(scalars[NUM_HOLDING]):
        segment = state.holding[position]
        if state.segments[segment].tier > 0 and is_running(state, segment):
            add_load(state, segment)
    for position in range(scalars[NUM_HOLDING]):
        segment = state.holding[position]
        if state.segments[segment].tier > 0 and is_running(state, segment):
            change_speed(state, segment, speed_under_contention(state, segment))


@kernel
def add_load(state: Any, segment: int) -> None:
    """Add the traffic of a job to the load of each of its links; its machines are grouped by rack."""
    # Machines of a placement are grouped by rack, so that a change of racks is seen by comparing with the
    # machine before; each uplink is counted once per job.
    #      loads | card of machine 0 .. M-1 | uplink of rack 0 .. R-1 |
    job, first, last_rack = state.segments[segment].job, state.segments[segment].placement, -1
    for row in range(first, first + state.segments[segment].width):
        machine = state.placements[row].machine
        rack = state.machines[machine].rack
        state.loads[machine] += state.jobs[job].load
        if state.segments[segment].tier == 2 and rack != last_rack:
            state.loads[len(state.machines) + rack] += state.jobs[job].uplink
        last_rack = rack


@kernel
def speed_under_contention(state: Any, segment: int) -> float:
    """Return S of a job under the traffic of the other jobs."""
    # Its own load is taken off each link: a job does not wait for itself.
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
    """Continue a job at another speed from now on."""
    # Work so far is moved into ``carried``, so that work done = carried + (now - rated) * speed always holds.
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
