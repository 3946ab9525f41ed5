"""Python functions as schedulers: the state that they see, and their decisions.

In: a state at a moment when something may start. Out: its decisions carried out. Not here: compiled policies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.systems.cluster import state as st
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.policy import Policy, Start, Stop, Wake
from windtunnel.systems.cluster.queue_order import attained_service, sensitivity
from windtunnel.systems.cluster.running import start, stop_job
from windtunnel.systems.cluster.state import State

__all__ = ["PythonPolicyRunner", "View"]

_MAX_IN_VAIN = 50


class View:
    """The state that a policy sees, the same as for compiled policies. Jobs and machines are numbers.

    Attributes
    ----------
    now_ns : int
    cluster : Cluster
    jobs : Jobs
    free : int64 [M]
        Free GPUs of each machine.
    waiting, running : int64
        Numbers of jobs; waiting ones in order of arrival.
    """

    def __init__(self, state: State, jobs: Jobs, cluster: Cluster) -> None:
        self._state, self.jobs, self.cluster = state, jobs, cluster
        self.now_ns = int(state.scalars[st.NOW])
        self.free = state.machines["free"].copy()
        self.waiting: NDArray[np.int64] = np.sort(state.waiting[: state.scalars[st.NUM_WAITING]])
        self.running: NDArray[np.int64] = np.flatnonzero(state.jobs["status"] == st.RUNNING)

    def waiting_ns(self, job: int) -> int:
        """Return the time since the arrival or the last preemption of a job."""
        return int(self.now_ns - self._state.jobs["since"][job])

    def work_left_ns(self, job: int) -> float:
        """Return the remaining work, without communication; of a running job at the start of its segment."""
        return float(self._state.jobs["work"][job] - self._state.jobs["done"][job])

    def sensitivity(self, job: int) -> float:
        """Return the fraction of its full speed that a job had so far; 0 if it never ran."""
        return float(sensitivity.py_func(self._state, job))

    def attained_gpu_s(self, job: int) -> float:
        """Return the GPU-seconds of a job in finished segments."""
        return float(attained_service.py_func(self._state, job))

    def placement(self, job: int) -> Mapping[int, int]:
        """Return the GPUs that a running job holds, by machine."""
        segment = int(self._state.jobs["segment"][job])
        if segment < 0:
            return {}
        first, width = self._state.segments["placement"][segment], self._state.segments["width"][segment]
        return MappingProxyType(dict(self._state.placements[first : first + width].tolist()))

    def start_ns(self, job: int) -> int:
        """Return when a running job got its GPUs."""
        return int(self._state.segments["start"][self._state.jobs["segment"][job]])


class PythonPolicyRunner:
    """Calls a policy that is a Python function, applies its decisions, and detects cycles of preemption.

    Parameters
    ----------
    policy : Policy
    rules : numpy.record
    cluster : Cluster
    jobs : Jobs
    supply_missing : callable
        ``(state, code) -> state``: supplies the speed or the capacity for lack of which a start failed.
    """

    def __init__(
        self,
        policy: Policy,
        rules: np.record,
        cluster: Cluster,
        jobs: Jobs,
        supply_missing: Callable[[State, int], State],
    ) -> None:
        self._policy, self._rules, self._cluster, self._jobs = policy, rules, cluster, jobs
        self._supply_missing = supply_missing
        self._in_vain: Counter[int] = Counter()

    def __call__(self, state: State) -> State:
        """Call the policy once at the current time.

        Raises
        ------
        InputError
            A decision cannot be done, or jobs preempt each other again and again before any of them ran.
        """
        assert self._policy.decide is not None
        for decision in self._policy.decide(View(state, self._jobs, self._cluster)):
            if isinstance(decision, Stop):
                state = self._stop(state, decision.job)
            elif isinstance(decision, Wake):
                state = self._wake(state, decision.at_ns)
            elif isinstance(decision, Start):
                state = self._start(state, decision)
            else:
                raise InputError(f"a policy decided {decision!r}", fix="yield Start, Stop and Wake")
        state.scalars[st.IS_DUE] = 0
        return state

    def _job_label(self, job: int) -> str:
        return f"job {self._jobs.job_id[job]}"

    def _check_job(self, job: object) -> int:
        if not isinstance(job, int | np.integer) or not 0 <= job < len(self._jobs):
            raise InputError(f"a policy named job {job!r}", fix=f"jobs are numbers from 0 to {len(self._jobs) - 1}")
        return int(job)

    def _start(self, state: State, decision: Start) -> State:
        job = self._check_job(decision.job)
        requested, given = int(state.jobs["gpus"][job]), sorted(decision.gpus.items())
        if state.jobs["status"][job] != st.WAITING:
            raise InputError(
                f"the policy starts {self._job_label(job)}, which does not wait", fix="start jobs of state.waiting"
            )
        for machine, count in given:
            if not 0 <= machine < len(state.machines) or not 0 < count <= state.machines["free"][machine]:
                free = int(state.machines["free"][machine]) if 0 <= machine < len(state.machines) else 0
                raise InputError(
                    f"{self._job_label(job)} gets {count} GPUs of machine {machine}, where {free} are free",
                    fix="give what state.free has",
                )
        if sum(count for _, count in given) != requested:
            raise InputError(
                f"{self._job_label(job)} asks for {requested} GPUs and gets {sum(count for _, count in given)}",
                fix="give a job all of its GPUs, or none",
            )
        racks = {int(state.machines["rack"][machine]) for machine, _ in given}
        while True:
            for row, (machine, count) in enumerate(given):
                state.pick[row] = (machine, count)
            state.scalars[st.PICKED] = len(given)
            state.scalars[st.PICKED_TIER] = 2 if len(racks) > 1 else int(len(given) > 1)
            code = start(st.by_reference(state), self._rules, job)
            if code == st.DONE:
                return state
            state = self._supply_missing(state, code)

    def _stop(self, state: State, job: int) -> State:
        job = self._check_job(job)
        if state.jobs["status"][job] != st.RUNNING:
            raise InputError(
                f"the policy stops {self._job_label(job)}, which does not run", fix="stop jobs of state.running"
            )
        ran_ns = int(state.scalars[st.NOW] - state.jobs["begin"][job])
        while not stop_job(st.by_reference(state), self._rules, job):
            state = self._supply_missing(state, st.NEED_ROOM)
        self._in_vain[job] = self._in_vain[job] + 1 if ran_ns <= 0 else 0
        if self._in_vain[job] >= _MAX_IN_VAIN:
            cycle = [self._job_label(key) for key, count in self._in_vain.items() if count >= _MAX_IN_VAIN // 2]
            raise InputError(
                f"jobs preempt each other in a cycle: each was stopped {_MAX_IN_VAIN} times before it ran",
                where=f"{', '.join(cycle[:8])} at {state.scalars[st.NOW] / 1e9:.3f} s",
                fix="let a job run before the policy stops it",
            )
        return state

    def _wake(self, state: State, at_ns: int) -> State:
        if at_ns <= state.scalars[st.NOW]:
            raise InputError(f"a policy yields Wake({at_ns}), which is in the past", fix="give a later time")
        job = int(state.waiting[0])
        if at_ns < state.jobs["timer"][job]:
            if state.scalars[st.NUM_EVENTS] + 4 >= len(state.events):
                state = self._supply_missing(state, st.NEED_ROOM)
            state.jobs["timer"][job] = at_ns
            st.push_event(st.by_reference(state), at_ns, st.TIMER, job)
        return state
