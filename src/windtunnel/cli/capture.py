"""``windtunnel capture``: run a script unmodified, keep the graph of one iteration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, print_json, say, say_wrapped, suggest
from windtunnel.cli.files import derived, require_free, warn_of_disturbance
from windtunnel.cli.options import Force, GuessValues, Json, Output
from windtunnel.cli.ranks import Bandwidth, Latency, NumProcesses, ranks_of
from windtunnel.cli.stdout import stdout_to_stderr
from windtunnel.cli.waiting import choose_wait_policy
from windtunnel.cli.writes import kept_away, watched
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.sources.targets import Script

__all__ = ["capture"]


@registry.verb("capture", source="windtunnel")
def capture(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="The training script, as it is.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The script's own arguments.")] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations to measure.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Iterations before that.")] = 3,
    fake: Annotated[
        bool, typer.Option("--fake", help="Run nothing: operators and shapes for predict, of any size, without times.")
    ] = False,
    guess_values: GuessValues = False,
    zeros: Annotated[
        bool, typer.Option("--zeros", help="Also keep what is zero in one more iteration, for chips that skip zeros.")
    ] = False,
    zeros_after: Annotated[
        int, typer.Option("--zeros-after", min=1, metavar="N", help="That iteration is the Nth after the others.")
    ] = 1,
    scratch: Annotated[
        bool, typer.Option("--scratch", help="Send files that the script writes to a temporary folder.")
    ] = False,
    nproc: NumProcesses = 1,
    bandwidth: Bandwidth = "",
    latency: Latency = "",
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel capture train.py --epochs 3

    Run a training script as python would, measure some iterations, end it.

    Options of windtunnel stand before the script; all after it is the script's. What the script prints goes to stderr.
    """
    from windtunnel.sources.targets import Script
    from windtunnel.sources.torch.script import IncompleteCaptureError, num_planned

    path = require_free(derived(script, _suffix(), output), force=force)
    if fake:
        _capture_fake(script, arguments or [], path, guesses=guess_values, force=force, as_json=as_json)
        return
    masks = require_free(path.with_suffix(".zeros.npz"), force=force) if zeros else None
    target = Script(script, tuple(arguments or ()), ranks_of(nproc, bandwidth, latency))
    if scratch and nproc > 1:
        raise InputError("files of one process are kept away", where="--scratch --nproc", fix="leave out --nproc")
    choose_wait_policy()
    try:
        with (
            kept_away(script) if scratch else watched(script),
            Progress(f"capturing {script.name}") as progress,
            stdout_to_stderr(),
        ):
            if masks is None:
                graph = target.capture(iterations, progress, warmup=warmup)
            else:
                graph = _with_zeros(target, masks, zeros_after, iterations, warmup, progress)
    except IncompleteCaptureError as error:
        if error.graph is not None:
            _keep(error.graph, path, force)
            advise(f"kept what was captured until then: {path}")
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    _keep(graph, path, force)
    if as_json:
        print_json(_document(graph, path))
    else:
        from windtunnel.reports import explain

        explanation = explain(graph)
        say(f"{path}: {graph.num_tasks:,} tasks, {explanation.headline}")
        if str(explanation.speed or ""):
            say_wrapped(f"  {explanation.speed}")
    if not graph.meta.is_complete:
        found = len(graph.meta.profiled_iteration_ns.get("samples", ()))
        advise(
            f"{script.name} ended before all was measured: {found} of {iterations} profiled iterations are kept; "
            f"a whole capture takes {num_planned(iterations, warmup)} of the script's iterations"
        )
    warn_of_disturbance(graph)
    if note := graph.meta.overhead.get("note"):
        advise(note)
    if masks is None:
        suggest("windtunnel", "explain", path)
    else:
        advise(f"written: {masks}")
        suggest("windtunnel", "codesign", "zeros", masks, path)


def _with_zeros(
    target: Script, masks: Path, zeros_after: int, iterations: int, warmup: int, progress: Progress
) -> Graph:
    """The graph, with the masks of a later iteration in a file of their own."""
    from windtunnel.sources.zeros.watch import capture_with_zeros

    if target.ranks.num_ranks > 1:
        raise InputError("zeros are kept of one process", where="--zeros --nproc", fix="leave out --nproc")
    given = {"iterations": iterations, "warmup": warmup, "progress": progress}
    graph, records = capture_with_zeros(target.path, target.argv, extra=zeros_after, **given)
    records.save(masks)
    return graph


def _suffix() -> str:
    """Under a launcher each process captures itself, to a graph of its own."""
    from windtunnel.sources.torch.launch import is_one_of_several, rank_here

    return f".rank{rank_here()}.wt" if is_one_of_several() else ".wt"


def _capture_fake(script: Path, arguments: list[str], path: Path, *, guesses: bool, force: bool, as_json: bool) -> None:
    """Without times: to be priced elsewhere."""
    from windtunnel.sources.torch.fake import fake_capture_script

    with Progress(f"following {script.name}") as progress, stdout_to_stderr():
        graph = fake_capture_script(script, arguments, guesses=guesses, progress=progress)
    _keep(graph, path, force)
    if as_json:
        print_json(_document(graph, path))
    else:
        say(f"{path}: {graph.num_tasks:,} tasks; nothing was run, so they have no times")
    advise(f"next: windtunnel predict {path} --on h100,a100")


def _keep(graph: Graph, path: Path, force: bool) -> None:
    from windtunnel.graph import save

    save(graph, path, overwrite=force)


def _document(graph: Graph, path: Path) -> dict[str, object]:
    counts = {"num_tasks": graph.num_tasks, "num_edges": graph.num_edges, "num_resources": graph.num_resources}
    return {"schema": "windtunnel.capture/1", "path": str(path), **counts, "meta": graph.meta.to_dict()}
