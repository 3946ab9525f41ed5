"""A job and its recommended setting, really run in turns.

In: two jobs whose files exist, with their predictions. Out: a ``LoaderFlight`` and its ``Receipt``. Each round runs an
epoch of both, in alternating order; ranks and loader workers of both live through all rounds. Not here: which setting
is recommended (``search``), the ledger.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.flights.intervals import conformal_quantile
from windtunnel.flights.ledger import Ledger
from windtunnel.flights.receipt import Receipt
from windtunnel.measure.fingerprint import machine
from windtunnel.measure.stats import Estimate, estimate_median, estimate_speedup
from windtunnel.measure.turns import rounds as take_rounds
from windtunnel.systems.dataio.job import LoadingJob
from windtunnel.systems.dataio.metrics import job_metrics
from windtunnel.systems.dataio.predict import LEVEL, Prediction
from windtunnel.systems.dataio.run import EpochRun, RunningJob, running
from windtunnel.systems.dataio.search import Setting
from windtunnel.systems.dataio.worker import EpochTask

__all__ = ["WHATIF", "LoaderFlight", "fly_settings", "with_receipts"]

WHATIF = "input-pipeline"

_MIN_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class LoaderFlight:
    """Measured steps of two settings, round by round.

    Attributes
    ----------
    baseline, changed : Prediction
        What was predicted of each.
    baseline_ns, changed_ns : list of float
        Mean time of a step of each round.
    baseline_au, changed_au : list of float
    device_ratios : tuple of float
        Share of the bytes that the device delivered, of each.
    """

    baseline: Prediction
    changed: Prediction
    baseline_ns: list[float]
    changed_ns: list[float]
    baseline_au: list[float]
    changed_au: list[float]
    device_ratios: tuple[float, float]

    @property
    def samples_ratio(self) -> float:
        """Samples of a step with the change over those without."""
        return self.changed.job.batch_size / self.baseline.job.batch_size

    @property
    def speedup(self) -> Estimate:
        """Measured time per sample without the change over that with it."""
        result = estimate_speedup(self.baseline_ns, self.changed_ns)
        ratio = self.samples_ratio
        return Estimate(ratio * result.value, ratio * result.low, ratio * result.high)

    @property
    def predicted_speedup(self) -> float:
        """Predicted time per sample without the change over that with it."""
        return self.samples_ratio * self.baseline.step_ns / self.changed.step_ns

    @property
    def error_ratio(self) -> float:
        """Predicted over measured step of the change, less 1."""
        return self.changed.step_ns / float(np.median(self.changed_ns)) - 1

    def receipt(self) -> Receipt:
        """Return the receipt for the ledger."""
        setting = Setting.of(self.changed.job)
        return Receipt(
            whatif=WHATIF,
            predicted_baseline_ns=self.baseline.step_ns,
            predicted_ns=self.changed.step_ns,
            baseline=estimate_median(self.baseline_ns),
            changed=estimate_median(self.changed_ns),
            speedup=estimate_speedup(self.baseline_ns, self.changed_ns),
            samples_ratio=self.samples_ratio,
            parameters={"setting": asdict(setting), "over": str(Setting.of(self.baseline.job))},
            target=self.baseline.job.name,
            hardware_fingerprint=machine(),
            conditions={"ranks": self.baseline.job.num_ranks},
            num_rounds=len(self.changed_ns),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values in raw units."""
        speedup = self.speedup
        return {
            "baseline": str(Setting.of(self.baseline.job)),
            "changed": str(Setting.of(self.changed.job)),
            "predicted_speedup": self.predicted_speedup,
            "measured_speedup": asdict(speedup),
            "predicted_step_ns": [self.baseline.step_ns, self.changed.step_ns],
            "measured_step_ns": [float(np.median(self.baseline_ns)), float(np.median(self.changed_ns))],
            "predicted_au_ratio": [self.baseline.au_ratio, self.changed.au_ratio],
            "measured_au_ratio": [float(np.median(self.baseline_au)), float(np.median(self.changed_au))],
            "error_ratio": self.error_ratio,
            "device_ratios": list(self.device_ratios),
            "num_rounds": len(self.changed_ns),
        }


def fly_settings(
    baseline: tuple[Prediction, str],
    changed: tuple[Prediction, str],
    *,
    max_steps: int = -1,
    max_rounds: int = 5,
    time_limit_s: float = 120.0,
    progress: Progress | None = None,
) -> LoaderFlight:
    """Run an epoch of both settings in every round.

    Parameters
    ----------
    baseline, changed : (Prediction, str)
        The job with what was predicted of it, and the state of the page cache before each epoch.
    max_steps : int
        Of an epoch; -1 for all.
    max_rounds : int
    time_limit_s : float
        No round begins later, except for the first three.
    progress : callable, optional

    Raises
    ------
    InputError
        Files are missing.
    FlightError
        A rank ended.
    """
    variants = (baseline, changed)
    times: tuple[list[float], list[float]] = ([], [])
    ratios: tuple[list[float], list[float]] = ([], [])
    shares = [0.0, 0.0]
    with ExitStack() as stack:
        jobs = [stack.enter_context(running(prediction.job)) for prediction, _ in variants]
        for job, (_, cache) in zip(jobs, variants, strict=True):
            job.run(EpochTask(1, max_steps=_warm_up_steps(job.job)), cache="warm" if cache == "warm" else "as-is")
        for turn in take_rounds(_MIN_ROUNDS, max_rounds, time_limit_s, progress=progress):
            for index in (0, 1) if turn % 2 == 0 else (1, 0):
                run = _run_epoch(jobs[index], turn + 1, max_steps, variants[index][1])
                times[index].append(1e9 * run.step_s)
                ratios[index].append(_au_of(run, jobs[index].job))
                shares[index] = run.device_ratio
    return LoaderFlight(baseline[0], changed[0], *times, *ratios, (shares[0], shares[1]))


def _warm_up_steps(job: LoadingJob) -> int:
    """Every worker makes one batch, so that all of them run."""
    return min(max(job.num_workers, 1), job.num_steps)


def _run_epoch(job: RunningJob, epoch: int, max_steps: int, cache: str) -> EpochRun:
    return job.run(EpochTask(epoch, max_steps=max_steps), cache=cache)


def _au_of(run: EpochRun, job: LoadingJob) -> float:
    metrics = job_metrics(
        {run.epoch: [record.blocks for record in run.ranks]}, num_start=job.num_start, num_end=job.num_end
    )
    return metrics.au_ratio or 0.0


def with_receipts(prediction: Prediction, ledger: Ledger) -> Prediction:
    """Widen the interval of AU to the errors that flights of input pipelines had; unchanged where these are too few."""
    receipts = ledger.receipts(WHATIF)
    scores = [
        abs(math.log(predicted_ns / measured.value))
        for receipt in receipts
        for predicted_ns, measured in (
            (receipt.predicted_baseline_ns, receipt.baseline),
            (receipt.predicted_ns, receipt.changed),
        )
    ]
    reach, au = math.exp(conformal_quantile(scores, LEVEL)), prediction.au_ratio
    if au is None or prediction.au_low is None or prediction.au_high is None or math.isinf(reach):
        return prediction
    low, high = min(prediction.au_low, au / reach), min(max(prediction.au_high, au * reach), 1.0)
    return replace(prediction, au_low=low, au_high=high, num_receipts=len(receipts))
