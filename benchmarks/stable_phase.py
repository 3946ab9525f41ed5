"""What the stable phase says of a series of step times whose truth is known.

Seeded series of 100 to 1000 steps: noise of 0.5 to 4 %, Gaussian or heavy-tailed (Student's t with 3 degrees of
freedom), neighbours correlated by 0 to 0.6; a warm-up that decays from up to four times the level; spikes of up to
many times the level in 2 % of the steps. The mean that is reported must lie within 1 % of the truth in 99 of 100
series: noise alone moves the mean of a short series further now and then, with all its warm-up and spikes known. Those
whose median is known to 2 % (the rule by which sampling stops) are counted apart too. Series that drift by 10 to 30 %
must be called unstable, stationary ones not: the rate of false alarms is measured.

    python -m benchmarks.stable_phase --verbose
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks import bar
from windtunnel.flights.stable import StablePhase, stable_phase

TARGET, SHARE_TARGET, FOUND_TARGET, ALARM_TARGET = 0.01, 0.99, 0.95, 0.05
LEVEL_NS = 2e7
NUM_STATIONARY, NUM_DRIFTING = 600, 300
PRECISION = 0.02


def series(seed: int, drift: float = 0.0) -> NDArray[np.float64]:
    """One series around ``LEVEL_NS``."""
    rng = np.random.default_rng(seed)
    num_steps = int(rng.integers(100, 1000))
    levels = 1 + _noise(rng, num_steps) + drift * np.arange(num_steps) / num_steps
    scale = rng.integers(3, num_steps // 5) / 4
    levels += rng.choice([0.1, 0.5, 3.0]) * np.exp(-np.arange(num_steps) / scale)
    is_spike = rng.random(num_steps) < 0.02
    levels[is_spike] *= 1.2 + rng.exponential(2, is_spike.sum())
    return LEVEL_NS * levels


def _noise(rng: np.random.Generator, num_steps: int) -> NDArray[np.float64]:
    correlation, deviation = rng.choice([0.0, 0.3, 0.6]), rng.choice([0.005, 0.02, 0.04])
    is_heavy = rng.random() < 0.5
    values = rng.standard_t(3, num_steps) / np.sqrt(3) if is_heavy else rng.standard_normal(num_steps)
    for at in range(1, num_steps):
        values[at] = correlation * values[at - 1] + np.sqrt(1 - correlation**2) * values[at]
    return np.asarray(deviation * values)


def drifting() -> list[tuple[float, StablePhase]]:
    """Phases of series whose level moves, with how far."""
    rng = np.random.default_rng(7)
    drifts = [sign * size for sign, size in zip(rng.choice([1, -1], 500), rng.uniform(0.1, 0.3, 500), strict=True)]
    return [(drift, stable_phase(series(10_000 + at, drift))) for at, drift in enumerate(drifts[:NUM_DRIFTING])]


def main() -> None:
    """Print the bar, and with --verbose its table."""
    stationary = [stable_phase(series(seed)) for seed in range(NUM_STATIONARY)]
    errors = [abs(phase.mean_ns / LEVEL_NS - 1) for phase in stationary]
    precise = [error for error, phase in zip(errors, stationary, strict=True) if phase.width_ratio <= PRECISION]
    alarms = sum(phase.is_unstable for phase in stationary) / NUM_STATIONARY
    covered = sum(phase.median_ns.low <= LEVEL_NS <= phase.median_ns.high for phase in stationary) / NUM_STATIONARY
    moved = drifting()
    found = sum(phase.is_unstable for _, phase in moved) / len(moved)
    naive = [abs(series(seed).mean() / LEVEL_NS - 1) for seed in range(NUM_STATIONARY)]
    if bar.is_verbose():
        missed = [{"drift": drift, "seen": phase.trend.change_ratio} for drift, phase in moved if not phase.is_unstable]
        print(bar.table(missed))
    share = float(np.mean(np.asarray(errors) <= TARGET))
    bar.report(
        "stable_phase",
        share,
        f">= {SHARE_TARGET:.0%} of means within {TARGET:.0%} of truth; >= {FOUND_TARGET:.0%} of drifts found, "
        f"false alarms <= {ALARM_TARGET:.0%}",
        share >= SHARE_TARGET and found >= FOUND_TARGET and alarms <= ALARM_TARGET,
        worst=max(errors),
        num_series=NUM_STATIONARY,
        median_error=float(np.median(errors)),
        num_precise=len(precise),
        worst_of_precise=max(precise),
        median_error_of_plain_mean=float(np.median(naive)),
        false_alarms=alarms,
        drifts_found=found,
        interval_covers_level=covered,
    )


if __name__ == "__main__":
    main()
