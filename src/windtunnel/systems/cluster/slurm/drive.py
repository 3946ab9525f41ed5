"""Jobs driven through Slurm under a policy.

In: jobs, a cluster, a policy, a command. Out: when each really started, where, and when it ended. Jobs are submitted
when they arrive, and let go of one machine when their timer runs out, by ``sbatch`` and ``scontrol`` alone. A driver
that was killed finds its jobs again by their names; none is submitted twice. Not here: what a policy means
(``files``), Slurm itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from windtunnel.base.progress import Progress
from windtunnel.errors import FlightError
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.policy import Policy
from windtunnel.systems.cluster.slurm.files import Submission, submission
from windtunnel.systems.cluster.slurm.local import run_slurm

__all__ = ["OVER", "Driven", "drive", "fields_of", "rows_of", "sleeping"]

_POLL_S = 0.5
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")


@dataclass(frozen=True)
class Driven:
    """What became of a job; times in seconds since the driver began.

    Attributes
    ----------
    job_id : str
    slurm_id : int
    submitted_s, started_s, ended_s : float
        To a second, as Slurm keeps them.
    machines : str
        As Slurm writes them: ``m[0-1]``.
    state : str
        ``COMPLETED`` if all went well.
    """

    job_id: str
    slurm_id: int
    submitted_s: float
    started_s: float
    ended_s: float
    machines: str
    state: str

    @property
    def waited_s(self) -> float:
        """From its submission to its start."""
        return self.started_s - self.submitted_s


@dataclass
class _Open:
    """A job that is submitted and not over."""

    slurm_id: int
    plan: Submission
    submitted_s: float
    is_relaxed: bool = False


def sleeping(jobs: Jobs, row: int) -> str:
    """The default command: sleep for as long as the job's work takes."""
    return f"sleep {jobs.work_ns[row] / 1e9:.3f}"


def drive(
    jobs: Jobs,
    cluster: Cluster,
    policy: Policy,
    environment: Mapping[str, str],
    *,
    command: Callable[[Jobs, int], str] = sleeping,
    run: str = "windtunnel",
    patience_s: float = 3600.0,
    progress: Progress | None = None,
) -> list[Driven]:
    """Submit each job when it arrives, and wait until all have finished.

    Parameters
    ----------
    jobs : Jobs
    cluster : Cluster
        The one that Slurm runs.
    policy : Policy
        With fixed timers.
    environment : mapping
        For Slurm's commands, as ``local_slurm`` gives it; empty for the cluster that this host belongs to.
    command : callable
        Of the jobs and a row, what that job runs.
    run : str
        Begin of its jobs' names; a driver of the same name finds them again.
    patience_s : float
        After the last arrival.

    Raises
    ------
    InputError
        Slurm has no option for a decision of the policy, or a job is too large.
    FlightError
        Slurm refuses something, or jobs are not over in time.
    """
    plans = [submission(int(gpus), cluster, policy) for gpus in jobs.gpus]
    started = time.time()
    opened = _Opened(run, environment, started)
    arrival_s = [started + index / 1e9 for index in jobs.arrival_ns]
    until = arrival_s[-1] + patience_s
    waiting = [row for row in range(len(jobs)) if jobs.job_id[row] not in opened.known]
    for row, name in enumerate(jobs.job_id):
        if name in opened.known:
            opened.adopt_job(name, plans[row])
    done: list[Driven] = []
    while len(done) < len(jobs):
        now = time.time()
        while waiting and arrival_s[waiting[0]] <= now:
            row = waiting.pop(0)
            opened.submit(str(jobs.job_id[row]), plans[row], command(jobs, row))
        opened.relax(now)
        done = opened.over()
        if progress is not None:
            progress("jobs", len(done), len(jobs))
        if now > until:
            left = sorted(set(map(str, jobs.job_id)) - {item.job_id for item in done})
            raise FlightError(f"{len(left)} jobs are not over, {left[0]} among them", where="squeue", fix="wait longer")
        time.sleep(_POLL_S)
    return sorted(done, key=lambda row: (row.started_s, row.slurm_id))


@dataclass
class _Opened:
    """The jobs of one run in Slurm."""

    run: str
    environment: Mapping[str, str]
    started_s: float
    jobs: dict[str, _Open] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = {
            row["JobName"].removeprefix(f"{self.run}."): row
            for row in rows_of(self.environment)
            if row["JobName"].startswith(f"{self.run}.")
        }

    def adopt_job(self, name: str, plan: Submission) -> None:
        """Adopt a job that an earlier driver submitted."""
        row = self.known[name]
        self.jobs[name] = _Open(int(row["JobId"]), plan, _time(row["SubmitTime"]))

    def submit(self, name: str, plan: Submission, command: str) -> None:
        options = [*plan.options, "--job-name", f"{self.run}.{name}", "--output", "/dev/null"]
        reported = run_slurm(["sbatch", "--parsable", *options, "--wrap", command], self.environment)
        self.jobs[name] = _Open(int(reported.partition(";")[0]), plan, time.time())

    def relax(self, now: float) -> None:
        """Allow several machines for jobs whose timer has expired."""
        for job in self.jobs.values():
            after_s = job.plan.relax_after_s
            if after_s is None or job.is_relaxed or now < job.submitted_s + after_s:
                continue
            job.is_relaxed = True
            reported = run_slurm(["scontrol", "--oneliner", "show", "job", str(job.slurm_id)], self.environment)
            if fields_of(reported).get("JobState", "") == "PENDING":
                machines = f"NumNodes=1-{job.plan.max_machines}"
                run_slurm(["scontrol", "update", f"JobId={job.slurm_id}", machines], self.environment)

    def over(self) -> list[Driven]:
        """Return the jobs that have ended."""
        rows = {int(row["JobId"]): row for row in rows_of(self.environment)}
        result = []
        for name, job in self.jobs.items():
            row = rows.get(job.slurm_id)
            if row is not None and row["JobState"] in OVER:
                submitted, started, ended = (
                    _time(row[key]) - self.started_s for key in ("SubmitTime", "StartTime", "EndTime")
                )
                machines = row.get("NodeList", "")
                result.append(Driven(name, job.slurm_id, submitted, started, ended, machines, row["JobState"]))
        return result


def rows_of(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Return all jobs that Slurm remembers."""
    reported = run_slurm(["scontrol", "--oneliner", "show", "job"], environment)
    return [row for row in map(fields_of, reported.splitlines()) if "JobId" in row]


def fields_of(line: str) -> dict[str, str]:
    """Parse the ``Key=value`` pairs of a line.

    Examples
    --------
    >>> fields_of("JobId=7 JobName=a.b JobState=RUNNING")
    {'JobId': '7', 'JobName': 'a.b', 'JobState': 'RUNNING'}
    """
    return dict(re.findall(r"(\w+)=(\S*)", line))


def _time(text: str) -> float:
    """Return seconds since the epoch; nan if Slurm has no time yet."""
    return float("nan") if text in ("Unknown", "None", "") else datetime.fromisoformat(text).timestamp()
