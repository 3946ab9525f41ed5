"""``windtunnel codesign layers.json``: sizes of circulant blocks and the engine for them (room cli)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.cli._console import advise, print_json, print_table, say, say_wrapped
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.hardware.accelerators import Accelerator
    from windtunnel.planning.codesign.circulant import CirculantAnswer

__all__ = ["codesign_circulant"]

_SCHEMA = "windtunnel.codesign-circulant/1"
_SHOWN = 12


def codesign_circulant(
    path: Path, chip_name: str, loss: float, multipliers: int, memory_blocks: int, report: Path | None, *, as_json: bool
) -> None:
    """Choose a block for each layer and an engine, and print the front."""
    from windtunnel.hardware import device
    from windtunnel.hardware.accelerators import Accelerator as AcceleratorChip
    from windtunnel.planning.codesign.circulant import Limits, design, read_layers

    chip = device(chip_name)
    if not isinstance(chip, AcceleratorChip) or chip.fourier_engine is None:
        raise InputError(f"{chip_name} has no engine of transforms", where="--chip", fix="take fourier-engine")
    answer = design(read_layers(path), Limits(loss, multipliers, memory_blocks, chip.fourier_engine.word_bits), chip)
    if report is not None:
        from windtunnel.reports.layers import circulant_page

        circulant_page(answer, chip.name, report, overwrite=True)
        advise(f"written: {report}")
    if as_json:
        print_json({"schema": _SCHEMA, "chip": chip.name, **answer.to_dict()})
    else:
        _print(answer, chip)


def _print(answer: CirculantAnswer, chip: Accelerator) -> None:
    say(f"{len(answer.layers)} layers on {chip.name}: dense {answer.dense_cycles:,.0f} cycles a sample")
    rows = []
    for one in answer.front[:_SHOWN]:
        engine = f"{one.engine.num_butterflies}x{one.engine.depth}+{one.engine.num_multipliers}"
        cycles = f"{one.cycles:,.0f}", f"{answer.dense_cycles / one.cycles:.1f}x", f"{one.lost_points:.2f}"
        smaller = f"{answer.dense_weights / one.num_weights:.1f}x"
        multipliers = f"{one.engine.num_real_multipliers:,}"
        rows.append(
            [*cycles, multipliers, f"{one.num_memory_blocks:,}", smaller, engine, ",".join(map(str, one.blocks))]
        )
    headings = ["cycles", "faster", "loss", "multipliers", "memory", "smaller", "engine", "blocks"]
    print_table(headings, rows, numbers=tuple(range(6)), gives_way=7)
    if len(answer.front) > _SHOWN:
        say(f"  and {len(answer.front) - _SHOWN} more on the front (--json has all)")
    say_wrapped(
        f"  the quickest: {answer.energy_j:.3g} J a sample for its blocks, counted cycle by cycle "
        f"{answer.counted_ratio:.3f} of the closed form, fixed point changes outputs by {answer.fixed_point_error:.2%}"
    )
