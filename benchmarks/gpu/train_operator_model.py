"""Train the shipped model of operators from recorded timings, and say how well it does on shapes that it has not seen.

In: timings of an H100 and an H200 (``benchmarks.gpu.timings``), operators of recorded steps
(``benchmarks.gpu.trace_timings``). Out: ``learned.npz`` and ``host_times.csv`` of the
package. The same timings make the same files. Needs SciPy, no GPU.

    python -m benchmarks.gpu.train_operator_model --out src/windtunnel/cost/operators/learned.npz
"""

from __future__ import annotations

import argparse
import csv
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.process_fit import fit_process
from benchmarks.gpu.timings import Timings, host_times, read_all, shared_folder
from benchmarks.gpu.trace_timings import read_traces
from windtunnel.cost.host_times import HOST_TABLE
from windtunnel.cost.operators.facts import FAMILIES, Facts, facts_of
from windtunnel.cost.operators.formulas import has_formula_alone, parts_of
from windtunnel.cost.operators.learned_features import FEATURES, base_ns, features_of
from windtunnel.cost.operators.learned_model import SHIPPED, LearnedModel, position_of
from windtunnel.hardware import device

NUM_FOLDS, LEVEL = 5, 0.9
STEP_TRUST = 1.5  # of an operator of a recorded step: there are few of them, and jobs are made of such
FIT_STEPS, MIN_NS = 6, 900.0
MIN_TIMINGS = 4  # that the rates of a formula are fitted to
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Examples:
    """Timed work, the device that it ran on, and how far a timing is trusted."""

    facts: Facts
    latency_ns: Floats
    device: NDArray[np.object_]
    fold: NDArray[np.int64]
    trust: Floats

    def __len__(self) -> int:
        return len(self.latency_ns)

    def rows_of(self, family: str) -> NDArray[np.int64]:
        return np.flatnonzero(self.facts.family == family)

    def take(self, rows: NDArray[Any]) -> Examples:
        columns = (self.latency_ns[rows], self.device[rows], self.fold[rows], self.trust[rows])
        return Examples(self.facts.take(rows), *columns)

    def join(self, other: Examples) -> Examples:
        """These and others."""
        facts = Facts(*(_join(self.facts, other.facts, name) for name in ("family", "values", "dtype")))
        return Examples(facts, *(_join(self, other, name) for name in ("latency_ns", "device", "fold", "trust")))

    def by_device(self) -> dict[str, NDArray[np.int64]]:
        """Rows of each device."""
        return {name: np.flatnonzero(self.device == name) for name in sorted(set(self.device.tolist()))}


def _join(first: object, second: object, name: str) -> NDArray[Any]:
    return np.concatenate([getattr(first, name), getattr(second, name)])


def examples_of(timings: Timings, trust: float = 1.0) -> Examples:
    """Facts and the fold of each timing: all timings of one operator and shape are in one fold."""
    facts = facts_of(timings.work)
    fold = np.array([zlib.crc32(text.encode()) % NUM_FOLDS for text in timings.shape.tolist()])
    examples = Examples(facts, timings.latency_ns, timings.device, fold, np.full(len(timings), trust))
    return examples.take(np.flatnonzero(facts.family != ""))


def train(examples: Examples) -> LearnedModel:
    """The model of these timings, without intervals."""
    rates = fit_rates(examples.take(examples.trust == 1))  # steps find caches cold, which formulas do not count
    features, labels = np.zeros((len(examples), len(FEATURES)), dtype=np.float32), np.zeros(len(examples))
    for name, rows in examples.by_device().items():
        facts = examples.facts.take(rows)
        features[rows] = features_of(facts, device(name))
        labels[rows] = np.log(examples.latency_ns[rows] / base_ns(facts, device(name), rates))
    is_learned = ~has_formula_alone(examples.facts)
    weights, scales, centers = np.zeros(len(examples), dtype=np.float32), {}, {}
    for family in FAMILIES:
        rows = np.flatnonzero(is_learned & (examples.facts.family == family))
        if len(rows):
            process = fit_process(features[rows], labels[rows], examples.trust[rows])
            weights[rows], scales[family], centers[family] = process.weights, process.scales, process.center
    chips = {name: position_of(device(name)) for name in examples.by_device()}
    kept = np.flatnonzero(is_learned)
    facts, names = examples.facts.take(kept), examples.device[kept]
    return LearnedModel(rates, facts, names, weights[kept], scales, centers, {}, LEVEL, chips)


def fit_rates(examples: Examples) -> dict[str, tuple[float, ...]]:
    """Rates of each part of the formulas that fit the logarithms of its times best; none is negative."""
    blocks: dict[str, list[Floats]] = {}
    for name, rows in examples.by_device().items():
        for part in parts_of(examples.facts.take(rows), device(name)):
            chosen = rows[part.rows]
            columns = (part.terms, examples.latency_ns[chosen][:, None])
            blocks.setdefault(part.name, []).append(np.concatenate(columns, axis=1))
    stacked = {name: np.concatenate(parts) for name, parts in blocks.items()}
    return {name: _fit_part(block) for name, block in stacked.items() if len(block) >= MIN_TIMINGS}


def _fit_part(block: Floats) -> tuple[float, ...]:
    """Least squares of logarithms by steps: off / time would take a time that is never reached for half as wrong."""
    from scipy.optimize import nnls

    terms, measured = block[:, :-1], block[:, -1]
    predicted, rates = measured, np.zeros(terms.shape[1])
    for _ in range(FIT_STEPS):
        weights = 1 / np.sqrt(measured * np.maximum(predicted, MIN_NS))
        rates = nnls(terms * weights[:, None], measured * weights)[0]
        predicted = terms @ rates
    return tuple(rates.tolist())


def residuals_of(model: LearnedModel, examples: Examples) -> Floats:
    """log(measured / predicted) of each example; NaN of a family that the model does not know."""
    residuals = np.full(len(examples), np.nan)
    for name, rows in examples.by_device().items():
        facts = examples.facts.take(rows)
        known = np.flatnonzero(model.covers(facts))
        predicted = model.durations_ns(facts.take(known), device(name))
        residuals[rows[known]] = np.log(examples.latency_ns[rows[known]] / predicted)
    return residuals


def formula_residuals(examples: Examples) -> Floats:
    """log(measured / base) of each example, with rates of formulas that did not see its shape."""
    residuals = np.full(len(examples), np.nan)
    for number in range(NUM_FOLDS):
        rates = fit_rates(examples.take(examples.fold != number))
        for name, rows in examples.by_device().items():
            tests = rows[examples.fold[rows] == number]
            base = base_ns(examples.facts.take(tests), device(name), rates)
            residuals[tests] = np.log(examples.latency_ns[tests] / base)
    return residuals


def held_out(examples: Examples) -> Floats:
    """log(measured / predicted) of each example by a model that did not see its shape."""
    residuals = np.full(len(examples), np.nan)
    for number in range(NUM_FOLDS):
        is_test = examples.fold == number
        residuals[is_test] = residuals_of(train(examples.take(~is_test)), examples.take(is_test))
    return residuals


def other_chip(examples: Examples, name: str) -> Floats:
    """log(measured / predicted) of a device's examples by what did not see the device; NaN of all others."""
    residuals, is_test = np.full(len(examples), np.nan), examples.device == name
    residuals[is_test] = residuals_of(train(examples.take(~is_test)), examples.take(is_test))
    return residuals


def intervals_of(examples: Examples, residuals: Floats) -> dict[str, tuple[float, float]]:
    """Ends of the interval of each family by what was held out."""
    return {family: interval_of(residuals[examples.rows_of(family)], LEVEL) for family in FAMILIES}


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
    whole = examples.join(examples_of(read_traces(), STEP_TRUST))
    path = replace(train(whole), ends=intervals_of(examples, residuals)).save(options.out)
    write_host_times(options.host_times)
    print(f"{path}: {path.stat().st_size / 2**20:.2f} MiB of {len(examples)} timings")


if __name__ == "__main__":
    main()
