"""Simulation of jobs on a cluster under a scheduling policy.

In: a cluster, jobs, speeds, a policy. Out: a ``ClusterRun`` with every segment of every job. Not here: its metrics
(``metrics``), the event loop (``engine.py``), the search over policies (``search``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.search.shapes import Shape, canonical, shape_text
from windtunnel.search.speeds import Speeds
from windtunnel.systems.cluster import state as st
from windtunnel.systems.cluster.engine import run_events
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.links import link_use
from windtunnel.systems.cluster.policy import Policy
from windtunnel.systems.cluster.python_policy import PythonPolicyRunner
from windtunnel.systems.cluster.state import State

__all__ = ["ClusterRun", "Watch", "new_state", "run_of", "simulate", "supply"]

Ints = NDArray[np.int64]
_EVENTS_PER_CALL = 2_000_000
_MAX_DECLINED = 10_000


@dataclass
class Watch:
    """One job whose declined offers are recorded.

    Attributes
    ----------
    job : int
    takes_at_ns : int
        Time at which the job accepts any offer; -1: it always follows the policy.
    declined : records
        Offers that it declined, written by the simulation: ``time``, ``tier``, ``machines`` (their number), ``speed``
        (S).
    """

    job: int
    takes_at_ns: int = -1
    declined: NDArray[Any] = field(default_factory=lambda: np.empty(0, st.DECLINED))


@dataclass(frozen=True, eq=False)
class ClusterRun:
    """The record of a simulation. Times are in ns from the beginning of the trace.

    Attributes
    ----------
    cluster, jobs, policy
        The inputs of the simulation.
    first_ns, end_ns, run_ns, restart_ns, longest_wait_ns : int64 [J]
        First start, end, running time, time of restarts, longest uninterrupted wait for GPUs.
    num_tiers : int64 [J, 3]
        Number of allocations within a machine, within a rack, across racks.
    num_preempted : int64 [J]
    segments : records [N]
        A job on its GPUs from a start to a stop: ``job``, ``start``, ``begin`` (of progress), ``end``, ``back`` (GPUs
        free), ``speed`` (S), ``done`` (ns of work), ``tier``, ``placement`` and ``width`` (rows of ``placements``).
    placements : records [P]
        ``machine`` and ``gpus`` of each machine of each segment.
    num_events : int
    notes : tuple of str
        Remarks on the result.
    """

    cluster: Cluster
    jobs: Jobs
    policy: Policy
    first_ns: Ints = field(repr=False)
    end_ns: Ints = field(repr=False)
    run_ns: Ints = field(repr=False)
    restart_ns: Ints = field(repr=False)
    longest_wait_ns: Ints = field(repr=False)
    num_tiers: Ints = field(repr=False)
    num_preempted: Ints = field(repr=False)
    segments: NDArray[Any] = field(repr=False)
    placements: NDArray[Any] = field(repr=False)
    num_events: int
    notes: tuple[str, ...] = ()

    @cached_property
    def jct_ns(self) -> Ints:
        """Job completion times, from arrival to end, int64 [J]."""
        return self.end_ns - self.jobs.arrival_ns

    @cached_property
    def queueing_ns(self) -> Ints:
        """Time without GPUs of each job, int64 [J]."""
        return self.jct_ns - self.run_ns - self.restart_ns

    @cached_property
    def segment_placements(self) -> tuple[Ints, Ints]:
        """For each machine of each segment: its row of ``segments`` and of ``placements``, both int64 [P]."""
        width = self.segments["width"]
        rows = np.repeat(np.arange(len(width)), width)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(width) - width, width)
        return rows, self.segments["placement"][rows] + within

    @property
    def makespan_ns(self) -> int:
        """From the first arrival to the last end."""
        return int(self.end_ns.max() - self.jobs.arrival_ns.min())


def simulate(
    cluster: Cluster,
    jobs: Jobs,
    speeds: Speeds,
    policy: Policy,
    *,
    quantum: int = 0,
    watch: Watch | None = None,
    progress: Progress | None = None,
) -> ClusterRun:
    """Run jobs on a cluster under a policy.

    Parameters
    ----------
    cluster : Cluster
    jobs : Jobs
    speeds : Speeds
        S of each model on each shape; evaluated once per model, batch and shape.
    policy : Policy
    quantum : int
        Iterations per GPU after which a job may end or be preempted, as published; 0: at any time (fluid).
    watch : Watch, optional
        Job whose declined offers are recorded.
    progress : callable, optional
        Called with the number of finished jobs.

    Raises
    ------
    InputError
        A job is larger than the cluster, a lease is shorter than a checkpoint or a quantum, or the policy stops
        starting jobs, makes an invalid start, or preempts in a cycle.
    PriceError
        A model has no speed.
    """
    jobs.require_fit(cluster.num_gpus)
    rules = policy.rules(cluster)
    notes = _check_leases(cluster, jobs, policy, quantum)
    state, profiles = new_state(cluster, jobs, policy, quantum)
    if watch is not None:
        state.scalars[st.WATCHED], state.scalars[st.EAGER] = watch.job, watch.takes_at_ns
        state = state._replace(declined=_table(st.DECLINED, _MAX_DECLINED))
    most = _EVENTS_PER_CALL

    def supply_missing(state: State, code: int) -> State:
        return supply(state, code, profiles, speeds, cluster)

    requested = PythonPolicyRunner(policy, rules, cluster, jobs, supply_missing)
    while (code := run_events(st.by_reference(state), rules, most, st.NEVER)) != st.DONE:
        if progress is not None:
            progress("jobs", int(state.scalars[st.NUM_OVER]), len(jobs))
        if code in (st.NEED_SPEED, st.NEED_ROOM):
            state = supply_missing(state, code)
        elif code == st.ASK:
            state = requested(state)
        elif state.scalars[st.POPPED] >= most:
            most += _EVENTS_PER_CALL
        else:
            raise InputError(
                f"{state.scalars[st.NUM_WAITING]} jobs wait on an idle cluster and the policy starts none of them",
                where=f"job {jobs.job_id[state.waiting[0]]}, {jobs.gpus[state.waiting[0]]} GPUs",
                fix="let the policy start them, or yield a Wake at the time when it will",
            )
    if watch is not None:
        watch.declined = np.asarray(state.declined[: state.scalars[st.NUM_DECLINED]])
    return run_of(state, cluster, jobs, policy, notes)


def supply(state: State, code: int, profiles: NDArray[Any], speeds: Speeds, cluster: Cluster) -> State:
    """Supply the speed or the array capacity for lack of which the event loop returned."""
    return _with_speed(state, profiles, speeds, cluster) if code == st.NEED_SPEED else _double_capacity(state)


def _check_leases(cluster: Cluster, jobs: Jobs, policy: Policy, quantum: int) -> tuple[str, ...]:
    """Reject leases that are too short for any progress; note leases that never expire."""
    lease_ns = policy.lease_ns(cluster)
    if quantum < 0:
        raise InputError(f"a quantum must be 0 iterations or more, not {quantum}", fix="give 0 or more")
    if quantum and cluster.shares_links:
        raise InputError(
            "jobs that share links change their speed within a quantum", where=f"a quantum of {quantum} iterations",
            fix="leave out the quantum, or do not share links",
        )  # fmt: skip
    if not policy.has_lease:
        return ()
    most = int(jobs.gpus.max())
    cost_ns = 0 if policy.is_free_to_move else max(cluster.checkpoint_ns_per_gpu, cluster.restart_ns_per_gpu) * most
    if lease_ns <= cost_ns:
        raise InputError(
            f"a lease of {lease_ns / 1e9:g} s is over before a job of {most} GPUs is checkpointed or restarted, "
            f"which takes {cost_ns / 1e9:g} s",
            where=f"cluster {cluster.name}",
            fix="give a longer lease_s, or cheaper checkpoints",
        )
    if quantum and (longest := float((quantum * jobs.iteration_ns).max())) > lease_ns:
        raise InputError(
            f"a quantum of {quantum} iterations takes {longest / 1e9:g} s, longer than a lease of {lease_ns / 1e9:g} s",
            where=f"job {jobs.job_id[jobs.iteration_ns.argmax()]}",
            fix="give fewer iterations per quantum, or a longer lease_s",
        )
    if lease_ns > jobs.work_ns.max():
        return ("every job fits into one lease: no job is preempted, and the order matters only while jobs wait",)
    return ()


def new_state(cluster: Cluster, jobs: Jobs, policy: Policy, quantum: int = 0) -> tuple[State, NDArray[Any]]:
    """Return the initial state, and the distinct (model, batch) profiles that ``jobs["profile"]`` indexes."""
    # Jobs of one model and batch share a profile, hence an entry of the table of speeds.
    profiles, profile = np.unique(
        np.array([f"{model}\0{batch}" for model, batch in zip(jobs.model, jobs.batch, strict=True)]),
        return_inverse=True,
    )
    num, machines, per_machine = len(jobs), cluster.num_machines, cluster.gpus_per_machine
    demands, demand = np.unique(jobs.gpus, return_inverse=True)
    widest = max(cluster.gpus_per_rack, per_machine)
    scalars = np.zeros(st.NUM_SCALARS, np.int64)
    scalars[st.OPEN], scalars[st.MAX_OPEN], scalars[st.MAX_OPEN_RACK] = (
        cluster.num_gpus,
        per_machine,
        cluster.gpus_per_rack,
    )
    scalars[st.SHARES] = cluster.shares_links
    scalars[st.RESERVER] = scalars[st.WATCHED] = scalars[st.EAGER] = -1
    # At the beginning every machine has all of its GPUs free and is open.
    open_count = np.zeros(per_machine + 1, np.int64)
    open_count[per_machine] = machines
    skewed = [
        any(name.lower().startswith(skewed_model) for skewed_model in policy.skewed_models) for name in jobs.model
    ]
    rows = _table(
        st.JOB, num, gpus=jobs.gpus, profile=profile, demand=demand, arrival=jobs.arrival_ns, work=jobs.work_ns,
        quantum=quantum * jobs.iteration_ns, is_skewed=skewed, first=-1, end=-1, segment=-1, timer=st.NEVER,
    )  # fmt: skip
    numbers = np.arange(machines) // cluster.machines_per_rack
    created = State(
        scalars=scalars,
        machines=_table(st.MACHINE, machines, rack=numbers, free=per_machine, kept_for=-1),
        rack_first=np.arange(cluster.num_racks + 1) * cluster.machines_per_rack,
        rack_open=np.full(cluster.num_racks, cluster.gpus_per_rack, np.int64),
        open_count=open_count,
        jobs=rows,
        waiting=np.zeros(num, np.int64),
        ranked=np.zeros(num, np.int64),
        # Generous guesses: the loop returns NEED_ROOM where they do not suffice, and goes on with larger arrays.
        events=_table(st.EVENT, 4 * num + 64),
        segments=_table(st.SEGMENT, 4 * num + 64),
        placements=_table(st.PLACEMENT, 8 * num + 4 * machines),
        holding=np.zeros(cluster.num_gpus + 1, np.int64),
        pick=_table(st.PLACEMENT, 2 * (machines + 1)),
        table=_table(st.SPEED, 1024, speed=np.nan),
        waits=_table(st.WAITS, (2, len(demands)), head=-1, tail=-1, is_stale=True),
        frees=np.zeros((2, widest + 1), np.int64),
        scratch=np.zeros(max(machines, cluster.num_racks), np.int64),
        thresholds=np.array(policy.thresholds_gpu_s, np.float64),
        gittins=np.array(policy.gittins, np.float64),
        declined=_table(st.DECLINED, 0),
        loads=np.zeros(machines + cluster.num_racks, np.float64),
        loss=_losses(jobs, per_machine),
    )
    return created, profiles


def _table(kind: np.dtype[Any], size: int | tuple[int, int], **columns: Any) -> NDArray[Any]:
    created = np.zeros(size, kind)
    for name, values in columns.items():
        created[name] = values
    return created.view(np.recarray)


def _losses(jobs: Jobs, per_machine: int) -> NDArray[np.float64]:
    """Return the number of jobs of the mix that a machine can no longer take, by its free GPUs and the GPUs taken."""
    share = np.bincount(jobs.gpus[jobs.gpus <= per_machine], minlength=per_machine + 1) / len(jobs)
    sizes = np.arange(1, per_machine + 1)
    slots = np.array([(share[1:] * (free // sizes)).sum() for free in range(per_machine + 1)])
    free, used = np.indices((per_machine + 1, per_machine + 1))
    losses: NDArray[np.float64] = np.round(slots[free] - slots[np.maximum(free - used, 0)], 12)
    return losses


def _with_speed(state: State, profiles: NDArray[Any], speeds: Speeds, cluster: Cluster) -> State:
    """Evaluate the speed of the picked placement and store it in the hash table."""
    num, job = int(state.scalars[st.PICKED]), int(state.scalars[st.ASKING])
    shape = _shape_of_pick(state, num)
    profile = int(state.jobs["profile"][job])
    model, _, batch = str(profiles[profile]).partition("\0")
    value = float(speeds.speed(model, int(batch), shape))
    if not 0 < value < float("inf"):
        raise InputError(f"{model} has a speed of {value} on {shape_text(shape)}", fix="give a speed above 0")
    # open addressing stays fast only while the table is at most half full
    if 2 * int((~np.isnan(state.table["speed"])).sum()) > len(state.table):
        state = _larger_table(state)
    first, second = st.shape_keys(st.by_reference(state), num)
    use = (
        link_use(speeds, model, int(batch), shape, cluster.links) if state.scalars[st.SHARES] else (0.0, 0.0, 0.0, 0.0)
    )
    _store_speed(state, (profile, np.uint64(first), np.uint64(second), value, *use))
    return state


def _shape_of_pick(state: State, num: int) -> Shape:
    racks: dict[int, list[int]] = {}
    for machine, count in state.pick[:num].tolist():
        racks.setdefault(int(state.machines["rack"][machine]), []).append(count)
    return canonical(racks.values())


def _store_speed(state: State, row: tuple[Any, ...]) -> None:
    profile, first, second = row[0], np.uint64(row[1]), np.uint64(row[2])
    state.table[st.table_slot(st.by_reference(state), profile, first, second)] = np.array(row, st.SPEED)


def _larger_table(state: State) -> State:
    larger = state._replace(table=_table(st.SPEED, 2 * len(state.table), speed=np.nan))
    for row in state.table[~np.isnan(state.table["speed"])].tolist():
        _store_speed(larger, row)
    return larger


def _double_capacity(state: State) -> State:
    """Double the capacity of every array that grows."""
    larger = {
        name: np.concatenate([old, np.zeros_like(old)]).view(np.recarray)
        for name, old in (("events", state.events), ("segments", state.segments), ("placements", state.placements))
    }
    return state._replace(**larger)


def run_of(state: State, cluster: Cluster, jobs: Jobs, policy: Policy, notes: tuple[str, ...] = ()) -> ClusterRun:
    """Return the run up to the present."""
    done = {
        name: state.jobs[name].copy() for name in ("first", "end", "run", "restarting", "longest_wait", "preempted")
    }
    segments = state.segments[: state.scalars[st.NUM_SEGMENTS]]
    indices = state.placements[: state.scalars[st.NUM_PLACEMENTS]]
    num_tiers = np.zeros((len(jobs), 3), np.int64)
    np.add.at(num_tiers, (segments["job"], segments["tier"]), 1)
    return ClusterRun(
        cluster, jobs, policy, done["first"], done["end"], done["run"], done["restarting"], done["longest_wait"],
        num_tiers, done["preempted"], np.asarray(segments), np.asarray(indices), int(state.scalars[st.POPPED]), notes,
    )  # fmt: skip
