"""``windtunnel cluster``: many jobs on one cluster, under one policy or another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json, numbers
from windtunnel.systems.cluster import verb_drive, verb_explain  # noqa: F401 - each registers its verbs
from windtunnel.systems.cluster.options import (
    FREE,
    Arrivals,
    ClusterInputs,
    ClusterPath,
    Compress,
    JobsPath,
    Models,
    Number,
    Overlap,
    Quantum,
    Seed,
    ShapeRule,
    SharedLinks,
    Skip,
    SpeedsPath,
    read_inputs,
)
from windtunnel.units import format_ratio

if TYPE_CHECKING:
    from windtunnel.systems.cluster.search import Outcome, Tuned

_SCHEMA = "windtunnel.cluster/1"

Page = Annotated[Path | None, typer.Option("--html", metavar="PAGE", help="Write a page of the runs.")]


@registry.verb("cluster", source="Dally")
def _group() -> None:
    """Example: windtunnel cluster plan jobs.csv --cluster cluster.json

    Simulate and schedule the jobs of a cluster.
    """


@registry.verb("cluster predict", source="Dally")
def simulate(
    jobs: JobsPath,
    cluster: ClusterPath,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Scheduling policy with its parameters, such as dally-manual:rack_timer_s=7200."
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
    quantum: Quantum = 0,
    graph: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the run as a graph of job segments (.wt).")
    ] = None,
    write_jobs: Annotated[
        Path | None, typer.Option("--write-jobs", metavar="CSV", help="Write the jobs, such as generated ones (CSV).")
    ] = None,
    output: Page = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel cluster predict jobs.csv --cluster cluster.json --policy dally

    Predict start and end of every job under a scheduling policy.
    """
    from windtunnel.systems.cluster.metrics import document, summarize
    from windtunnel.systems.cluster.model import simulate as simulated
    from windtunnel.systems.cluster.policy import read_policy
    from windtunnel.systems.cluster.search import Outcome

    for path in (graph, output, write_jobs):
        if path is not None:
            require_free(path, force=force)
    given = read_inputs(jobs, cluster, speeds, shape, arrivals, compress, models, generate, seed, overlap=overlap,
                     skip_too_large=skip_too_large, shares_links=shared_links)  # fmt: skip
    with Progress("simulating", heartbeat=True) as progress:
        run = simulated(
            given.cluster, given.jobs, given.speeds, read_policy(policy), quantum=quantum, progress=progress
        )
        summary = summarize(run)
    outcome = Outcome(policy, run, summary)
    if write_jobs is not None:
        from windtunnel.systems.cluster import formats

        formats.write_jobs(given.jobs, write_jobs)
    if graph is not None:
        from windtunnel.graph import save
        from windtunnel.systems.cluster.segments import segments_graph

        save(segments_graph(run), graph, overwrite=force)
    _write(given, [outcome], output, force=force)
    about = {"schema": _SCHEMA, "cluster": given.cluster.json(), "policy": policy, "notes_of_trace": given.notes}
    show({**about, **document(run)}, _lines(given, [outcome]), as_json=as_json)
    if graph is not None and not as_json:
        advise(f"next: windtunnel explain {graph} --table resources")


@registry.verb("cluster plan", source="Dally", default="policies")
def _plan_group() -> None:
    """Example: windtunnel cluster plan jobs.csv --cluster cluster.json

    Choose a scheduling policy (default) or the delay timers of a policy.
    """


@registry.verb("cluster plan policies", source="Dally")
def compare(
    jobs: JobsPath,
    cluster: ClusterPath,
    policies: Annotated[
        str, typer.Option(metavar="LIST", help="Policies to compare, separated by spaces.")
    ] = "windtunnel dally dally-nowait dally-consolidated tiresias",
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
    quantum: Quantum = 0,
    output: Page = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel cluster plan jobs.csv --cluster cluster.json --policies 'dally tiresias'

    Compare scheduling policies on the same jobs, smallest mean completion time first.
    """
    from windtunnel.systems.cluster.metrics import document
    from windtunnel.systems.cluster.policy import read_policy
    from windtunnel.systems.cluster.search import compare as compared

    if output is not None:
        require_free(output, force=force)
    given = read_inputs(jobs, cluster, speeds, shape, arrivals, compress, models, generate, seed, overlap=overlap,
                     skip_too_large=skip_too_large, shares_links=shared_links)  # fmt: skip
    named = {text: read_policy(text) for text in policies.split()}
    with Progress("simulating", heartbeat=True) as progress:
        result = compared(given.cluster, given.jobs, given.speeds, named, quantum=quantum, progress=progress)
    _write(given, result, output, force=force)
    outcomes = [{"policy": item.name, **document(item.run)} for item in result]
    about = {"schema": _SCHEMA, "cluster": given.cluster.json(), "notes_of_trace": given.notes}
    show({**about, "outcomes": outcomes}, _lines(given, result), as_json=as_json)


@registry.verb("cluster plan timers", source="Dally")
def tune(
    jobs: JobsPath,
    cluster: ClusterPath,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="Policy whose queue order and placement rule are used.")
    ] = "dally-manual",
    leases: Annotated[
        str,
        typer.Option(
            "--timers", metavar="LIST", help="Delay timers to try, in multiples of a lease, separated by commas."
        ),
    ] = "0,1,2,4,8,16,32,64",
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
    """Example: windtunnel cluster plan timers jobs.csv --cluster cluster.json

    Find the delay timers with the smallest mean completion time, with options for Slurm.
    """
    from windtunnel.systems.cluster.policy import read_policy
    from windtunnel.systems.cluster.search import tune as tuned

    tries = numbers(leases, "--timers", least=0.0)
    given = read_inputs(jobs, cluster, speeds, shape, arrivals, compress, models, generate, seed, overlap=overlap,
                     skip_too_large=skip_too_large, shares_links=shared_links)  # fmt: skip
    with Progress("tuning", heartbeat=True) as progress:
        result = tuned(given.cluster, given.jobs, given.speeds, read_policy(policy), leases=tries, progress=progress)
    pairs = [
        {"rack_timer_s": rack, "network_timer_s": network, "mean_jct_h": pair.mean_jct_h, "jct_h": pair.jct_h,
         "makespan_h": pair.makespan_h}
        for (rack, network), pair in result.pairs.items()
    ]  # fmt: skip
    best = dict(zip(("rack_timer_s", "network_timer_s"), result.best, strict=True))
    document = {"schema": _SCHEMA, "best": best, "auto_mean_jct_h": result.auto.mean_jct_h, "pairs": pairs}
    show(document, _describe_timers(result), as_json=as_json)


def _write(given: ClusterInputs, found: list[Outcome], output: Path | None, *, force: bool) -> None:
    if output is not None:
        from windtunnel.systems.cluster.page import cluster_page

        cluster_page(found, output, notes=given.notes, overwrite=force)


def _lines(given: ClusterInputs, found: list[Outcome]) -> Iterator[str | Table]:
    from windtunnel.systems.cluster.metrics import honest_notes

    yield f"{given.jobs} on {given.cluster}"
    yield ""
    times = dict.fromkeys(("mean JCT", "p99 JCT", "mean wait", "max wait", "makespan"), "{:,.1f}")
    rows = [
        (item.name, s.mean_jct_h, s.jct_h[99], s.mean_queueing_h, s.longest_wait_h, s.makespan_h,
         s.communication_share, s.utilization)
        for item in found
        for s in (item.summary,)
    ]  # fmt: skip
    yield Table({"policy": str, **times, "comm": format_ratio, "utilization": format_ratio}, rows)
    yield "times in hours; JCT: job completion time; comm: communication, as a fraction of running time"
    yield from (f"note: {text}" for text in given.notes)
    yield from (f"{item.name}: {text}" for item in found for text in honest_notes(item.run))


def _describe_timers(found: Tuned) -> Iterator[str | Table]:
    best = sorted(found.pairs.items(), key=lambda pair: pair[1].mean_jct_h)[:8]
    columns = {"machine timer": "{:g} h", "rack timer": "{:g} h", "mean JCT (h)": "{:,.2f}", "p99 JCT (h)": "{:,.1f}"}
    yield Table(columns, [
        (rack / 3600, network / 3600, item.mean_jct_h, item.jct_h[99]) for (rack, network), item in best
    ])  # fmt: skip
    yield f"automatic timers: mean JCT {found.auto.mean_jct_h:,.2f} h"
    seconds = round(found.best[1])
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    yield (f"for Slurm: sbatch --switches=1@{clock}, with SchedulerParameters=max_switch_wait={seconds} or more")
