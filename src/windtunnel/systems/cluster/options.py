"""Options that the verbs of clusters share, and the inputs that they select.

In: paths and texts. Out: cluster, jobs, speeds. Not here: any verb.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.search.speeds import Speeds
    from windtunnel.systems.cluster.jobs import Jobs
    from windtunnel.systems.cluster.layout import Cluster

__all__ = [
    "FREE",
    "Arrivals",
    "ClusterInputs",
    "ClusterPath",
    "Compress",
    "JobsPath",
    "Models",
    "Number",
    "Overlap",
    "Quantum",
    "Seed",
    "ShapeRule",
    "SharedLinks",
    "Skip",
    "SpeedsPath",
    "read_inputs",
]

FREE = "free"

JobsPath = Annotated[
    Path,
    typer.Argument(
        metavar="JOBS", help="Job trace (CSV) in the format of windtunnel, Philly, Helios, Alibaba, Tiresias or Dally."
    ),
]
ClusterPath = Annotated[
    Path, typer.Option("--cluster", metavar="FILE", help="Cluster description: tiers and links (JSON).")
]
SpeedsPath = Annotated[
    str,
    typer.Option(
        "--speeds",
        metavar="PATH",
        help="Speeds of placements: a table, a folder of layer tables or of graphs; free: communication costs nothing.",
    ),
]
ShapeRule = Annotated[
    str, typer.Option("--shape", metavar="RULE", help="Rule for uneven placements: exact, published or flat.")
]
SharedLinks = Annotated[bool, typer.Option("--shared-links", help="Jobs that share a link slow each other down.")]
Overlap = Annotated[bool, typer.Option("--overlap", help="Overlap gradient averaging with the backward pass.")]
Arrivals = Annotated[
    str, typer.Option(metavar="NAME", help="Column of arrival times, where the trace has several, such as p100day.")
]
Compress = Annotated[
    float, typer.Option("--arrival-speedup", metavar="X", help="Factor by which arrivals are accelerated.")
]
Models = Annotated[
    str, typer.Option(metavar="SHARES", help="Model mix of jobs that name no model, such as 'vgg11=1 resnet50=3'.")
]
Number = Annotated[
    int,
    typer.Option(
        "--generate",
        min=0,
        metavar="N",
        help="Number of synthetic jobs to generate from the trace; 0: use the trace itself.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Random seed of generated jobs and sampled models.")]
Skip = Annotated[
    bool, typer.Option("--skip-too-large", help="Leave out jobs that need more GPUs than the cluster has.")
]
Quantum = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Iterations between scheduling decisions, as published; 0: decide at events only."
    ),
]


class ClusterInputs:
    """The inputs of a simulation, read from the options of a verb."""

    def __init__(self, cluster: Cluster, jobs: Jobs, speeds: Speeds, notes: list[str]) -> None:
        self.cluster, self.jobs, self.speeds, self.notes = cluster, jobs, speeds, notes


def read_inputs(
    jobs_path: Path, cluster_path: Path, speeds: str, shape: str, arrivals: str, compress: float, models: str,
    num_generated: int, seed: int, *, overlap: bool, skip_too_large: bool, shares_links: bool,
) -> ClusterInputs:  # fmt: skip
    """Read the cluster, its jobs and the speeds of their models."""
    from windtunnel.search.speeds import TableSpeeds
    from windtunnel.systems.cluster.formats import read_jobs
    from windtunnel.systems.cluster.generator import fit_mix, generate, with_models
    from windtunnel.systems.cluster.layout import read_cluster

    cluster = read_cluster(cluster_path)
    cluster = replace(cluster, shares_links=cluster.shares_links or shares_links)
    trace = read_jobs(jobs_path, arrivals=arrivals)
    jobs, notes = trace.jobs, list(trace.notes)
    if num_generated:
        jobs = generate(fit_mix(jobs), num_generated, seed=seed)
    if models:
        jobs = with_models(jobs, _shares(models), seed=seed)
    large = jobs.gpus > cluster.num_gpus
    if skip_too_large and large.any() and not large.all():
        notes.append(f"{int(large.sum())} jobs are larger than the cluster and were left out")
        jobs = jobs.take(~large)
    result = _speeds(speeds, shape, cluster, overlap=overlap)
    noisy = result.faster_than_ideal if isinstance(result, TableSpeeds) else []
    if noisy:
        notes.append(
            f"{len(noisy)} rows of the table of speeds are above 1, which noise can cause: {', '.join(noisy[:4])}"
        )
    return ClusterInputs(cluster, jobs.speed_up_arrivals(compress), result, notes)


def _speeds(text: str, shape: str, cluster: Cluster, *, overlap: bool) -> Speeds:
    from windtunnel.search import speeds as of

    if text == FREE:
        return of.FreeCommunication()
    path = Path(text)
    if path.is_file():
        return of.read_speed_table(path)
    graphs = sorted(path.glob("*.wt"))
    if graphs:
        from windtunnel.graph import load

        return of.GraphSpeeds({graph.stem: load(graph) for graph in graphs}, cluster.links, rule=shape)
    return of.LayerSpeeds(of.read_profiles(path), cluster.links, rule=shape, overlap=overlap)


def _shares(text: str) -> dict[str, float]:
    pairs = [piece.partition("=") for piece in text.split()]
    try:
        return {name: float(value or 1) for name, _, value in pairs}
    except ValueError as cause:
        raise InputError(f"{text!r} are no shares", where="--models", fix="write 'vgg11=1 resnet50=3'") from cause
