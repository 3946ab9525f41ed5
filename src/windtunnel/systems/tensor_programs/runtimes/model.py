"""Random forests that price the kernels of a net on one runtime.

In: kernels with measured times, or a prior of kernels and something that measures. Out: ``KernelForests``, one forest
per kind; the time of a net is the sum over its kernels. A forest predicts the efficiency against the measured ceilings
of this host, the preset ``paper`` the time itself. Sampling is adaptive: where the forest errs, more is measured. Not
here: measuring (``run``), splitting nets (``layer_kernels``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.progress import Progress
from windtunnel.cost.bounds import Bounds, bounds_on
from windtunnel.cost.ceilings import Ceilings
from windtunnel.cost.intervals import ConformalIntervals
from windtunnel.cost.pricer import Prices
from windtunnel.errors import InputError, PriceError
from windtunnel.systems.tensor_programs.runtimes.forest import Forest
from windtunnel.systems.tensor_programs.runtimes.layer_kernels import LayerKernel

__all__ = ["PRESETS", "ForestSettings", "KernelForests", "KernelSample", "fit_forests", "jitter", "sample_adaptively"]

# K kernels, F features
Floats = NDArray[np.float64]
Measure = Callable[[Sequence[LayerKernel]], Floats]
_CHANNEL_RANGE = (0.5, 1.2)
_VECTOR = 16  # float32 of a 512 bit vector; how blocked layouts pad channels
_LEAST_SAMPLES = 5  # of a kind, for a forest of its own


@dataclass(frozen=True, slots=True)
class ForestSettings:
    """How forests grow.

    Parameters
    ----------
    target : str
        ``efficiency``: the logarithm of bound over time; ``latency``: the time.
    num_trees, max_depth, features_per_split : int
    """

    target: str = "efficiency"
    num_trees: int = 200
    max_depth: int = 70
    features_per_split: int = 5


PRESETS = {"efficiency": ForestSettings(), "paper": ForestSettings("latency", 320, 70, 6)}
"""``paper``: nn-Meter (Zhang et al., MobiSys 2021), conv-bn-relu on a CPU."""


@dataclass(frozen=True, eq=False)
class KernelSample:
    """Measured kernels.

    Parameters
    ----------
    kernels : tuple of LayerKernel
    duration_ns : float [K]
    """

    kernels: tuple[LayerKernel, ...]
    duration_ns: Floats

    def __len__(self) -> int:
        return len(self.kernels)

    def of_kind(self, kind: str) -> KernelSample:
        """Kernels of one kind."""
        rows = [row for row, kernel in enumerate(self.kernels) if kernel.kind == kind]
        return KernelSample(tuple(self.kernels[row] for row in rows), self.duration_ns[rows])

    def joined(self, other: KernelSample) -> KernelSample:
        """These and others."""
        return KernelSample(self.kernels + other.kernels, np.concatenate([self.duration_ns, other.duration_ns]))


@dataclass(frozen=True, eq=False)
class KernelForests:
    """One forest per kind of kernel.

    Parameters
    ----------
    settings : ForestSettings
    ceilings : Ceilings
        Of the host and number of threads that the kernels were measured with.
    forests : mapping of kind to Forest
    intervals : ConformalIntervals
        From what trees say of kernels that they did not see.
    """

    settings: ForestSettings
    ceilings: Ceilings
    forests: Mapping[str, Forest]
    intervals: ConformalIntervals

    def prices(self, kernels: Sequence[LayerKernel]) -> Prices:
        """Efficiency of each kernel against its bound, with an interval.

        Raises
        ------
        PriceError
            There is no forest for some kinds; names them and the share of the kernels.
        """
        bounds = _bounds(kernels, self.ceilings)
        predicted_ns = _durations(self.forests, self.settings, kernels, bounds)
        efficiency = bounds.efficiency(predicted_ns)
        unknown = np.full(len(efficiency), np.nan)
        return self.intervals.around(Prices(bounds, efficiency, unknown, unknown), [one.kind for one in kernels])

    def duration_ns(self, kernels: Sequence[LayerKernel]) -> Floats:
        """Predicted time of each kernel [K].

        Raises
        ------
        PriceError
            As of :meth:`prices`.
        """
        return _durations(self.forests, self.settings, kernels, _bounds(kernels, self.ceilings))

    def net_ns(self, kernels: Sequence[LayerKernel]) -> float:
        """Predicted time of a net: the sum over its kernels, one after the other.

        Raises
        ------
        PriceError
            As of :meth:`prices`.
        """
        return float(self.duration_ns(kernels).sum())


def fit_forests(
    sample: KernelSample, ceilings: Ceilings, settings: ForestSettings = PRESETS["efficiency"], *, seed: int = 0
) -> KernelForests:
    """Grow a forest for every kind of the sample.

    Parameters
    ----------
    sample : KernelSample
        Five or more of each kind.
    ceilings : Ceilings
    settings : ForestSettings
    seed : int

    Raises
    ------
    InputError
        A time is not above zero, a kind has too few kernels, or the target is unknown.
    MissingExtraError
        scikit-learn is not installed (extra ``learn``).
    """
    _check(sample, settings)
    forests, kinds, ratios = {}, [], []
    for kind in dict.fromkeys(kernel.kind for kernel in sample.kernels):
        some = sample.of_kind(kind)
        bounds = _bounds(some.kernels, ceilings)
        goal = np.log(bounds.efficiency(some.duration_ns)) if settings.target == "efficiency" else some.duration_ns
        forests[kind], unseen = _grown(_features(some.kernels, settings), goal, settings, seed)
        left = bounds.duration_ns(np.exp(unseen)) if settings.target == "efficiency" else unseen
        usable = np.isfinite(left) & (left > 0)
        ratios += np.log(some.duration_ns[usable] / left[usable]).tolist()
        kinds += [kind] * int(usable.sum())
    return KernelForests(settings, ceilings, forests, ConformalIntervals.fit(kinds, ratios))


def _check(sample: KernelSample, settings: ForestSettings) -> None:
    if settings.target not in ("efficiency", "latency"):
        raise InputError(f"unknown target {settings.target!r}", where="target", fix="use efficiency or latency")
    bad = np.flatnonzero(~(np.isfinite(sample.duration_ns) & (sample.duration_ns > 0)))
    if bad.size:
        raise InputError(f"a time of {sample.duration_ns[bad[0]]} ns", where=f"{sample.kernels[bad[0]]}")
    few = [kind for kind, number in Counter(one.kind for one in sample.kernels).items() if number < _LEAST_SAMPLES]
    if few or not len(sample):
        raise InputError(
            f"a forest needs {_LEAST_SAMPLES} kernels", where=", ".join(few), fix="measure more of these kinds"
        )


def _grown(features_KF: Floats, goal_K: Floats, settings: ForestSettings, seed: int) -> tuple[Forest, Floats]:
    return Forest.grow(
        features_KF,
        goal_K,
        n_estimators=settings.num_trees,
        max_depth=settings.max_depth,
        max_features=min(settings.features_per_split, features_KF.shape[1]),
        random_state=seed,
    )


def _features(kernels: Sequence[LayerKernel], settings: ForestSettings) -> Floats:
    """Size, channels, kernel, stride, flops and parameters, as published [K, 7].

    For efficiencies also groups, batch, what the published ones say only together (intensity, bytes), and how well
    channels fill vectors, and the bias [K, 14].
    """
    published = np.array(
        [(k.size, k.in_channels, k.out_channels, k.kernel, k.stride, k.flops, k.num_parameters) for k in kernels],
        dtype=np.float64,
    )
    if settings.target == "latency":
        return published
    more = [
        (
            k.groups,
            k.batch_size,
            k.flops / k.bytes_moved,
            k.bytes_moved,
            _filled(k.in_channels),
            _filled(k.out_channels),
            k.has_bias,
        )
        for k in kernels
    ]
    return np.column_stack([published, np.array(more, dtype=np.float64)])


def _filled(channels: int) -> float:
    """Channels over those of whole vectors."""
    return channels / (-(-channels // _VECTOR) * _VECTOR)


def _bounds(kernels: Sequence[LayerKernel], ceilings: Ceilings) -> Bounds:
    work = np.array([(kernel.flops, kernel.bytes_moved) for kernel in kernels], dtype=np.float64).reshape(-1, 2)
    return bounds_on(ceilings, work[:, 0], work[:, 1], dtype="float32")


def _durations(
    forests: Mapping[str, Forest], settings: ForestSettings, kernels: Sequence[LayerKernel], bounds: Bounds
) -> Floats:
    missing = Counter(kernel.kind for kernel in kernels if kernel.kind not in forests)
    if missing:
        raise PriceError(
            f"{sum(missing.values())} of {len(kernels)} kernels have no forest",
            where=", ".join(missing),
            fix="measure kernels of these kinds",
        )
    found = np.zeros(len(kernels))
    for kind in dict.fromkeys(kernel.kind for kernel in kernels):
        rows = np.array([row for row, kernel in enumerate(kernels) if kernel.kind == kind])
        said = forests[kind].predict(_features([kernels[row] for row in rows.tolist()], settings))
        found[rows] = bounds.take(rows).duration_ns(np.exp(said)) if settings.target == "efficiency" else said
    return found


# --- adaptive sampling ------------------------------------------------------------------------------------


def sample_adaptively(
    prior: Sequence[LayerKernel],
    measure: Measure,
    ceilings: Ceilings,
    *,
    settings: ForestSettings = PRESETS["efficiency"],
    num_first: int = 200,
    num_rounds: int = 3,
    num_around: int = 20,
    most_per_round: int | None = None,
    most_error: float = 0.1,
    test_share: float = 0.2,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[KernelForests, KernelSample, list[float]]:
    """Measure kernels of a prior, then more of those that the forest gets wrong.

    Parameters
    ----------
    prior : sequence of LayerKernel
        Kernels of real nets.
    measure : callable
        Nanoseconds of kernels [K].
    ceilings : Ceilings
    settings : ForestSettings
    num_first : int
        Drawn from the prior at first, channels jittered.
    num_rounds : int
    num_around : int
        Measured around each test kernel whose error is above ``most_error``: channels between 0.5 and 1.2 times its.
    most_per_round : int, optional
        At most so many in one round, those around the worst first.
    most_error, test_share : float
    seed : int
    progress : callable, optional
        Called with (what, done, total).

    Returns
    -------
    forests : KernelForests
        Grown on everything that was measured.
    sample : KernelSample
    errors : list of float
        Mean relative error on the test kernels after each round, first round first: they are never trained on here.

    Raises
    ------
    InputError
        The prior is empty, or has too few kernels of a kind.

    Notes
    -----
    Source: nn-Meter, section 5.2 and its released code: 20 around each, 3 rounds, error above 10 %.
    """
    if not prior:
        raise InputError("the prior is empty", where="prior")
    rng = np.random.default_rng(seed)
    first = _drawn(prior, num_first, rng)
    is_test = _stratified(first, test_share, rng)
    everything = KernelSample(tuple(first), measure(first))
    test, train = (_where(everything, rows) for rows in (is_test, ~is_test))
    errors = []
    for turn in range(num_rounds + 1):
        forests = fit_forests(train, ceilings, settings, seed=seed)
        wrong = np.abs(forests.duration_ns(test.kernels) / test.duration_ns - 1)
        errors.append(float(wrong.mean()))
        if progress is not None:
            progress("sampling kernels", turn + 1, num_rounds + 1)
        worst = [test.kernels[row] for row in np.argsort(-wrong) if wrong[row] > most_error]
        if turn == num_rounds or not worst:
            break
        wanted = [jitter(kernel, rng) for kernel in worst for _ in range(num_around)][:most_per_round]
        train = train.joined(KernelSample(tuple(wanted), measure(wanted)))
    everything = train.joined(test)
    return fit_forests(everything, ceilings, settings, seed=seed), everything, errors


def jitter(kernel: LayerKernel, rng: np.random.Generator) -> LayerKernel:
    """The kernel with 0.5 to 1.2 times its channels, whatever else unchanged.

    Equal channels of layers that cannot change them stay equal. Channels stay multiples of what they are multiples of,
    up to a vector: nets are built so, and others take other code.
    """
    is_depthwise = kernel.layers[0] == "dwconv"
    is_tied = kernel.layers[0] not in ("conv", "fc")
    inputs, outputs = (
        _scaled(one, 1 if is_depthwise else kernel.groups, rng) for one in (kernel.in_channels, kernel.out_channels)
    )
    return replace(
        kernel,
        in_channels=inputs,
        out_channels=inputs if is_tied else outputs,
        groups=inputs if is_depthwise else kernel.groups,
    )


def _scaled(channels: int, groups: int, rng: np.random.Generator) -> int:
    unit = math.lcm(groups, math.gcd(channels, _VECTOR))
    return max(unit, round(channels * rng.uniform(*_CHANNEL_RANGE) / unit) * unit)


def _drawn(prior: Sequence[LayerKernel], number: int, rng: np.random.Generator) -> list[LayerKernel]:
    """As many of each kind as the prior has in proportion, but ten at least; every second one jittered."""
    found = []
    for kind, share in Counter(kernel.kind for kernel in prior).items():
        some = [kernel for kernel in prior if kernel.kind == kind]
        wanted = max(2 * _LEAST_SAMPLES, round(number * share / len(prior)))
        rows = rng.permutation(np.resize(rng.permutation(len(some)), wanted))
        found += [some[row] if place % 2 else jitter(some[row], rng) for place, row in enumerate(rows.tolist())]
    return found


def _stratified(kernels: Sequence[LayerKernel], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """True for the given share of each kind, at least one."""
    chosen = np.zeros(len(kernels), dtype=bool)
    for kind in {kernel.kind for kernel in kernels}:
        rows = np.array([row for row, kernel in enumerate(kernels) if kernel.kind == kind])
        chosen[rng.permutation(rows)[: max(1, round(share * len(rows)))]] = True
    return chosen


def _where(sample: KernelSample, rows: ArrayLike) -> KernelSample:
    chosen = np.flatnonzero(rows)
    return KernelSample(tuple(sample.kernels[row] for row in chosen.tolist()), sample.duration_ns[chosen])
