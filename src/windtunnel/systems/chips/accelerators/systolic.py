"""Cycles, accesses and utilization of one systolic array in closed form.

In: matrix products by M, N, K, arrays by rows and columns, a dataflow; all are broadcast. Out: exact counts, fill and
drain of every fold included, folds one after the other. Not here: memory (``traffic``), several arrays (``engine``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.hardware.accelerators import DATAFLOWS

__all__ = [
    "Accesses",
    "Folds",
    "Gemms",
    "accesses",
    "accesses_of",
    "cycles",
    "folds",
    "utilization",
]

# Y[M, N] = X[M, K] W[K, N]; R rows and C columns of multipliers
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MOST = 2**62


@dataclass(frozen=True, eq=False)
class Gemms:
    """P matrix products Y[M, N] = X[M, K] W[K, N], each done ``count`` times with other numbers.

    Parameters
    ----------
    m, n, k, count : int64 [P]
    """

    m: Ints
    n: Ints
    k: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.m)

    @classmethod
    def of(cls, m: ArrayLike, n: ArrayLike, k: ArrayLike, count: ArrayLike = 1) -> Gemms:
        """Products from numbers or columns.

        Raises
        ------
        InputError
            A size is no whole number above zero, or the work is over 64 bits; names the field and the value.
        """
        return cls(
            *(
                np.atleast_1d(broadcast_array)
                for broadcast_array in np.broadcast_arrays(*_sizes(m=m, n=n, k=k, count=count))
            )
        )

    def take(self, rows: Ints | NDArray[np.bool_]) -> Gemms:
        """Return the products in ``rows``."""
        return Gemms(self.m[rows], self.n[rows], self.k[rows], self.count[rows])


def _sizes(**given: ArrayLike) -> list[Ints]:
    result = []
    for name, value in given.items():
        numbers = np.asarray(value)
        wrong = ~(np.isfinite(numbers) & (numbers >= 1) & (numbers == np.floor(numbers)))
        if wrong.any():
            raise InputError(
                f"{name} cannot be {np.atleast_1d(numbers)[np.atleast_1d(wrong)][0]}",
                where=f"field {name}",
                fix="give whole numbers above zero",
            )
        result.append(numbers.astype(np.int64))
    if np.prod([np.max(item, initial=1).astype(np.float64) for item in result]) > _MOST:
        raise InputError("the product has more than 4.6e18 multiplications", where=", ".join(given))
    return result


@dataclass(frozen=True, eq=False)
class Folds:
    """How products lie on an array: ``num_rows`` x ``num_cols`` folds, each ``steps`` long besides ``fill`` cycles."""

    num_rows: Ints
    num_cols: Ints
    steps: Ints
    fill: Ints

    @property
    def count(self) -> Ints:
        """Number of folds of a product."""
        return self.num_rows * self.num_cols


def folds(m: Ints, n: Ints, k: Ints, rows: Ints, cols: Ints, dataflow: str) -> Folds:
    """Folds of products on arrays.

    Raises
    ------
    InputError
        The dataflow is none of ``DATAFLOWS``.
    """
    down, across, steps = _laid(m, n, k, dataflow)
    fill = rows + cols - 2 + (0 if dataflow == "os" else rows)
    return Folds(_ceil(down, rows), _ceil(across, cols), steps, fill)


def _laid(m: Ints, n: Ints, k: Ints, dataflow: str) -> tuple[Ints, Ints, Ints]:
    """Which sizes lie along the rows, along the columns, and over time."""
    if dataflow not in DATAFLOWS:
        raise InputError(f"no dataflow is called {dataflow!r}", where="dataflow", fix=f"one of {', '.join(DATAFLOWS)}")
    return {"os": (m, n, k), "ws": (k, n, m), "is": (k, m, n)}[dataflow]


def _ceil(size: Ints, part: Ints) -> Ints:
    return -(-size // part)


def cycles(m: ArrayLike, n: ArrayLike, k: ArrayLike, rows: ArrayLike, cols: ArrayLike, dataflow: str) -> Ints:
    """Cycles of one product on one array, nothing waiting for memory.

    Raises
    ------
    InputError
        A size is no whole number above zero, or the dataflow is unknown.

    Examples
    --------
    >>> [int(cycles(256, 128, 256, 32, 32, one)) for one in ("os", "ws", "is")]
    [10175, 11199, 14207]

    Notes
    -----
    Samajdar et al., "A systematic methodology for characterizing scalability of DNN accelerators using SCALE-Sim",
    ISPASS 2020.
    """
    m_sizes, n_sizes, k_sizes, high, wide = _sizes(m=m, n=n, k=k, rows=rows, cols=cols)
    result = folds(m_sizes, n_sizes, k_sizes, high, wide, dataflow)
    return _cycles_of(result)


def _cycles_of(fold: Folds) -> Ints:
    total: Ints = fold.count * (fold.steps + fold.fill) - 1
    return total


@dataclass(frozen=True, eq=False)
class Accesses:
    """Words that an array reads from its buffers and writes to them, by operand."""

    x: Ints
    w: Ints
    y: Ints

    @property
    def total(self) -> Ints:
        """Accesses to all operands together."""
        return self.x + self.w + self.y


def accesses(m: ArrayLike, n: ArrayLike, k: ArrayLike, rows: ArrayLike, cols: ArrayLike, dataflow: str) -> Accesses:
    """Words of X and W read and of Y written by one product.

    Raises
    ------
    InputError
        As ``cycles``.
    """
    m_sizes, n_sizes, k_sizes, high, wide = _sizes(m=m, n=n, k=k, rows=rows, cols=cols)
    return accesses_of(m_sizes, n_sizes, k_sizes, folds(m_sizes, n_sizes, k_sizes, high, wide, dataflow), dataflow)


def accesses_of(m: Ints, n: Ints, k: Ints, fold: Folds, dataflow: str) -> Accesses:
    """Words of products that lie on arrays: an operand is read again for each fold of a side that it does not have."""
    down, across = fold.num_rows, fold.num_cols
    once = np.ones_like(down)
    times = {"os": (across, down, once), "ws": (across, once, down), "is": (once, across, down)}[dataflow]
    x, w, y = (size * again for size, again in zip((m * k, k * n, m * n), times, strict=True))
    return Accesses(x, w, y)


def utilization(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, rows: ArrayLike, cols: ArrayLike, dataflow: str
) -> tuple[Floats, Floats, Floats]:
    """Return the fraction of an array that is busy.

    Returns
    -------
    overall : float
        Multiplications over multipliers and cycles.
    mapping : float
        Multipliers that have work, the mean of the folds.
    compatible : float
        As SCALE-Sim reports it ("compute utilization"): where weight or input stays, a fold counts C - 1 more cycles.
    """
    m_sizes, n_sizes, k_sizes, high, wide = _sizes(m=m, n=n, k=k, rows=rows, cols=cols)
    result = folds(m_sizes, n_sizes, k_sizes, high, wide, dataflow)
    down, across, _ = _laid(m_sizes, n_sizes, k_sizes, dataflow)
    total = np.maximum(_cycles_of(result), 1)  # SCALE-Sim counts from 0: one product on one multiplier takes none
    mapping = (down * across) / (result.count * high * wide)
    drain = 0 if dataflow == "os" else wide - 1
    return (
        m_sizes * n_sizes * k_sizes / (high * wide * total),
        mapping,
        mapping * result.steps / (result.steps + result.fill + drain),
    )
