"""Gradient-boosted trees (room cost): pooled or summed statement rows in, seconds out.

``cdmpp``: the weak baseline of the paper, rows summed over leaves. ``ansor`` and ``metaschedule``: a score per
statement, summed, against the task's best time. ``strong``: sum, maximum and mean of the rows, logarithm of the time.
``strong-efficiency``: the same against the physical bound, with the code's entries. Not here: networks.

Source: Chen and Guestrin (KDD 2016); TVM (OSDI 2018), Ansor (OSDI 2020), MetaSchedule (NeurIPS 2022).
"""

# M samples, L statements of all samples

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.peers.ranking import Calibration, best_times, throughput
from windtunnel.base.extras import require
from windtunnel.systems.tensor_programs.model.context import bound_of, context_rows
from windtunnel.systems.tensor_programs.model.samples import labels_of, widths_of
from windtunnel.systems.tensor_programs.model.splits import Split
from windtunnel.systems.tensor_programs.model.transforms import LabelTransform
from windtunnel.systems.tensor_programs.program_set import ProgramSet

__all__ = ["FlatTrees", "StatementTrees", "TreeKind", "train_trees"]

TreeKind = Literal["cdmpp", "ansor", "metaschedule", "strong", "strong-efficiency"]
COMMON = {"tree_method": "hist", "nthread": 2, "objective": "reg:squarederror", "verbosity": 0, "seed": 0}
PARAMETERS: Mapping[str, dict[str, Any]] = {
    "cdmpp": {"max_depth": 3, "gamma": 1e-4, "min_child_weight": 1, "subsample": 1.0, "eta": 0.3, "lambda": 1.0},
    "ansor": {"max_depth": 6, "gamma": 3e-3, "min_child_weight": 2, "eta": 0.2},
    "metaschedule": {"max_depth": 10, "gamma": 1e-3, "min_child_weight": 0, "eta": 0.2},
    "strong": {"max_depth": 8, "eta": 0.06, "subsample": 0.8, "colsample_bytree": 0.5, "min_child_weight": 2},
}
ROUNDS = {"cdmpp": (2000, 20), "ansor": (300, 50), "metaschedule": (300, 50), "strong": (500, 0)}
LEAST_SCORE = 1e-3


def train_trees(programs: ProgramSet, split: Split, kind: TreeKind) -> FlatTrees | StatementTrees:
    """Train one kind on the split's training samples; validation samples stop those that stop early."""
    if kind in ("ansor", "metaschedule"):
        return StatementTrees.train(programs, split, kind)
    return FlatTrees.train(programs, split, kind)


def _statements(programs: ProgramSet, samples: np.ndarray, *, has_code: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows float32 [L, 164], with code [L, 199], of all samples in turn, and where each sample begins [M + 1]."""
    counts = programs.num_leaves[samples[:, 0]]
    begins = np.concatenate([[0], np.cumsum(counts)])
    rows = np.arange(begins[-1]) - np.repeat(begins[:-1] - programs.leaf_offset[samples[:, 0]], counts)
    features = programs.features[rows].astype(np.float32)
    if has_code:
        width = np.repeat(widths_of(programs)[samples[:, 1]], counts)
        features = np.concatenate([features, programs.code[rows, width].astype(np.float32)], axis=1)
    return features, begins


def pooled(programs: ProgramSet, samples: np.ndarray, *, is_strong: bool, has_code: bool = False) -> np.ndarray:
    """One row per sample: the sum of its statements' rows; strong also maximum, mean and number of statements."""
    rows, begins = _statements(programs, samples, has_code=has_code)
    total = np.add.reduceat(rows, begins[:-1])
    if not is_strong:
        return total
    counts = np.diff(begins)[:, None]
    return np.concatenate([total, np.maximum.reduceat(rows, begins[:-1]), total / counts, counts], axis=1)


@dataclass(frozen=True)
class FlatTrees:
    """One row per sample, one number of seconds."""

    booster: Any
    labels: LabelTransform
    is_strong: bool
    is_efficiency: bool
    has_context: bool

    @classmethod
    def train(cls, programs: ProgramSet, split: Split, kind: str) -> FlatTrees:
        """Fit the booster on transformed labels."""
        xgboost = require("xgboost", extra="learn")
        is_strong = kind.startswith("strong")
        is_efficiency = kind == "strong-efficiency"
        has_context = is_efficiency or np.unique(split.train[:, 1]).size > 1
        base = _base_s(programs, split.train, is_efficiency=is_efficiency)
        seconds = labels_of(programs, split.train) / base
        labels = LabelTransform.fit("log" if is_strong else "box-cox", seconds)
        name = "strong" if is_strong else kind
        rounds, patience = ROUNDS[name]
        shell = cls(None, labels, is_strong, is_efficiency, has_context)
        data = {
            use: xgboost.DMatrix(
                shell._rows(programs, samples),
                label=labels.forward(
                    labels_of(programs, samples) / _base_s(programs, samples, is_efficiency=is_efficiency)
                ),
            )
            for use, samples in (("train", split.train), ("validation", split.validation))
            if len(samples)
        }
        booster = xgboost.train(
            COMMON | PARAMETERS[name],
            data["train"],
            num_boost_round=rounds,
            evals=[(data["validation"], "validation")] if patience and "validation" in data else [],
            early_stopping_rounds=patience if patience and "validation" in data else None,
            verbose_eval=False,
        )
        return cls(booster, labels, is_strong, is_efficiency, has_context)

    def predict(self, programs: ProgramSet, samples: np.ndarray) -> Any:
        """Seconds float64 [M]."""
        xgboost = require("xgboost", extra="learn")
        values = self.booster.predict(xgboost.DMatrix(self._rows(programs, samples)))
        seconds: np.ndarray = self.labels.inverse(values)[0]
        return seconds * _base_s(programs, samples, is_efficiency=self.is_efficiency)

    def _rows(self, programs: ProgramSet, samples: np.ndarray) -> np.ndarray:
        rows = pooled(programs, samples, is_strong=self.is_strong, has_code=self.is_efficiency)
        if self.has_context:
            rows = np.concatenate([rows, context_rows(programs, samples, "bound")], axis=1)
        return rows


def _base_s(programs: ProgramSet, samples: np.ndarray, *, is_efficiency: bool) -> Any:
    return bound_of(programs, samples).bound_ns * 1e-9 if is_efficiency else 1.0


@dataclass(frozen=True)
class StatementTrees:
    """A score per statement; the sum over a program is its throughput against the task's fastest program."""

    booster: Any
    calibration: Calibration

    @classmethod
    def train(cls, programs: ProgramSet, split: Split, kind: str) -> StatementTrees:
        """Weighted square error of summed scores; faster programs weigh more."""
        xgboost = require("xgboost", extra="learn")
        rounds, patience = ROUNDS[kind]
        data, objective = {}, {}
        for use, samples in (("train", split.train), ("validation", split.validation)):
            if len(samples):
                rows, begins = _statements(programs, samples)
                data[use] = xgboost.DMatrix(rows)
                objective[use] = _SummedError(begins, throughput(programs, samples))
        # the base score of every statement is its share of an average program
        base_score = float(np.mean(objective["train"].label) / np.mean(np.diff(objective["train"].begins)))
        watched = "validation" if "validation" in data else "train"
        booster = xgboost.train(
            COMMON | PARAMETERS[kind] | {"base_score": base_score, "disable_default_eval_metric": 1},
            data["train"],
            num_boost_round=rounds,
            obj=lambda predicted, _: objective["train"].gradient(predicted),
            evals=[(data[watched], watched)],
            custom_metric=lambda predicted, _: ("summed-error", objective[watched].error(predicted)),
            early_stopping_rounds=patience,
            verbose_eval=False,
        )
        scores = objective["train"].sums(booster.predict(data["train"]))
        return cls(booster, Calibration.fit(scores, objective["train"].label))

    def predict(self, programs: ProgramSet, samples: np.ndarray) -> Any:
        """Seconds float64 [M], by the fastest time of each task."""
        xgboost = require("xgboost", extra="learn")
        rows, begins = _statements(programs, samples)
        scores = np.add.reduceat(self.booster.predict(xgboost.DMatrix(rows)), begins[:-1])
        return best_times(programs, samples) / self.calibration(scores)


@dataclass(frozen=True)
class _SummedError:
    """Square error of sums over statements [M + 1 begins, M labels], weighted by the label."""

    begins: np.ndarray
    label: np.ndarray

    def sums(self, predicted: np.ndarray) -> np.ndarray:
        return np.add.reduceat(predicted, self.begins[:-1])

    def gradient(self, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = np.maximum(self.label, LEAST_SCORE)
        counts = np.diff(self.begins)
        slope = weight * (self.sums(predicted) - self.label)
        return np.repeat(slope, counts), np.repeat(weight, counts)

    def error(self, predicted: np.ndarray) -> float:
        weight = np.maximum(self.label, LEAST_SCORE)
        return float(np.sqrt(np.average((self.sums(predicted) - self.label) ** 2, weights=weight)))
