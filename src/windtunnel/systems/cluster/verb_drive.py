"""``windtunnel cluster run``: jobs through a real Slurm under a policy, compared with the prediction."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, show
from windtunnel.cli.options import Json
from windtunnel.errors import InputError
from windtunnel.units import parse_size

if TYPE_CHECKING:
    from windtunnel.systems.cluster.jobs import Jobs
    from windtunnel.systems.cluster.layout import Cluster
    from windtunnel.systems.cluster.model import ClusterRun
    from windtunnel.systems.cluster.policy import Policy
    from windtunnel.systems.cluster.slurm.drive import Driven

__all__ = ["drive"]

_SCHEMA = "windtunnel.cluster-drive/1"


@registry.verb("cluster run", source="Dally")
def drive(
    jobs: Annotated[Path, typer.Argument(metavar="JOBS", help="Job trace with times in real seconds (CSV).")],
    cluster: Annotated[
        Path, typer.Option("--cluster", metavar="FILE", help="Cluster description: tiers and links (JSON).")
    ],
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="Scheduling policy with fixed timers.")
    ] = "dally-manual:rack_timer_h=0.001,network_timer_h=0.002",
    local: Annotated[
        bool, typer.Option("--local", help="Start a Slurm with the nodes of this cluster on this host.")
    ] = False,
    processes: Annotated[
        bool, typer.Option("--processes", help="Run on processes and shaped links of this host instead of Slurm.")
    ] = False,
    leases: Annotated[
        bool, typer.Option("--leases", help="Let the policy preempt jobs; a {command} resumes from {state}.")
    ] = False,
    gradients: Annotated[
        str,
        typer.Option(metavar="SIZES", help="With --processes: gradient size per model, such as 'vgg=8MB resnet=1MB'."),
    ] = "",
    command: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Command of each job, with {job_id}, {gpus}, {seconds} (default: sleep)."),
    ] = "",
    run: Annotated[
        str,
        typer.Option(
            "--run-name", metavar="NAME", help="Name of the run; a restarted driver finds the jobs of its name."
        ),
    ] = "windtunnel",
    as_json: Json = False,
) -> None:
    """Example: windtunnel cluster run jobs.csv --cluster cluster.json --local

    Submit jobs to Slurm under a scheduling policy and compare with the prediction.
    """
    from windtunnel.search.speeds import FreeCommunication
    from windtunnel.systems.cluster.formats import read_jobs
    from windtunnel.systems.cluster.layout import read_cluster
    from windtunnel.systems.cluster.model import simulate
    from windtunnel.systems.cluster.policy import read_policy
    from windtunnel.systems.cluster.slurm.drive import drive as driven
    from windtunnel.systems.cluster.slurm.local import local_slurm

    shape, requested = read_cluster(cluster), read_jobs(jobs).jobs
    rule = read_policy(policy)
    if processes:
        _show(_on_processes(shape, requested, rule, _sizes(gradients)), policy, as_json=as_json)
        return
    predicted = simulate(shape, requested, FreeCommunication(), rule)
    with contextlib.ExitStack() as stack:
        environment: dict[str, str] = {}
        if local:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windtunnel-slurm-")))
            environment = stack.enter_context(local_slurm(shape, folder / "slurm"))
        with Progress("driving", heartbeat=True) as progress:
            if leases:
                really = _with_leases(shape, requested, rule, environment, command, run, progress)
                _show(_rows(really, predicted), policy, as_json=as_json)
                return
            how = _command(command or "sleep {seconds}")
            result = driven(requested, shape, rule, environment, command=how, run=run, progress=progress)
    _show(_beside(result, predicted), policy, as_json=as_json)


def _show(rows: list[dict[str, Any]], policy: str, *, as_json: bool) -> None:
    columns = [("job", str), ("GPUs", "{}"), ("machines", str), ("start", "{:.0f} s"), ("predicted", "{:.0f} s"),
               ("end", "{:.0f} s"), ("predicted", "{:.0f} s")]  # fmt: skip
    names = ("job_id", "gpus", "machines", "started_s", "predicted_start_s", "ended_s", "predicted_end_s")
    failed = [row for row in rows if row["state"] != "COMPLETED"]
    notes = [f"note: job {row['job_id']} is {row['state']}" for row in failed]
    table = Table(columns, [[row[name] for name in names] for row in rows])
    show({"schema": _SCHEMA, "policy": policy, "jobs": rows}, [table, *notes], as_json=as_json)
    if failed and not as_json:
        raise typer.Exit(1)


def _on_processes(shape: Cluster, jobs: Jobs, rule: Policy, sizes: dict[str, int]) -> list[dict[str, Any]]:
    """Measure each model on each shape, predict, really run the same policy."""
    from windtunnel.systems.cluster.model import simulate
    from windtunnel.systems.cluster.real.drive import drive as driven
    from windtunnel.systems.cluster.real.drive import measure_speeds
    from windtunnel.systems.cluster.real.slots import real_slots

    with real_slots(shape) as slots:
        with Progress("measuring") as progress:
            speeds = measure_speeds(slots, jobs, shape, sizes, progress=progress)
        predicted = simulate(shape, jobs, speeds, rule)
        with Progress("driving", heartbeat=True) as progress:
            run = driven(slots, jobs, shape, rule, speeds, sizes, progress=progress)
    return _rows(run, predicted)


def _with_leases(
    shape: Cluster, jobs: Jobs, rule: Policy, environment: dict[str, str], command: str, run: str, progress: Progress
) -> ClusterRun:
    """Let the policy start and stop jobs of Slurm."""
    from windtunnel.search.speeds import FreeCommunication
    from windtunnel.systems.cluster.slurm.leases import drive_leases, resuming

    folder = Path.cwd() / f"{run}.state"
    folder.mkdir(exist_ok=True)
    how = _command(command, folder) if command else resuming(folder)
    done = drive_leases(jobs, shape, rule, FreeCommunication(), environment, how, run=run, progress=progress)
    shutil.rmtree(folder)
    return done


def _rows(run: ClusterRun, predicted: ClusterRun) -> list[dict[str, Any]]:
    """Where each job ended, and when, beside what was predicted."""
    rows, jobs = [], run.jobs
    for row in range(len(jobs)):
        last = int(run.segments["placement"][run.segments["job"] == row][-1])
        width = int(run.segments["width"][run.segments["job"] == row][-1])
        machines = ",".join(f"m{machine}" for machine in run.placements["machine"][last : last + width])
        rows.append(
            {
                "job_id": str(jobs.job_id[row]), "gpus": int(jobs.gpus[row]), "machines": machines,
                "state": "COMPLETED", "submitted_s": jobs.arrival_ns[row] / 1e9, "started_s": run.first_ns[row] / 1e9,
                "ended_s": run.end_ns[row] / 1e9, "predicted_start_s": predicted.first_ns[row] / 1e9,
                "predicted_end_s": predicted.end_ns[row] / 1e9,
            }
        )  # fmt: skip
    return rows


def _sizes(text: str) -> dict[str, int]:
    pairs = [piece.partition("=") for piece in text.split()]
    if not all(sign for _, sign, _ in pairs):
        raise InputError(f"{text!r} is no list of sizes", where="--gradients", fix="write 'vgg=8MB resnet=1MB'")
    return {name: int(parse_size(size)) for name, _, size in pairs}


def _command(template: str, folder: Path = Path()) -> Callable[[Jobs, int], str]:
    def of(jobs: Jobs, row: int) -> str:
        given = {"job_id": jobs.job_id[row], "gpus": jobs.gpus[row], "seconds": f"{jobs.work_ns[row] / 1e9:.3f}",
                 "state": folder / str(jobs.job_id[row])}  # fmt: skip
        try:
            return template.format(**given)
        except (KeyError, IndexError, ValueError) as cause:
            raise InputError(
                f"{template!r} has an unknown placeholder",
                where="--command",
                fix="use {job_id}, {gpus}, {seconds}, {state}",
            ) from cause

    return of


def _beside(found: list[Driven], predicted: ClusterRun) -> list[dict[str, Any]]:
    jobs = predicted.jobs
    locations = {str(name): row for row, name in enumerate(jobs.job_id)}
    rows = []
    for item in found:
        row = locations[item.job_id]
        rows.append(
            {
                "job_id": item.job_id, "gpus": int(jobs.gpus[row]), "machines": item.machines, "state": item.state,
                "submitted_s": item.submitted_s, "started_s": item.started_s, "ended_s": item.ended_s,
                "predicted_start_s": predicted.first_ns[row] / 1e9, "predicted_end_s": predicted.end_ns[row] / 1e9,
            }
        )  # fmt: skip
    return rows
