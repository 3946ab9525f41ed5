"""``windtunnel dataio run`` of a job without training: its checkpoints, written and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, show
from windtunnel.errors import InputError
from windtunnel.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from windtunnel.systems.dataio.checkpoint import CheckpointTimes
    from windtunnel.systems.dataio.config import DlioConfig

__all__ = ["run_checkpoint_job"]


def run_checkpoint_job(config: DlioConfig, num_ranks: int, *, is_cold: bool, as_json: bool) -> None:
    """Write and read the checkpoints of a configuration, and show what they took.

    Raises
    ------
    InputError
        None is to be written, they do not fit, or the storage fails.
    """
    from windtunnel.systems.dataio.checkpoint import run_checkpoints

    if config.checkpoint.num_checkpoints_write <= 0:
        raise InputError(
            "without training, num_checkpoints_write says how many checkpoints are written",
            where="checkpoint.num_checkpoints_write",
            fix="--set checkpoint.num_checkpoints_write=3",
        )
    with Progress("checkpoints") as progress:
        times = run_checkpoints(config, num_ranks, is_cold=is_cold, progress=progress)
    document = {"schema": "windtunnel.dataio-checkpoints/1", "num_ranks": num_ranks, **asdict(times)}
    show(document, _lines(config, num_ranks, times), as_json=as_json)


def _lines(config: DlioConfig, num_ranks: int, times: CheckpointTimes) -> Iterator[str | Table]:
    yield f"{config.name}: checkpoints of {format_size(times.num_bytes)} on {num_ranks} ranks"
    yield ""
    rows = [
        (name, len(seconds), 1e9 * median(seconds), 1e9 * max(seconds), times.num_bytes / median(seconds))
        for name, seconds in _passes(times)
    ]
    columns = {"": str, "count": "{}", "median": format_duration, "slowest": format_duration, "rate": format_rate}
    yield Table(columns, rows)


def _passes(times: CheckpointTimes) -> Iterator[tuple[str, Sequence[float]]]:
    for name, seconds in (("write", times.write_s), ("read", times.read_s)):
        if seconds:
            yield name, seconds
