"""Efficiencies between measured ones: one Gaussian process per class of operator.

In: samples of flops, bytes, extents and efficiency. Out: the efficiency of other work with how uncertain it is, and
what leaving one sample out says about both. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, 5.4.1 (likelihood) and 5.4.2 (leave-one-out in closed form). Not here: measuring, intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Process", "coordinates"]

# N samples, P rows to predict, D coordinates
Floats = NDArray[np.float64]
Names = NDArray[np.object_]
_MIN_SPREAD = 0.02
_STEP_BYTES = (2.0**18, 2.0**28)  # a step below fits into the caches, one above into none
_MAX_TO_CHOOSE = 120  # samples by which the form is chosen: time goes with their cube
_CLIMBS, _FIRST_CLIMB, _CLIMB_RANGE = 50, 0.2, (1e-3, 0.7)
_USUAL_LENGTH, _LENGTH_SPREAD, _SIZE_SPREAD = 4.0, 1.0, 1.5  # octaves; spreads of natural logarithms
_LENGTH_RANGE, _SIZE_RANGE = (0.5, 64.0), (0.01, 5.0)


@dataclass(frozen=True, slots=True)
class _Form:
    """How efficiencies go together, sizes as deviations of log(efficiency).

    Parameters
    ----------
    common, own : float
        Of what all operators of a class have in common, and of what one has for itself, both smooth.
    offset : float
        By which an operator differs from the others everywhere.
    noise : float
    lengths : float [D]
        Octaves over which efficiencies are alike; infinite where all samples are the same.
    """

    common: float
    own: float
    offset: float
    noise: float
    lengths: Floats

    def similar(self, first: Floats, first_names: Names, second: Floats, second_names: Names) -> Floats:
        # (common^2 + own^2 [same operator]) * exp(-d^2 / 2)  +  offset^2 [same operator]
        # an operator without samples here still learns from its class by `common`; the offset does not fade with
        # distance
        squared = (((first[:, None] - second[None]) / self.lengths) ** 2).sum(axis=2)
        alike = first_names[:, None] == second_names[None]
        similar: Floats = (self.common**2 + self.own**2 * alike) * np.exp(-0.5 * squared) + self.offset**2 * alike
        return similar

    @property
    def prior_variance(self) -> float:
        """Where no sample is near and the operator was never seen, with noise."""
        return self.common**2 + self.own**2 + self.offset**2 + self.noise**2


@dataclass(frozen=True, eq=False)
class Process:
    """log(efficiency) as a smooth function of size and intensity, alike for operators of one class.

    Parameters
    ----------
    points : float [N, D]
    names : object [N]
        Operators.
    mean : float
        Far from all samples.
    left_out, left_out_std : float [N]
        log(measured / predicted time) of each sample predicted by all others, and how uncertain that was.
    """

    points: Floats
    names: Names
    mean: float
    left_out: Floats
    left_out_std: Floats
    _form: _Form
    _solved: _Solved

    @classmethod
    def fit(cls, points: Floats, names: Names, log_efficiency: Floats) -> Process:
        """Choose the form by the likelihood of the samples, then solve for all of them."""
        mean = float(np.median(log_efficiency))
        values = log_efficiency - mean
        few = np.linspace(0, len(points) - 1, min(len(points), _MAX_TO_CHOOSE)).astype(np.int64)
        form = _likely_form(points[few], names[few], values[few])
        matrix = form.similar(points, names, points, names) + form.noise**2 * np.eye(len(points))
        inverse = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
        # What all others predict of sample i comes from the inverse of the whole matrix alone (Rasmussen and Williams
        # 2006, section 5.4.2): its residual is weights[i] / inverse[i, i], its variance 1 / inverse[i, i]; no fit is
        # repeated.
        weights, diagonal = inverse @ values, np.diag(inverse)
        solved = _Solved(weights, inverse, weights / diagonal, 1.0 / diagonal)
        # a sample that is more efficient than predicted took less time
        return cls(points, names, mean, -solved.residual, np.sqrt(solved.variance), form, solved)

    def predict(self, points: Floats, names: Names) -> tuple[Floats, Floats]:
        """log(efficiency) and its deviation, float [P] each."""
        form = self._form
        near = form.similar(points, names, self.points, self.names)
        explained = np.einsum("pn,nm,pm->p", near, self._solved.inverse, near, optimize=True)
        variance = np.maximum(form.prior_variance - explained, form.noise**2)
        return self.mean + near @ self._solved.weights, np.sqrt(variance)


def coordinates(
    flops: Floats, bytes_moved: Floats, step_bytes: ArrayLike = 0.0, extents: ArrayLike | None = None
) -> Floats:
    """Octaves of size, of intensity, of what the step around it moves, and the extents as given, float [P, 3 + ...].

    The rest of a step fills the caches: the more it moves, the colder is what an operator finds. What ran alone ran
    many times in a row (0 ``step_bytes``).
    """
    size = np.maximum(bytes_moved, 1.0)
    step = np.clip(np.maximum(step_bytes, 2.0 * size), *_STEP_BYTES)
    columns = [np.log2(size), np.log2(1.0 + flops / size), np.log2(step)]
    if extents is not None and len(size):
        columns += np.asarray(extents, dtype=np.float64).reshape(len(size), -1).T.tolist()
    return np.column_stack(columns)


@dataclass(frozen=True, eq=False)
class _Solved:
    weights: Floats
    inverse: Floats
    residual: Floats
    variance: Floats


def _likely_form(points: Floats, names: Names, values: Floats) -> _Form:
    """Climb the marginal likelihood, with priors that keep few samples from extremes, by the signs of its gradient.

    Source: Riedmiller and Braun 1993 (Rprop); Blum and Riedmiller 2013 for processes.
    """
    # a column that is the same everywhere says nothing of its length
    varies = np.ptp(points, axis=0) > 0
    spread = max(float(np.std(values)), _MIN_SPREAD)
    usual = np.log([spread, spread / 3, spread / 2, max(spread / 10, _MIN_SPREAD)])
    prior = np.concatenate([usual, np.full(varies.sum(), np.log(_USUAL_LENGTH))])
    spreads = np.concatenate([np.full(4, _SIZE_SPREAD), np.full(varies.sum(), _LENGTH_SPREAD)])
    limits = np.log(np.array([_SIZE_RANGE] * 4 + [_LENGTH_RANGE] * int(varies.sum())))
    squared = (points[:, None, varies] - points[None][:, :, varies]) ** 2
    alike = (names[:, None] == names[None]).astype(np.float64)
    index, best, least = prior.copy(), prior, np.inf
    climb, before = np.full(len(index), _FIRST_CLIMB), np.zeros(len(index))
    for _ in range(_CLIMBS):
        surprise, slope = _surprise(index, squared, alike, values)
        surprise += 0.5 * float((((index - prior) / spreads) ** 2).sum())
        if surprise < least:
            best, least = index, surprise
        # Rprop: only the sign of the slope counts, and each parameter has a step of its own, halved where the sign
        # turned. Slopes of likelihoods differ by orders of magnitude between parameters, so one rate for all would not
        # do.
        turn = np.sign(slope + (index - prior) / spreads**2)
        climb = np.clip(climb * np.where(turn * before < 0, 0.5, 1.2), *_CLIMB_RANGE)
        index, before = np.clip(index - turn * climb, limits[:, 0], limits[:, 1]), turn
    lengths = np.full(points.shape[1], np.inf)
    lengths[varies] = np.exp(best[4:])
    common, own, offset, noise = np.exp(best[:4]).tolist()
    return _Form(common, own, offset, noise, lengths)


def _surprise(log_parameters: Floats, squared: Floats, alike: Floats, values: Floats) -> tuple[float, Floats]:
    """Minus the logarithm of the likelihood, and its slope by the logarithms of sizes and lengths (section 5.4.1)."""
    common, own, offset, noise = np.exp(2 * log_parameters[:4])
    weights = np.exp(-2 * log_parameters[4:])
    fades = np.exp(-0.5 * (squared @ weights))
    smooth = (common + own * alike) * fades
    matrix = smooth + offset * alike + noise * np.eye(len(values))
    inverse = np.linalg.inv(matrix)
    solved = inverse @ values
    surprise = 0.5 * (float(values @ solved) + np.linalg.slogdet(matrix)[1])
    # d surprise / d theta = trace(pull * d matrix / d theta), and d matrix / d log(size) is twice the size's own part
    pull = 0.5 * (inverse - np.outer(solved, solved))
    sizes = [common * fades, own * alike * fades, offset * alike]
    slopes = [2 * float((pull * size).sum()) for size in sizes] + [2 * noise * float(np.trace(pull))]
    return surprise, np.concatenate([slopes, np.einsum("nm,nmd->d", pull * smooth, squared, optimize=True) * weights])
