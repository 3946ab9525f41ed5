"""Explanation of the completion time of one job by the offers that it declined.

In: a cluster, jobs, speeds, a policy, a job. Out: each kind of declined offer, with the end of the job and the mean JCT
of all jobs had it accepted, from a repeated simulation with that one decision changed. Not here: one run (``model``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.registry import did_you_mean
from windtunnel.search.speeds import Speeds
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.model import ClusterRun, Watch, simulate
from windtunnel.systems.cluster.policy import Policy

__all__ = ["Declined", "Why", "explain_job"]

TIERS = ("one machine", "one rack", "several racks")


@dataclass(frozen=True)
class Declined:
    """An offer that a job declined; times in ns from the beginning of the trace.

    Attributes
    ----------
    time_ns : int
    num_same : int
        Number of consecutive equal offers.
    tier : int
        0: a machine, 1: a rack, 2: the network.
    num_machines : int
    speed : float
        S on the offered GPUs.
    end_ns : int
        End of the job had it accepted the offer.
    mean_jct_ns : float
        Mean JCT of all jobs in that case.
    """

    time_ns: int
    num_same: int
    tier: int
    num_machines: int
    speed: float
    end_ns: int
    mean_jct_ns: float


@dataclass(frozen=True, eq=False)
class Why:
    """The explanation of one job under a policy.

    Attributes
    ----------
    job : int
    run : ClusterRun
        As it went.
    declined : tuple of Declined
    num_offers : int
        All that it declined.
    """

    job: int
    run: ClusterRun
    declined: tuple[Declined, ...]
    num_offers: int

    @property
    def best(self) -> Declined | None:
        """The declined offer with the earliest end, or None if none would have been earlier."""
        sooner = [item for item in self.declined if item.end_ns < self.run.end_ns[self.job]]
        return min(sooner, key=lambda offer: offer.end_ns, default=None)


def explain_job(
    cluster: Cluster,
    jobs: Jobs,
    speeds: Speeds,
    policy: Policy,
    job_id: str,
    *,
    most: int = 24,
    progress: Progress | None = None,
) -> Why:
    """Explain a job by the offers that it declined and their simulated outcomes.

    Parameters
    ----------
    job_id : str
    most : int
        Offers that are tried; those in between are taken as like their neighbors.

    Raises
    ------
    InputError
        There is no such job.
    NotApplicableError
        A Python function decides, which declines nothing that could be noted.
    """
    result = np.flatnonzero(jobs.job_id == job_id)
    if not len(result):
        raise InputError(
            f"there is no job {job_id!r}", fix=did_you_mean(job_id, jobs.job_id.tolist()) or "see the file"
        )
    if policy.decide is not None:
        raise NotApplicableError("a function of yours decides, and what it did not do is not known", where=job_id)
    watch = Watch(int(result[0]))
    run = simulate(cluster, jobs, speeds, policy, watch=watch)
    offers = watch.declined
    tries = _turns(offers, run, watch.job, most)
    declined = []
    for done, (row, num_same) in enumerate(tries):
        if progress is not None:
            progress("offers", done, len(tries))
        offer = offers[row]
        at_ns = int(offer["time"])
        other = simulate(cluster, jobs, speeds, policy, watch=Watch(watch.job, at_ns))
        end_ns, mean_ns = int(other.end_ns[watch.job]), float(other.jct_ns.mean())
        kind = int(offer["tier"]), int(offer["machines"]), float(offer["speed"])
        declined.append(Declined(at_ns, num_same, *kind, end_ns, mean_ns))
    return Why(watch.job, run, tuple(declined), len(offers))


def _turns(offers: np.ndarray, run: ClusterRun, job: int, most: int) -> list[tuple[int, int]]:
    """Return the first of each run of equal offers within a wait, with their number; evenly thinned to ``most``."""
    if not len(offers):
        return []
    starts = np.sort(run.segments["start"][run.segments["job"] == job])
    wait = np.searchsorted(starts, offers["time"], side="right")
    keys = np.stack([wait, offers["tier"], offers["machines"]])
    begins = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=-1), axis=0))
    lengths = np.diff(begins, append=len(offers))
    kept = np.unique(np.linspace(0, len(begins) - 1, min(most, len(begins))).round().astype(int))
    return list(zip(begins[kept].tolist(), lengths[kept].tolist(), strict=True))
