"""Jobs on Slurm under a policy that decides every start and stop, with leases.

In: jobs, a cluster, a policy, a command that goes on where it was stopped. Out: a ``ClusterRun`` as it was. Each
segment is a job of Slurm's own, on exactly the processors that the policy chose; a stop is ``scancel``. A driver that
was killed stops what it finds of its own and goes on from the jobs' own notes. Not here: the policy's decisions
(``online``); jobs that Slurm itself starts (``drive``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.base.progress import Progress
from windtunnel.errors import FlightError
from windtunnel.search.speeds import Speeds
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.model import ClusterRun
from windtunnel.systems.cluster.online import Online
from windtunnel.systems.cluster.policy import Policy, Start
from windtunnel.systems.cluster.slurm.drive import OVER, rows_of
from windtunnel.systems.cluster.slurm.files import machine_names
from windtunnel.systems.cluster.slurm.local import run_slurm

__all__ = ["drive_leases", "resuming"]

_POLL_S = 0.2
_RESUMING = (
    "d=$(cat $0 2>/dev/null || echo 0); b=${EPOCHREALTIME/./}; "
    "while n=$((d + ${EPOCHREALTIME/./} - b)); echo $n > $0.new; mv $0.new $0; [ $n -lt $1 ]; do sleep 0.05; done"
)


def resuming(folder: Path) -> Callable[[Jobs, int], str]:
    """The default command: sleep for as long as the work takes; it saves its progress and resumes from there."""

    def of(jobs: Jobs, row: int) -> str:
        return f"bash -c '{_RESUMING}' {folder / str(jobs.job_id[row])} {round(float(jobs.work_ns[row]) / 1e3)}"

    return of


def drive_leases(
    jobs: Jobs,
    cluster: Cluster,
    policy: Policy,
    speeds: Speeds,
    environment: Mapping[str, str],
    command: Callable[[Jobs, int], str],
    *,
    run: str = "windtunnel",
    patience_s: float = 3600.0,
    progress: Progress | None = None,
) -> ClusterRun:
    """Start and stop jobs on Slurm as the policy says, until all are over.

    Parameters
    ----------
    jobs : Jobs
        In real seconds.
    cluster : Cluster
        The one that Slurm runs; a GPU is a processor of its machine.
    policy : Policy
    speeds : Speeds
        What the policy believes.
    environment : mapping
        For Slurm's commands, as ``local_slurm`` gives it; empty for the cluster that this host belongs to.
    command : callable
        Of the jobs and a row, what that job runs each time that it gets processors.
    run : str
        Begin of its jobs' names.
    patience_s : float
        After the last arrival.

    Raises
    ------
    InputError
        The policy asks when jobs end.
    FlightError
        Slurm refuses something, a job failed, or jobs are not over in time.
    """
    online = Online(cluster, jobs, speeds, policy)
    slurm = _Segments(run, environment, machine_names(cluster))
    slurm.cancel(slurm.list_leftovers())
    waiting: dict[int, Start] = {}
    started = time.monotonic()
    until_s = float(jobs.arrival_ns[-1]) / 1e9 + patience_s
    while online.num_over < len(jobs):
        states = slurm.states()
        now_ns = round((time.monotonic() - started) * 1e9)
        for job in slurm.pop_ended_jobs(states):
            online.end_job(job, now_ns)
            waiting.pop(job, None)
        for change in online.advance(now_ns):
            if isinstance(change, Start):
                waiting[change.job] = change
            elif waiting.pop(change.job, None) is None:
                slurm.stop(change.job)
        # a job that is being stopped holds its processors until Slurm says that it is over: its next segment waits
        for job in [job for job in waiting if job not in slurm.stopping]:
            slurm.submit(job, str(jobs.job_id[job]), waiting.pop(job).gpus, command(jobs, job))
        if progress is not None:
            progress("jobs", online.num_over, len(jobs))
        if now_ns > until_s * 1e9:
            left = len(jobs) - online.num_over
            raise FlightError(f"{left} jobs are not over", where="squeue", fix="wait longer")
        time.sleep(_POLL_S)
    return online.result_so_far()


@dataclass
class _Segments:
    """The Slurm jobs of one driver."""

    run: str
    environment: Mapping[str, str]
    machines: list[str]
    running: dict[int, int] = field(default_factory=dict)  # job: Slurm's number of its segment
    stopping: dict[int, int] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)

    def states(self) -> dict[int, str]:
        """Return the states of all jobs that Slurm remembers."""
        return {int(row["JobId"]): row["JobState"] for row in rows_of(self.environment)}

    def list_leftovers(self) -> list[int]:
        """Return the segments that an earlier driver of this name left."""
        local = [row for row in rows_of(self.environment) if row["JobName"].startswith(f"{self.run}.")]
        return [int(row["JobId"]) for row in local if row["JobState"] not in OVER]

    def submit(self, job: int, name: str, gpus: Mapping[int, int], command: str) -> None:
        """Submit a segment on the given number of processors of each machine."""
        self.counts[job] += 1
        indices = [self.machines[machine] for machine, count in sorted(gpus.items()) for _ in range(count)]
        options = ["--ntasks", str(len(indices)), "--distribution", "arbitrary", "--nodelist", ",".join(indices)]
        named = ["--job-name", f"{self.run}.{name}.{self.counts[job]}", "--output", "/dev/null", "--no-requeue"]
        reported = run_slurm(["sbatch", "--parsable", *options, *named, "--wrap", f"exec {command}"], self.environment)
        self.running[job] = int(reported.partition(";")[0])

    def stop(self, job: int) -> None:
        """Cancel a job; its processors are free once Slurm reports so."""
        self.stopping[job] = self.running.pop(job)
        self.cancel([self.stopping[job]])

    def cancel(self, numbers: list[int]) -> None:
        """Cancel Slurm jobs; jobs that have already ended are ignored."""
        if numbers:
            run_slurm(["scancel", "--quiet", *map(str, numbers)], self.environment)

    def pop_ended_jobs(self, states: Mapping[int, str]) -> list[int]:
        """Remove and return the jobs that have ended since the last call, whether or not they were cancelled.

        Raises
        ------
        FlightError
            One has failed.
        """
        done = []
        for open_ones in (self.running, self.stopping):
            for job, number in list(open_ones.items()):
                state = states.get(number, "")
                if state not in OVER:
                    continue
                del open_ones[job]
                if state == "COMPLETED":
                    done.append(job)
                elif open_ones is self.running:
                    raise FlightError(
                        f"Slurm's job {number} is {state}",
                        where=f"{self.run}: job {job}",
                        fix="see its output and sacct",
                    )
        return done
