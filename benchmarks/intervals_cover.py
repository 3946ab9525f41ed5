"""Intervals of learned prices hold what they say: 90 % nominal covers 87 to 93 % on held-out tasks (A11).

One predictor, trained on other tasks; held-out tasks are dealt into calibration and verdict again and again, for one
deal is a lottery of few tasks. ``--device NAME``, ``--budget SECONDS`` of training.
"""

import argparse
import sys

import numpy as np

from benchmarks.bar import report
from benchmarks.program_data import MISSING, default_predictor, shipped_set

LEVEL, LOW, HIGH = 0.9, 0.87, 0.93
NUM_DEALS = 200


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="avx512-1")
    parser.add_argument("--budget", type=float, default=120.0)
    return parser.parse_known_args()[0]


def coverage(log_ratio: np.ndarray, task: np.ndarray, kinds: list[str], seed: int) -> tuple[float, float]:
    """Share of the verdict's samples inside, and the median width as a ratio, of one deal of tasks."""
    from windtunnel.cost.intervals import ConformalIntervals

    known = np.unique(task)
    is_calibration = np.isin(task, np.random.default_rng(seed).permutation(known)[: len(known) // 2])
    names = np.array(kinds, dtype=object)[task]
    intervals = ConformalIntervals.fit(names[is_calibration].tolist(), log_ratio[is_calibration], level=LEVEL)
    ends = np.array([intervals.by_class.get(name, intervals.pooled) for name in names[~is_calibration]])
    inside = (log_ratio[~is_calibration] >= ends[:, 0]) & (log_ratio[~is_calibration] <= ends[:, 1])
    return float(inside.mean()), float(np.exp(np.median(ends[:, 1] - ends[:, 0])))


def main() -> int:
    from windtunnel.cost.metrics import mape
    from windtunnel.systems.tensor_programs.model.samples import labels_of
    from windtunnel.systems.tensor_programs.model.splits import split_by_task

    asked = options()
    target = f"{LEVEL:.0%} intervals cover {LOW:.0%} to {HIGH:.0%} of held-out tasks' times"
    programs = shipped_set()
    if programs is None:
        report("intervals_cover", float("nan"), target, holds=False, reason=MISSING)
        return 1
    split = split_by_task(programs, asked.device, test_share=0.4)
    predictor = default_predictor(programs, split, asked.budget)
    predicted, measured = predictor.predict(programs, split.test), labels_of(programs, split.test)
    task = programs.task[split.test[:, 0]]
    kinds = [str(one.get("kind", "")) for one in programs.tasks]
    deals = np.array([coverage(np.log(measured / predicted), task, kinds, seed) for seed in range(NUM_DEALS)])
    mean = float(deals[:, 0].mean())
    holds = LOW <= mean <= HIGH
    report(
        "intervals_cover",
        mean,
        target,
        holds,
        deals_10_90=np.percentile(deals[:, 0], [10, 90]).tolist(),
        width_ratio=float(deals[:, 1].mean()),
        mape=mape(predicted, measured),
        num_tasks=len(np.unique(task)),
        num_deals=NUM_DEALS,
        device=asked.device,
    )
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
