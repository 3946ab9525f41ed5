"""``windtunnel train``: strategies of synchronization on uneven machines and links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, stdout_to_stderr
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json, LedgerPath, Output, numbers
from windtunnel.errors import InputError
from windtunnel.units import format_duration, format_ratio, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from windtunnel.systems.uneven.fleet import Fleet
    from windtunnel.systems.uneven.goal import Goal, Run
    from windtunnel.systems.uneven.search import Candidate, Comparison, Outcome

_SCHEMA = "windtunnel.train/1"

ClusterPath = Annotated[Path, typer.Argument(metavar="CLUSTER", help="Cluster description: workers and links (TOML).")]
JobName = Annotated[
    str, typer.Option(metavar="JOB", help="Job: mlp, lenet:norm=batch, or my_job.py:make, which returns a TrainJob.")
]
Duration = Annotated[str, typer.Option(metavar="TIME", help="Maximum duration of the training, in cluster time.")]
Every = Annotated[
    str,
    typer.Option(
        "--eval-interval",
        metavar="TIME",
        help="Interval between evaluations of the model (default: a twentieth of --duration).",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Random seed; runs in virtual time are reproducible.")]
KernelLinks = Annotated[
    bool,
    typer.Option(
        "--kernel-links", help="Shape real links in the kernel (requires root and iproute2) instead of in user space."
    ),
]
Loss = Annotated[float, typer.Option(metavar="LOSS", help="Target loss; 0: what the first strategy reaches.")]


@registry.verb("train", source="ADSP, DLion, Overlap Local-SGD, SkewScout")
def _group() -> None:
    """Example: windtunnel train plan cluster.toml --policies 'bsp adsp'

    Choose synchronization strategies for training on uneven machines and links.
    """


@registry.verb("train plan", source="ADSP, DLion, Overlap Local-SGD, SkewScout", default="strategies")
def _plan_group() -> None:
    """Example: windtunnel train plan cluster.toml --policies 'bsp adsp'

    Choose a synchronization strategy (default) or the value of its parameter.
    """


@registry.verb("train plan strategies", source="ADSP, DLion, Overlap Local-SGD, SkewScout")
def compare(
    cluster: ClusterPath,
    policies: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Synchronization strategies, separated by spaces, such as 'bsp ssp:staleness=3 adsp'."
        ),
    ] = "bsp ssp local-sgd adsp",
    job: JobName = "mlp",
    loss: Loss = 0.0,
    duration: Duration = "60s",
    every: Every = "",
    fly: Annotated[
        int,
        typer.Option(
            "--verify",
            min=0,
            metavar="N",
            help="Number of best strategies to verify by real runs, in addition to the first one named.",
        ),
    ] = 1,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of interleaved rounds of real runs.")] = 1,
    kernel_links: KernelLinks = False,
    seed: Seed = 0,
    output: Annotated[
        Path | None, typer.Option("--html", metavar="PAGE", help="Write a page of loss, waiting time and traffic.")
    ] = None,
    force: Force = False,
    ledger: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Example: windtunnel train plan cluster.toml --policies 'bsp ssp adsp' --loss 1.0 --verify 1

    Train under each strategy in virtual time, then verify the best by throttled real runs.
    """
    from windtunnel.flights import Ledger
    from windtunnel.systems.uneven.fleet import read_fleet
    from windtunnel.systems.uneven.flight import receipts_of_comparison
    from windtunnel.systems.uneven.search import compare as compared

    if output is not None:
        require_free(output, force=force)
    fleet = read_fleet(cluster)
    candidates = [_candidate(part) for part in policies.split()]
    with Progress("training") as progress, stdout_to_stderr():
        result = compared(
            job, fleet, candidates, _goal(loss, duration, every), num_flown=fly, num_rounds=rounds,
            is_in_kernel=kernel_links, seed=seed, progress=progress,
        )  # fmt: skip
    kept = receipts_of_comparison(result)
    if kept:
        book = Ledger(ledger)
        for receipt in kept:
            book.add(receipt)
    if output is not None:
        from windtunnel.systems.uneven.page import training_page

        training_page(result, output, overwrite=force)
    document = {**_document(result), "receipts": [item.to_dict() for item in kept]}
    show(document, _lines(result), as_json=as_json)
    if kept and not as_json:
        advise("next: windtunnel db receipts")


@registry.verb("train run", source="ADSP, DLion, Overlap Local-SGD, SkewScout")
def run(
    cluster: ClusterPath,
    policy: Annotated[
        str,
        typer.Option(metavar="NAME", help="Synchronization strategy with its parameters, such as adsp:period_s=10."),
    ] = "bsp",
    job: JobName = "mlp",
    loss: Loss = 0.0,
    duration: Duration = "20s",
    every: Every = "",
    virtual: Annotated[
        bool, typer.Option("--virtual", help="Train in virtual time only; the run ends at --loss.")
    ] = False,
    kernel_links: KernelLinks = False,
    seed: Seed = 0,
    graph: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write steps and messages as a graph (.wt).")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel train run cluster.toml --policy adsp:period_s=10 --duration 60s

    Train under a strategy with throttled processes on this host, or in virtual time.
    """
    from windtunnel.systems.uneven.fleet import read_fleet
    from windtunnel.systems.uneven.jobs import train_job
    from windtunnel.systems.uneven.model import train_virtually
    from windtunnel.systems.uneven.run import links_of, train_really

    if graph is not None:
        require_free(graph, force=force)
    fleet, one, goal = read_fleet(cluster), _candidate(policy), _goal(loss, duration, every)
    with Progress("training", heartbeat=True) as progress, stdout_to_stderr():
        if virtual:
            created = registry.get("strategy", one.name).function(**one.numbers)
            total = goal.duration_ns // goal.every_ns
            ran = train_virtually(
                train_job(job), fleet, str(one), created, goal, seed=seed,
                heard=lambda point: progress("training", min(point.time_ns // goal.every_ns, total), total),
            )  # fmt: skip
        else:
            ran = train_really(job, fleet, one.name, one.numbers, goal, seed=seed, is_in_kernel=kernel_links)
    if graph is not None:
        from windtunnel.graph import save
        from windtunnel.systems.uneven.events import run_graph

        save(run_graph(ran, fleet), graph, overwrite=force)
        advise(f"next: windtunnel explain {graph} --table resources")
    kind = "virtual" if virtual else "real"
    links = {} if virtual else {"links": links_of(is_in_kernel=kernel_links)}
    document = {"schema": _SCHEMA, "cluster": fleet.name, "job": job, "kind": kind, **links, **ran.to_dict()}
    show(document, _run_lines(ran, fleet), as_json=as_json)


@registry.verb("train predict", source="ADSP, DLion, Overlap Local-SGD, SkewScout")
def predict(
    cluster: ClusterPath,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="Synchronization strategy with its parameters, such as local-sgd:tau=8.")
    ] = "bsp",
    weights: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of all weights as they are sent over a link.")
    ] = "100MB",
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Number of steps per worker.")] = 100,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel train predict cluster.toml --policy local-sgd:tau=8 --weights 100MB

    Predict throughput and waiting of up to thousands of workers, without gradients.
    """
    from windtunnel.graph import save
    from windtunnel.simulate import replay
    from windtunnel.systems.uneven.analytic import strategy_graph
    from windtunnel.systems.uneven.endpoint import check_policy
    from windtunnel.systems.uneven.fleet import read_fleet

    if output is not None:
        require_free(output, force=force)
    fleet, one = read_fleet(cluster), _candidate(policy)
    created = registry.get("strategy", one.name).function(**one.numbers)
    check_policy(one.name, created, fleet)
    with Progress("predicting", heartbeat=True):
        graph = strategy_graph(fleet, str(one), created, steps, parse_size(weights))
        timeline = replay(graph)
    num = fleet.num_workers * steps
    finish_ns = timeline.finish_ns[:num].reshape(fleet.num_workers, steps)
    busy_ns = graph.tasks["duration_ns"][:num].reshape(fleet.num_workers, steps).sum(axis=1)
    waits = 1 - busy_ns / finish_ns[:, -1]
    rate_per_s = float((steps / (finish_ns[:, -1] / 1e9)).sum())
    if output is not None:
        save(graph, output, overwrite=force)
    document = {
        "schema": _SCHEMA,
        "cluster": fleet.name,
        "strategy": str(one),
        "num_workers": fleet.num_workers,
        "steps_per_s": rate_per_s,
        "elapsed_ns": int(timeline.makespan_ns),
        "wait_shares": waits,
    }
    mean, largest = format_ratio(float(waits.mean())), format_ratio(float(waits.max()))
    lines = [
        f"{one} on {fleet.name}: {fleet.num_workers} workers, {rate_per_s:,.1f} steps per second in total",
        f"{steps} steps per worker take {format_duration(float(timeline.makespan_ns))}",
        f"workers wait {mean} of the time (mean), {largest} (max)",
    ]
    show(document, lines, as_json=as_json)


@registry.verb("train plan values", source="ADSP, DLion, Overlap Local-SGD, SkewScout")
def tune(
    cluster: ClusterPath,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="Synchronization strategy with its parameters, such as adsp:period_s=2.")
    ] = "adsp",
    values: Annotated[
        str, typer.Option(metavar="LIST", help="Values to try, separated by commas; training starts with the first.")
    ] = "",
    period: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Time after which the value is chosen again (default: a tenth of --duration)."
        ),
    ] = "",
    job: JobName = "mlp",
    loss: Loss = 0.0,
    duration: Duration = "60s",
    every: Every = "",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Example: windtunnel train plan values cluster.toml --policy adsp:period_s=2 --values 1,2,4,8 --period 4s

    Choose the value of a strategy's parameter on copies of a training in virtual time.
    """
    from windtunnel.systems.uneven.fleet import read_fleet
    from windtunnel.systems.uneven.jobs import train_job
    from windtunnel.systems.uneven.tuning import tune as tuned

    fleet, one, goal = read_fleet(cluster), _candidate(policy), _goal(loss, duration, every)
    grid = numbers(values, "--values")
    period_ns = parse_duration(period) if period else max(goal.duration_ns // 10, 1)
    with Progress("tuning") as progress, stdout_to_stderr():
        result = tuned(train_job(job), fleet, one, grid, goal, period_ns, seed=seed, progress=progress)
    document = {"schema": _SCHEMA, "cluster": fleet.name, "job": job, "strategy": str(result.candidate),
                "periods": [asdict(item) for item in result.periods], "run": result.run.to_dict()}  # fmt: skip
    rows = [
        (item.begin_ns, "  ".join(f"{value:g}: {loss:.4f}" for value, loss in sorted(item.losses)), item.selected)
        for item in result.periods
    ]
    last = result.run.points[-1]
    lines: list[str | Table] = [
        Table({"start": format_duration, f"loss by {result.number}": str, "selected": "{:g}"}, rows),
        "",
        f"{result.candidate} on {fleet.name}: a loss of {last.loss:.4f} after {format_duration(last.time_ns)}",
    ]
    show(document, lines, as_json=as_json)
    if not as_json:
        advise(f"next: windtunnel train run {cluster} --policy {result.candidate} --job {job} --duration {duration}")


def _candidate(text: str) -> Candidate:
    from windtunnel.systems.uneven.search import Candidate
    from windtunnel.whatifs import parse_step

    step = parse_step(text, kind="strategy")
    return Candidate(step.name, dict(step.parameters))


def _goal(loss: float, duration: str, every: str) -> Goal:
    from windtunnel.systems.uneven.goal import Goal

    duration_ns = parse_duration(duration)
    every_ns = parse_duration(every) if every else max(duration_ns // 20, 1)
    if not 0 < every_ns <= duration_ns:
        raise InputError(
            "--eval-interval exceeds the duration", where="--eval-interval", fix="choose a shorter one than --duration"
        )
    return Goal(duration_ns, loss=loss or None, every_ns=every_ns)


def _document(found: Comparison) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "cluster": found.fleet.name,
        "job": found.job,
        "target_loss": found.target_loss,
        "baseline": str(found.baseline),
        "links": found.links,
        "outcomes": [
            {
                "strategy": str(outcome.candidate),
                "predicted_ns": outcome.predicted_ns,
                "flown_ns": outcome.median_ns,
                "flown_rounds_ns": list(outcome.flown_ns),
                "predicted": outcome.predicted.to_dict(),
                "flown": [run.to_dict() for run in outcome.flown],
            }
            for outcome in found.outcomes
        ],
    }


def _lines(found: Comparison) -> Iterator[str | Table]:
    yield f"{found.job} on {found.fleet.name}, time to a loss of {found.target_loss:.3f}"
    yield ""
    columns = {"strategy": str, "predicted": "{}", "measured": "{}", "final loss": "{:.3f}", "waiting": format_ratio,
               "traffic": format_size}  # fmt: skip
    rows = []
    for outcome in found.outcomes:
        run, waits = outcome.predicted, outcome.predicted.wait_shares()
        predicted = "not reached" if outcome.predicted_ns is None else format_duration(outcome.predicted_ns)
        rows.append((outcome.candidate, predicted, _format_real_times(outcome), run.points[-1].loss,
                     sum(waits) / len(waits), sum(run.bytes_by_pair().values())))  # fmt: skip
    yield Table(columns, rows)
    for text in dict.fromkeys(text for item in found.outcomes for text in item.predicted.warnings):
        yield f"note: {text}"


def _format_real_times(one: Outcome) -> str:
    """Real times to the target: their median, and the ends of what was seen where there were several."""
    if not one.flown:
        return ""
    times_ns = one.reached_ns
    if one.median_ns is None:
        return f"reached {len(times_ns)} of {len(one.flown)} times" if len(one.flown) > 1 else "not reached"
    spread = f" ({format_duration(min(times_ns))} to {format_duration(max(times_ns))})" if len(times_ns) > 1 else ""
    return format_duration(one.median_ns) + spread


def _run_lines(ran: Run, fleet: Fleet) -> Iterator[str | Table]:
    columns = {"time": format_duration, "loss": "{:.4f}", "accuracy": "{:.3f}", "steps": "{}"}
    yield Table(columns, [(point.time_ns, point.loss, point.accuracy, point.num_steps) for point in ran.points])
    yield ""
    for rank, share in zip(range(fleet.num_nodes), ran.wait_shares(), strict=False):
        yield f"{fleet.node_name(rank):12} waits {format_ratio(share)}"
    yield from (f"note: {text}" for text in ran.warnings)
