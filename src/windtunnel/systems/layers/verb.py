"""``windtunnel train layers``: what cheaper layers cost in quality."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, print_json, print_table, say, say_wrapped
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json

if TYPE_CHECKING:
    from windtunnel.systems.layers.training.run import Qualities

__all__ = ["layers"]

_SCHEMA = "windtunnel.train-layers/1"


@registry.verb("train layers", source="ADSP, DLion, Overlap Local-SGD, SkewScout")
def layers(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="word-lm, tagging, translation (dropout); mnist, cifar10 (circulant).")
    ],
    cases: Annotated[
        str, typer.Option(metavar="LIST", help="With blanks between, such as 'I III' or 'dense k=8'; first: reference.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Trainings of each case.")] = 1,
    epochs: Annotated[int, typer.Option(min=0, metavar="N", help="0: the task's own number.")] = 0,
    width: Annotated[int, typer.Option(min=0, metavar="N", help="Units of a layer; 0: the task's own.")] = 0,
    share: Annotated[float, typer.Option("-p", metavar="SHARE", help="To drop; below 0: the task's own.")] = -1.0,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Trainings at once.")] = 1,
    report: Annotated[Path | None, typer.Option(metavar="HTML", help="Quality by epoch as a picture.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel train layers mnist --cases 'dense k=8 k=16' --seeds 3

    Train a small task with and without cheaper layers, on the same seeds, and compare what the networks are worth.
    """
    from windtunnel.systems.layers.training.run import compare_layers

    if report is not None:
        require_free(report, force=force)
    with Progress("training") as progress:
        found = compare_layers(
            task, cases.split(), num_seeds=seeds, epochs=epochs or None, width=width or None,
            p=None if share < 0 else share, processes=processes, progress=progress,
        )  # fmt: skip
    if report is not None:
        from windtunnel.systems.layers.page import quality_page

        quality_page(found, report, overwrite=force)
        advise(f"written: {report}")
    if as_json:
        print_json({"schema": _SCHEMA, **found.to_dict()})
        return
    _print(found)


def _print(found: Qualities) -> None:
    first = found.cases[0].scores[0]
    said = ", ".join(f"{name} {value:g}" for name, value in found.settings.items())
    say_wrapped(f"{found.task} on {first.data}: {said}")
    say()
    rows = []
    for one in found.cases:
        metrics = [f"{one.mean(name):.2f}" for name in first.metrics]
        rows.append((one.case, *metrics, f"{found.ratio(one.case) - 1:+.1%}", f"{one.spread(found.metric):.2f}",
                     f"{one.scores[0].num_weights:,}"))  # fmt: skip
    headings = ("case", *first.metrics, "to first", "spread", "weights")
    print_table(headings, rows, numbers=tuple(range(1, len(headings))))
    if found.published:
        say()
        say("published:")
        for what, value in found.published:
            say_wrapped(f"  {what}: {value}")
