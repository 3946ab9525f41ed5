"""``windtunnel dataio show``: what a configuration demands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import advise, show, suggest
from windtunnel.cli.options import Json
from windtunnel.systems.dataio.options import ConfigPath, Overrides
from windtunnel.units import format_count, format_duration, format_rate, format_size, parse_size

if TYPE_CHECKING:
    from windtunnel.systems.dataio.config import DlioConfig
    from windtunnel.systems.dataio.demands import Demands
    from windtunnel.systems.dataio.mlperf import RuleCheck

__all__ = ["show_demands"]


@registry.verb("dataio show", source="DLIO")
def show_demands(
    config: ConfigPath,
    overrides: Overrides = None,
    ranks: Annotated[
        int, typer.Option("--ranks", min=0, metavar="N", help="Number of accelerators; 0: as few as the model takes.")
    ] = 0,
    mlperf: Annotated[bool, typer.Option("--mlperf", help="Check the rules of MLPerf Storage.")] = False,
    hosts: Annotated[int, typer.Option("--hosts", min=1, metavar="N", help="Number of hosts, for --mlperf.")] = 1,
    host_memory: Annotated[
        str,
        typer.Option("--host-memory", metavar="SIZE", help="Memory of each host, for --mlperf (default: this host's)."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Example: windtunnel dataio show unet3d_h100 --ranks 8 --mlperf --host-memory 256GiB

    Show what a job demands from storage: bytes per second, sizes of data set and checkpoints.

    A folder with results of DLIO shows their AU, recomputed. Exits with 1 where a rule of MLPerf Storage is not met.
    """
    if Path(config).is_dir():
        _show_results(Path(config), as_json=as_json)
        return
    from windtunnel.hardware.host import this_host
    from windtunnel.systems.dataio.config_file import load_config, to_mapping
    from windtunnel.systems.dataio.demands import demands_of
    from windtunnel.systems.dataio.mlperf import check_mlperf_rules

    loaded = load_config(config, overrides or [])
    parallelism = loaded.model.parallelism
    num_ranks = ranks or parallelism.tensor * parallelism.pipeline * max(parallelism.data, 1)
    demands, rules = demands_of(loaded, num_ranks), []
    if mlperf:
        memory_bytes = parse_size(host_memory) if host_memory else this_host({}).memory_bytes
        rules = check_mlperf_rules(loaded, num_accelerators=num_ranks, host_memory_bytes=memory_bytes, num_hosts=hosts)
    document = {
        "schema": "windtunnel.dataio-show/1",
        "config": to_mapping(loaded),
        "warnings": list(loaded.warnings),
        "demands": demands.to_dict(),
        "rules": [asdict(rule) for rule in rules],
    }
    show(document, _lines(loaded, demands, rules), as_json=as_json)
    if not as_json:
        for note in loaded.warnings:
            advise(f"note: {note}")
        suggest("windtunnel", "dataio", "run" if loaded.is_checkpoint_only else "predict", config)
    if any(rule.is_met is False for rule in rules):
        raise typer.Exit(1)


def _show_results(folder: Path, *, as_json: bool) -> None:
    """Show AU and throughput of a run of DLIO, recomputed from the times of its steps."""
    from windtunnel.systems.dataio.results import read_results

    results = read_results(folder)
    ours, theirs = results.metrics(), results.metrics(is_dlio=True)
    reported = results.reported_au_ratios or (None,) * len(results.epochs)
    document = {
        "schema": "windtunnel.dataio-results/1",
        "num_ranks": results.num_ranks,
        "batch_size": results.batch_size if results.is_batch_given else None,
        "reported_au_ratios": list(results.reported_au_ratios),
        "dlio_samples_per_s": theirs.samples_per_s,
        **ours.to_dict(),
    }
    columns = {"epoch": "{}", "AU": "{:.2%}", "reported AU": "{:.2%}", "samples/s": "{:,.2f}", "DLIO counts": "{:,.2f}"}
    rows = zip(results.epochs, ours.au_ratios, reported, ours.samples_per_s, theirs.samples_per_s, strict=True)
    lines: list[str | Table] = [
        f"{results.num_ranks} ranks, {len(results.epochs)} epochs",
        "",
        Table(columns, list(rows)),
    ]
    if not results.is_batch_given:
        lines.append("no configuration is kept with the results: throughput is that of batches of one sample")
    show(document, lines + [f"note: {note}" for note in ours.notes], as_json=as_json)


def _lines(config: DlioConfig, demands: Demands, rules: list[RuleCheck]) -> Iterator[str | Table]:
    yield f"{config.name}: {config.model.name}, {demands.num_accelerators} accelerators"
    yield ""
    yield Table({"what": str, "value": str}, list(_rows(config, demands)))
    if rules:
        yield ""
        yield "rules of MLPerf Storage"
        marks = {True: "met", False: "not met", None: "to be shown"}
        for rule in rules:
            yield f"  {marks[rule.is_met]}: {rule.rule}: {rule.arithmetic}{f'; fix: {rule.fix}' if rule.fix else ''}"


def _rows(config: DlioConfig, demands: Demands) -> Iterator[tuple[str, str]]:
    if config.workflow.train:
        dataset = config.dataset
        yield "format", f"{dataset.format}, {format_count(dataset.num_samples_per_file)} samples per file"
        yield "sample", format_size(demands.sample_bytes)
        yield "data set", f"{format_size(demands.dataset_bytes)} in {format_count(dataset.num_files_train)} files"
        yield "step", f"{config.reader.batch_size} samples, {format_duration(1e9 * demands.step_s)}"
        yield "steps per epoch", format_count(demands.steps_per_epoch)
        if demands.bytes_per_s is not None:
            yield "read rate per accelerator", format_rate(demands.bytes_per_s)
            yield "read rate of the job", format_rate(demands.num_accelerators * demands.bytes_per_s)
    if config.workflow.checkpoint:
        if demands.num_parameters:
            yield "parameters", format_count(demands.num_parameters)
        yield "checkpoint", format_size(demands.checkpoint_bytes)
        if demands.optimizer_bytes:
            yield "  model, optimizer", f"{format_size(demands.model_bytes)}, {format_size(demands.optimizer_bytes)}"
        yield "checkpoint per rank", format_size(demands.checkpoint_bytes_per_rank)
