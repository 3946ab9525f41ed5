"""Placements that are offered to jobs, compiled.

In: a state and a job. Out: the machines of a placement and the GPUs on each, in ``State.pick``, rack by rack. The
number of machines is in ``scalars[PICKED]`` (0: the job declines, or too few GPUs are free), the tier that they span in
``scalars[PICKED_TIER]``. Not here: the order of jobs (``queue_order.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

import numpy as np

from windtunnel.systems.cluster.state import (
    EAGER,
    FIRST_ROW,
    MAX_OPEN,
    MAX_OPEN_RACK,
    NEVER,
    NO_MACHINE,
    NOBODY,
    NOW,
    NUM_HOLDING,
    OPEN,
    PICKED,
    PICKED_TIER,
    SPANS_NETWORK,
    SPANS_RACK,
    WATCHED,
    kernel,
    mix_bits,
    speed_of,
)
from windtunnel.systems.cluster.timers import AUTO, MARGINAL, retune, timer_of

FIRST, BEST, FRAGMENTS = 0, 1, 2
DELAYED, SPREAD, AFFINE = 0, 1, 2
_NUMBERS = {int: np.int64, float: np.float64, bool: np.bool_}


class Rules(NamedTuple):
    """The parameters of a policy as numbers; times in ns."""

    order: int
    placement: int
    fit: int
    tuner: int
    rack_timer: int
    network_timer: int
    lease: int  # NEVER: a job keeps its GPUs
    unit: int  # what timers and waits are counted in
    checkpoint: int  # per GPU
    restart: int  # per GPU
    history_leases: float
    weight: float
    aging: float
    tail: float
    patience: float
    reserve_after: int
    promote: float
    has_timers: bool  # a timer that expires is an event
    backfills: bool
    migrates: bool
    asks: bool  # a Python function decides
    seed: int


RULES = np.dtype([(name, _NUMBERS[kind]) for name, kind in get_type_hints(Rules).items()])
"""As a record, which is one argument of a compiled function where a tuple is 22."""


@kernel
def best_machine(state: Any, rules: Any, num: int, first: int, last: int, kept: int) -> int:
    """Return a machine of ``first`` .. ``last`` with ``num`` free GPUs, or -1.

    ``kept`` selects the machines that are drained for a job; -1 selects the open ones.
    """
    #      FIRST      the first machine that fits
    #      BEST       the one with the fewest free GPUs left, so that large holes stay whole
    #      FRAGMENTS  the one where taking ``num`` GPUs spoils the fewest placements of later jobs (``loss``)
    best, best_free, best_loss = -1, 1 << 40, np.inf
    for machine in range(first, last):
        free = state.machines[machine].free
        if free < num or state.machines[machine].kept_for != kept:
            continue
        if rules.fit == FIRST:
            return machine
        loss = state.loss[free, num] if rules.fit == FRAGMENTS else 0.0
        if loss < best_loss or (loss == best_loss and free < best_free):
            best, best_free, best_loss = machine, free, loss
    return best


@kernel
def add_pick(state: Any, machine: int, num: int) -> None:
    """Append a machine to the picked placement."""
    state.pick[state.scalars[PICKED]].machine = machine
    state.pick[state.scalars[PICKED]].gpus = num
    state.scalars[PICKED] += 1


@kernel
def copy_pick(state: Any, source: int, target: int, num: int) -> None:
    """Copy ``num`` rows of the picked placement."""
    for row in range(num):
        state.pick[target + row].machine = state.pick[source + row].machine
        state.pick[target + row].gpus = state.pick[source + row].gpus


@kernel
def fill_rack(state: Any, rules: Any, rack: int, num: int, kept: int) -> None:
    """Pick ``num`` free GPUs of a rack that has them: in order (first fit), or on as few machines as possible."""
    # Few machines: the smallest machine that holds all of the rest, else the machine with the most free GPUs.
    first, last = state.rack_first[rack], state.rack_first[rack + 1]
    begin = state.scalars[PICKED]
    while num:
        if rules.fit != FIRST:
            machine = NO_MACHINE
            whole, most, least = -1, 0, 1 << 40
            for index in range(first, last):
                if state.machines[index].kept_for != kept or state.machines[index].free == 0:
                    continue
                is_taken = False
                for position in range(begin, state.scalars[PICKED]):
                    is_taken |= state.pick[position].machine == index
                if is_taken:
                    continue
                if state.machines[index].free > most:
                    machine, most = index, state.machines[index].free
                if num <= state.machines[index].free < least:
                    whole, least = index, state.machines[index].free
            machine = whole if whole >= 0 else machine
        else:
            machine = state.pick[state.scalars[PICKED] - 1].machine + 1 if state.scalars[PICKED] > begin else first
            while state.machines[machine].kept_for != kept or state.machines[machine].free == 0:
                machine += 1
        used = min(num, state.machines[machine].free)
        add_pick(state, machine, used)
        num -= used


@kernel
def rack_free(state: Any, rack: int, kept: int) -> int:
    """Return the free GPUs of a rack on open machines, or on those drained for a job."""
    # The usual case is a counter that ``change_free`` maintains; only a drained rack is summed up.
    if kept < 0:
        return int(state.rack_open[rack])
    total = 0
    for machine in range(state.rack_first[rack], state.rack_first[rack + 1]):
        if state.machines[machine].kept_for == kept:
            total += state.machines[machine].free
    return total


@kernel
def pick_rack(state: Any, rules: Any, num: int, kept: int) -> bool:
    """Pick ``num`` GPUs within one rack; return False if no rack has them."""
    # Best fit over racks: the rack with the fewest free GPUs that still has enough.
    best, least = -1, 1 << 40
    for rack in range(len(state.rack_open)):
        free = rack_free(state, rack, kept)
        if num <= free < least:
            best, least = rack, free
            if rules.fit == FIRST:
                break
    if best < 0:
        return False
    fill_rack(state, rules, best, num, kept)
    state.scalars[PICKED_TIER] = 1 if state.scalars[PICKED] > 1 else 0
    return True


@kernel
def pick_any(state: Any, rules: Any, num: int, kept: int) -> None:
    """Pick ``num`` GPUs of the cluster, which has them: in order (first fit), or in as few racks as possible."""
    # Fewest racks, greedily: while the rest fits into no single rack, the rack with the most free GPUs is
    # taken whole; the last rack is the tightest one that takes all of the rest.
    racks = len(state.rack_open)
    used = state.scratch
    for rack in range(racks):
        used[rack] = 0
    num_racks = 0
    while num:
        selected, most, whole, least = -1, 0, -1, 1 << 40
        for rack in range(racks):
            free = 0 if used[rack] else rack_free(state, rack, kept)
            if free and rules.fit == FIRST:
                selected = rack
                break
            if free > most:
                selected, most = rack, free
            if num <= free < least:
                whole, least = rack, free
        rack = whole if whole >= 0 else selected
        used[rack] = 1
        used_ = min(num, rack_free(state, rack, kept))
        fill_rack(state, rules, rack, used_, kept)
        num -= used_
        num_racks += 1
    state.scalars[PICKED_TIER] = 2 if num_racks > 1 else (1 if state.scalars[PICKED] > 1 else 0)


@kernel
def pick_machine(state: Any, rules: Any, num: int, kept: int) -> bool:
    """Pick ``num`` GPUs of one machine; return False if no machine has them."""
    machine = best_machine(state, rules, num, 0, len(state.machines), kept)
    if machine < 0:
        return False
    add_pick(state, machine, num)
    state.scalars[PICKED_TIER] = 0
    return True


@kernel
def pick_random(state: Any, rules: Any, job: int, num: int) -> None:
    """Pick open GPUs uniformly at random; the n-th start of a job always gets the same ones."""
    # A counter-based generator (seed, job, start, draw) needs no state and makes runs reproducible.
    used = state.scratch
    for machine in range(len(state.machines)):
        used[machine] = 0
    salt = mix_bits(np.uint64(rules.seed), np.uint64(job)) ^ np.uint64(state.jobs[job].num_starts)
    for draw in range(num):
        left = state.scalars[OPEN] - draw
        selected = np.int64(mix_bits(salt, np.uint64(draw + 1)) % np.uint64(left))
        for machine in range(len(state.machines)):
            free = state.machines[machine].free - used[machine] if state.machines[machine].kept_for < 0 else 0
            if selected < free:
                used[machine] += 1
                break
            selected -= free
    for machine in range(len(state.machines)):
        if used[machine]:
            add_pick(state, machine, used[machine])
    num_picked = state.scalars[PICKED]
    outermost = state.machines[state.pick[0].machine].rack != state.machines[state.pick[num_picked - 1].machine].rack
    state.scalars[PICKED_TIER] = 2 if outermost else (1 if num_picked > 1 else 0)


@kernel
def offer_affine(state: Any, rules: Any, job: int) -> None:
    """Pick as Gandiva: the freest machine among jobs of equal demand; random GPUs if no machine has enough."""
    num, best, best_free, is_affine = state.jobs[job].gpus, NO_MACHINE, 0, False
    last = state.scratch  # by machine: the latest segment that holds GPUs of it
    for machine in range(len(state.machines)):
        last[machine] = -1
    for index in range(state.scalars[NUM_HOLDING]):
        segment = state.holding[index]
        first = state.segments[segment].placement
        for row in range(first, first + state.segments[segment].width):
            machine = state.placements[row].machine
            last[machine] = max(last[machine], segment)
    for machine in range(len(state.machines)):
        free = state.machines[machine].free
        if free < num or state.machines[machine].kept_for >= 0:
            continue
        own = last[machine] < 0 or state.jobs[state.segments[last[machine]].job].gpus == num
        if (own and not is_affine) or (own == is_affine and free > best_free):
            best, best_free, is_affine = machine, free, own
    if best >= 0:
        add_pick(state, best, num)
        state.scalars[PICKED_TIER] = 0
    else:
        pick_random(state, rules, job, num)


@kernel
def is_worth_it(state: Any, rules: Any, job: int, tier: int) -> tuple[bool, bool]:
    """Return whether the picked placement beats waiting for a tighter one, and whether all speeds are known.

    If the job starts now, a lease of length L advances it by ``S_loose * L``. After a wait of ``w`` for a machine (or a
    rack) it advances by ``S_tight * L`` in the time ``L + w``. The job therefore accepts if ``S_loose >= S_tight * L /
    (L + patience * w)``, where L is the shorter of the lease and the rest of the job.
    """
    scalars, num = state.scalars, state.jobs[job].gpus
    loose = speed_of(state, job, scalars[PICKED])
    if np.isnan(loose):
        return False, False
    machines, per_machine = scalars[PICKED], len(state.open_count) - 1
    copy_pick(state, FIRST_ROW, len(state.machines) + 1, machines)
    is_worth = True
    for level in range(tier):
        # the tightest placement of this level: full machines, then one partly used machine
        scalars[PICKED] = 0
        left, machine = num, FIRST_ROW
        while left > 0 and machine < len(state.machines):
            add_pick(state, machine, min(left, per_machine))
            left -= per_machine
            machine += 1
        fits = scalars[PICKED] == 1 if level == 0 else num < state.frees.shape[1]
        if not fits:
            continue
        tight = speed_of(state, job, scalars[PICKED])
        if np.isnan(tight):
            return False, False  # the caller asks for the speed of the placement that is picked now
        wait = state.frees[level, num] - scalars[NOW] if num < state.frees.shape[1] else NEVER
        length = min(float(rules.lease), (state.jobs[job].work - state.jobs[job].done) / tight)
        if loose < tight * length / (length + rules.patience * max(wait, rules.checkpoint)):
            is_worth = False
            break
    scalars[PICKED] = machines
    copy_pick(state, len(state.machines) + 1, FIRST_ROW, machines)
    return is_worth, True


@kernel
def offer(state: Any, rules: Any, job: int) -> bool:
    """Offer open GPUs to a job; what it accepts is picked. Return False if a speed is missing.

    Offers go from tight to loose: a machine, then after the rack timer a rack, then after the network timer any GPUs.
    """
    # Delay scheduling: a job that waits briefly may get GPUs closer together.
    #      waited      0 ........ rack timer ......... network timer ..........
    #      accepts     a machine | a machine or rack  | any GPUs
    # A job that no machine (or rack) could ever hold does not wait for one.
    scalars = state.scalars
    scalars[PICKED] = 0
    num = state.jobs[job].gpus
    if num > scalars[OPEN]:
        return True
    if rules.placement == AFFINE:
        offer_affine(state, rules, job)
        return True
    if rules.placement == SPREAD and (not state.jobs[job].is_skewed or num > len(state.open_count) - 1):
        pick_any(state, rules, num, NOBODY)
        return True
    if num <= scalars[MAX_OPEN]:
        pick_machine(state, rules, num, NOBODY)
        return True
    if rules.tuner == AUTO:
        retune(state, rules, state.jobs[job].demand)
    waited = scalars[NOW] - state.jobs[job].since
    per_machine, per_rack = len(state.open_count) - 1, state.frees.shape[1] - 1
    if (
        num <= scalars[MAX_OPEN_RACK]
        and (num > per_machine or waited >= timer_of(state, rules, job, SPANS_RACK))
        and pick_rack(state, rules, num, NOBODY)
    ):
        return bool(take_or_leave(state, rules, job))
    if num > per_rack or waited >= timer_of(state, rules, job, SPANS_NETWORK):
        pick_any(state, rules, num, NOBODY)
        return bool(take_or_leave(state, rules, job))
    return True


@kernel
def take_or_leave(state: Any, rules: Any, job: int) -> bool:
    """Under marginal timers, drop a spread placement that is worse than waiting; False: a speed is missing."""
    # The watched job at its eager look takes everything, as that look only asks what is on offer.
    if rules.tuner != MARGINAL or state.scalars[PICKED] < 2:
        return True
    if job == state.scalars[WATCHED] and state.scalars[NOW] == state.scalars[EAGER]:
        return True
    is_worth, is_known = is_worth_it(state, rules, job, state.scalars[PICKED_TIER])
    if is_known and not is_worth:
        state.scalars[PICKED] = 0
    return bool(is_known)
