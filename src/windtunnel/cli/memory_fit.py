"""``windtunnel memory --fit``: the largest batch that fits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.base.tables import Table
from windtunnel.cli.console import Progress, show, suggest
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.units import format_size

if TYPE_CHECKING:
    from windtunnel.hardware import Device
    from windtunnel.sources.memory.fit import Fit

__all__ = ["Job", "show_fit"]

_OPTION = re.compile(r"""["'](--[\w-]*(?:batch[-_]?size|bsz?|batch))["']""")
_START = 8
_NO_LIMIT = f"{2**60}B"


@dataclass(frozen=True)
class Job:
    """A script or a workload whose batch can be set.

    Parameters
    ----------
    target : str
    arguments : sequence of str
        Of the script.
    option : str
        Of the script, which sets its batch; found in the script by default.
    chip : Device, optional
        The GPU that it would run on.
    guesses : bool
    """

    target: str
    arguments: Sequence[str]
    option: str = ""
    chip: Device | None = None
    guesses: bool = False

    def __post_init__(self) -> None:
        if self.is_script and not self.option:
            object.__setattr__(self, "option", _option_of(self.target))

    @property
    def is_script(self) -> bool:
        """Whether it is no workload."""
        return self.target.endswith(".py")

    @property
    def start(self) -> int:
        """The batch that is asked for, or a small one."""
        if self.is_script:
            given = [*self.arguments, ""]
            values = [given[i + 1] for i, word in enumerate(given[:-1]) if word == self.option]
            values += [word.partition("=")[2] for word in given if self.option and word.startswith(f"{self.option}=")]
        else:
            values = re.findall(r"\bbatch_size=(\d+)", self.target)
        return max(int(values[-1]), 1) if values and values[-1].isdigit() else _START

    def with_batch(self, batch: int) -> list[str]:
        """Options of ``windtunnel memory``, target and arguments."""
        if not self.is_script:
            name, _, given = self.target.partition(":")
            kept = [part for part in given.split(",") if part and not part.strip().startswith("batch_size=")]
            return [f"{name}:{','.join([*kept, f'batch_size={batch}'])}"]
        if not self.option:
            return ["--loader-batch-size", str(batch), self.target, *self.arguments]
        return [self.target, *_without(self.arguments, self.option), self.option, str(batch)]

    def peak_of(self, batch: int, *, reserved: bool) -> tuple[int, int]:
        """Peak in bytes on fake tensors, as asked for, and what tensors hold of it.

        In a process of its own: a module that keeps tensors would keep fake ones.

        Raises
        ------
        InputError
            There is no such job, with the reason.
        """
        from windtunnel.measure.workers import run_to_end

        selected = ["--on", self.chip.name] if self.chip is not None else []
        selected += ["--guess-values"] if self.guesses else []
        options = ["--fake", "--json", "--device-memory", _NO_LIMIT, *selected]
        done = run_to_end([sys.executable, "-m", "windtunnel", "memory", *options, *self.with_batch(batch)])
        try:
            profile: dict[str, Any] = json.loads(done.stdout if done is not None else "")
        except ValueError:
            lines = done.stderr.splitlines() if done is not None else []
            reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "no answer")
            raise InputError(
                f"at batch size {batch:,}: {reason}",
                where=self.target,
                fix="run the script with this batch size first, or name the option that sets it with --batch-option",
            ) from None
        return int(profile["peak_reserved_bytes" if reserved else "peak_bytes"]), int(profile["peak_bytes"])


def show_fit(job: Job, limit_bytes: int | None, *, as_json: bool) -> None:
    """Search, then show the largest batch that fits; ``limit_bytes``: of a device, None for this host's free memory.

    Raises
    ------
    InfeasibleError
        No batch fits.
    """
    from windtunnel.hardware.host import available_bytes
    from windtunnel.sources.memory.fit import largest_batch

    reserved, limit = limit_bytes is not None, available_bytes() if limit_bytes is None else limit_bytes
    with Progress(f"searching for the largest batch of {job.target}") as progress:
        result = largest_batch(_count_runs(job, progress, reserved=reserved), limit, job.start)
    if not result.batch_size:
        raise InfeasibleError(
            f"no batch fits: a batch size of {result.next_batch_size} needs "
            f"{format_size(result.peaks[result.next_batch_size])}, and the limit is {format_size(limit)}",
            where=job.target,
            fix="use a smaller model, less optimizer state, or activation checkpointing; "
            "windtunnel memory --fake shows what holds the memory",
        )
    document = _document(job, result, reserved=reserved)
    show(document, _lines(document, result), as_json=as_json)
    suggest("windtunnel", "memory", "--fake", *(["--on", job.chip.name] if job.chip else []),
            *job.with_batch(result.batch_size))  # fmt: skip


def _count_runs(job: Job, progress: Progress, *, reserved: bool) -> Callable[[int], tuple[int, int]]:
    count = 0

    def peak_of(batch: int) -> tuple[int, int]:
        nonlocal count
        count += 1
        progress(f"batch {batch:,}, run", count, 0)
        return job.peak_of(batch, reserved=reserved)

    return peak_of


def _document(job: Job, found: Fit, *, reserved: bool) -> dict[str, Any]:
    following = found.next_batch_size or None
    return {
        "schema": "windtunnel.memory_fit/1",
        "batch_size": found.batch_size,
        "peak_bytes": found.peaks[found.batch_size],
        "limit_bytes": found.limit_bytes,
        "is_reserved": reserved,
        "next_batch_size": following,
        "next_peak_bytes": found.peaks.get(following) if following else None,
        "next_failure": found.failures.get(following) if following else None,
        "chip": None if job.chip is None else job.chip.name,
        "set_by": job.option or ("data loaders" if job.is_script else "batch_size"),
        "peaks": [{"batch_size": batch, "peak_bytes": peak} for batch, peak in found.peaks.items()],
    }


def _lines(document: dict[str, Any], found: Fit) -> Iterator[str | Table]:
    where = f" of {document['chip']}" if document["chip"] else ""
    held = "reserved by the caching allocator" if document["is_reserved"] else "allocated"
    yield (
        f"largest batch size {found.batch_size:,} ({document['set_by']}): "
        f"peak {format_size(document['peak_bytes'])} {held}, limit {format_size(found.limit_bytes)}{where}"
    )
    following = found.next_batch_size
    if following in found.failures:
        yield f"batch size {following:,} failed: {found.failures[following]}"
    elif following:
        yield f"batch size {following:,} would need {format_size(found.peaks[following])}"
    else:
        yield "larger batch sizes were not tried"
    rows = [(batch, peak, "yes" if peak <= found.limit_bytes else "no") for batch, peak in sorted(found.peaks.items())]
    yield Table({"batch size": "{:,}", "peak": format_size, "fits": str}, rows)


def _option_of(script: str) -> str:
    """The option of a script that sets its batch, "" where its text names none.

    Raises
    ------
    InputError
        The file is not there, or several options look like it.
    """
    path = Path(script)
    if not path.is_file():
        raise InputError(f"there is no script {script}", where=str(path.resolve()), fix="check the path")
    result = list(dict.fromkeys(_OPTION.findall(path.read_text(encoding="utf-8", errors="replace"))))
    if len(result) > 1:
        raise InputError(
            f"several options of {path.name} may set its batch size: {', '.join(result)}",
            where=script,
            fix=f"name it: --batch-option {result[0]}",
        )
    return result[0] if result else ""


def _without(arguments: Sequence[str], option: str) -> list[str]:
    """The arguments without an option and its value."""
    kept, skips = [], False
    for word in arguments:
        if skips or word == option:
            skips = word == option and not skips
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept
