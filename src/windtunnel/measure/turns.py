"""Two programs take turns: baseline, changed, changed, baseline, ... until their ratio is known well enough (private).

In: two lanes, each of which can run some iterations when it is told to. Out: a ``Measurement``. The order within a
round alternates, so that a machine that slows down steadily favors neither. Not here: what the lanes run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import FlightError
from windtunnel.measure.deadline import OutOfTimeError
from windtunnel.measure.disturbance import MAX_NEIGHBORS, Neighbors
from windtunnel.measure.stats import Estimate, estimate_median, estimate_speedup, has_trend, warmup_length

__all__ = [
    "Lane",
    "Measurement",
    "StopRule",
    "Turn",
    "elapsed_ns",
    "measure",
    "quiet",
    "quiet_rows",
    "rounds",
    "spread_of_quiet",
    "spread_ratio",
]

_MIN_ROUNDS = 3
_MAX_ITERATIONS_PER_TURN = 64
_MIN_GIVE_UP_S = 120.0  # two programs must start, also on a busy machine
_NUM_RESAMPLES = 64


@dataclass(frozen=True)
class Turn:
    """What one lane did when it was its turn: durations of its iterations, and losses where it had any.

    ``seen`` is what was counted in the iterations before the first timed one.
    """

    durations_ns: Sequence[int]
    losses: Sequence[float] = ()
    seen: Mapping[str, float] = field(default_factory=dict)


class Lane(Protocol):
    """A program that runs only on request."""

    @property
    def iterations_per_sample(self) -> int:
        """How many iterations are one unit of the program."""
        ...

    def turn(self, num_iterations: int) -> Turn | None:
        """Run one iteration to settle and then ``num_iterations``; None when the program has come to its end.

        Raises
        ------
        OutOfTimeError
            The deadline passed before the turn was finished.
        """
        ...

    def log_tail(self) -> str:
        """The last lines that the program printed."""
        ...


@dataclass(frozen=True)
class StopRule:
    """When it is enough.

    Attributes
    ----------
    rounds : int
        Maximum number of rounds.
    precision : float
        Stop when half of the interval's width is below this share of the speed-up.
    time_limit_s : float
        Stop after this time, if there are rounds enough for an interval.
    turn_ns : int
        A turn shall last about this long.
    warmup : int
        Iterations of each lane before anything counts.
    confidence : float
    """

    rounds: int = 40
    precision: float = 0.006
    time_limit_s: float = 60.0
    turn_ns: int = 100_000_000
    warmup: int = 5
    confidence: float = 0.9
    min_rounds: int = 7

    @property
    def give_up_s(self) -> float:
        """A flight that has too few rounds for an interval after this time, its start included, is given up."""
        return max(2 * self.time_limit_s, _MIN_GIVE_UP_S)


@dataclass(frozen=True)
class Measurement:
    """Medians of every turn, ns per iteration of the program that ran, round by round; warm-up is dropped.

    ``neighbors_ratio`` is the share of all cores that other programs took meanwhile.
    """

    baseline_R: Sequence[float]
    changed_R: Sequence[float]
    confidence: float = 0.9
    losses: tuple[Sequence[float], Sequence[float]] = ((), ())
    num_iterations: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()
    neighbors_ratio: float = 0.0
    speedup: Estimate = field(init=False)
    baseline: Estimate = field(init=False)
    changed: Estimate = field(init=False)

    def __post_init__(self) -> None:
        confidence = self.confidence
        object.__setattr__(self, "speedup", estimate_speedup(self.baseline_R, self.changed_R, confidence=confidence))
        object.__setattr__(self, "baseline", estimate_median(self.baseline_R, confidence=confidence))
        object.__setattr__(self, "changed", estimate_median(self.changed_R, confidence=confidence))

    @property
    def num_rounds(self) -> int:
        """Rounds that count."""
        return len(self.baseline_R)


def measure(
    baseline: Lane,
    changed: Lane,
    rule: StopRule,
    progress: Progress | None = None,
    check: Callable[[Turn, Turn], None] | None = None,
    *,
    deadline_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Measurement:
    """Let the lanes take turns until the rule is met; ``check`` sees their first turns and may refuse the rest.

    Turns that take so long that the fewest rounds would not fit into the time limit become shorter.

    Parameters
    ----------
    baseline, changed : Lane
    rule : StopRule
    progress, check : callable, optional
    deadline_s : float
        Reading of ``clock`` at which the flight is given up unless it has rounds enough for an interval.
    clock : callable
        Seconds.

    Raises
    ------
    FlightError
        A lane ended, or the deadline passed, before there were rounds enough, or the changed program no longer computes
        numbers.
    """
    started_s, neighbors = clock(), Neighbors()
    runners = (baseline, changed)
    warm = [_require(lane.turn(_whole(rule.warmup, lane)), lane, 0) for lane in runners]
    if check is not None:
        check(*warm)
    lengths = [_turn_length(turn, lane, rule.turn_ns) for turn, lane in zip(warm, runners, strict=True)]
    samples: tuple[list[float], list[float]] = ([], [])
    losses: tuple[list[float], list[float]] = (list(warm[0].losses), list(warm[1].losses))
    has_ended = is_late = False
    while not (has_ended or is_late) and not _is_enough(samples, rule, clock() - started_s):
        order = (0, 1) if len(samples[0]) % 2 == 0 else (1, 0)
        for which in order:
            turn_started_s = clock()
            try:
                turn = runners[which].turn(lengths[which])
            except OutOfTimeError:
                is_late = True
                break
            if turn is None or len(turn.durations_ns) < runners[which].iterations_per_sample:
                has_ended = True
                continue
            samples[which].append(_per_iteration(turn, runners[which]))
            losses[which].extend(turn.losses)
            lengths[which] = _shorten_turn(lengths[which], runners[which], rule, clock() - turn_started_s)
        is_late = is_late or clock() > deadline_s
        if progress is not None:
            progress("flying", len(samples[0]), rule.rounds)
    result = _conclude(runners, samples, losses, rule, lengths, is_late=is_late)
    return result if neighbors.are_quiet else _beside(result, neighbors.cores_ratio or 0.0)


def _beside(measurement: Measurement, neighbors_ratio: float) -> Measurement:
    """A measurement with what other programs took of the machine meanwhile."""
    if neighbors_ratio <= MAX_NEIGHBORS:
        return replace(measurement, neighbors_ratio=neighbors_ratio)
    note = f"other programs took {neighbors_ratio:.0%} of this machine's cores during the flight"
    return replace(measurement, neighbors_ratio=neighbors_ratio, notes=(*measurement.notes, note))


def _conclude(
    runners: tuple[Lane, Lane],
    samples: tuple[list[float], list[float]],
    losses: tuple[list[float], list[float]],
    rule: StopRule,
    lengths: Sequence[int],
    *,
    is_late: bool,
) -> Measurement:
    num_rounds = min(map(len, samples))
    _check_losses(runners, losses)
    baseline_R, changed_R = (np.asarray(values[:num_rounds]) for values in samples)
    cut = min(max(warmup_length(baseline_R), warmup_length(changed_R)), max(0, num_rounds - _MIN_ROUNDS))
    if num_rounds < _MIN_ROUNDS and is_late:
        raise _too_late(num_rounds)
    if num_rounds < _MIN_ROUNDS:
        shortest = min(range(2), key=lambda which: len(samples[which]))
        raise FlightError(
            f"the program ended after {num_rounds} rounds of {lengths[0]} iterations; {_MIN_ROUNDS} must count",
            where=("baseline", "changed program")[shortest],
            fix="let it train for more iterations, or ask for fewer with --rounds",
            log_tail=runners[shortest].log_tail(),
        )
    baseline_R, changed_R = baseline_R[cut:], changed_R[cut:]
    notes = ("the speed-up was still drifting",) if has_trend(np.log(baseline_R / changed_R)) else ()
    iterations = (lengths[0] * num_rounds, lengths[1] * num_rounds)
    return Measurement(baseline_R.tolist(), changed_R.tolist(), rule.confidence, losses, iterations, notes)


def _too_late(num_rounds: int) -> FlightError:
    return OutOfTimeError(
        f"only {num_rounds} of the {_MIN_ROUNDS} rounds that an interval needs were flown when the time was up"
    )


def _shorten_turn(length: int, lane: Lane, rule: StopRule, elapsed_s: float) -> int:
    """The length of the next turn: less where turns of this length leave no time for the fewest rounds."""
    allowed_s = rule.time_limit_s / (2 * min(rule.min_rounds, rule.rounds))
    if elapsed_s <= allowed_s:
        return length
    unit = lane.iterations_per_sample
    return max(unit, int(length * allowed_s / elapsed_s) // unit * unit)


def _require(turn: Turn | None, lane: Lane, num_rounds: int) -> Turn:
    if turn is None or not turn.durations_ns:
        raise FlightError(
            f"the program ended during warm-up, after {num_rounds} measured rounds",
            fix="let it train for more iterations",
            log_tail=lane.log_tail(),
        )
    return turn


def _whole(num_iterations: int, lane: Lane) -> int:
    return math.ceil(num_iterations / lane.iterations_per_sample) * lane.iterations_per_sample


def _turn_length(warm: Turn, lane: Lane, turn_ns: int) -> int:
    unit = lane.iterations_per_sample
    fastest_ns = max(1, min(warm.durations_ns))  # the others may have compiled something
    return _whole(min(max(1, round(turn_ns / fastest_ns)), max(_MAX_ITERATIONS_PER_TURN, unit)), lane)


def _per_iteration(turn: Turn, lane: Lane) -> float:
    unit = lane.iterations_per_sample
    durations = np.asarray(turn.durations_ns, dtype=np.float64)
    durations = durations[: len(durations) // unit * unit].reshape(-1, unit)
    return float(np.median(durations.sum(axis=1)))


def _is_enough(samples: tuple[list[float], list[float]], rule: StopRule, elapsed_s: float) -> bool:
    num_rounds = min(map(len, samples))
    if num_rounds >= rule.rounds:
        return True
    if num_rounds < min(rule.min_rounds, rule.rounds):
        return elapsed_s > rule.time_limit_s and num_rounds >= _MIN_ROUNDS
    cut = max(map(warmup_length, samples))
    known = estimate_speedup(samples[0][cut:], samples[1][cut:], confidence=rule.confidence)
    return known.half_width_ratio <= rule.precision or elapsed_s > rule.time_limit_s


def _check_losses(runners: tuple[Lane, Lane], losses: tuple[list[float], list[float]]) -> None:
    baseline, changed = losses
    bad = next((index for index, loss in enumerate(changed) if not math.isfinite(loss)), None)
    if bad is not None and all(map(math.isfinite, baseline)):
        raise FlightError(
            f"the changed program's loss is {changed[bad]} where the baseline's is a number",
            where=f"loss {bad + 1} of {len(changed)} looked at",
            fix="this change does not train here; its time means nothing",
            log_tail=runners[1].log_tail(),
        )


def elapsed_ns(action: Callable[[], Any]) -> int:
    """Wall-clock time of one call, in ns."""
    begun_ns = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - begun_ns


def rounds(
    fewest: int, most: int, budget_s: float, *, warmup: int = 0, progress: Progress | None = None, what: str = "rounds"
) -> Iterator[int]:
    """Numbers of the rounds to run, one after the other: negative ones warm up and do not count.

    Parameters
    ----------
    fewest, most : int
        Rounds that count.
    budget_s : float
        No round begins later, but the fewest are always run.
    warmup : int
    progress : callable, optional
        Called with (what, done, total) after each round.
    what : str
    """
    begun_s = time.perf_counter()
    for turn in range(-warmup, most):
        yield turn
        spent_s = time.perf_counter() - begun_s
        if progress is not None and turn >= 0:
            total = most if spent_s <= 0 else min(most, max(fewest, int(budget_s * (turn + 1) / spent_s)))
            progress(what, turn + 1, max(total, turn + 1))
        if turn + 1 >= fewest and spent_s > budget_s:
            return


def quiet(samples: ArrayLike) -> float:
    """The lower quartile of times; NaN where there are none."""
    used = np.asarray(samples, dtype=np.float64)
    return float(np.percentile(used, 25)) if used.size else float("nan")


def quiet_rows(samples: ArrayLike) -> NDArray[np.float64]:
    """The lower quartile over rounds of each column of [R, N], float [N]."""
    result: NDArray[np.float64] = np.percentile(np.asarray(samples, dtype=np.float64), 25, axis=0)
    return result


def spread_ratio(samples: ArrayLike) -> float:
    """Interquartile range over the median; 0 where the median is 0."""
    low, median, high = np.percentile(np.asarray(samples, dtype=np.float64), [25, 50, 75])
    return float((high - low) / median) if median > 0 else 0.0


def spread_of_quiet(old_RN: ArrayLike, new_RN: ArrayLike, *, seed: int = 0) -> float:
    """How far the ratio of two quiet estimates varies by chance: interquartile range of its logarithm, resampled.

    Single rounds while other programs run vary far more than the lower quartile of all of them does, and their ratio
    is as often a multiple as a fraction, so that a difference over the median would say too much.

    Parameters
    ----------
    old_RN, new_RN : float [R, N]
        Times of N pieces in R rounds, of both programs in the same rounds.
    """
    old, new = (np.asarray(samples, dtype=np.float64) for samples in (old_RN, new_RN))
    rows = np.random.default_rng(seed).integers(0, len(old), (_NUM_RESAMPLES, len(old)))
    ratios = [max(quiet_rows(new[row]).sum(), 1.0) / max(quiet_rows(old[row]).sum(), 1.0) for row in rows]
    low, high = np.percentile(np.log(ratios), [25, 75])
    return float(high - low)
