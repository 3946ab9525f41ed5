"""What loading costs on this machine: samples of a data set, its storage, and the loader itself.

In: a ``LoadingJob`` whose files exist. Out: ``LoadingCosts``, from which any number of workers, ranks and step times is
predicted. Takes less than a minute: samples are read from memory and from the device, whole files by several streams
at once, and a loader runs for some batches with no, one and as many workers as there are cores. Not here: predictions
(``predict``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.base.reading import free_memory_bytes, parse_json
from windtunnel.errors import InputError
from windtunnel.hardware.cores import usable_cores
from windtunnel.measure.disks import evict, measure_read_rate, read_all
from windtunnel.measure.rounds import elapsed_ns, quiet
from windtunnel.systems.dataio.job import NO_TIME, LoadingJob
from windtunnel.systems.dataio.loading import open_reader, read_io_bytes
from windtunnel.systems.dataio.run import EpochRun, running
from windtunnel.systems.dataio.worker import EpochTask

__all__ = ["LoadingCosts", "measure_costs", "measure_samples", "read_costs", "write_costs"]

SCHEMA = "windtunnel.dataio-costs/1"
_STREAMS = (1, 2, 4)
_MAX_SAMPLES, _ROW, _SAMPLE_BUDGET_NS = 64, 16, 1_500_000_000
_CURVE_BUDGET_BYTES, _CURVE_BUDGET_S = 1 << 28, 1.5
_LOADER_BUDGET_NS = 1_500_000_000
_FIRST_BYTES = 4096


@dataclass(frozen=True)
class LoadingCosts:
    """Costs of loading samples of one data set on one machine.

    Attributes
    ----------
    format : str
    file_bytes : list of float
        Sizes of the files that were read, one for each of the next.
    warm_ns, cold_ns : list of float
        To read and decode a sample that the page cache holds, and one that it does not hold.
    overhead_ns : float
        Part of ``warm_ns`` that does not depend on the size of the sample.
    sample_device_bytes : float
        That the device delivers for a cold sample of a file of mean size.
    latency_ns : float
        Until the first bytes of a cold file are there.
    curve : dict
        Bytes per second of the device by number of streams.
    batch_ns : dict
        Additional time to make a batch, by ``main`` (no workers) or ``worker``; its samples' share is in ``batch_size``
        samples.
    batch_size : int
    transfer_ns, get_ns : float
        From a worker's batch to the main process; to receive it.
    barrier_ns : float
        Of the end of a step, with the time by which sleeping is late.
    slowdown : list of float
        Of workers while 1, 2, ... of them work.
    num_cores : int
    memory_bytes : int
        That the page cache may use.
    """

    format: str
    file_bytes: list[float]
    warm_ns: list[float]
    cold_ns: list[float]
    overhead_ns: float
    sample_device_bytes: float
    latency_ns: float
    curve: dict[int, float]
    batch_ns: dict[str, float]
    batch_size: int
    transfer_ns: float
    get_ns: float
    barrier_ns: float
    slowdown: list[float]
    num_cores: int
    memory_bytes: int

    @property
    def pool_bytes_per_s(self) -> float:
        """What the device delivers to all streams together."""
        return max(self.curve.values())

    @property
    def stream_bytes_per_s(self) -> float:
        """What one reader of samples gets once the first bytes are there."""
        extra_ns = fmean(self.cold_ns) - fmean(self.warm_ns) - self.latency_ns
        fastest = 4 * self.pool_bytes_per_s
        return (
            min(self.sample_device_bytes / max(extra_ns, 1.0) * 1e9, fastest) if self.sample_device_bytes else fastest
        )


def read_costs(path: Path) -> LoadingCosts:
    """Read what ``write_costs`` wrote.

    Raises
    ------
    InputError
        It is something else.
    """
    document = parse_json(path.read_bytes(), str(path))
    try:
        costs: LoadingCosts = msgspec.convert(document["costs"], LoadingCosts, strict=False)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise InputError(
            f"these are no costs of loading: {error}",
            where=str(path),
            fix="windtunnel dataio predict --out writes them",
        ) from error
    return costs


def write_costs(path: Path, costs: LoadingCosts) -> None:
    """Write costs as JSON."""
    path.write_text(json.dumps({"schema": SCHEMA, "costs": asdict(costs)}, indent=1), encoding="utf-8")


def measure_costs(job: LoadingJob, *, overhead_ns: float = 0.0, progress: Progress | None = None) -> LoadingCosts:
    """Measure what loading this data set costs.

    Parameters
    ----------
    job : LoadingJob
        Its files exist.
    overhead_ns : float
        Part of the time of a sample that does not depend on its size, as tiny samples of this format show it.
    progress : callable, optional
    """
    report = progress or (lambda *_: None)
    num_cores = len(usable_cores())
    files = _spread(job.files, _MAX_SAMPLES)
    report("samples", 0, 3)
    warm_ns, cold_ns, device_bytes = measure_samples(job)
    report("storage", 1, 3)
    curve, latency_ns = _storage(job.files, max(job.record_bytes, 1), quiet(cold_ns))
    report("loader", 2, 3)
    loader = _loader_costs(job, quiet(warm_ns), num_cores)
    report("loader", 3, 3)
    return LoadingCosts(
        format=job.format,
        file_bytes=[float(path.stat().st_size) for path in files[: len(warm_ns)]],
        warm_ns=warm_ns,
        cold_ns=cold_ns,
        overhead_ns=min(overhead_ns, quiet(warm_ns)),
        sample_device_bytes=device_bytes,
        latency_ns=min(latency_ns, max(fmean(cold_ns) - fmean(warm_ns), 0.0) / 2),
        curve=curve,
        num_cores=num_cores,
        memory_bytes=free_memory_bytes() or 1 << 62,
        **loader,
    )


def _spread(files: Sequence[Path], count: int) -> list[Path]:
    """So many files, all over the data set."""
    return [files[row] for row in _spread_rows(len(files), count)]


def _spread_rows(num_files: int, count: int) -> list[int]:
    """Numbers of a given count of files, all over the data set."""
    rows: list[int] = np.unique(np.linspace(0, num_files - 1, count).astype(int)).tolist()
    return rows


def measure_samples(job: LoadingJob) -> tuple[list[float], list[float], float]:
    """Measure samples in memory and not in memory, in ns, and the bytes that the device delivers for one of these."""
    rows = _spread_rows(len(job.files), _MAX_SAMPLES)
    reader = open_reader(replace(job, is_kept_open=False))
    random = np.random.default_rng(0)
    indices = random.integers(0, job.dataset.samples_per_file, len(rows)).tolist()
    warm: list[float] = []
    cold: list[float] = []
    device_bytes = 0
    reader.read(job.keys[0], indices[0])
    # In rows of files, one after the other without a pause: a device that is limited, or works ahead, serves single
    # reads at another rate than many. Each row is read cold and then warm, so that a slow moment meets both.
    for first in range(0, len(rows), _ROW):
        row = list(zip(rows[first : first + _ROW], indices[first : first + _ROW], strict=True))
        evict(job.files[number] for number, _ in row)
        before = read_io_bytes()[0]
        cold += [float(elapsed_ns(partial(reader.read, job.keys[number], index))) for number, index in row]
        device_bytes += read_io_bytes()[0] - before
        read_all(job.files[number] for number, _ in row)
        warm += [float(elapsed_ns(partial(reader.read, job.keys[number], index))) for number, index in row]
        if sum(cold) + sum(warm) > _SAMPLE_BUDGET_NS:
            break
    if job.is_direct:  # the page cache has no part in it
        warm = cold
    return warm, cold, device_bytes / len(cold)


def _storage(files: Sequence[Path], record_bytes: int, cold_ns: float) -> tuple[dict[int, float], float]:
    """Bytes per second by number of streams, and the time until the first bytes of a file are there."""
    sizes = np.array([path.stat().st_size for path in files])
    rate = record_bytes / cold_ns * 1e9
    budget = min(_CURVE_BUDGET_BYTES, max(_CURVE_BUDGET_S * rate, sizes[0] * max(_STREAMS)))
    count = max(int(np.searchsorted(np.cumsum(sizes), budget)), min(len(files), max(_STREAMS)))
    used = files[:count]
    curve = {streams: measure_read_rate(used, streams) for streams in _STREAMS if streams <= len(used)}
    first = _spread(files, 16)
    evict(first)
    return curve, quiet([elapsed_ns(partial(_read_first, path)) for path in first])


def _read_first(path: Path) -> bytes:
    """Read the first bytes of a file, without what the kernel would read ahead."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return os.read(file, _FIRST_BYTES)
    finally:
        os.close(file)


def _loader_costs(job: LoadingJob, sample_ns: float, num_cores: int) -> dict[str, Any]:
    """Costs that a loader adds to those of samples, from short runs with files in memory."""
    batch_size = min(job.batch_size, max(job.dataset.num_samples // (4 * job.num_ranks), 1))
    fitting = job.dataset.num_samples // (batch_size * job.num_ranks)
    steps = int(min(fitting, 60, max(4, _LOADER_BUDGET_NS // (batch_size * sample_ns))))
    short = replace(job, batch_size=batch_size, steps_between_checkpoints=-1, compute_job="", preprocess=NO_TIME)
    samples_ns = batch_size * sample_ns
    with running(replace(short, num_workers=0)) as ranks:
        ranks.run(EpochTask(1, compute_s=0.0, max_steps=min(steps, 4)), cache="warm")
        main = ranks.run(EpochTask(2, compute_s=0.001, max_steps=steps), cache="as-is")
    single = replace(short, num_ranks=1)
    made_ns: dict[int, float] = {}
    transfer_ns = get_ns = worker_ns = 0.0
    for count in sorted({1, num_cores}):
        with running(replace(single, num_workers=count)) as ranks:
            ranks.run(EpochTask(1, compute_s=0.0, max_steps=max(steps // 2, 2 * count)), cache="warm")
            busy = ranks.run(EpochTask(2, compute_s=0.0, max_steps=steps), cache="as-is")
            made_ns[count] = _busy_ns(busy)
            if count == 1:
                calm = ranks.run(EpochTask(3, compute_s=2e-9 * made_ns[1] + 0.002, max_steps=min(steps, 12)))
                get_ns = quiet(calm.ranks[0].blocks[0].load_s[2:].tolist() or [0.0]) * 1e9
                transfer_ns, worker_ns = max(_transfer_ns(busy) - get_ns, 0.0), made_ns[1] - samples_ns
    ratios = [max(value / made_ns[1], 1.0) for value in made_ns.values()]
    factors = np.interp(range(1, num_cores + 1), list(made_ns), ratios)
    return {
        "batch_ns": {"main": _span_ns(main) - samples_ns, "worker": worker_ns},
        "batch_size": batch_size,
        "transfer_ns": transfer_ns,
        "get_ns": get_ns,
        "barrier_ns": _step_end_ns(main),
        "slowdown": factors.tolist(),
    }


def _span_ns(run: EpochRun) -> float:
    """Median time in which a batch was made."""
    return quiet([span.end_ns - span.start_ns for record in run.ranks for span in record.spans])


def _busy_ns(run: EpochRun) -> float:
    """Time of a busy worker per batch, with what it does between batches."""
    spans = run.ranks[0].spans
    times = []
    for worker in {span.worker for span in spans}:
        ends = [span.end_ns for span in spans if span.worker == worker]
        times += np.diff(ends).tolist()
    return quiet(times) if times else _span_ns(run)


def _transfer_ns(run: EpochRun) -> float:
    """From the end of a batch until the main process, which waits for it, has it."""
    record = run.ranks[0]
    return quiet([got - span.end_ns for got, span in zip(record.got_ns, record.spans, strict=True)])


def _step_end_ns(run: EpochRun) -> float:
    """What a step takes after the accelerator is done: sleeping too long, and the barrier."""
    blocks = [record.blocks[0] for record in run.ranks]
    late = np.concatenate([block.steps_s - block.load_s - block.compute_s for block in blocks])
    ends = np.array([record.end_ns for record in run.ranks])
    done = np.array([record.got_ns for record in run.ranks]) + round(1e9 * run.ranks[0].blocks[0].compute_s[0])
    # the barrier begins when the slowest rank arrives
    return quiet(ends.max(axis=0) - done.max(axis=0)) if len(run.ranks) > 1 else 1e9 * quiet(late)
