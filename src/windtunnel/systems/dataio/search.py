"""The cheapest loader that keeps the accelerators busy, and how many accelerators a storage feeds.

In: a job, what its samples cost in each format, a target AU. Out: a ``Plan``: the setting with the fewest cores and the
least memory that reaches it, the best setting of all, and what limits that. Every candidate is judged by a replay. Not
here: running a setting (``flight``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from windtunnel.base.progress import Progress
from windtunnel.systems.dataio.calibrate import LoadingCosts
from windtunnel.systems.dataio.job import LoadingJob
from windtunnel.systems.dataio.predict import Prediction, predict_job

__all__ = ["Candidate", "Plan", "Setting", "Space", "count_accelerators", "plan_loader"]

_MAX_RANKS = 1024
_NEAR = 0.99


@dataclass(frozen=True, order=True)
class Setting:
    """What may be changed about a job's input.

    Attributes
    ----------
    num_workers, prefetch_factor, batch_size : int
    format : str
    samples_per_file : int
    is_cached : bool
        Files are read into memory before the first epoch.
    """

    num_workers: int
    prefetch_factor: int
    batch_size: int
    format: str
    samples_per_file: int
    is_cached: bool = False

    @classmethod
    def of(cls, job: LoadingJob) -> Setting:
        """Return that of a job."""
        return cls(
            job.num_workers, job.prefetch_factor, job.batch_size, job.format, job.dataset.samples_per_file
        )  # fmt: skip

    def apply(self, job: LoadingJob) -> LoadingJob:
        """Return the job with this setting; it has no files where these would have to be written anew."""
        total = job.dataset.num_samples
        num_files = max(total // self.samples_per_file, 1)
        dataset = replace(job.dataset, num_files=num_files, samples_per_file=self.samples_per_file)
        return replace(
            job, num_workers=self.num_workers, prefetch_factor=self.prefetch_factor, batch_size=self.batch_size,
            format=self.format, dataset=dataset, files=() if self.rewrites(job) else job.files,
        )  # fmt: skip

    def rewrites(self, job: LoadingJob) -> bool:
        """Whether the data set has to be written anew."""
        return (self.format, self.samples_per_file) != (job.format, job.dataset.samples_per_file)

    def memory_bytes(self, job: LoadingJob) -> int:
        """Memory of batches that are ready or being made, of all ranks, and of cached files."""
        ahead = max(self.num_workers * self.prefetch_factor, 1) + 1
        batches = job.num_ranks * ahead * self.batch_size * max(job.tensor_bytes, 1)
        readers = job.num_ranks * max(self.num_workers, 1) * job.record_bytes
        return batches + readers + self.is_cached * job.dataset.num_samples * job.record_bytes

    def __str__(self) -> str:
        store = f"{self.format} x {self.samples_per_file}" + (" in memory" if self.is_cached else "")
        return f"{self.num_workers} workers x {self.prefetch_factor}, batch {self.batch_size}, {store}"


@dataclass(frozen=True)
class Space:
    """Settings to choose from; empty means that of the job.

    Attributes
    ----------
    num_workers, prefetch_factors, batch_sizes : tuple of int
    stores : tuple of (str, int)
        Formats with their samples per file.
    may_cache : bool
    """

    num_workers: tuple[int, ...] = (0, 1, 2, 4, 8)
    prefetch_factors: tuple[int, ...] = (1, 2, 4)
    batch_sizes: tuple[int, ...] = ()
    stores: tuple[tuple[str, int], ...] = ()
    may_cache: bool = True

    def settings(self, job: LoadingJob) -> Iterator[Setting]:
        """List all settings, that of the job among them."""
        stores = dict.fromkeys([(job.format, job.dataset.samples_per_file), *self.stores])
        caches = (False, True) if self.may_cache else (False,)
        workers = sorted({*self.num_workers, job.num_workers})
        prefetch = sorted({*self.prefetch_factors, job.prefetch_factor})
        batches = self.batch_sizes or (job.batch_size,)
        for count, factor, batch, store, is_cached in itertools.product(workers, prefetch, batches, stores, caches):
            if count or factor == job.prefetch_factor:
                yield Setting(count, factor, batch, store[0], store[1], is_cached)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A setting with what it costs and gives.

    Attributes
    ----------
    setting : Setting
    prediction : Prediction
    memory_bytes : int
    rewrites : bool
        Whether the data set has to be written anew.
    """

    setting: Setting
    prediction: Prediction
    memory_bytes: int
    rewrites: bool

    @property
    def au_ratio(self) -> float:
        """Predicted AU; 0 where it is undefined."""
        return self.prediction.au_ratio or 0.0

    @property
    def cost(self) -> tuple[bool, int, int, float]:
        """What is preferred less: a new data set, then cores, then memory."""
        return self.rewrites, self.setting.num_workers, self.memory_bytes, -self.au_ratio

    def to_dict(self) -> dict[str, Any]:
        """Plain values in raw units."""
        return {
            **asdict(self.setting),
            "au_ratio": self.prediction.au_ratio,
            "samples_per_s": self.prediction.samples_per_s,
            "step_ns": self.prediction.step_ns,
            "memory_bytes": self.memory_bytes,
            "rewrites_data": self.rewrites,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """What to change.

    Attributes
    ----------
    baseline, recommended : Candidate
        The job as it is; the cheapest setting that reaches the target, else the fastest of all.
    candidates : list of Candidate
        Those that no other one beats in AU, cores and memory, cheapest first.
    target_au : float
    max_accelerators : int
        That the storage feeds at the target with the recommended setting if nothing is cached; 0 where not even one.
    """

    baseline: Candidate
    recommended: Candidate
    candidates: list[Candidate]
    target_au: float
    max_accelerators: int

    @property
    def is_reached(self) -> bool:
        """Whether the recommended setting reaches the target."""
        return self.recommended.au_ratio >= self.target_au

    @property
    def speedup(self) -> float:
        """Predicted time per sample of the job as it is over that of the recommended setting."""
        return (self.recommended.prediction.samples_per_s or 0.0) / (self.baseline.prediction.samples_per_s or 1.0)


def plan_loader(
    job: LoadingJob,
    costs: Mapping[tuple[str, int], LoadingCosts],
    space: Space,
    *,
    cache: str = "cold",
    target_au: float | None = None,
    max_memory_bytes: float = float("inf"),
    progress: Progress | None = None,
) -> Plan:
    """Search for the cheapest setting that reaches the target AU.

    Parameters
    ----------
    job : LoadingJob
    costs : mapping
        By format and samples per file; that of the job among them.
    space : Space
        Stores without costs are left out.
    cache : str
        State of the page cache where files are not cached on purpose; see ``predict.predict_job``.
    target_au : float, optional
        That of the job by default.
    max_memory_bytes : float
        Settings that need more are left out.
    progress : callable, optional
    """
    target = job.target_au if target_au is None else target_au
    settings = [item for item in space.settings(job) if (item.format, item.samples_per_file) in costs]
    baseline = _candidate(Setting.of(job), job, costs, cache)
    candidates = [baseline]
    for done, setting in enumerate(settings, 1):
        too_large = setting.memory_bytes(job) > min(max_memory_bytes, _memory_of(costs))
        if setting != baseline.setting and not too_large and setting.apply(job).dataset.num_samples:
            candidates.append(_candidate(setting, job, costs, cache))
        if progress is not None:
            progress("settings", done, len(settings))
    reaching = [item for item in candidates if item.au_ratio >= target]
    if reaching:
        recommended = min(reaching, key=lambda item: item.cost)
    else:
        # what is nearly as fast as the fastest and costs less is better advice
        fastest = max(item.prediction.samples_per_s or 0.0 for item in candidates)
        near = [item for item in candidates if (item.prediction.samples_per_s or 0.0) >= _NEAR * fastest]
        recommended = min(near, key=lambda item: item.cost)
    fed = count_accelerators(recommended.setting.apply(job), _costs_of(recommended.setting, costs), cache, target)
    return Plan(baseline, recommended, _front(candidates), target, fed)


def _memory_of(costs: Mapping[tuple[str, int], LoadingCosts]) -> float:
    return float(min(item.memory_bytes for item in costs.values()))


def _costs_of(setting: Setting, costs: Mapping[tuple[str, int], LoadingCosts]) -> LoadingCosts:
    return costs[setting.format, setting.samples_per_file]


def _state(setting: Setting, cache: str) -> str:
    return "warm" if setting.is_cached else cache


def _candidate(
    setting: Setting, job: LoadingJob, costs: Mapping[tuple[str, int], LoadingCosts], cache: str
) -> Candidate:
    prediction = predict_job(
        setting.apply(job), _costs_of(setting, costs), cache=_state(setting, cache), num_draws=0, explains=False
    )
    return Candidate(setting, prediction, setting.memory_bytes(job), setting.rewrites(job))


def _front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that no cheaper one equals: fewer workers, less memory, no new data set, higher AU."""
    result: list[Candidate] = []
    for item in sorted(candidates, key=lambda item: item.cost):
        beaten = any(
            other.au_ratio >= item.au_ratio - 1e-3
            and other.setting.num_workers <= item.setting.num_workers
            and other.memory_bytes <= item.memory_bytes
            and other.rewrites <= item.rewrites
            for other in result
        )
        if not beaten:
            result.append(item)
    return result


def count_accelerators(job: LoadingJob, costs: LoadingCosts, cache: str, target_au: float) -> int:
    """Count how many accelerators the storage feeds at the target AU if each has a host of its own; 0 for none.

    Each host brings its own cores, the storage is shared. The data set is taken to be large enough.
    """

    def reaches(num_ranks: int) -> bool:
        dataset = replace(job.dataset, num_files=max(job.dataset.num_files, 40 * num_ranks * job.batch_size))
        many = replace(job, num_ranks=num_ranks, dataset=dataset, files=(), epochs=1, max_steps=40)
        hosts = replace(costs, num_cores=costs.num_cores * num_ranks, slowdown=[])
        ratio = predict_job(many, hosts, cache=cache, num_draws=0, explains=False).au_ratio
        return ratio is not None and ratio >= target_au

    low, high = 0, 1
    while high <= _MAX_RANKS and reaches(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reaches(middle) else (low, middle)
    return low
