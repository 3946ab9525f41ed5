"""``windtunnel chip plan circulant layers.json``: sizes of circulant blocks and the engine for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import advise, show
from windtunnel.cli.files import require_free
from windtunnel.cli.options import Force, Json
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.hardware.accelerators import Accelerator
    from windtunnel.systems.chips.circulant import CirculantAnswer

__all__ = ["circulant"]

_SCHEMA = "windtunnel.codesign-circulant/1"
_SHOWN = 12


@registry.verb("chip plan circulant", source="PHAZE")
def circulant(
    path: Annotated[
        Path, typer.Argument(metavar="LAYERS", help="Accuracy loss and size of each layer by block size (layers.json).")
    ],
    chip_name: Annotated[
        str, typer.Option("--chip", metavar="NAME", help="Chip with a Fourier engine.")
    ] = "fourier-engine",
    accuracy_loss: Annotated[
        float,
        typer.Option(
            "--max-accuracy-loss", min=0.0, metavar="POINTS", help="Maximum accuracy loss in percentage points."
        ),
    ] = 1.0,
    multipliers: Annotated[
        int, typer.Option("--max-multipliers", min=1, metavar="N", help="Maximum number of multipliers of the engine.")
    ] = 1024,
    memory_blocks: Annotated[
        int,
        typer.Option(
            "--max-memory-blocks", min=1, metavar="N", help="Maximum number of 36 Kib memory blocks for all weights."
        ),
    ] = 1024,
    report: Annotated[
        Path | None, typer.Option("--html", metavar="HTML", help="Write the Pareto front as a page.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel chip plan circulant layers.json --max-accuracy-loss 0.5

    Choose the circulant block size of each layer and a Fourier engine for them.
    """
    from windtunnel.hardware import device
    from windtunnel.hardware.accelerators import Accelerator as AcceleratorChip
    from windtunnel.systems.chips.circulant import Limits, design, read_layers

    if report is not None:
        require_free(report, force=force)
    chip = device(chip_name)
    if not isinstance(chip, AcceleratorChip) or chip.fourier_engine is None:
        raise InputError(f"{chip_name} has no engine of transforms", where="--chip", fix="take fourier-engine")
    answer = design(
        read_layers(path), Limits(accuracy_loss, multipliers, memory_blocks, chip.fourier_engine.word_bits), chip
    )
    if report is not None:
        from windtunnel.systems.chips.page_layers import circulant_page

        circulant_page(answer, chip.name, report, overwrite=True)
        advise(f"wrote {report}")
    document = {"schema": _SCHEMA, "chip": chip.name, **answer.to_dict()}
    show(document, _lines(answer, chip), as_json=as_json)


def _lines(answer: CirculantAnswer, chip: Accelerator) -> Iterator[str | Table]:
    yield f"{len(answer.layers)} layers on {chip.name}: {answer.dense_cycles:,.0f} cycles per sample for dense layers"
    yield answer.table(_SHOWN)
    if len(answer.front) > _SHOWN:
        yield f"  and {len(answer.front) - _SHOWN} more on the Pareto front (--json lists all)"
    yield (
        f"  fastest: {answer.energy_j:.3g} J per sample for its blocks; fixed point changes outputs by "
        f"{answer.fixed_point_error:.2%}"
    )
