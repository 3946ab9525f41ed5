"""A random forest as flat arrays: rows of numbers in, means of leaves out.

Grown by scikit-learn; kept as arrays, so that a forest can be stored without pickle and predicts without scikit-learn,
the same to the last bits. Not here: what is learned (``model``), files (``learned``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.extras import require

__all__ = ["Forest"]

# K rows, F features, T trees, N nodes of all trees
_LEAF = -1


@dataclass(frozen=True, eq=False)
class Forest:
    """Regression trees.

    Parameters
    ----------
    feature : int16 [N]
        What a node asks for; -1 in a leaf.
    threshold : float64 [N]
        A row whose feature is not above it goes left.
    left, right : int32 [N]
        Nodes.
    value : float64 [N]
        Mean of the training goals at a node.
    root : int32 [T]
    """

    feature: NDArray[np.int16]
    threshold: NDArray[np.float64]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float64]
    root: NDArray[np.int32]

    @classmethod
    def grow(cls, features_KF: ArrayLike, goal_K: ArrayLike, **settings: Any) -> tuple[Forest, NDArray[np.float64]]:
        """Grow trees on draws of the rows.

        Parameters
        ----------
        features_KF : float [K, F]
        goal_K : float [K]
        **settings
            Of ``sklearn.ensemble.RandomForestRegressor``.

        Returns
        -------
        forest : Forest
        unseen_K : float64 [K]
            What the trees that had not drawn a row say of it.

        Raises
        ------
        MissingExtraError
            scikit-learn is not installed (extra ``learn``).
        """
        ensemble = require("sklearn.ensemble", extra="learn")
        grown = ensemble.RandomForestRegressor(oob_score=True, **settings).fit(features_KF, goal_K)
        trees = [one.tree_ for one in grown.estimators_]
        sizes = np.array([tree.node_count for tree in trees])
        root = np.cumsum(sizes) - sizes
        shift = np.repeat(root, sizes)

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(tree, name) for tree in trees])

        feature = joined("feature")
        is_leaf = feature < 0
        left, right = (
            np.where(is_leaf, _LEAF, joined(f"children_{side}") + shift).astype(np.int32) for side in ("left", "right")
        )
        forest = cls(
            np.where(is_leaf, _LEAF, feature).astype(np.int16),
            joined("threshold"),
            left,
            right,
            joined("value").reshape(-1),
            root.astype(np.int32),
        )
        return forest, grown.oob_prediction_

    def predict(self, features_KF: ArrayLike) -> NDArray[np.float64]:
        """Mean over the trees [K]."""
        rows_KF = np.asarray(features_KF, dtype=np.float32)  # thresholds lie between such numbers
        place_KT = np.tile(self.root, (len(rows_KF), 1))
        row_K1 = np.arange(len(rows_KF))[:, None]
        while True:
            asked_KT = self.feature[place_KT]
            is_inner = asked_KT != _LEAF
            if not is_inner.any():
                return np.asarray(self.value[place_KT].mean(axis=1), dtype=np.float64)
            goes_left = rows_KF[row_K1, asked_KT] <= self.threshold[place_KT]
            after = np.where(goes_left, self.left[place_KT], self.right[place_KT])
            place_KT = np.where(is_inner, after, place_KT)
