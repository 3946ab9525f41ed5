"""``windtunnel demo``: the whole way once, from a real training to a verified answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, choose_wait_policy, print_lines, show, stdout_to_stderr
from windtunnel.cli.files import require_free, stem, warn_of_disturbance
from windtunnel.cli.options import Force, Json
from windtunnel.errors import InputError, WindtunnelError
from windtunnel.units import format_duration, format_size, parse_duration

if TYPE_CHECKING:
    from windtunnel.flights import Receipt
    from windtunnel.graph import Graph
    from windtunnel.measure import StopRule
    from windtunnel.whatifs import Answer

__all__ = ["demo"]

EXAMPLE = Path("examples") / "train_transformer.py"
WORTHWHILE = 1.02


@registry.verb("demo", source="windtunnel")
def demo(
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Training script to use instead of the built-in example.")
    ] = None,
    output: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Output directory.")] = Path("demo"),
    flights: Annotated[
        int, typer.Option("--verify", min=0, help="Number of best predictions to verify with real runs.")
    ] = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Number of iterations to measure.")] = 15,
    time_limit: Annotated[
        str, typer.Option("--flight-time-limit", metavar="TIME", help="Time limit for each verification run.")
    ] = "20s",
    budget: Annotated[
        str,
        typer.Option(
            "--time-limit",
            metavar="TIME",
            help="Time limit for the whole demo; no verification run starts that would exceed it.",
        ),
    ] = "4min",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel demo --out demo

    Train a small transformer, explain it, predict what makes it faster, and verify the best predictions.
    """
    from windtunnel.measure import StopRule

    choose_wait_policy()
    began = time.monotonic()
    source = _script(script)
    require_free(output / "report.html", force=force)
    output.mkdir(parents=True, exist_ok=True)
    story = _Story(quiet=as_json)

    story.chapter(1, f"capture: train {source.name} unmodified and measure {iterations} iterations")
    graph = _capture(source, output, iterations, force)
    story.chapter(2, "explain: where does the time go?")
    story.explanation(graph)
    story.chapter(3, "whatif: what would make it faster? (predictions; no change has run yet)")
    answers = _predict(graph, output)
    story.answers([answer for answer in answers if answer.is_applicable])
    story.chapter(4, "verify: run the best changes, interleaved with the baseline")
    rule = StopRule(time_limit_s=parse_duration(time_limit) / 1e9)
    until = began + parse_duration(budget) / 1e9
    receipts = _fly(source, graph, answers, output / "receipts.db", count=flights, rule=rule, until=until)
    story.receipts(receipts)
    files = _write(graph, answers, receipts, output, stem(source))
    duration_s = time.monotonic() - began
    document = {
        "schema": "windtunnel.demo/1",
        "duration_s": duration_s,
        "answers": [answer.to_dict() for answer in answers],
        "receipts": [receipt.to_dict() for receipt in receipts],
        "files": [str(file) for file in files],
    }
    line = f"{duration_s:.0f} s in total; report: {files[0]}, trace for ui.perfetto.dev: {files[1]}"
    show(document, [line], as_json=as_json)
    advise("next: windtunnel capture YOUR_SCRIPT.py")


class _Story:
    """Tells what happens while it happens; silent where the answer is JSON."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    def chapter(self, number: int, title: str) -> None:
        lines = [""] * (number > 1) + [f"[{number}/4] {title}"]
        if self.quiet:
            advise("\n".join(lines))
        else:
            print_lines(lines)

    def explanation(self, graph: Graph) -> None:
        from windtunnel.reports import explain

        if not self.quiet:
            print_lines(str(explain(graph)).splitlines())

    def answers(self, answers: Sequence[Answer], top: int = 10) -> None:
        if self.quiet:
            return
        columns = {"what if": str, "speed-up": "{:.2f}x", "90 %": "{}", "iteration": format_duration,
                   "peak memory": format_size}  # fmt: skip
        rows = [
            (answer.request, answer.speedup, "{:.2f}-{:.2f}".format(*answer.span) if answer.span else "no receipt",
             answer.predicted_ns, answer.peak_bytes)
            for answer in answers[:top]
        ]  # fmt: skip
        print_lines([Table(columns, rows)])
        if any(answer.samples_ratio != 1 for answer in answers[:top]):
            print_lines(["speed-ups are per sample: some of these iterations train on more of them"])

    def receipts(self, receipts: Sequence[Receipt]) -> None:
        if self.quiet:
            return
        columns = {"what if": str, "predicted": "{:.2f}x", "measured": "{:.2f}x", "90 %": "{}", "error": "{:+.1%}"}
        rows = [
            (receipt.whatif, receipt.predicted, receipt.measured, "{:.2f}-{:.2f}".format(*receipt.measured_interval),
             receipt.error_ratio)
            for receipt in receipts
        ]  # fmt: skip
        print_lines([Table(columns, rows)])


def _script(given: Path | None) -> Path:
    """The example of this project, or the user's script.

    Raises
    ------
    InputError
        The package was installed without its examples.
    """
    if given is not None:
        return given
    locations = (Path.cwd(), Path(__file__).resolve().parents[3])
    result = next((index / EXAMPLE for index in locations if (index / EXAMPLE).is_file()), None)
    if result is None:
        raise InputError(
            "the example script is not installed here", fix="name your own: windtunnel demo --script train.py"
        )
    return result


def _capture(source: Path, output: Path, iterations: int, force: bool) -> Graph:
    from windtunnel.graph import save
    from windtunnel.sources.torch.script import capture_script

    with Progress("training") as progress, stdout_to_stderr():
        graph = capture_script(source, iterations=iterations, progress=progress)
    save(graph, output / f"{stem(source)}.wt", overwrite=force)
    warn_of_disturbance(graph)
    return graph


def _predict(graph: Graph, output: Path) -> list[Answer]:
    from windtunnel.flights import with_intervals
    from windtunnel.whatifs import whatif

    with Progress("asking what if") as progress, stdout_to_stderr():
        return with_intervals(whatif(graph, "all", progress=progress), output / "receipts.db")


def _fly(
    source: Path, graph: Graph, answers: Sequence[Answer], ledger: Path, *, count: int, rule: StopRule, until: float
) -> list[Receipt]:
    """The best that can be run here, one of a family; one whose flight fails is told and passed over."""
    from windtunnel.flights import verify

    receipts: list[Receipt] = []
    longest_s = 0.0
    for answer in _able(answers):
        began = time.monotonic()
        if len(receipts) == count:
            break
        if receipts and began + longest_s > until:
            advise(f"no time is left to verify {answer.name}; a longer --time-limit allows it")
            break
        try:
            with Progress(f"verifying {answer.name}") as progress, stdout_to_stderr():
                receipt = verify(source, answer.request, graph=graph, rule=rule, ledger=ledger, progress=progress)
            receipts.append(receipt)
        except WindtunnelError as error:
            advise(f"{answer.name} could not be verified here: {error.message}")
        longest_s = max(longest_s, time.monotonic() - began)
    return receipts


def _able(answers: Sequence[Answer]) -> list[Answer]:
    """Answers that can be flown and promise something, the best of each family of changes."""
    known = registry.all("flight")
    best: dict[str, Answer] = {}
    for answer in answers:
        if answer.is_applicable and answer.name in known and answer.speedup > WORTHWHILE:
            best.setdefault(known[answer.name].function.__module__, answer)
    return list(best.values())


def _write(
    graph: Graph, answers: Sequence[Answer], receipts: Sequence[Receipt], output: Path, name: str
) -> tuple[Path, Path]:
    from windtunnel.reports import report
    from windtunnel.simulate import replay

    timeline = replay(graph)
    page = report(
        graph, output / "report.html", answers=answers, receipts=receipts, title=name, timeline=timeline, overwrite=True
    )
    trace = output / "trace.json"
    timeline.to_perfetto(trace)
    return page, trace
