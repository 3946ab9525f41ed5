"""Execution of the runs that show stalls.

In: a job, a link, perhaps a limit of the disk. Out: ``Stalls``. Two groups of processes, one core each, live through
all turns: ranks that are joined within the machine, and ranks that are joined by a shaped link whose rate was measured
before anything else. Runs take turns, so that a machine that slows down slows them all. Files are dropped from memory,
and seen to be, before each turn that reads them from the disk. Not here: what the times mean (``model``).
"""

from __future__ import annotations

import contextlib
import platform
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import FlightError, InputError
from windtunnel.hardware.host import usable_cores
from windtunnel.measure.disks import can_throttle, evict, read_all, require_disk, resident_share, throttle_disk
from windtunnel.measure.links import ShapedLink, shape_link
from windtunnel.measure.turns import elapsed_ns, quiet
from windtunnel.measure.workers import Workers
from windtunnel.systems.stalls.features import features_of
from windtunnel.systems.stalls.files import batch_of, write_batches
from windtunnel.systems.stalls.job import job_of
from windtunnel.systems.stalls.model import RUNS, Reading, Stalls, stalls_of
from windtunnel.systems.stalls.rank import Orders, Took, Turn
from windtunnel.workloads.workload import Workload

__all__ = ["Surroundings", "measure_stalls"]

_MODULE = "windtunnel.systems.stalls.rank"
_NUM_WARMUP = 4  # more than a reader holds ready
_MAX_RESIDENT = 0.02
_MAX_DEVIATION = 0.05  # of a shaped link's rate
_MAX_DISAGREEMENT = 0.25  # of a run's time, between its ranks
_TRANSFERS, _TRANSFER_S, _MIN_TRANSFER_BYTES = 4, 0.5, 1 << 20
_NUM_PREPARED = 8
_NETWORK = ("network", "everything")
_READING = ("cached", "cold", "everything")


@dataclass(frozen=True)
class Surroundings:
    """The environment of a job: ranks, link, disk.

    Attributes
    ----------
    bandwidth_bytes_per_s : float, optional
        Of the network; None where there is none, and no run over it.
    latency_ns : int
        One way.
    folder : Path, optional
        Where the files are written, for as long as it runs; a temporary folder by default.
    disk_bytes_per_s : float
        To which reading from the disk is limited, all ranks together; 0 for the disk as it is.
    reads : bool
        Runs with files are made.
    """

    bandwidth_bytes_per_s: float | None = None
    latency_ns: int = 0
    folder: Path | None = None
    disk_bytes_per_s: float = 0.0
    reads: bool = True

    @property
    def is_throttled(self) -> bool:
        """Whether the kernel throttles the disk; otherwise the readers throttle themselves."""
        return bool(self.disk_bytes_per_s) and can_throttle()

    def runs(self) -> list[str]:
        """The runs that this environment supports."""
        left_out = set() if self.bandwidth_bytes_per_s else set(_NETWORK)
        return [name for name in RUNS if name not in left_out and (self.reads or name not in _READING)]


def measure_stalls(
    job: str,
    around: Surroundings,
    *,
    num_ranks: int = 2,
    num_batches: int = 20,
    num_turns: int = 5,
    progress: Progress | None = None,
) -> Stalls:
    """Execute all runs, interleaved, and compute the time of each cause.

    Parameters
    ----------
    job : str
        A workload with parameters, ``relu-network:family=vgg``, or ``my_job.py:make``.
    num_ranks : int
        One core each.
    num_batches : int
        Timed in each turn of each run.
    num_turns : int

    Raises
    ------
    InputError
        The job is none, there are too few cores, or the folder lies in memory.
    FlightError
        A link is not as fast as asked for, files stay in memory, or a process died.
    """
    cores = usable_cores()
    if not 2 <= num_ranks <= len(cores) or num_batches < 1 or num_turns < 2:
        raise InputError(
            f"{num_ranks} ranks, {num_batches} batches and {num_turns} turns cannot be compared on {len(cores)} cores",
            where="ranks",
            fix="take 2 ranks or more, one core each, 1 batch and 2 turns or more",
        )
    # Each cause of stalls is a difference between two runs of one job (see ``Surroundings.runs``): without
    # and with data from the disk, without and with messages over the slow link. Runs take turns, so that
    # a machine that slows down meanwhile slows all of them down alike.
    created = job_of(job)
    runs = around.runs()
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(_files(created, around, 2 * num_ranks * (num_batches + _NUM_WARMUP)))
        reading = (
            _reading(files, 0.0 if around.is_throttled else around.disk_bytes_per_s, created.batch_size)
            if files
            else None
        )
        # One group of processes runs all that needs no slow link, another lives behind the link. Both stay
        # alive over all turns: starting processes and loading the job would be most of a short turn.
        near = stack.enter_context(_ranks(job, files, num_ranks, None))
        far = None
        environment: dict[str, Any] = {
            "kernel": platform.release(),
            "cores": cores[:num_ranks],
            "python": platform.python_version(),
        }
        if around.bandwidth_bytes_per_s:
            link = stack.enter_context(
                shape_link(num_ranks, around.bandwidth_bytes_per_s, around.latency_ns, is_in_kernel=True)
            )
            far = stack.enter_context(_ranks(job, files, num_ranks, link))
            environment["link"] = _check_link_rate(far, link, around)
        if around.disk_bytes_per_s:
            how = "a disk throttled by the kernel" if around.is_throttled else "a reader limited"
            environment["disk"] = f"{how} to {around.disk_bytes_per_s / 1e6:g} MB/s"
        times: dict[str, list[float]] = {run: [] for run in runs}
        warnings: dict[str, None] = {}
        for turn in range(num_turns):
            for run in runs:
                if progress is not None:
                    progress(run, turn * len(runs) + runs.index(run), num_turns * len(runs))
                group = far if run in _NETWORK else near
                assert group is not None
                took = _turn(group, run, files, around, num_ranks, num_batches)
                used = [item.iteration_ns for item in took]
                times[run].append(statistics.mean(used))
                # Ranks wait for each other in each iteration, so that their times should agree.
                if max(used) - min(used) > _MAX_DISAGREEMENT * statistics.mean(used):
                    warnings[f"ranks of run {run!r} differ by more than a quarter of its time"] = None
                environment.setdefault("helpers_cpu_ns", {})[run] = statistics.mean(
                    item.helpers_cpu_ns / item.num_batches for item in took
                )
    result = {run: np.array(time_) for run, time_ in times.items()}
    features = features_of(
        [
            parameter.numel() * parameter.element_size()
            for parameter in created.model.parameters()
            if parameter.requires_grad
        ]
    )
    return Stalls(
        job, num_ranks, created.batch_size, features, result, stalls_of(result), reading, environment, tuple(warnings)
    )


@contextlib.contextmanager
def _files(workload: Workload, around: Surroundings, num_files: int) -> Iterator[list[Path]]:
    """Provide twice as many files as a turn reads, on a disk that the kernel throttles if it can."""
    if not around.reads:
        yield []
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windtunnel-batches-", dir=around.folder)))
        require_disk(folder)
        if around.is_throttled:
            (first,) = write_batches(workload, folder, 1)
            size_bytes = num_files * first.stat().st_size
            folder = stack.enter_context(throttle_disk(folder, around.disk_bytes_per_s, size_bytes))
        yield write_batches(workload, folder, num_files)


def _reading(files: Sequence[Path], disk_bytes_per_s: float, batch_size: int) -> Reading:
    """Measure the rates of reading and preparing while nothing else runs."""
    evict(files)
    size_bytes, took_ns = read_all(files)
    disk = size_bytes / took_ns * 1e9
    _, memory_ns = read_all(files)
    data, random = [file.read_bytes() for file in files[:_NUM_PREPARED]], np.random.default_rng(0)
    prepared_ns = quiet([elapsed_ns(partial(batch_of, item, random)) for item in data])
    return Reading(
        size_bytes / len(files) / batch_size, size_bytes / memory_ns * 1e9,
        min(disk, disk_bytes_per_s) if disk_bytes_per_s else disk, batch_size / prepared_ns * 1e9,
    )  # fmt: skip


@contextlib.contextmanager
def _ranks(job: str, files: Sequence[Path], num_ranks: int, link: ShapedLink | None) -> Iterator[Workers]:
    addresses = link.addresses if link is not None else ("127.0.0.1",) * num_ranks
    environment = {"OMP_NUM_THREADS": "1", **(link.environment if link is not None else {})}
    with Workers(
        _MODULE, Orders(job, tuple(files), addresses), num_ranks=num_ranks, title="run",
        cores=[[core] for core in usable_cores()[:num_ranks]], environment=environment,
        prefixes=link.prefixes if link is not None else (),
    ) as workers:  # fmt: skip
        for rank in range(num_ranks):
            workers.receive(rank)
        yield workers


def _check_link_rate(workers: Workers, link: ShapedLink, around: Surroundings) -> dict[str, Any]:
    """Measure the rate of the link and check it.

    Raises
    ------
    FlightError
        The rate deviates from the requested one.
    """
    requested = link.bandwidth_bytes_per_s
    size_bytes = max(_MIN_TRANSFER_BYTES, round(_TRANSFER_S * requested))
    for _ in range(_TRANSFERS):  # others may have the cores for a moment
        rate = max(_all(workers, Turn(transfer_bytes=size_bytes), workers.num_ranks))
        if abs(rate / requested - 1) <= _MAX_DEVIATION:
            break
    else:
        raise FlightError(
            f"a link of {requested / 1e6:g} MB/s carries {rate / 1e6:g} MB/s",
            where=link.how,
            fix="ask for a rate that this host can carry, and let nothing else run",
        )
    return {"how": link.how, "bytes_per_s": requested, "measured_bytes_per_s": rate, "latency_ns": around.latency_ns}


def _turn(
    workers: Workers, run: str, files: Sequence[Path], around: Surroundings, num_ranks: int, num_batches: int
) -> list[Took]:
    """Execute one turn of one run."""
    is_cold = run in ("cold", "everything")
    if is_cold:
        evict(files)
        if (held := resident_share(files)) > _MAX_RESIDENT:
            raise FlightError(
                f"the kernel keeps {held:.0%} of the files in memory although they were dropped",
                where=str(files[0].parent),
                fix="give a folder on another disk",
            )
    elif run == "cached":
        read_all(files)
    limit = around.disk_bytes_per_s / num_ranks if is_cold and not around.is_throttled else 0.0
    order = Turn(num_batches, _NUM_WARMUP, run not in ("alone", "apart"), run in _READING, limit)
    return _all(workers, order, 1 if run == "alone" else num_ranks)


def _all(workers: Workers, order: Turn, num_ranks: int) -> list[Any]:
    for rank in range(num_ranks):
        workers.send(order, rank)
    return [workers.receive(rank) for rank in range(num_ranks)]
