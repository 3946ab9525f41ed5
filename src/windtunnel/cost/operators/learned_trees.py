"""Boosted trees as plain arrays: what was trained with a library is evaluated by NumPy alone.

In: nodes of all trees, one array for each attribute; or a trained booster of XGBoost. Out: the sum of the leaves that
rows of features come to, equal to the library's own answer. Not here: what the sum means (``learned_model``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BoostedTrees"]

# P rows, F features, T trees, N nodes of all trees
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Trees whose leaves are added up.

    Parameters
    ----------
    roots : int32 [T]
        First node of each tree.
    children : int16 [N]
        Left child of a node, counted from the root of its tree; the right one follows it; 0 for a leaf.
    features : int16 [N]
        Which feature a node compares; rows below ``values`` go left.
    values : float32 [N]
        Threshold of a node, or what a leaf adds.
    start : float
        What all rows begin with.
    """

    roots: NDArray[np.int32]
    children: NDArray[np.int16]
    features: NDArray[np.int16]
    values: NDArray[np.float32]
    start: float

    def predict(self, features: NDArray[np.float32]) -> Floats:
        """Sum of the leaves of each row [P]."""
        rows = np.arange(len(features))[:, None]
        roots = self.roots[None, :].astype(np.int64)
        nodes = np.broadcast_to(roots, (len(features), len(self.roots))).copy()
        while True:
            children = self.children[nodes].astype(np.int64)
            is_inner = children > 0
            if not is_inner.any():
                break
            goes_right = features[rows, self.features[nodes]] >= self.values[nodes]
            nodes = np.where(is_inner, roots + children + goes_right, nodes)
        total: Floats = self.start + self.values[nodes].astype(np.float64).sum(axis=1)
        return total

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Arrays by name, for a file."""
        columns = {name: getattr(self, name) for name in ("roots", "children", "features", "values")}
        return {f"{prefix}/{name}": value for name, value in {**columns, "start": np.array(self.start)}.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> BoostedTrees:
        """Read what ``arrays`` made."""
        columns = {name: arrays[f"{prefix}/{name}"] for name in ("roots", "children", "features", "values")}
        return cls(**columns, start=float(arrays[f"{prefix}/start"]))

    @classmethod
    def of_booster(cls, booster: Any) -> BoostedTrees:
        """The trees of an ``xgboost.Booster`` for squared errors."""
        document = json.loads(bytes(booster.save_raw("json")))["learner"]
        start = float(np.ravel(json.loads(document["learner_model_param"]["base_score"]))[0])
        roots, children, features, values, count = [], [], [], [], 0
        for tree in document["gradient_booster"]["model"]["trees"]:
            left, right = (np.asarray(tree[name]) for name in ("left_children", "right_children"))
            is_inner = left >= 0
            assert (right[is_inner] == left[is_inner] + 1).all(), "children of a node are neighbors"
            roots.append(count)
            children.append(np.where(is_inner, left, 0))
            features.append(np.asarray(tree["split_indices"]))
            values.append(np.asarray(tree["split_conditions"], dtype=np.float32))
            count += len(left)
        return cls(
            np.array(roots, dtype=np.int32),
            np.concatenate(children).astype(np.int16),
            np.concatenate(features).astype(np.int16),
            np.concatenate(values),
            start,
        )
