"""Online scheduling of real jobs, whose ends are unknown.

In: a cluster, jobs, a policy; the times and the ends of jobs as they happen. Out: the jobs to start and stop now. The
event loop of the simulator runs up to the present, with jobs of unlimited work. Not here: the jobs (``real``,
``slurm``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windtunnel.errors import InputError
from windtunnel.search.speeds import Speeds
from windtunnel.systems.cluster import state as st
from windtunnel.systems.cluster.engine import run_events
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.model import ClusterRun, new_state, run_of, supply
from windtunnel.systems.cluster.policy import Policy, Start, Stop
from windtunnel.systems.cluster.running import end_segment

__all__ = ["Online"]

_UNKNOWN_NS = 1e17
"""Work of a job whose end is unknown: three years."""
_MAX_EVENTS = np.iinfo(np.int64).max

_ORDERS = ("nw_sens", "las2d", "fifo", "queues", "max_min")
_TIMERS = ("fixed", "auto")


class Online:
    """The event loop of the simulator, advanced in real time.

    Parameters
    ----------
    cluster : Cluster
    jobs : Jobs
        Arrivals count from time 0; the work is ignored.
    speeds : Speeds
        Speeds of placements that the policy assumes.
    policy : Policy

    Raises
    ------
    InputError
        The policy depends on the remaining work of jobs.
    """

    def __init__(self, cluster: Cluster, jobs: Jobs, speeds: Speeds, policy: Policy) -> None:
        if (
            policy.order not in _ORDERS or policy.timers not in _TIMERS or policy.decide is not None
            or policy.backfills or policy.migrates or policy.reserve_after_s != float("inf")
        ):  # fmt: skip
            raise InputError(
                "this policy asks when jobs end, which is not known of real jobs",
                where=f"order {policy.order}, timers {policy.timers}",
                fix=f"use a policy that orders by {', '.join(_ORDERS)}, with fixed or auto timers; for example dally",
            )
        jobs.require_fit(cluster.num_gpus)
        self.cluster, self.jobs, self.policy = cluster, jobs, policy
        self._rules = policy.rules(cluster)
        # contention for links only moves ends, which are unknown here
        self._state, self._profiles = new_state(replace(cluster, shares_links=False), jobs, policy)
        self._state.jobs["work"] = _UNKNOWN_NS
        self._speeds = speeds
        self._open: dict[int, int] = {}  # reported segments that have not ended: their jobs
        self._num_seen = 0

    @property
    def num_over(self) -> int:
        """Jobs that have ended."""
        return int(self._state.scalars[st.NUM_OVER])

    def advance(self, now_ns: int) -> list[Start | Stop]:
        """Make all decisions up to a time.

        Raises
        ------
        PriceError
            A model has no speed.
        """
        self._go(now_ns)
        return self._changes()

    def end_job(self, job: int, now_ns: int) -> None:
        """Record that a job has finished; the next ``advance`` returns the decisions that follow."""
        self._go(now_ns)  # decisions that were due before
        state = self._state
        if state.jobs["status"][job] == st.RUNNING:
            self._open.pop(int(state.jobs["segment"][job]), None)
            end_segment(st.by_reference(state), self._rules, job, True)
        else:  # it finished while it was being stopped
            st.dequeue(st.by_reference(state), job)
            state.scalars[st.NUM_OVER] += 1
            state.jobs["status"][job], state.jobs["end"][job] = st.OVER, now_ns

    def _go(self, now_ns: int) -> None:
        while (code := run_events(st.by_reference(self._state), self._rules, _MAX_EVENTS, now_ns)) != st.LATER:
            if code == st.DONE:
                break
            if code not in (st.NEED_SPEED, st.NEED_ROOM):
                raise InputError("jobs wait on an idle cluster and the policy starts none of them", where=str(now_ns))
            self._state = supply(self._state, code, self._profiles, self._speeds, self.cluster)

    def result_so_far(self) -> ClusterRun:
        """Return the run up to the present."""
        return run_of(self._state, self.cluster, self.jobs, self.policy)

    def _changes(self) -> list[Start | Stop]:
        """Return the starts and stops since the last call; stops come first, as they free GPUs for the starts."""
        state, segments = self._state, self._state.segments
        ended = [row for row in self._open if segments["end"][row] != st.NEVER]
        jobs = [self._open.pop(row) for row in ended]
        changes: list[Start | Stop] = [Stop(job) for job in jobs if state.jobs["status"][job] != st.OVER]
        for row in range(self._num_seen, int(state.scalars[st.NUM_SEGMENTS])):
            if segments["end"][row] == st.NEVER:
                first, width = int(segments["placement"][row]), int(segments["width"][row])
                self._open[row] = int(segments["job"][row])
                changes.append(Start(self._open[row], dict(state.placements[first : first + width].tolist())))
        self._num_seen = int(state.scalars[st.NUM_SEGMENTS])
        return changes
