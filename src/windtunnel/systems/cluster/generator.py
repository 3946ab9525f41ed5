"""Synthetic workloads: fit the distributions of a trace, and draw jobs from them.

In: jobs. Out: a ``Mix``, and any number of new jobs drawn from it by a seed. Not here: reading traces (``formats``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.systems.cluster.jobs import Jobs

__all__ = ["Mix", "fit_mix", "generate", "with_models"]

_DAY_S = 86400.0
_HOURS = 24
_FEW = 20  # demands with fewer jobs share the run times of their neighbors


@dataclass(frozen=True, eq=False)
class Mix:
    """The distributions of a trace.

    Attributes
    ----------
    demands : int64 [D]
    demand_share : float64 [D]
    log_work : tuple of float64 arrays
        Natural logarithm of run times in s, sorted, by demand.
    models : tuple of (str, int)
        Model and batch.
    model_share : float64
    arrivals_per_s : float
    hour_share : float64 [24]
        Of arrivals by hour of the day.
    """

    demands: NDArray[np.int64]
    demand_share: NDArray[np.float64]
    log_work: tuple[NDArray[np.float64], ...]
    models: tuple[tuple[str, int], ...]
    model_share: NDArray[np.float64]
    arrivals_per_s: float
    hour_share: NDArray[np.float64]


def fit_mix(jobs: Jobs) -> Mix:
    """Fit demands, run times by demand, models, and the daily pattern of arrivals."""
    demands, demand, count = np.unique(jobs.gpus, return_inverse=True, return_counts=True)
    logs = np.log(jobs.work_ns / 1e9)
    work = []
    for row, number in enumerate(count):
        rows = demand == row
        if number < _FEW:  # the nearest demands, until there are enough
            near = np.argsort(np.abs(np.log(jobs.gpus / demands[row])), kind="stable")[:_FEW]
            rows = np.isin(np.arange(len(jobs)), near)
        work.append(np.sort(logs[rows]))
    pairs = [f"{model}\0{batch}" for model, batch in zip(jobs.model, jobs.batch, strict=True)]
    names, number_of = np.unique(np.array(pairs), return_counts=True)
    models = tuple((text.partition("\0")[0], int(text.partition("\0")[2])) for text in names.tolist())
    arrival_s = jobs.arrival_ns / 1e9
    span = float(arrival_s[-1] - arrival_s[0])
    hours = np.bincount((arrival_s % _DAY_S // 3600).astype(np.int64), minlength=_HOURS)
    is_long = span >= 7 * _DAY_S
    rhythm = (hours + 1) / (hours.sum() + _HOURS) if is_long else np.full(_HOURS, 1 / _HOURS)
    rate = (len(jobs) - 1) / span if span else 0.0
    return Mix(demands, count / len(jobs), tuple(work), models, number_of / len(jobs), rate, rhythm)


def generate(
    mix: Mix, num_jobs: int, *, seed: int = 0, arrivals_per_s: float | None = None, diurnal: bool = True
) -> Jobs:
    """Draw new jobs: demands and models by their shares, run times between those that were seen.

    Parameters
    ----------
    mix : Mix
    num_jobs : int
    seed : int
    arrivals_per_s : float, optional
        By default as in the trace; 0: all at once.
    diurnal : bool
        Follow the hours of the day.

    Raises
    ------
    InputError
        There is to be no job, or less than no arrivals.
    """
    rate = mix.arrivals_per_s if arrivals_per_s is None else arrivals_per_s
    if num_jobs < 1 or not 0 <= rate < float("inf"):
        raise InputError(
            f"{num_jobs} jobs at {rate:g} per s cannot be", fix="give at least one job and a rate of 0 or more"
        )
    chance = np.random.default_rng(seed)
    row = chance.choice(len(mix.demands), num_jobs, p=mix.demand_share)
    level = chance.uniform(size=num_jobs)
    work = np.array([np.quantile(mix.log_work[item], share) for item, share in zip(row, level, strict=True)])
    kind = chance.choice(len(mix.models), num_jobs, p=mix.model_share)
    arrival = np.zeros(num_jobs)
    if rate:
        arrival = np.cumsum(chance.exponential(1 / rate, num_jobs))
        arrival = _by_the_clock(arrival - arrival[0], mix.hour_share) if diurnal else arrival - arrival[0]
    return Jobs.of(
        arrival_s=arrival, gpus=mix.demands[row], work_s=np.exp(work), model=[mix.models[item][0] for item in kind],
        batch=[mix.models[item][1] for item in kind], source="generated jobs",
    )  # fmt: skip


def _by_the_clock(even_s: NDArray[np.float64], hour_share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shift uniform times within their days so that each hour has its fraction of arrivals."""
    share = np.concatenate([[0.0], np.cumsum(hour_share)])
    day, part = np.divmod(even_s / _DAY_S, 1.0)
    return (day + np.interp(part, share, np.linspace(0, 1, _HOURS + 1))) * _DAY_S


def with_models(jobs: Jobs, models: dict[str, float], *, seed: int = 0) -> Jobs:
    """Assign models to jobs by their fractions, as traces rarely contain models.

    Raises
    ------
    InputError
        There are no models, or a share is not above 0.
    """
    if not models or not all(0 < share < float("inf") for share in models.values()):
        raise InputError("models have shares above 0", fix="write --models 'vgg11=1 resnet50=3'")
    share = np.array(list(models.values()))
    sampled = np.random.default_rng(seed).choice(len(models), len(jobs), p=share / share.sum())
    return replace(jobs, model=np.array(list(models))[sampled])
