"""What loading costs on this machine: samples of a data set, its storage, and the loader itself.

In: a ``LoadingJob`` whose files exist. Out: ``LoadingCosts``, from which any number of workers, ranks and step times is
predicted. Takes less than a minute: samples are read from memory and from the device, whole files by several streams
at once, and a loader runs for some batches with no, one and as many workers as there are cores. Not here: predictions
(``predict``).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.base.reading import free_memory_bytes, parse_json
from windtunnel.errors import InputError
from windtunnel.hardware.host import usable_cores
from windtunnel.measure.disks import measure_burst, measure_read_rate
from windtunnel.measure.turns import elapsed_ns, quiet
from windtunnel.systems.dataio.config import StorageConfig
from windtunnel.systems.dataio.formats import make_format
from windtunnel.systems.dataio.job import NO_TIME, LoadingJob
from windtunnel.systems.dataio.loading import bytes_per_read, open_reader, read_io_bytes
from windtunnel.systems.dataio.reading import SampleReader
from windtunnel.systems.dataio.run import EpochRun, running
from windtunnel.systems.dataio.storage import Storage, open_storage
from windtunnel.systems.dataio.worker import EpochTask

__all__ = ["LoadingCosts", "measure_costs", "measure_samples", "read_costs", "write_costs"]

SCHEMA = "windtunnel.dataio-costs/1"
_STREAMS = (1, 2, 4)
_MAX_SAMPLES, _ROW, _SAMPLE_BUDGET_NS = 64, 16, 1_500_000_000
_CURVE_BUDGET_BYTES, _CURVE_BUDGET_S, _MAX_CURVE_FILES = 1 << 28, 1.5, 4096
_LOADER_BUDGET_NS = 1_500_000_000
_STEP_S, _MAIN_STEPS = 0.03, 24
_FIRST_BYTES = 4096
_FASTEST_BURST = 100


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
        Bytes per second of the device by number of streams, in the long run.
    burst_bytes : float
        That a device which rested delivers ahead of these.
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
    burst_bytes: float
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
    def saves_up(self) -> bool:
        """Whether a sample is delivered at once by a device that rested while an earlier one was decoded."""
        return self.burst_bytes > self.sample_device_bytes > 0

    @property
    def stream_bytes_per_s(self) -> float:
        """What one reader of samples gets once the first bytes are there."""
        # of a device that delivers bursts and then pauses, samples within a burst
        typical = quiet if self.saves_up else fmean
        extra_ns = typical(self.cold_ns) - typical(self.warm_ns) - self.latency_ns
        fastest = (_FASTEST_BURST if self.saves_up else 4) * self.pool_bytes_per_s
        return min(self.sample_device_bytes / max(extra_ns, 1.0) * 1e9, fastest) or fastest


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


def measure_costs(
    job: LoadingJob, *, overhead_ns: float = 0.0, known: LoadingCosts | None = None, progress: Progress | None = None
) -> LoadingCosts:
    """Measure what loading this data set costs.

    Parameters
    ----------
    job : LoadingJob
        Its files exist.
    overhead_ns : float
        Part of the time of a sample that does not depend on its size, as tiny samples of this format show it.
    known : LoadingCosts, optional
        Of another data set on the same storage, which is not measured again.
    progress : callable, optional
    """
    report = progress or (lambda *_: None)
    num_cores = len(usable_cores())
    storage = open_storage(job.config.storage)
    report("samples", 0, 3)
    samples = measure_samples(job)
    report("storage", 1, 3)
    rates = _rates_of(known) if known else _measure_rates(job, storage, quiet(samples.cold_ns))
    report("loader", 2, 3)
    # a loader finds local files in memory, as they are read before
    loader = _loader_costs(job, quiet(samples.cold_ns if job.is_remote else samples.warm_ns), num_cores)
    report("loader", 3, 3)
    extra_ns = fmean(samples.cold_ns) - fmean(samples.warm_ns)
    return LoadingCosts(
        format=job.format,
        file_bytes=samples.file_bytes,
        warm_ns=samples.warm_ns,
        cold_ns=samples.cold_ns,
        overhead_ns=min(overhead_ns, quiet(samples.warm_ns)),
        sample_device_bytes=samples.device_bytes,
        curve=rates.curve,
        burst_bytes=rates.burst_bytes,
        latency_ns=min(rates.latency_ns, max(extra_ns, 0.0) / 2),
        num_cores=num_cores,
        memory_bytes=free_memory_bytes() or 1 << 62,
        **loader,
    )


def _spread(count: int, max_count: int) -> list[int]:
    """Numbers of files all over a data set."""
    rows: list[int] = np.unique(np.linspace(0, count - 1, max_count).astype(int)).tolist()
    return rows


class SampleTimes(NamedTuple):
    """Samples that were read one by one: sizes of their files, times with and without the page cache.

    ``device_bytes`` is what the storage delivers for a sample that is not in memory.
    """

    file_bytes: list[float]
    warm_ns: list[float]
    cold_ns: list[float]
    device_bytes: float


def measure_samples(job: LoadingJob) -> SampleTimes:
    """Measure samples in memory and not in memory.

    What a service delivers is never in memory; there a sample "in memory" is that of a local copy of the file.
    """
    storage = open_storage(job.config.storage)
    numbers = _spread(len(job.keys), _MAX_SAMPLES)
    reader = open_reader(job, is_kept_open=False)
    random = np.random.default_rng(0)
    indices = random.integers(0, job.dataset.samples_per_file, len(numbers)).tolist()
    warm: list[float] = []
    cold: list[float] = []
    device_bytes = 0
    reader.read(job.keys[0], indices[0])
    with tempfile.TemporaryDirectory(prefix="windtunnel-copies-") as scratch:
        # In rows of files, one after the other without a pause: a device that is limited, or works ahead, serves single
        # reads at another rate than many. Each row is read cold and then warm, so that a slow moment meets both.
        for first in range(0, len(numbers), _ROW):
            row = [(job.keys[i], index) for i, index in zip(numbers, indices, strict=True)][first : first + _ROW]
            storage.drop(key for key, _ in row)
            before = read_io_bytes()[0]
            cold += [float(elapsed_ns(partial(reader.read, key, index))) for key, index in row]
            device_bytes += read_io_bytes()[0] - before
            near = _copy_files(job, [key for key, _ in row], Path(scratch)) if job.is_remote else reader
            warm += [float(elapsed_ns(partial(near.read, key, index))) for key, index in row]
            if sum(cold) + sum(warm) > _SAMPLE_BUDGET_NS:
                break
    used = [float(storage.size(job.keys[i]) or 0) for i in numbers[: len(cold)]]
    if job.is_direct:  # the page cache has no part in it
        warm = cold
    per_sample = bytes_per_read(job) if job.is_remote else device_bytes / len(cold)
    return SampleTimes(used, warm, cold, per_sample)


def _copy_files(job: LoadingJob, keys: Sequence[str], folder: Path) -> SampleReader:
    """Copy files of a service, and return a reader of the copies."""
    remote = open_storage(job.config.storage)
    local = StorageConfig(storage_root=str(folder))
    for key in keys:
        for name in (key, *make_format(job.config.dataset, remote).companions(key)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with remote.open(name) as file:
                (folder / name).write_bytes(file.read())
    return SampleReader(job.config.dataset, local)


class _Rates(NamedTuple):
    """What a storage delivers."""

    curve: dict[int, float]
    burst_bytes: float
    latency_ns: float


def _rates_of(costs: LoadingCosts) -> _Rates:
    return _Rates(costs.curve, costs.burst_bytes, costs.latency_ns)


def _measure_rates(job: LoadingJob, storage: Storage, cold_ns: float) -> _Rates:
    """Rates by number of streams, the burst before them, and the time until the first bytes of a file are there."""
    near = job.keys[: max(_MAX_CURVE_FILES, max(_STREAMS))]
    sizes = np.array([storage.size(key) or 0 for key in near])
    rate = max(job.record_bytes, 1) / cold_ns * 1e9
    budget = min(_CURVE_BUDGET_BYTES, max(_CURVE_BUDGET_S * rate, sizes[0] * max(_STREAMS)))
    count = max(int(np.searchsorted(np.cumsum(sizes), budget)), min(len(near), max(_STREAMS)))
    keys = near[:count]
    openers = [partial(storage.open, key) for key in keys]
    storage.drop(keys)
    single, burst_bytes = measure_burst(openers)
    curve = {1: single}
    for num_streams in _STREAMS[1:]:
        if num_streams <= len(keys):
            storage.drop(keys)
            curve[num_streams] = measure_read_rate(openers, num_streams)
    first = [job.keys[i] for i in _spread(len(job.keys), 16)]
    storage.drop(first)
    return _Rates(curve, burst_bytes, quiet([elapsed_ns(partial(_read_first, storage, key)) for key in first]))


def _read_first(storage: Storage, key: str) -> bytes:
    """Read the first bytes of a file, without what the kernel would read ahead."""
    path = storage.local_path(key)
    with storage.open(key, is_random=True) if path is None else path.open("rb", buffering=0) as file:
        if path is not None:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return file.read(_FIRST_BYTES)


def _loader_costs(job: LoadingJob, sample_ns: float, num_cores: int) -> dict[str, Any]:
    """Costs that a loader adds to those of samples, from short runs with files in memory."""
    batch_size = min(job.batch_size, max(job.dataset.num_samples // (4 * job.num_ranks), 1))
    fitting = job.dataset.num_samples // (batch_size * job.num_ranks)
    steps = int(min(fitting, 60, max(4, _LOADER_BUDGET_NS // (batch_size * sample_ns))))
    short = replace(job, batch_size=batch_size, steps_between_checkpoints=-1, compute_job="", preprocess=NO_TIME)
    samples_ns = batch_size * sample_ns
    with running(replace(short, num_workers=0)) as ranks:
        ranks.run(EpochTask(1, compute_s=0.0, max_steps=min(steps, 4)), cache="warm")
        # torch's threads fall asleep while an accelerator computes, and take long to wake up
        main = ranks.run(EpochTask(2, compute_s=_STEP_S, max_steps=min(steps, _MAIN_STEPS)), cache="as-is")
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
        # torch's threads put batches together in the main process, at times that differ: their mean counts
        "batch_ns": {"main": _middle_ns(_spans_ns(main)) - samples_ns, "worker": worker_ns},
        "batch_size": batch_size,
        "transfer_ns": transfer_ns,
        "get_ns": get_ns,
        "barrier_ns": _step_end_ns(main),
        "slowdown": factors.tolist(),
    }


def _middle_ns(times_ns: Sequence[int]) -> float:
    """Mean without the tenth that is shortest and the tenth that is longest."""
    cut = len(times_ns) // 10
    return fmean(sorted(times_ns)[cut : len(times_ns) - cut])


def _spans_ns(run: EpochRun) -> list[int]:
    """Times in which batches were made."""
    return [span.end_ns - span.start_ns for record in run.ranks for span in record.spans]


def _busy_ns(run: EpochRun) -> float:
    """Time of a busy worker per batch, with what it does between batches."""
    spans = run.ranks[0].spans
    times = []
    for worker in {span.worker for span in spans}:
        ends = [span.end_ns for span in spans if span.worker == worker]
        times += np.diff(ends).tolist()
    return quiet(times or _spans_ns(run))


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
