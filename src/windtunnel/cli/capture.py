"""``windtunnel capture``: run a script unmodified, keep the graph of one iteration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, choose_wait_policy, clean, show, stdout_to_stderr, suggest
from windtunnel.cli.dry_run import capture_dry_run
from windtunnel.cli.files import derive_path, redirect_writes, report_writes, require_free, warn_of_disturbance
from windtunnel.cli.options import Bandwidth, Force, GuessValues, Json, Latency, NumProcesses, Output, ranks_of
from windtunnel.cli.subjects import is_script, subject_of
from windtunnel.errors import FlightError, InputError

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.sources.targets import Script, WorkloadName

__all__ = ["capture"]


@registry.verb("capture", source="windtunnel")
def capture(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT.py|WORKLOAD", help="Training script (unmodified), or a workload such as mlp:width=64."
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Number of iterations to measure.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Number of warm-up iterations.")] = 3,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Trace a job of --ranks processes without hardware; `predict` adds the times."),
    ] = False,
    ranks: Annotated[int, typer.Option("--ranks", min=1, metavar="N", help="Dry run: number of ranks of the job.")] = 1,
    ranks_to_trace: Annotated[
        str,
        typer.Option(
            "--ranks-to-trace",
            metavar="R,R",
            help="Dry run: ranks to trace (default: 0 and the first rank of each pipeline stage).",
        ),
    ] = "",
    devices_per_host: Annotated[
        int, typer.Option("--devices-per-host", min=1, metavar="N", help="Dry run: number of devices per host.")
    ] = 8,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="TYPE",
            help="Device type that the script finds: cuda or cpu. Default: cuda; with --fake, if it fails without.",
        ),
    ] = "",
    fake: Annotated[
        bool, typer.Option("--fake", help="Trace one process on fake tensors: operators and shapes without times.")
    ] = False,
    guess_values: GuessValues = False,
    zeros: Annotated[
        bool, typer.Option("--zeros", help="Also record zero masks in one more iteration, for `chip predict`.")
    ] = False,
    zeros_after: Annotated[
        int,
        typer.Option(
            "--zeros-after", min=1, metavar="N", help="With --zeros: record the Nth iteration after the measured ones."
        ),
    ] = 1,
    scratch: Annotated[
        bool, typer.Option("--scratch", help="Redirect files that the script writes to a temporary directory.")
    ] = False,
    nproc: NumProcesses = 1,
    bandwidth: Bandwidth = "",
    latency: Latency = "",
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel capture train.py --epochs 3

    Run an unmodified training script, measure some iterations and write the graph of one.

    With --dry-run, a distributed script is traced without its hardware and without its other ranks. Options of
    windtunnel come before the script; everything after it is passed to the script, whose output goes to stderr.
    """
    from windtunnel.sources.torch.script import IncompleteCaptureError, num_planned

    path = require_free(
        derive_path(Path(target if is_script(target) else target.partition(":")[0]), _suffix(), output), force=force
    )
    if dry_run or fake:
        _require_script(target, "--dry-run" if dry_run else "--fake")
    if dry_run:
        traced = {
            "num_ranks": ranks,
            "devices_per_host": devices_per_host,
            "device": device or "cuda",
            "guesses": guess_values,
        }
        capture_dry_run(Path(target), arguments or [], path, ranks_to_trace, **traced, force=force, as_json=as_json)
        return
    if fake:
        options = {"guesses": guess_values, "has_device": _finds_device(device)}
        _capture_fake(Path(target), arguments or [], path, **options, force=force, as_json=as_json)
        return
    masks = require_free(path.with_suffix(".zeros.npz"), force=force) if zeros else None
    subject = subject_of(target, arguments or (), ranks_of(nproc, bandwidth, latency))
    choose_wait_policy()
    files = _watch_files(subject, scratch=scratch)
    try:
        with files, Progress(f"capturing {clean(target, 60)}") as progress, stdout_to_stderr():
            if masks is None:
                graph = subject.capture(iterations, progress, warmup=warmup)
            else:
                graph = _with_zeros(subject, masks, zeros_after, iterations, warmup, progress)
    # What was captured before the script ended or was interrupted is worth keeping.
    except IncompleteCaptureError as error:
        if error.graph is not None:
            _keep(error.graph, path, force)
            advise(f"the partial capture was written to {path}")
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    _keep(graph, path, force)
    require_recorded_kernels(graph, path)
    show(_document(graph, path), _lines(graph, path), as_json=as_json)
    if not graph.meta.is_complete:
        result = len(graph.meta.profiled_iteration_ns.get("samples", ()))
        advise(
            f"{Path(target).name} ended early: the graph has {result} of {iterations} profiled iterations; "
            f"a complete capture needs {num_planned(iterations, warmup)} iterations of the script"
        )
    warn_of_disturbance(graph)
    if note := graph.meta.overhead.get("note"):
        advise(note)
    if masks is None:
        suggest("windtunnel", "explain", path)
    else:
        advise(f"wrote {masks}")
        suggest("windtunnel", "chip", "predict", masks, path)


def require_recorded_kernels(graph: Graph, path: Path) -> None:
    """Refuse a capture of a script that used a GPU of which the profiler saw nothing; what was written stays.

    Raises
    ------
    FlightError
        No kernel was recorded.
    """
    from windtunnel.base.gpu_failures import gpu_advice
    from windtunnel.measure.devices import uses_gpu

    if uses_gpu() and not graph.has_streams:
        raise FlightError(
            "the script used a GPU, but the profiler recorded no work there",
            where=f"{path} has what the host did",
            fix=gpu_advice("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
        )


def _require_script(target: str, option: str) -> None:
    if not is_script(target):
        fix = "name a script; windtunnel memory --fake takes a workload"
        raise InputError(f"{target} is a workload, but this option traces a script", where=option, fix=fix)


def _watch_files(subject: Script | WorkloadName, *, scratch: bool) -> AbstractContextManager[Any]:
    """Report the files that a script writes or, with ``scratch``, keep them away from the user's."""
    from windtunnel.sources.targets import Script

    if not isinstance(subject, Script):
        if scratch:
            raise InputError("a workload writes no files", where="--scratch", fix="leave out --scratch")
        return nullcontext()
    if scratch and subject.ranks.num_ranks > 1:
        raise InputError("--scratch works with one process", where="--scratch --nproc", fix="leave out --nproc")
    return redirect_writes(subject.path) if scratch else report_writes(subject.path)


def _with_zeros(
    target: Script | WorkloadName, masks: Path, zeros_after: int, iterations: int, warmup: int, progress: Progress
) -> Graph:
    """The graph, with the masks of a later iteration in a file of their own."""
    from windtunnel.sources.targets import Script
    from windtunnel.sources.zeros.watch import capture_with_zeros

    if not isinstance(target, Script) or target.ranks.num_ranks > 1:
        fix = "name a script, and leave out --nproc"
        raise InputError("--zeros works with a script in one process", where="--zeros", fix=fix)
    given = {"iterations": iterations, "warmup": warmup, "progress": progress}
    graph, records = capture_with_zeros(target.path, target.argv, extra=zeros_after, **given)
    records.save(masks)
    return graph


def _suffix() -> str:
    """Under a launcher each process captures itself, to a graph of its own."""
    from windtunnel.sources.torch.launch import is_one_of_several, rank_here

    return f".rank{rank_here()}.wt" if is_one_of_several() else ".wt"


def _finds_device(device: str) -> bool:
    """Whether a script on fake tensors finds a GPU at once."""
    if device not in ("", "cuda", "cpu"):
        raise InputError(f"a script cannot find a device of type {device!r} here", where="--device", fix="cuda or cpu")
    return device == "cuda"


def _capture_fake(
    script: Path,
    arguments: list[str],
    path: Path,
    *,
    guesses: bool,
    has_device: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Without times: to be priced elsewhere."""
    from windtunnel.sources.torch.fake import fake_capture_script

    with Progress(f"following {script.name}") as progress, stdout_to_stderr():
        graph = fake_capture_script(script, arguments, guesses=guesses, has_device=has_device, progress=progress)
    _keep(graph, path, force)
    lines = [f"{path}: {graph.num_tasks:,} tasks without times (nothing was run)"]
    show(_document(graph, path), lines, as_json=as_json)
    advise(f"next: windtunnel predict {path} --on h100,a100")


def _keep(graph: Graph, path: Path, force: bool) -> None:
    from windtunnel.graph import save

    save(graph, path, overwrite=force)


def _lines(graph: Graph, path: Path) -> Iterator[str]:
    from windtunnel.reports import explain

    explanation = explain(graph)
    yield f"{path}: {graph.num_tasks:,} tasks, {explanation.headline}"
    if str(explanation.speed or ""):
        yield f"  {explanation.speed}"


def _document(graph: Graph, path: Path) -> dict[str, object]:
    counts = {"num_tasks": graph.num_tasks, "num_edges": graph.num_edges, "num_resources": graph.num_resources}
    return {"schema": "windtunnel.capture/1", "path": str(path), **counts, "meta": graph.meta.to_dict()}
