"""Efficiencies between measured ones (room cost): one Gaussian process per class of operator.

In: samples of flops, bytes and efficiency. Out: the efficiency of other work with how uncertain it is, and what leaving
one sample out says about both. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, 5.4.2
(leave-one-out in closed form). Not here: measuring, intervals.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Process", "coordinates"]

# N samples, P rows to predict
Floats = NDArray[np.float64]
Names = NDArray[np.object_]
_LENGTHS = (1.0, 2.0, 4.0, 8.0)
_NOISES = (0.05, 0.15, 0.4)
_SHARED = (0.3, 0.7, 1.0)
_GRAINS = (0.0, 0.5, 1.0)
_STEPS = (0.3, 1.0)
_LEAST_SPREAD = 0.02
_STEP_BYTES = (2.0**18, 2.0**28)  # a step below fits into the caches, one above into none
_MOST_TO_CHOOSE = 120  # samples by which length, noise and sharing are chosen: time goes with their cube


@dataclass(frozen=True, slots=True)
class _Form:
    """How efficiencies go together.

    Length in octaves, noise as a share of the spread, what two operators of a class have in common, and how much an
    octave of the grain counts beside one of size.
    """

    length: float
    noise: float
    shared: float
    grain: float
    step: float

    def similar(self, first: Floats, first_names: Names, second: Floats, second_names: Names) -> Floats:
        weights = np.array([1.0, 1.0, self.step, self.grain])
        squared = ((weights * (first[:, None] - second[None])) ** 2).sum(axis=2)
        alike = np.where(first_names[:, None] == second_names[None], 1.0, self.shared)
        similar: Floats = alike * np.exp(-0.5 * squared / self.length**2)
        return similar


@dataclass(frozen=True, eq=False)
class Process:
    """log(efficiency) as a smooth function of size and intensity, alike for operators of one class.

    Parameters
    ----------
    points : float [N, 4]
    names : object [N]
        Operators.
    mean, spread : float
        Far from all samples.
    left_out, left_out_std : float [N]
        log(measured / predicted time) of each sample predicted by all others, and how uncertain that was.
    """

    points: Floats
    names: Names
    mean: float
    spread: float
    left_out: Floats
    left_out_std: Floats
    _form: _Form
    _solved: _Solved

    @classmethod
    def fit(cls, points: Floats, names: Names, log_efficiency: Floats) -> Process:
        """Choose the form by the likelihood of samples that were left out."""
        mean = float(np.median(log_efficiency))
        spread = max(float(np.std(log_efficiency)), _LEAST_SPREAD)
        values = log_efficiency - mean
        few = np.linspace(0, len(points) - 1, min(len(points), _MOST_TO_CHOOSE)).astype(np.int64)
        forms = [_Form(*one) for one in itertools.product(_LENGTHS, _NOISES, _SHARED, _GRAINS, _STEPS)]
        form = min(forms, key=lambda one: _solve(points[few], names[few], values[few], one).surprise(spread))
        solved = _solve(points, names, values, form)
        # a sample that is more efficient than predicted took less time
        return cls(points, names, mean, spread, -solved.residual, spread * np.sqrt(solved.variance), form, solved)

    def predict(self, points: Floats, names: Names) -> tuple[Floats, Floats]:
        """log(efficiency) and its deviation, float [P] each."""
        near = self._form.similar(points, names, self.points, self.names)
        explained = np.einsum("pn,nm,pm->p", near, self._solved.inverse, near, optimize=True)
        noise = self._form.noise**2
        return self.mean + near @ self._solved.weights, self.spread * np.sqrt(np.maximum(1 + noise - explained, noise))


def coordinates(flops: Floats, bytes_moved: Floats, grain: ArrayLike, step_bytes: ArrayLike = 0.0) -> Floats:
    """Octaves of size, of intensity, of what the step around it moves, and of the grain, float [P, 4].

    The rest of a step fills the caches: the more it moves, the colder is what an operator finds. What ran alone ran
    twice in a row (0 ``step_bytes``).
    """
    size = np.maximum(bytes_moved, 1.0)
    step = np.clip(np.maximum(step_bytes, 2.0 * size), *_STEP_BYTES)
    cut = np.broadcast_to(np.asarray(grain, dtype=np.float64), size.shape)
    return np.stack([np.log2(size), np.log2(1.0 + flops / size), np.log2(step), cut], axis=1)


@dataclass(frozen=True, eq=False)
class _Solved:
    weights: Floats
    inverse: Floats
    residual: Floats
    variance: Floats

    def surprise(self, spread: float) -> float:
        deviation = spread * np.sqrt(self.variance)
        return float(np.sum(np.log(deviation) + 0.5 * (self.residual / deviation) ** 2))


def _solve(points: Floats, names: Names, values: Floats, form: _Form) -> _Solved:
    matrix = form.similar(points, names, points, names) + form.noise**2 * np.eye(len(points))
    inverse = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    weights, diagonal = inverse @ values, np.diag(inverse)
    return _Solved(weights, inverse, weights / diagonal, 1.0 / diagonal)
