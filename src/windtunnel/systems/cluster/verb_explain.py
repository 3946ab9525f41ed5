"""``windtunnel cluster show``: why one job ended when it did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, show
from windtunnel.cli.options import Json
from windtunnel.systems.cluster.options import (
    FREE,
    Arrivals,
    ClusterPath,
    Compress,
    JobsPath,
    Models,
    Number,
    Overlap,
    Seed,
    ShapeRule,
    SharedLinks,
    Skip,
    SpeedsPath,
    read_inputs,
)

if TYPE_CHECKING:
    from windtunnel.systems.cluster.explain import Why

__all__ = ["explain"]

_SCHEMA = "windtunnel.cluster-explain/1"


@registry.verb("cluster show", source="Dally")
def explain(
    jobs: JobsPath,
    cluster: ClusterPath,
    job: Annotated[str, typer.Option(metavar="ID", help="Job ID (default: the job that waited longest).")] = "",
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Scheduling policy with its parameters, such as dally-manual:rack_timer_h=2."
        ),
    ] = "windtunnel",
    speeds: SpeedsPath = FREE,
    shape: ShapeRule = "exact",
    overlap: Overlap = False,
    shared_links: SharedLinks = False,
    arrivals: Arrivals = "",
    compress: Compress = 1.0,
    models: Models = "",
    generate: Number = 0,
    seed: Seed = 0,
    skip_too_large: Skip = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel cluster show jobs.csv --cluster cluster.json --policy dally --job 17

    Show the offers that a job declined, and when it would have ended with each of them.

    The whole run is simulated once more for each offer.
    """
    from windtunnel.systems.cluster.explain import explain_job
    from windtunnel.systems.cluster.model import simulate as simulated
    from windtunnel.systems.cluster.policy import read_policy

    given = read_inputs(jobs, cluster, speeds, shape, arrivals, compress, models, generate, seed, overlap=overlap,
                     skip_too_large=skip_too_large, shares_links=shared_links)  # fmt: skip
    created = read_policy(policy)
    with Progress("simulating", heartbeat=True) as progress:
        if not job:
            run = simulated(given.cluster, given.jobs, given.speeds, created)
            job = str(given.jobs.job_id[run.queueing_ns.argmax()])
        result = explain_job(given.cluster, given.jobs, given.speeds, created, job, progress=progress)
    end_ns, mean_ns = int(result.run.end_ns[result.job]), float(result.run.jct_ns.mean())
    about = {"schema": _SCHEMA, "policy": policy, "job": job, "end_ns": end_ns, "mean_jct_ns": mean_ns}
    declined = [asdict(item) for item in result.declined]
    document = {**about, "num_offers": result.num_offers, "declined": declined}
    show(document, _lines(result, job, policy), as_json=as_json)


def _lines(found: Why, job: str, policy: str) -> Iterator[str | Table]:
    from windtunnel.systems.cluster.explain import TIERS

    run, row = found.run, found.job
    begun_ns = int(run.jobs.arrival_ns[row])
    gpus, waiting_ns, jct_ns = int(run.jobs.gpus[row]), float(run.queueing_ns[row]), float(run.jct_ns[row])
    yield f"job {job} of {gpus} GPUs under {policy}: JCT {_hours(jct_ns)}, of which {_hours(waiting_ns)} waiting"
    if not found.declined:
        yield f"it declined no offer: while it waited, {gpus} GPUs were not free or went to other jobs"
        return
    mean_ns = float(run.jct_ns.mean())
    columns = {"waited": _hours, "offer": str, "machines": "{}", "speed": "{:.2f}", "count": "{}",
               "end of the job": str, "mean JCT": str}  # fmt: skip
    yield Table(columns, [
        (item.time_ns - begun_ns, TIERS[item.tier], item.num_machines, item.speed, item.num_same,
         _sooner(float(run.end_ns[row] - item.end_ns)), _sooner(mean_ns - item.mean_jct_ns))
        for item in found.declined
    ])  # fmt: skip
    best = found.best
    reported = "none would have ended it sooner"
    if best is not None:
        gain = _sooner(float(run.end_ns[row] - best.end_ns))
        reported = f"best: {TIERS[best.tier]}, {_hours(best.time_ns - begun_ns)} after arrival, ending {gain}"
    yield (f"{found.num_offers} offers were declined; {reported}")


def _hours(time_ns: float) -> str:
    return f"{time_ns / 3.6e12:,.2f} h"


def _sooner(gain_ns: float) -> str:
    minutes = gain_ns / 6e10
    if abs(minutes) < 0.05:
        return "unchanged"
    return f"{abs(minutes):,.1f} min {'sooner' if minutes > 0 else 'later'}"
