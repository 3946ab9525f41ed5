"""Metrics of a cluster run.

In: a ``ClusterRun``. Out: means, percentiles, utilization, fairness, and caveats of the headline. Not here: pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.cluster.layout import TIERS
from windtunnel.systems.cluster.model import ClusterRun

__all__ = ["Summary", "document", "honest_notes", "summarize", "use_over_time"]

_PERCENTILES = (50, 90, 95, 99)
_HOUR_NS = 3.6e12


@dataclass(frozen=True)
class Summary:
    """The metrics of one run, in hours unless stated otherwise.

    Attributes
    ----------
    makespan_h, mean_jct_h, mean_queueing_h, longest_wait_h : float
    jct_h, queueing_h : mapping of percentile to float
    mean_jct_single_h, mean_jct_multi_h : float
        Of jobs of one GPU, of several; NaN where there are none.
    communication_share : float
        Time in communication over time running, of all jobs.
    utilization : float
        GPU time held over capacity until the last end.
    fairness_p99, jain : float
        JCT over that on a fair share of the cluster; Jain's index of these.
    allocations : mapping of tier to int
    num_preemptions : int
    """

    makespan_h: float
    mean_jct_h: float
    jct_h: dict[int, float]
    mean_queueing_h: float
    queueing_h: dict[int, float]
    longest_wait_h: float
    mean_jct_single_h: float
    mean_jct_multi_h: float
    communication_share: float
    utilization: float
    fairness_p99: float
    jain: float
    allocations: dict[str, int]
    num_preemptions: int


def summarize(run: ClusterRun) -> Summary:
    """Return the metrics of a run."""
    jct, queueing = run.jct_ns / _HOUR_NS, run.queueing_ns / _HOUR_NS
    is_single = run.jobs.gpus == 1
    ratio = fairness(run)
    return Summary(
        makespan_h=run.makespan_ns / _HOUR_NS,
        mean_jct_h=float(jct.mean()),
        jct_h={item: float(np.percentile(jct, item)) for item in _PERCENTILES},
        mean_queueing_h=float(queueing.mean()),
        queueing_h={item: float(np.percentile(queueing, item)) for item in _PERCENTILES},
        longest_wait_h=float(run.longest_wait_ns.max() / _HOUR_NS),
        mean_jct_single_h=float(jct[is_single].mean()) if is_single.any() else float("nan"),
        mean_jct_multi_h=float(jct[~is_single].mean()) if (~is_single).any() else float("nan"),
        communication_share=float(communication_ns(run).sum() / run.run_ns.sum()),
        utilization=float(segment_gpu_ns(run).sum() / (run.cluster.num_gpus * run.makespan_ns)),
        fairness_p99=float(np.percentile(ratio, 99)),
        jain=float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())),
        allocations=dict(zip(TIERS, run.num_tiers.sum(axis=0).tolist(), strict=True)),
        num_preemptions=int(run.num_preempted.sum()),
    )


def communication_ns(run: ClusterRun) -> NDArray[np.float64]:
    """Return the time that each job ran without computing, float64 [J]."""
    return np.maximum(run.run_ns - run.jobs.work_ns, 0.0)


def segment_gpu_ns(run: ClusterRun) -> NDArray[np.int64]:
    """Return the GPU time of each segment in ns, int64 [N]."""
    held: NDArray[np.int64] = (run.segments["end"] - run.segments["start"]) * run.jobs.gpus[run.segments["job"]]
    return held


def fairness(run: ClusterRun) -> NDArray[np.float64]:
    """Return JCT over the JCT on a private cluster with 1/N of the GPUs, N being the mean number of present jobs."""
    mean_present = float(run.jct_ns.sum()) / max(run.makespan_ns, 1)
    share = run.cluster.num_gpus / max(mean_present, 1.0)
    alone_ns = run.jobs.work_ns * np.maximum(1.0, run.jobs.gpus / share)
    ratio: NDArray[np.float64] = run.jct_ns / alone_ns
    return ratio


def use_over_time(run: ClusterRun, num: int = 200) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return hours, and the fraction of GPUs held in each of ``num`` equal intervals."""
    first_ns, last_ns = int(run.jobs.arrival_ns.min()), int(run.end_ns.max())
    edges = np.linspace(first_ns, last_ns, num + 1)
    gpus = run.jobs.gpus[run.segments["job"]].astype(np.float64)
    begin, end = run.segments["start"].astype(np.float64), run.segments["end"].astype(np.float64)

    def gpu_time_until(time: NDArray[np.float64], starts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the integral, up to each time, of GPUs that are taken at ``starts``."""
        order = np.argsort(starts, kind="stable")
        count = np.concatenate([[0.0], np.cumsum(gpus[order])])
        moment = np.concatenate([[0.0], np.cumsum(gpus[order] * starts[order])])
        row = np.searchsorted(starts[order], time, side="right")
        total: NDArray[np.float64] = count[row] * time - moment[row]
        return total

    held = gpu_time_until(edges, begin) - gpu_time_until(edges, end)
    share = np.diff(held) / (np.diff(edges) * run.cluster.num_gpus)
    return (edges[:-1] - first_ns) / _HOUR_NS, share


def honest_notes(run: ClusterRun) -> list[str]:
    """Return caveats of the headline: a straggler, starved jobs, work that one job lost to its placement."""
    jobs, notes = run.jobs, list(run.notes)
    last = int(run.end_ns.argmax())
    others = np.delete(run.end_ns, last)
    if len(others):
        without_h = (others.max() - jobs.arrival_ns.min()) / _HOUR_NS
        share = 1 - without_h / (run.makespan_ns / _HOUR_NS)
        missing = run.run_ns[last] / jobs.work_ns[last]
        times = f", {missing:.1f} times as long as it needed," if missing > 1.5 else ","
        reported = (
            f"the makespan ends with job {_describe_job(run, last)}: {jobs.work_ns[last] / _HOUR_NS:.1f} h of work, "
            f"ran {run.run_ns[last] / _HOUR_NS:.1f} h{times} waited {run.queueing_ns[last] / _HOUR_NS:.1f} h"
        )
        if share > 0.1:
            reported += f"; one straggler: without it the makespan is {100 * share:.0f} % shorter"
        notes.append(reported)
    waited = int(run.longest_wait_ns.argmax())
    if run.longest_wait_ns[waited] > 10 * max(float(np.median(jobs.work_ns)), 1.0):
        notes.append(
            f"job {_describe_job(run, waited)} waited {run.longest_wait_ns[waited] / _HOUR_NS:.1f} h at once; "
            "ageing or a reservation bounds that"
        )
    single = jobs.gpus == 1
    if single.any() and (~single).any() and run.policy.order == "nw_sens" and not run.policy.aging:
        notes.append("jobs of one GPU lose nothing to communication and are served last under this order")
    shared = 0.0 if run.cluster.shares_links else link_contention_fraction(run)
    if shared > 0.01 and communication_ns(run).any():
        notes.append(
            f"{100 * shared:.0f} % of the time on several machines another job sent over the same link; speeds are "
            "those of a job alone, so too high there: --shared-links"
        )
    return notes


def link_contention_fraction(run: ClusterRun) -> float:
    """Return the fraction of multi-machine running time in which another such job used one of the job's links.

    S is the speed of an isolated job and thus too high there. The ring of a job leaves each of its machines by the card
    of that machine, and each of its racks by the uplink of that rack if the job spans several racks.
    """
    segments = run.segments
    length_ns = (segments["end"] - segments["begin"]).clip(min=0)
    is_spread = (segments["width"] > 1) & (length_ns > 0)
    if not is_spread.any():
        return 0.0
    rows, indices = run.segment_placements
    kept = is_spread[rows]
    rows, machine = rows[kept], run.placements["machine"][indices[kept]].astype(np.int64)
    crosses = segments["tier"][rows] == 2
    rack = run.cluster.num_machines + machine // run.cluster.machines_per_rack
    # one row for each job and link: machines count from 0, racks behind them
    owner, link = np.unique(
        np.stack([np.concatenate([rows, rows[crosses]]), np.concatenate([machine, rack[crosses]])]), axis=1
    )
    shared_ns = np.zeros(len(segments))
    for item in np.unique(link):
        users = owner[link == item]
        begin, end = segments["begin"][users], segments["end"][users]
        time = np.concatenate([begin, end])
        order = np.argsort(time, kind="stable")
        count = np.cumsum(np.where(order < len(users), 1, -1))
        time = time[order]
        busy_ns = np.concatenate([[0], np.cumsum(np.diff(time) * (count[:-1] > 1))])
        within_ns = busy_ns[np.searchsorted(time, end)] - busy_ns[np.searchsorted(time, begin)]
        np.maximum.at(shared_ns, users, within_ns)
    return float(shared_ns.sum() / length_ns[is_spread].sum())


def _describe_job(run: ClusterRun, job: int) -> str:
    model = f", {run.jobs.model[job]}" if run.jobs.model[job] else ""
    return f"{run.jobs.job_id[job]} ({run.jobs.gpus[job]} GPUs{model})"


def document(run: ClusterRun) -> dict[str, Any]:
    """Return the summary in plain types, with its notes."""
    summary = summarize(run)
    return {
        **{name: getattr(summary, name) for name in Summary.__dataclass_fields__},
        "num_events": run.num_events,
        "notes": honest_notes(run),
    }
