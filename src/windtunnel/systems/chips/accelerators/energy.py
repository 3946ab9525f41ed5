"""Energy of work on an accelerator: multiplications, registers, buffers, memory.

In: products or vector operators, machines as columns. Out: joules [P, D], at 45 nm: ``energy.csv`` has the constants
and their sources. A word at the edge of an array comes from the buffer of its core, a word of memory passes the chip's
own buffer, too. Between two known sizes a buffer's energy grows with the root of its size; beyond the largest it is
banks of that size. Not here: what stands still (leakage).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.systems.chips.accelerators.engine import Machines, count_moved_words
from windtunnel.systems.chips.accelerators.systolic import Gemms, accesses_of, folds
from windtunnel.systems.chips.accelerators.vectors import cycles_per_element

__all__ = ["operation_pj", "product_energy_j", "vector_energy_j", "word_pj"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BYTES_PER_MULTIPLIER = 16  # of a core's buffer: 1 KiB for 64


@cache
def _table() -> Mapping[str, Mapping[int, float]]:
    """Picojoules by part and size in bytes: of an operation on a word; of a 64-bit read from a buffer."""
    text = resources.files("windtunnel.systems.chips.accelerators").joinpath("energy.csv").read_text(encoding="utf-8")
    result: dict[str, dict[int, float]] = {}
    for row in csv.DictReader(text.splitlines()):
        result.setdefault(row["part"], {})[int(row["size_bytes"])] = float(row["energy_pj"])
    return result


def operation_pj(word_bytes: int) -> float:
    """A multiplication with addition, and the register that it needs."""
    return _table()["multiply and add"][word_bytes] * (1 + _table()["register"][1])


def word_pj(size_bytes: ArrayLike, word_bytes: int) -> Floats:
    """A word out of buffers of a size."""
    known = _table()["buffer"]
    sizes, energies = np.sqrt(np.array(sorted(known), dtype=float)), np.array([known[item] for item in sorted(known)])
    result: Floats = np.interp(np.sqrt(np.asarray(size_bytes, dtype=float)), sizes, energies) * word_bytes / 8
    return result


def _memory_pj(machines: Machines) -> Floats:
    """A word of the memory, through the chip's buffer."""
    word = 8 * machines.word_bytes * machines.memory_pj_per_bit
    return word + word_pj(machines.buffer_bytes, machines.word_bytes)


def product_energy_j(products: Gemms, machines: Machines) -> Floats:
    """Joules of every product on every machine [P, D].

    Examples
    --------
    >>> from windtunnel.hardware import Templates
    >>> one = Machines.of(Templates.of(8, 128, 128, 2, 128, 2**27))
    >>> product_energy_j(Gemms.of(4096, 4096, 4096), one).item().__round__(3)
    0.225
    """
    m, n, k, count = (getattr(products, name)[:, None] for name in ("m", "n", "k", "count"))
    laid = folds(m, n, k, machines.rows, machines.cols, machines.dataflow)
    edge = accesses_of(m, n, k, laid, machines.dataflow).total
    # The energy that moves a word between an array and its buffer.
    own = machines.rows * machines.cols * _BYTES_PER_MULTIPLIER
    spent = m * n * k * operation_pj(machines.word_bytes) + edge * word_pj(
        np.minimum(np.maximum(own, 1024), machines.buffer_bytes), machines.word_bytes
    )
    moved = count_moved_words(m, n, k, machines).words * _memory_pj(machines)
    return np.asarray(1e-12 * count * (spent + moved), dtype=np.float64)


def vector_energy_j(
    operators: Sequence[str],
    elements: ArrayLike,
    bytes_moved: ArrayLike,
    machines: Machines,
    *,
    is_backward: bool = False,
) -> Floats:
    """Joules of every vector operator on every machine [V, D]: its cycles as operations, its bytes through memory."""
    cycles_each = cycles_per_element(operators, is_backward=is_backward)
    operations = (np.asarray(elements, dtype=float) * cycles_each)[:, None] * operation_pj(machines.word_bytes)
    words = (np.asarray(bytes_moved, dtype=float) / machines.word_bytes)[:, None]
    return np.asarray(1e-12 * (operations + words * _memory_pj(machines)), dtype=np.float64)
