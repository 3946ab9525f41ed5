"""AU, throughput and bottleneck of a job that nobody runs: its loader, replayed with measured costs.

In: a ``LoadingJob`` and ``LoadingCosts``. Out: a ``Prediction`` with an interval. The order of samples, the sizes of
files and the times of steps are those of the run itself; costs of samples are drawn from the measured ones. Not here:
the graph (``model``), measuring (``calibrate``).
"""

# R ranks, N steps, B samples per batch

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.measure.turns import quiet
from windtunnel.systems.dataio.calibrate import LoadingCosts
from windtunnel.systems.dataio.job import LoadingJob
from windtunnel.systems.dataio.loader_graph import Batches, LoaderSetup
from windtunnel.systems.dataio.metrics import BlockTimes, job_metrics
from windtunnel.systems.dataio.model import Bottleneck, find_bottleneck, simulate
from windtunnel.systems.dataio.order import all_rank_orders

__all__ = ["CACHES", "LEVEL", "EpochPrediction", "Prediction", "batches_of", "predict_job", "setup_of"]

Floats = NDArray[np.float64]

CACHES = ("cold", "warm", "cold-start")
_MAX_BATCHES, _MAX_SAMPLES = 200_000, 2_000_000
_EXPLAINED_STEPS = 2_000
_NUM_DRAWS, LEVEL = 16, 0.9
_READ_AHEAD_BYTES = 1 << 17
_MAX_SIZED_FILES = 50_000
# formats of which a sample is read without the rest of its file
_PARTIAL = ("hdf5", "hdf5_opt", "indexed_binary", "mmap_indexed_binary", "tfrecord")


@dataclass(frozen=True)
class EpochPrediction:
    """One epoch.

    Attributes
    ----------
    au_ratio, samples_per_s : float or None
        None where the excluded steps are all that there are.
    step_ns : float
        Mean time of a step after the first one.
    device_ratio : float
        Share of the reads that the device serves; the page cache has the rest.
    """

    au_ratio: float | None
    samples_per_s: float | None
    step_ns: float
    device_ratio: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a job's input pipeline will do.

    Attributes
    ----------
    job : LoadingJob
    epochs : list of EpochPrediction
    au_low, au_high : float or None
        Ends of the interval of the mean AU.
    bottleneck : Bottleneck or None
        Of the first epoch; None where it was not asked for.
    times : list of BlockTimes
        Of the first epoch, by rank.
    num_replayed : int
        Steps that were replayed; the rest of a long epoch is like them.
    num_receipts : int
        Flights whose errors widened the interval.
    """

    job: LoadingJob
    epochs: list[EpochPrediction]
    au_low: float | None
    au_high: float | None
    bottleneck: Bottleneck | None
    times: list[BlockTimes]
    num_replayed: int
    num_receipts: int = 0

    @property
    def au_ratio(self) -> float | None:
        """Mean AU of the epochs."""
        ratios = [epoch.au_ratio for epoch in self.epochs if epoch.au_ratio is not None]
        return float(np.mean(ratios)) if ratios else None

    @property
    def samples_per_s(self) -> float | None:
        """Mean throughput of the epochs."""
        rates = [epoch.samples_per_s for epoch in self.epochs if epoch.samples_per_s is not None]
        return float(np.mean(rates)) if rates else None

    @property
    def step_ns(self) -> float:
        """Mean time of a step over the epochs."""
        return float(np.mean([epoch.step_ns for epoch in self.epochs]))

    @property
    def meets_target(self) -> bool:
        """Whether the AU is that which the job asks for."""
        return self.au_ratio is not None and self.au_ratio >= self.job.target_au

    def to_dict(self) -> dict[str, Any]:
        """Plain values in raw units."""
        return {
            "au_ratio": self.au_ratio,
            "au_low": self.au_low,
            "au_high": self.au_high,
            "level": LEVEL,
            "num_receipts": self.num_receipts,
            "target_au": self.job.target_au,
            "samples_per_s": self.samples_per_s,
            "step_ns": self.step_ns,
            "bottleneck": None if self.bottleneck is None else self.bottleneck.cause,
            "gains": {} if self.bottleneck is None else self.bottleneck.gains,
            "num_steps": self.job.num_steps,
            "num_replayed": self.num_replayed,
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }


def setup_of(job: LoadingJob, costs: LoadingCosts) -> LoaderSetup:
    """Return the loader of a job on the machine whose costs were measured."""
    is_limited = job.limit_bytes_per_s > 0  # by its readers, who save nothing up
    return LoaderSetup(
        job.num_workers,
        job.prefetch_factor,
        costs.num_cores,
        min(costs.pool_bytes_per_s, job.limit_bytes_per_s or math.inf),
        min(costs.stream_bytes_per_s, job.stream_limit_bytes_per_s),
        tuple(costs.slowdown),
        0.0 if is_limited or not costs.saves_up else costs.burst_bytes,
    )


def predict_job(
    job: LoadingJob,
    costs: LoadingCosts,
    *,
    cache: str = "cold",
    num_draws: int = _NUM_DRAWS,
    explains: bool = True,
    seed: int = 0,
) -> Prediction:
    """Predict AU, throughput and bottleneck of a job.

    Parameters
    ----------
    job : LoadingJob
    costs : LoadingCosts
        Of its data set on this machine.
    cache : str
        ``cold``: no epoch finds files in memory; ``warm``: every one does; ``cold-start``: only what earlier epochs
        left, as far as it fits.
    num_draws : int
        For the interval.
    explains : bool
        Whether the bottleneck is searched for, which takes several replays.
    seed : int

    Raises
    ------
    InputError
        An epoch has no steps.
    """
    setup = setup_of(job, costs)
    # epochs of one state of the cache differ only in their orders: the first two stand for all
    distinct = 2 if job.epochs > 1 else 1
    epochs: list[EpochPrediction] = []
    first: list[BlockTimes] = []
    for epoch in range(1, distinct + 1):
        state = ("cold" if epoch == 1 else "left") if cache == "cold-start" else cache
        batches, device_ratio = batches_of(job, costs, epoch, state, np.random.default_rng([seed, epoch]))
        times = simulate(batches, setup, job.batch_size)
        first = first or times
        epochs.append(_epoch(job, times, device_ratio))
    epochs += [epochs[-1]] * (job.epochs - distinct)
    results = [_au_of_draw(job, costs, cache, setup, number) for number in range(num_draws)]
    ratios = [ratio for ratio in results if ratio is not None]
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if ratios else (None, None)
    bottleneck = None
    if explains:
        explained, _ = batches_of(job, costs, 1, "cold" if cache == "cold-start" else cache, None, _EXPLAINED_STEPS)
        bottleneck = find_bottleneck(explained, setup)
    return Prediction(
        job, epochs, None if low is None else float(low), None if high is None else float(high),
        bottleneck, first, first[0].num_steps,
    )  # fmt: skip


def _epoch(job: LoadingJob, times: list[BlockTimes], device_ratio: float) -> EpochPrediction:
    metrics = job_metrics({1: [[block] for block in times]}, num_start=job.num_start, num_end=job.num_end)
    block = times[0]
    rest_s = block.wall_s - float(block.load_s[0] + block.compute_s[0])
    step_s = rest_s / (block.num_steps - 1) if block.num_steps > 1 else block.wall_s
    return EpochPrediction(metrics.au_ratio, metrics.throughput, step_s * 1e9, device_ratio)


def _au_of_draw(job: LoadingJob, costs: LoadingCosts, cache: str, setup: LoaderSetup, number: int) -> float | None:
    """AU of the first epoch with other draws of the measured costs."""
    random = np.random.default_rng([number, 7])
    rows = random.integers(0, len(costs.warm_ns), len(costs.warm_ns))
    other = replace(
        costs,
        file_bytes=[costs.file_bytes[row] for row in rows],
        warm_ns=[costs.warm_ns[row] for row in rows],
        cold_ns=[costs.cold_ns[row] for row in rows],
    )
    batches, _ = batches_of(job, other, 1, "cold" if cache == "cold-start" else cache, random, _EXPLAINED_STEPS)
    varied = replace(setup, stream_bytes_per_s=min(other.stream_bytes_per_s, job.stream_limit_bytes_per_s))
    return _epoch(job, simulate(batches, varied, job.batch_size), 1.0).au_ratio


def batches_of(
    job: LoadingJob,
    costs: LoadingCosts,
    epoch: int,
    state: str,
    random: np.random.Generator | None,
    max_steps: int = _MAX_BATCHES,
) -> tuple[Batches, float]:
    """Compute what each batch of an epoch costs, and the share of samples that the device delivers.

    Parameters
    ----------
    state : str
        ``cold``, ``warm``, or ``left``: what an earlier epoch left in memory.
    random : Generator, optional
        Draws the costs of samples; by default each costs the mean.
    max_steps : int
        Of all ranks together.
    """
    ranks, size = job.num_ranks, job.batch_size
    compute_ns = job.compute_ns(epoch)
    steps = min(compute_ns.shape[1], max(max_steps // ranks, 2), max(_MAX_SAMPLES // (ranks * size), 50))
    orders = [order[: steps * size] for order in all_rank_orders(job.dataset, epoch, ranks)]
    samples = np.stack(orders).reshape(ranks, steps, size)
    files = samples // job.dataset.samples_per_file
    scale = _size_ratios(job)[files]
    is_read = _reads_of_device(job, costs, samples, state, random)
    # per sample: a constant part, and one that grows with its size
    sized_ns = max(quiet(costs.warm_ns) - costs.overhead_ns, 0.0)
    noise = 1.0 if random is None else random.choice(_noise(costs), samples.shape)
    decode_ns = (sized_ns * scale * noise).sum(axis=2)
    device_bytes = (costs.sample_device_bytes * scale * is_read).sum(axis=2)
    wait_ns = costs.latency_ns * is_read.sum(axis=2)
    if job.preprocess.mean_s:
        wait_ns = wait_ns + _preprocess_ns(job, samples)
    batch_ns = costs.batch_ns["worker" if job.num_workers else "main"] * size / costs.batch_size
    overhead_ns = np.full((ranks, steps), size * costs.overhead_ns + max(batch_ns, 0.0))
    if job.compute_job:
        compute_ns = np.full_like(compute_ns, round(job.compute.mean_s * 1e9))
    batches = Batches(
        _whole(wait_ns), _whole(device_bytes), _whole(overhead_ns),
        _whole(np.maximum(decode_ns + min(batch_ns, 0.0), 0.0)), compute_ns[:, :steps],
        round(costs.transfer_ns), round(costs.get_ns), round(costs.barrier_ns), size, uses_cores=bool(job.compute_job),
    )  # fmt: skip
    return batches, float(is_read.mean())


def _whole(values: Floats) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)


def _noise(costs: LoadingCosts) -> Floats:
    """How measured samples differ from what their size says, as factors of mean 1."""
    sizes = np.array(costs.file_bytes) / np.mean(costs.file_bytes)
    sized = np.maximum(np.array(costs.warm_ns) - costs.overhead_ns, 1.0) / sizes
    factors: Floats = sized / sized.mean()
    return factors


def _size_ratios(job: LoadingJob) -> Floats:
    """Size of each file over the mean, [files]; ones where files do not exist or are too many to ask."""
    count = job.dataset.num_files
    if len(job.files) != count or count > _MAX_SIZED_FILES or not all(path.exists() for path in job.files):
        return np.ones(count)
    sizes = np.array([path.stat().st_size for path in job.files], np.float64)
    ratios: Floats = sizes / sizes.mean()
    return ratios


def _preprocess_ns(job: LoadingJob, samples: NDArray[np.int64]) -> Floats:
    """Sleeping per batch; constant times as they are, others as their mean."""
    return np.full(samples.shape[:2], samples.shape[2] * job.preprocess.mean_s * 1e9)


def _reads_of_device(
    job: LoadingJob, costs: LoadingCosts, samples: NDArray[np.int64], state: str, random: np.random.Generator | None
) -> NDArray[np.bool_]:
    """Mask the samples [R, N, B] whose bytes are not in the page cache when they are read.

    The first reader of a file, or of a stretch that the kernel reads ahead, brings it there.
    """
    if job.is_remote or job.is_direct:
        return np.ones(samples.shape, np.bool_)
    if state == "warm":
        return np.zeros(samples.shape, np.bool_)
    per_file = job.dataset.samples_per_file
    group = 1
    if job.format in _PARTIAL:
        group = max(_READ_AHEAD_BYTES // max(job.record_bytes, 1), 1)
    # number of the stretch that holds each sample
    in_file = -(-per_file // group) if job.format in _PARTIAL else 1
    units = samples // per_file * in_file + (samples % per_file // group if in_file > 1 else 0)
    time_order = units.transpose(1, 0, 2).ravel()
    is_earliest = np.zeros(time_order.size, np.bool_)
    is_earliest[np.unique(time_order, return_index=True)[1]] = True
    is_first = is_earliest.reshape(samples.shape[1], samples.shape[0], samples.shape[2]).transpose(1, 0, 2)
    total_bytes = float(job.dataset.num_samples) * max(job.record_bytes, 1)
    kept = min(costs.memory_bytes / max(total_bytes, 1.0), 1.0)
    is_seen = ~is_first if state == "cold" else np.ones(samples.shape, np.bool_)
    if kept < 1.0:
        draws = (random or np.random.default_rng(0)).random(samples.shape)
        is_seen &= draws < kept
    is_read: NDArray[np.bool_] = ~is_seen
    return is_read
