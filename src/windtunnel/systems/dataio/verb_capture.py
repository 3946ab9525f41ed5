"""``windtunnel dataio capture``: the input pipeline of a training script, as a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, stdout_to_stderr, suggest
from windtunnel.cli.files import derive_path, require_free
from windtunnel.cli.options import Force, Json, Output
from windtunnel.units import format_duration, format_size

__all__ = ["capture"]


@registry.verb("dataio capture", source="DLIO")
def capture(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="Training script (unmodified).")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    iterations: Annotated[int, typer.Option(min=3, help="Number of iterations to record.")] = 20,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel dataio capture train.py --epochs 3

    Record how a training script loads its data, and write a configuration that behaves like it.

    Recorded are files, sizes, formats, batch size, workers, time per sample and per step.
    """
    from windtunnel.systems.dataio.config_file import dump_config, parse_config
    from windtunnel.systems.dataio.record import record_script

    path = require_free(derive_path(script, ".dataio.yaml", output), force=force)
    with Progress(f"recording {script.name}") as progress, stdout_to_stderr():
        result = record_script(script, arguments or [], num_iterations=iterations, progress=progress)
    sections = result.sections(str(path.with_suffix("").with_suffix("")) + ".data")
    dump_config(parse_config(sections, name=script.stem, where=str(path)), path)
    step_ns = 1e9 * sections["train"]["computation_time"]
    document = {"schema": "windtunnel.dataio-capture/1", "written": str(path), "configuration": sections}
    rows = [
        ("samples", f"{result.num_samples:,} in {result.num_files:,} files of {result.format}"),
        ("bytes per sample", f"{format_size(result.sample_bytes)} +- {format_size(result.sample_bytes_std)}"),
        ("time per sample", f"{format_duration(result.sample_ns)}, {format_duration(result.read_ns)} of it reading"),
        ("batch", f"{result.batch_size} with {result.num_workers} workers, prefetch {result.prefetch_factor}"),
        ("step without loading", format_duration(step_ns)),
    ]
    show(document, [Table({"input pipeline": str, script.name: str}, rows)], as_json=as_json)
    if not as_json:
        if not result.is_format_known:
            advise("no format of DLIO has files like these; npy stands for files that are read whole")
        advise(f"wrote {path}")
        suggest("windtunnel", "dataio", "predict", path)
