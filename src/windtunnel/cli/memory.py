"""``windtunnel memory``: where the memory of a training step goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, advise, show, stdout_to_stderr, suggest
from windtunnel.cli.files import require_free, stem
from windtunnel.cli.memory_fit import Job, show_fit
from windtunnel.cli.options import Force, GuessValues, Json, ReadLimitSize
from windtunnel.cli.subjects import workload_of
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.units import format_ratio, format_size, parse_size

if TYPE_CHECKING:
    from windtunnel.hardware import Device
    from windtunnel.sources.memory.profile import MemoryProfile

__all__ = ["memory"]

MAX_ROWS = 8
PROFILE = ".parquet"


@registry.verb("memory", source="windtunnel")
def memory(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT.py|WORKLOAD",
            help="Training script or workload, such as train.py or mlp:batch_size=64, or a stored table (.parquet).",
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    fake: Annotated[
        bool, typer.Option("--fake", help="Predict on fake tensors, without computing or allocating.")
    ] = False,
    device_memory: Annotated[
        str,
        typer.Option(
            "--device-memory",
            metavar="SIZE",
            help="Memory of the device, such as 16GiB (default: free memory of this host).",
        ),
    ] = "",
    on: Annotated[str, typer.Option("--on", metavar="GPU", help="With --fake: GPU to predict for, such as h100.")] = "",
    fit: Annotated[
        bool, typer.Option("--fit", help="Find the largest batch size that fits, without running the job.")
    ] = False,
    batch_option: Annotated[
        str,
        typer.Option(
            "--batch-option",
            metavar="NAME",
            help="With --fit: option of the script that sets its batch size, such as --batch-size.",
        ),
    ] = "",
    loader_batch: Annotated[
        int,
        typer.Option(
            "--loader-batch-size", min=0, metavar="N", help="With --fake: batch size of the script's data loaders."
        ),
    ] = 0,
    guess_values: GuessValues = False,
    warmup: Annotated[int, typer.Option(min=1, help="Number of warm-up iterations.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Number of iterations to track.")] = 1,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page: categories over the step, and storages at the peak."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the table of storages (.parquet).")
    ] = None,
    force: Force = False,
    read_limit: ReadLimitSize = "",
    as_json: Json = False,
) -> None:
    """Example: windtunnel memory train.py --html train.memory.html

    Show the memory of a training step by category, layer and source line.

    A job that would not fit is refused before it runs. Options of windtunnel come before the script; everything after
    it is passed to the script. A table written with --out can be shown again: windtunnel memory FILE.parquet.

    With --on, data that stay on the host do not count: those that the script does not put on a device, or, of a script
    without a device, data sets from which it takes its batches.
    """
    from windtunnel.sources.memory.profile import MemoryProfile

    for path in filter(None, (html, output)):
        require_free(path, force=force)
    if output is not None and output.suffix != PROFILE:
        raise InputError(
            f"{output} is no name of a table", where="--out", fix="name FILE.parquet; --html writes a page"
        )
    chip = _chip(on, target, fake=fake or fit)
    limit_bytes = parse_size(device_memory) if device_memory else chip.memory_bytes if chip else None
    if fit:
        _require_job(target, html or output)
        show_fit(Job(target, arguments or [], batch_option, chip, guess_values), limit_bytes, as_json=as_json)
        return
    if target.endswith(PROFILE):
        profile = MemoryProfile.load(target, read_limit=parse_size(read_limit) if read_limit else None)
    else:
        options: dict[str, Any] = {
            "fake": fake,
            "chip": chip,
            "guesses": guess_values,
            "loader_batch": loader_batch,
        }
        profile = _follow_memory(target, arguments or [], warmup, steps, limit_bytes=limit_bytes, **options)
    _write(profile, html, output, target, force)
    written = html or output
    document = profile.to_dict() | {"path": None if written is None else str(written)}
    show(document, _lines(profile), as_json=as_json)
    if html is None and output is None:
        suggest(
            "windtunnel",
            "memory",
            "--html",
            f"{stem(Path(target.partition(':')[0]))}.memory.html",
            *(["--fake"] if fake else []),
            *(["--on", on] if on else []),
            *(["--device-memory", device_memory] if device_memory else []),
            target,
            *(arguments or ()),
        )


def _require_job(target: str, path: Path | None) -> None:
    if target.endswith(PROFILE) or path is not None:
        raise InputError(
            "--fit searches for the largest batch size of a script or workload, and writes no file",
            where=f"--fit {target}" if path is None else f"--fit, {path}",
            fix="windtunnel memory --fit train.py; then --fake --html with the batch size that it finds",
        )


def _chip(name: str, target: str, *, fake: bool) -> Device | None:
    from windtunnel.hardware import device

    if not name:
        return None
    if not fake or target.endswith(PROFILE):
        raise InputError("what runs here holds what this host gives it, not another chip", where=f"--on {name}",
                         fix="add --fake, which predicts; or leave --on out")  # fmt: skip
    chip = device(name)
    if chip.kind != "gpu":
        raise InputError(f"{chip.name} is no GPU", where=f"--on {name}", fix="windtunnel list devices names those")
    return chip


def _follow_memory(
    target: str,
    arguments: Sequence[str],
    warmup: int,
    steps: int,
    *,
    fake: bool,
    chip: Device | None,
    limit_bytes: int | None,
    guesses: bool,
    loader_batch: int,
) -> MemoryProfile:
    from windtunnel.hardware.host import available_bytes

    with Progress(f"following the memory of {target}", heartbeat=not target.endswith(".py")):
        if fake:
            with stdout_to_stderr():
                profile = _run(
                    target, arguments, warmup, steps, fake=True, chip=chip, guesses=guesses, loader_batch=loader_batch
                )
            if limit_bytes is not None:
                _require_fit(profile.to_dict(), limit_bytes, target, reserved=True)
            return profile
        predicted = _predict_with_fake_tensors(target, arguments)
        if predicted is not None and limit_bytes is not None:
            _require_fit(predicted, limit_bytes, target, reserved=True)
        limit_bytes = available_bytes() if limit_bytes is None else min(limit_bytes, available_bytes())
        if predicted is not None:
            _require_fit(predicted, limit_bytes, target)
        with stdout_to_stderr():
            return _run(target, arguments, warmup, steps, fake=False, limit_bytes=limit_bytes)


def _require_fit(predicted: dict[str, Any], limit_bytes: int, target: str, *, reserved: bool = False) -> None:
    """Refuse a job that would not fit: as everywhere, the answer is no."""
    from windtunnel.sources.memory.tracking import require_fit

    try:
        require_fit(predicted, limit_bytes, target, reserved=reserved)
    except InputError as error:
        raise InfeasibleError(error.message, where=error.where, fix=error.fix) from error


def _run(
    target: str,
    arguments: Sequence[str],
    warmup: int,
    steps: int,
    *,
    fake: bool,
    chip: Device | None = None,
    limit_bytes: int | None = None,
    guesses: bool = False,
    loader_batch: int = 0,
) -> MemoryProfile:
    from windtunnel.sources.memory.script import track_script
    from windtunnel.sources.memory.tracking import predict_memory, track_memory

    if target.endswith(".py"):
        try:
            options: dict[str, Any] = {"warmup": warmup, "steps": steps, "limit_bytes": limit_bytes}
            options |= {"loader_batch": loader_batch}
            return track_script(target, arguments, fake=fake, chip=chip, guesses=guesses, **options)
        except InputError as error:
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise
    build = _workload(target, arguments)
    if fake:
        return predict_memory(build, warmup=warmup, steps=steps, chip=chip)
    built = build()
    try:
        return track_memory(
            built.step,
            model=built.models,
            optimizer=built.optimizers,
            warmup=warmup,
            steps=steps,
            limit_bytes=limit_bytes,
        )
    finally:
        built.close()


def _workload(target: str, arguments: Sequence[str]) -> Any:
    from functools import partial

    selected = workload_of(target, arguments)
    return partial(registry.get("workload", selected.name).function, **selected.parameters)


def _predict_with_fake_tensors(target: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """What fake tensors say, in a process of their own: a module that keeps tensors would keep fake ones."""
    if not target.endswith(".py"):
        _workload(target, arguments)  # what is misspelt is told here
    elif not Path(target).is_file():
        return None
    command = [sys.executable, "-m", "windtunnel", "memory", "--fake", "--json", target, *arguments]
    from windtunnel.measure.workers import run_to_end

    done = run_to_end(command)
    try:
        result: dict[str, Any] = json.loads(done.stdout if done is not None else "")
    except ValueError:
        lines = done.stderr.splitlines() if done is not None else []
        reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "no output")
        advise(f"the peak cannot be predicted: {reason}")
        return None
    return result


def _write(profile: MemoryProfile, html: Path | None, table: Path | None, target: str, force: bool) -> None:
    from windtunnel.reports.memory_profile import memory_page

    if table is not None:
        profile.save(table, overwrite=force)
        suggest("windtunnel", "memory", "--html", table.with_suffix(".html"), table)
    if html is not None:
        memory_page(profile, html, title=Path(target).name, overwrite=force)
        advise(f"next: open {html} in a browser")


def _lines(profile: MemoryProfile) -> Iterator[str | Table]:
    is_fake = bool(profile.meta.get("is_fake"))
    workspace = "with the workspace of cuBLAS" if profile.meta.get("chip") else "without operator workspace"
    how = f"predicted with fake tensors, {workspace}"
    yield f"{profile}{f' ({how})' if is_fake else ''}"
    if is_fake and profile.meta.get("is_uncompiled"):
        yield (
            "the script uses torch.compile, but this is the memory of eager execution; "
            "compiled code usually needs less: run without --fake to measure it"
        )
    other = "a real run" if is_fake else "--fake"
    yield f"without workspace {format_size(profile.peak_without_workspace_bytes)} (comparable to that of {other})"
    yield (
        f"rounded to 512 bytes {format_size(profile.peak_rounded_bytes)}; "
        f"reserved by a caching allocator {format_size(profile.peak_reserved_bytes)}"
    )
    most = profile.at_most()
    columns = {"category": str, "at the peak": format_size, "share": format_ratio, "own peak": format_size}
    sizes = profile.by_category().items()
    yield Table(columns, [(name, size, size / max(profile.peak_bytes, 1), most[name]) for name, size in sizes])
    for table, name, title in (
        (profile.by_layer(), "layer", "layer at the peak"),
        (profile.by_line(), "line", "source line at the peak"),
    ):
        shown = [row for row in table.slice(0, MAX_ROWS).to_pylist() if row["peak_bytes"]]
        cells = [(row[name] or "(none)", row["category"], row["peak_bytes"]) for row in shown]
        yield Table({title: str, "category": str, "bytes": format_size}, cells)
