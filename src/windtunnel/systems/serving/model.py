"""Splits of a server into instances, and the slowdown of instances by their neighbors.

In: a profile of one instance alone, splits that really ran. Out: ``Split``, ``Slowdown``. Not here: which split is
best (``search``), running one (``run``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from windtunnel.errors import InputError
from windtunnel.systems.serving.profile import Cell, Profile

__all__ = ["Instance", "Slowdown", "Split", "fit_slowdown"]


@dataclass(frozen=True)
class Instance:
    """One copy of the model on its own threads.

    Parameters
    ----------
    threads, batch : int
        Its threads, and the inputs that it takes at once.
    latency_ns : float
        Of such a batch.
    """

    threads: int
    batch: int
    latency_ns: float

    def __str__(self) -> str:
        return f"<{self.threads},{self.batch}>"


@dataclass(frozen=True)
class Split:
    """Instances that share a batch; it is done when the last of them is.

    Parameters
    ----------
    instances : tuple of Instance
    batch : int
        Inputs of all together; what is missing to what they could take is missing from the last ones.
    """

    instances: tuple[Instance, ...]
    batch: int

    @property
    def latency_ns(self) -> float:
        """Latency of the whole batch."""
        return max(instance.latency_ns for instance in self.instances)

    @property
    def threads(self) -> int:
        """Number of threads of all instances."""
        return sum(instance.threads for instance in self.instances)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Threads and batch of each instance."""
        return tuple((instance.threads, instance.batch) for instance in self.instances)

    def shares(self) -> tuple[int, ...]:
        """Return the inputs of each instance: full instances first, then the rest; every instance gets at least one.

        Examples
        --------
        >>> Split((Instance(2, 8, 1.0), Instance(2, 8, 1.0)), 11).shares()
        (8, 3)
        """
        left, result = self.batch, []
        for index, instance in enumerate(self.instances):
            still = len(self.instances) - index - 1
            result.append(min(instance.batch, left - still))
            left -= result[-1]
        return tuple(result)

    def parts(self, inputs: int) -> tuple[int, ...]:
        """Return the inputs of each instance of a possibly short batch, in proportion to capacity; some may get none.

        The paper fills one instance after the other, which leaves the last ones idle.

        Examples
        --------
        >>> Split((Instance(2, 8, 1.0), Instance(2, 8, 1.0)), 16).parts(5)
        (2, 3)
        """
        # Cumulative shares, rounded down, then their differences: they add up exactly to the inputs.
        ends = (
            np.cumsum([instance.batch for instance in self.instances])
            * inputs
            // sum(instance.batch for instance in self.instances)
        )
        return tuple(np.diff(ends, prepend=0).tolist())

    def __str__(self) -> str:
        """``2x<8,4>``: two instances of eight threads, four inputs each."""
        return " + ".join(f"{f'{n}x' if n > 1 else ''}<{t},{b}>" for (t, b), n in Counter(self.cells).items())


@dataclass(frozen=True)
class Slowdown:
    """The slowdown of an instance when all other threads of its server are busy, by its number of threads.

    Between threads that were seen it is linear in the logarithm of their number; beyond them it stays. The paper takes
    one number for all, so that no choice depends on it; its own runs say 1.0 for one instance with all threads and 1.65
    for sixteen with one.

    Parameters
    ----------
    threads : tuple of int
        Ascending.
    factors : tuple of float
    """

    threads: tuple[int, ...]
    factors: tuple[float, ...]

    def factor_at(self, threads: int) -> float:
        """Return the slowdown of an instance with ``threads`` threads, interpolated.

        Examples
        --------
        >>> Slowdown((1, 4), (2.0, 1.0)).factor_at(2)
        1.5
        """
        return float(np.interp(math.log2(threads), np.log2(self.threads), self.factors))

    def of(self, profile: Profile) -> Profile:
        """Return the profile of instances with busy neighbors."""
        return profile.with_latencies(
            profile.latency_ns_C * [self.factor_at(item) for item in profile.threads_C.tolist()]
        )


def fit_slowdown(profile: Profile, flown: Iterable[tuple[Cell, float]]) -> Slowdown:
    """Fit slowdowns to instances that ran concurrently, as means by threads.

    Parameters
    ----------
    profile : Profile
        Of one instance alone.
    flown : iterable of ((threads, batch), latency in ns)
        Instances of servers whose threads were all busy.

    Raises
    ------
    InputError
        The profile knows none of them.
    """
    alone = profile.cells
    ratios: dict[int, list[float]] = {}
    for cell, latency_ns in flown:
        if cell in alone:
            ratios.setdefault(cell[0], []).append(latency_ns / alone[cell])
    if not ratios:
        raise InputError("no instance that ran is one of the profile's", fix="fly splits of this profile")
    return Slowdown(tuple(sorted(ratios)), tuple(float(np.mean(ratios[ratio])) for ratio in sorted(ratios)))
