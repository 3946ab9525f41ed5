"""``windtunnel chip predict train.zeros.npz train.wt``: a network's layers on a chip that skips zeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, suggest
from windtunnel.cli.files import open_graph, require_free
from windtunnel.cli.options import Force, Json
from windtunnel.errors import InputError, NotApplicableError

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.systems.chips.skipping import GridAnswer

__all__ = ["zeros"]

_MODES = ("in", "out", "in+out", "in+out+wr")
_SCHEMA = "windtunnel.codesign-zeros/1"


@registry.verb("chip predict", source="PHAZE")
def zeros(
    masks: Annotated[
        Path, typer.Argument(metavar="ZEROS", help="Zero masks written by `capture --zeros` (train.zeros.npz).")
    ],
    source: Annotated[
        Path | None,
        typer.Argument(metavar="GRAPH", help="Captured graph (train.wt) whose step is predicted on the chip."),
    ] = None,
    chip_name: Annotated[
        str, typer.Option("--chip", metavar="NAME", help="Chip with a zero-skipping grid.")
    ] = "sparse-grid",
    check: Annotated[
        bool, typer.Option("--check", help="Also simulate every layer cycle by cycle and compare.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--html", metavar="HTML", help="Write layers and iterations as a page.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel chip predict train.zeros.npz train.wt

    Predict the layers of a network on a zero-skipping chip from recorded zero masks.
    """
    from windtunnel.hardware import device
    from windtunnel.hardware.accelerators import Accelerator
    from windtunnel.sources.zeros.records import read_zeros
    from windtunnel.systems.chips.skipping import find_miscounted_layers, on_grid

    if report is not None:
        require_free(report, force=force)
    chip = device(chip_name)
    if not isinstance(chip, Accelerator):
        raise InputError(f"{chip_name} does not say what it is built of", where="--chip", fix="take sparse-grid")
    records = read_zeros(masks)
    with Progress("simulating") as progress:
        graph = open_graph(source, progress=progress, needs_times=False) if source else None
        answers = [on_grid(records.at(iteration), chip, graph, progress=progress) for iteration in records.iterations]
        wrong = find_miscounted_layers(answers[-1], progress=progress) if check else ()
    if report is not None:
        from windtunnel.systems.chips.page_layers import zeros_page

        zeros_page(answers, records.program, report, overwrite=True)
        advise(f"wrote {report}")
    checked = {"miscounted": list(wrong)} if check else {}
    iterations = [answer.to_dict() for answer in answers]
    document = {"schema": _SCHEMA, "program": records.program, "iterations": iterations, **checked}
    show(document, _lines(answers, wrong if check else None), as_json=as_json)
    if graph is not None and source is not None and not as_json and _wins(graph):
        suggest("windtunnel", "whatif", source, "sparse-accelerator")


def _wins(graph: Graph) -> bool:
    """Whether the what-if would have anything to act on."""
    from windtunnel.systems.chips.whatif import sparse_accelerator

    try:
        sparse_accelerator(graph)
    except NotApplicableError:
        return False
    return True


def _describe_check(answer: GridAnswer, wrong: Sequence[str]) -> str:
    if wrong:
        return f"{', '.join(wrong)} disagree, which is an internal error"
    return f"all {len(answer.layers)} layers agree in outputs and in the number of multiplications"


def _lines(answers: Sequence[GridAnswer], wrong: Sequence[str] | None) -> Iterator[str | Table]:
    """The last iteration by layer, what the check found (None: not asked for), and all iterations."""
    from windtunnel.systems.chips.skipping import MODE_WORDS

    answer = answers[-1]
    gains = dict.fromkeys(("in", "out", "in+out", "+wr", "all passes"), "{}")
    about = "speed-up of the backward pass by operands whose zeros are skipped"
    yield f"{answer.chip}, iteration {answer.iteration}: {about}"
    rows = []
    for layer, zeros in zip(answer.layers, answer.zeros, strict=True):
        backward = layer.passes.get("backward")
        cycles = backward.cycles if backward else {}
        by_mode = [_times(cycles["dc"], cycles[mode]) if cycles else None for mode in _MODES]
        total = _times(layer.total("dc"), layer.total("in+out+wr"))
        rows.append((layer.name, zeros.input_density, zeros.gradient_density, cycles.get("dc"), *by_mode, total))
    columns = {"layer": str, "density X": "{:.2f}", "density dY": "{:.2f}", "dense cycles": "{:,}"}
    yield Table({**columns, **gains}, rows)
    yield (
        f"backward pass {answer.speedup('in+out+wr', ('backward',)):.2f}x, whole iteration "
        f"{answer.speedup('in+out+wr'):.2f}x, energy {answer.speedup('in+out+wr', what='energy_j'):.2f}x less; with "
        f"memory accesses and mask scans {answer.speedup('in+out+wr', what='step_cycles'):.2f}x"
    )
    for mode, step_ns in answer.steps_ns.items():
        yield (f"  {MODE_WORDS[mode]:25} chip {answer.busy_ns[mode] / 1e6:10,.3f} ms   step {step_ns / 1e6:10,.3f} ms")
    if answer.unmatched:
        yield f"  not in the graph: {', '.join(answer.unmatched)}"
    if wrong is not None:
        yield f"cycle-level simulation: {_describe_check(answer, wrong)}"
    if len(answers) > 1:
        yield Table({"iteration": "{}", **dict.fromkeys(gains, "{:.2f}x")}, [
            (item.iteration, *(item.speedup(mode, ("backward",)) for mode in _MODES), item.speedup("in+out+wr"))
            for item in answers
        ])  # fmt: skip


def _times(dense: float, cycles: float) -> str:
    return f"{dense / cycles:.2f}x" if cycles else "-"
