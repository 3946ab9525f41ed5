"""Real jobs on a real cluster under the policy of the simulator.

In: a cluster, jobs, the gradients of their models, a policy. Out: a ``ClusterRun`` as it really was, and the iterations
that were measured on each shape before. Not here: the slots (``slots``), the policy's decisions (``online``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import FlightError, InputError
from windtunnel.search.shapes import Shape, canonical
from windtunnel.search.speeds import Speeds, TableSpeeds
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.model import ClusterRun
from windtunnel.systems.cluster.online import Online
from windtunnel.systems.cluster.policy import Policy, Start
from windtunnel.systems.cluster.real.slot import Report
from windtunnel.systems.cluster.real.slots import Slots

__all__ = ["drive", "measure_speeds", "shapes_of"]

_POLL_S = 0.005
_TIMED = 6


@dataclass
class _Job:
    """The progress of a job."""

    compute_ns: int
    gradient_bytes: int
    num_left: int


def shapes_of(num_gpus: int, cluster: Cluster) -> dict[Shape, dict[int, int]]:
    """Return every shape of ``num_gpus`` GPUs on an empty cluster, with an example of its machines.

    Examples
    --------
    >>> from windtunnel.hardware import Link
    >>> wire = Link("wire", 1e9, latency_ns=0)
    >>> sorted(shapes_of(2, Cluster(2, 2, 2, (wire, wire, wire))))
    [((1,), (1,)), ((1, 1),), ((2,),)]
    """
    result: dict[Shape, dict[int, int]] = {}

    def fill(machine: int, left: int, given: dict[int, int]) -> None:
        if not left:
            racks: dict[int, list[int]] = {}
            for key, count in given.items():
                racks.setdefault(key // cluster.machines_per_rack, []).append(count)
            result.setdefault(canonical(racks.values()), dict(given))
            return
        if machine < cluster.num_machines:
            for count in range(min(left, cluster.gpus_per_machine), -1, -1):
                fill(machine + 1, left - count, {**given, machine: count} if count else given)

    fill(0, num_gpus, {})
    return result


def measure_speeds(
    slots: Slots, jobs: Jobs, cluster: Cluster, gradients: Mapping[str, int], *, progress: Progress | None = None
) -> TableSpeeds:
    """Measure S of each model on each shape that its jobs can have, by isolated runs on the links.

    Raises
    ------
    InputError
        The gradient size of a model is missing.
    """
    requested = sorted({(str(model), int(gpus)) for model, gpus in zip(jobs.model, jobs.gpus, strict=True) if gpus > 1})
    cases = [
        (model, shape, position) for model, num in requested for shape, position in shapes_of(num, cluster).items()
    ]
    rows: dict[tuple[str, Shape], float] = {}
    for done, (model, shape, index) in enumerate(cases):
        if progress is not None:
            progress(f"{model} alone", done, len(cases))
        compute_ns = _compute_ns(jobs, int(np.flatnonzero(jobs.model == model)[0]))
        slots.start(-1, index, compute_ns, _size_of(gradients, model), _TIMED)
        report = next(_reports(slots))
        rows[model, shape] = compute_ns * _TIMED / (report.ended_ns - report.begun_ns)
    return TableSpeeds(rows, "measured on these links")


def drive(
    slots: Slots,
    jobs: Jobs,
    cluster: Cluster,
    policy: Policy,
    speeds: Speeds,
    gradients: Mapping[str, int],
    *,
    patience_s: float = 600.0,
    progress: Progress | None = None,
) -> ClusterRun:
    """Start and stop real jobs by the decisions of the policy, until all have finished.

    Parameters
    ----------
    slots : Slots
        All free.
    jobs : Jobs
        In real seconds; each does ``work / iteration`` iterations.
    speeds : Speeds
        What the policy believes.
    gradients : mapping
        Bytes by model.
    patience_s : float
        After the last arrival.

    Raises
    ------
    InputError
        The policy needs to know when jobs end, or the gradient size of a model is missing.
    FlightError
        Jobs are not over in time, or a process died.
    """
    online = Online(cluster, jobs, speeds, policy)
    left = {
        row: _Job(_compute_ns(jobs, row), _size_of(gradients, str(jobs.model[row])) if jobs.gpus[row] > 1 else 0,
                  max(1, round(float(jobs.work_ns[row] / jobs.iteration_ns[row]))))
        for row in range(len(jobs))
    }  # fmt: skip
    waiting: dict[int, Start] = {}
    begun_ns = time.monotonic_ns()
    until_ns = int(jobs.arrival_ns[-1]) + round(patience_s * 1e9)
    while online.num_over < len(jobs):
        now_ns = time.monotonic_ns() - begun_ns
        for report in slots.reports():
            left[report.job].num_left -= report.num_done
            if left[report.job].num_left <= 0:
                online.end_job(report.job, now_ns)
                waiting.pop(report.job, None)
        for change in online.advance(now_ns):
            if isinstance(change, Start):
                waiting[change.job] = change
            elif waiting.pop(change.job, None) is None:
                slots.stop(change.job)
        for job, start in list(waiting.items()):
            if slots.can_start(job, start.gpus):
                task = left[job]
                slots.start(job, start.gpus, task.compute_ns, task.gradient_bytes, task.num_left)
                del waiting[job]
        if progress is not None:
            progress("jobs", online.num_over, len(jobs))
        if now_ns > until_ns:
            raise FlightError(
                f"{len(jobs) - online.num_over} jobs are not over", where="real cluster", fix="wait longer"
            )
        time.sleep(_POLL_S)
    return online.result_so_far()


def _reports(slots: Slots) -> Iterator[Report]:
    while True:
        yield from slots.reports()
        time.sleep(_POLL_S)


def _compute_ns(jobs: Jobs, row: int) -> int:
    return round(float(jobs.iteration_ns[row]))


def _size_of(gradients: Mapping[str, int], model: str) -> int:
    if model not in gradients:
        known = ", ".join(sorted(gradients)) or "none"
        raise InputError(
            f"the size of the gradients of {model!r} is not given", where="gradients", fix=f"known: {known}"
        )
    return gradients[model]
