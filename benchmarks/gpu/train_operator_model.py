"""Train the shipped model of operators from recorded timings, and say how well it does on shapes that it has not seen.

In: timings of an H100 and an H200 (``benchmarks.gpu.timings``), operators of recorded steps
(``benchmarks.gpu.trace_timings``). Out: ``learned.npz`` and ``host_times.csv`` of the
package. The same timings make the same files. Needs XGBoost, no GPU.

    python -m benchmarks.gpu.train_operator_model --out src/windtunnel/cost/operators/learned.npz
"""

from __future__ import annotations

import argparse
import csv
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.timings import Timings, host_times, read_all, shared_folder
from benchmarks.gpu.trace_timings import read_traces
from windtunnel.cost.host_times import HOST_TABLE
from windtunnel.cost.operators.facts import FAMILIES, Facts, facts_of
from windtunnel.cost.operators.formulas import DEPTHWISE, START_NS, depthwise_terms, has_formula, is_depthwise
from windtunnel.cost.operators.learned_features import base_ns, features_of
from windtunnel.cost.operators.learned_model import SHIPPED, LearnedModel, position_of
from windtunnel.cost.operators.learned_trees import BoostedTrees
from windtunnel.hardware import device

NUM_FOLDS, LEVEL, SEED = 5, 0.9, 2026
ROUNDS = 400
STEP_WEIGHT = 1.5  # of an operator of a recorded step: there are few of them, and jobs are made of such
SETTINGS = {
    "max_depth": 6,
    "eta": 0.06,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "min_child_weight": 2,
    "max_bin": 64,
    "tree_method": "hist",
    "nthread": 1,
    "seed": SEED,
}
MIN_DEPTHWISE = 20  # timings that the numbers of a formula are fitted to
FEW, FEW_SETTINGS = 300, {"max_depth": 4, "colsample_bytree": 0.8, "min_child_weight": 1}
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Examples:
    """Timed work with its features on the device that it ran on."""

    facts: Facts
    features: NDArray[Any]
    base_ns: Floats
    labels: Floats
    device: NDArray[np.object_]
    fold: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def rows_of(self, family: str) -> NDArray[np.int64]:
        return np.flatnonzero(self.facts.family == family)

    def rows_of_trees(self, family: str) -> NDArray[np.int64]:
        """Those of a family that no formula prices."""
        return np.flatnonzero((self.facts.family == family) & ~has_formula(self.facts))


def examples_of(timings: Timings) -> Examples:
    """Features, labels and the fold of each timing: all timings of one operator and shape are in one fold."""
    facts = facts_of(timings.work)
    known = np.flatnonzero(facts.family != "")
    facts, timings = facts.take(known), timings.take(known)
    parts = {name: np.flatnonzero(timings.device == name) for name in sorted(set(timings.device.tolist()))}
    order = np.concatenate(list(parts.values()))
    features = np.concatenate([features_of(facts.take(rows), device(name)) for name, rows in parts.items()])
    base = np.concatenate([base_ns(facts.take(rows), device(name)) for name, rows in parts.items()])
    fold = np.array([zlib.crc32(text.encode()) % NUM_FOLDS for text in timings.shape[order].tolist()])
    labels = np.log(timings.latency_ns[order] / base)
    return Examples(facts.take(order), features, base, labels, timings.device[order], fold)


def fit(features: NDArray[Any], labels: Floats, weights: Floats | None = None) -> BoostedTrees:
    """Trees on log(measured / base)."""
    import xgboost

    matrix = xgboost.DMatrix(features, labels, weight=weights)
    settings = SETTINGS | (FEW_SETTINGS if len(labels) < FEW else {})
    return BoostedTrees.of_booster(xgboost.train(settings, matrix, ROUNDS))


def held_out(examples: Examples) -> Floats:
    """log(measured / predicted) of each example by trees, and numbers of formulas, that did not see its shape."""
    residuals = np.full(len(examples), np.nan)
    for number in range(NUM_FOLDS):
        _predict(examples, examples.fold == number, residuals)
    return residuals


def other_chip(examples: Examples, name: str) -> Floats:
    """log(measured / predicted) of a device's examples by what did not see the device; NaN of all others."""
    residuals = np.full(len(examples), np.nan)
    _predict(examples, examples.device == name, residuals)
    return residuals


def _predict(examples: Examples, is_test: NDArray[np.bool_], residuals: Floats) -> None:
    """Write the residuals of the tests of each family that has examples beyond the tests."""
    for family in FAMILIES:
        rows = examples.rows_of_trees(family)
        tests, rest = rows[is_test[rows]], rows[~is_test[rows]]
        if len(tests) and len(rest):
            trees = fit(examples.features[rest], examples.labels[rest])
            residuals[tests] = examples.labels[tests] - trees.predict(examples.features[tests])
    lists = np.flatnonzero(has_formula(examples.facts) & ~is_depthwise(examples.facts) & is_test)
    residuals[lists] = examples.labels[lists]
    for family in DEPTHWISE:
        rows = np.flatnonzero(is_depthwise(examples.facts) & (examples.facts.family == family))
        tests, rest = rows[is_test[rows]], rows[~is_test[rows]]
        if len(tests) and len(rest) >= MIN_DEPTHWISE:
            terms = depthwise_terms(examples.facts.take(tests))
            measured = np.exp(examples.labels[tests]) * examples.base_ns[tests]
            residuals[tests] = np.log(measured / np.maximum(terms @ fit_depthwise(examples, rest), START_NS))


def fit_depthwise(examples: Examples, rows: NDArray[np.int64]) -> Floats:
    """Nanoseconds of each of ``depthwise_terms`` that fit the times of these rows best; none is negative."""
    from scipy.optimize import nnls

    measured = np.exp(examples.labels[rows]) * examples.base_ns[rows]
    terms = depthwise_terms(examples.facts.take(rows)) / measured[:, None]
    found: Floats = nnls(terms, np.ones(len(rows)))[0]
    return found


def train(examples: Examples, residuals: Floats, steps: Examples) -> LearnedModel:
    """The model of all timings and of the operators of recorded steps, with intervals by what was held out."""
    finite = {family: residuals[examples.rows_of(family)] for family in FAMILIES}
    ends = {family: interval_of(row[np.isfinite(row)], LEVEL) for family, row in finite.items()}
    chips = {name: position_of(device(name)) for name in sorted(set(examples.device.tolist()))}
    return LearnedModel(train_trees(examples, steps), ends, LEVEL, chips)


def train_trees(examples: Examples, steps: Examples) -> dict[str, BoostedTrees]:
    """Trees of each family that has any, on timings and on operators of recorded steps."""
    trees = {}
    for family in FAMILIES:
        rows, others = examples.rows_of_trees(family), steps.rows_of_trees(family)
        if not len(rows):
            continue
        trees[family] = fit(
            np.concatenate([examples.features[rows], steps.features[others]]),
            np.concatenate([examples.labels[rows], steps.labels[others]]),
            np.concatenate([np.ones(len(rows)), np.full(len(others), STEP_WEIGHT)]),
        )
    return trees


def interval_of(residuals: Floats, level: float) -> tuple[float, float]:
    """Order statistics of split-conformal intervals: each side leaves out half of what may be outside."""
    rank = min(math.ceil((len(residuals) + 1) * (1 + level) / 2), len(residuals))
    ordered = np.sort(residuals)
    return float(ordered[len(ordered) - rank]), float(ordered[rank - 1])


def errors(residuals: Iterable[float]) -> dict[str, float]:
    """Median and 90th percentile of |predicted / measured - 1|, in percent."""
    ratios = np.abs(np.exp(-np.asarray(list(residuals))) - 1)
    return {"num": len(ratios), "median": 100 * float(np.median(ratios)), "p90": 100 * float(np.quantile(ratios, 0.9))}


def write_host_times(path: Path) -> None:
    """Write what calls of operators take on the host."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("operator", "host_ns", "num_timings"))
        writer.writerows((name, round(took), num) for name, (took, num) in host_times(shared_folder()).items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--host-times", type=Path, default=SHIPPED.parent.parent / HOST_TABLE)
    examples = examples_of(read_all(shared_folder()))
    options = parser.parse_args()
    residuals = held_out(examples)
    for family in FAMILIES:
        row = errors(residuals[examples.rows_of(family)])
        print(f"{family:22s} {row['num']:5d}  median {row['median']:5.1f} %  p90 {row['p90']:5.1f} %")
    path = train(examples, residuals, examples_of(read_traces())).save(options.out)
    write_host_times(options.host_times)
    print(f"{path}: {path.stat().st_size / 2**20:.2f} MiB of {len(examples)} timings")


if __name__ == "__main__":
    main()
