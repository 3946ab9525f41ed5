"""Matrix products and vector operators on machines, every pair at once.

In: P products or V vector operators, D machines as columns. Out: cycles [P, D]. Folds of a product are dealt to the
arrays in rounds (waves), a fold's steps may be split over arrays that would idle; compute and memory overlap, but for
the first load and the last store. Not here: single arrays (``systolic``), graphs (``pricer``), energy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.hardware.accelerators import DATAFLOWS, Accelerator, Arrays
from windtunnel.hardware.templates import Templates
from windtunnel.systems.chips.accelerators.systolic import Gemms, accesses_of, folds
from windtunnel.systems.chips.accelerators.traffic import Traffic, traffic

__all__ = ["MODES", "Machines", "count_moved_words", "product_cycles"]

# P products, V vector operators, D machines
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MODES = ("tiled", "compute", "peak", "stream")
"""Tiles, fill and memory; the same with a memory that never waits; multiplications over multipliers; as SCALE-Sim does
where operands have buffers of their own: what does not fit is streamed anew for every pass."""
_ACTIVE = 0.9  # share of a buffer that holds what is in use while one streams
_COLUMNS = ("rows", "cols", "count", "num_lanes", "buffer_bytes", "bytes_per_cycle")
_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_PARTIAL_BYTES = 4  # of a sum
_MAX_PAIRS = 1 << 18  # at once: columns that stay in the caches


@dataclass(frozen=True, eq=False)
class Machines:
    """D machines, a column per field.

    Parameters
    ----------
    rows, cols, count : int64 [D]
        Rows, columns and number of the arrays of multipliers.
    num_lanes : int64 [D]
        Vector lanes of all units together.
    buffer_bytes : int64 [D]
        On the chip, shared by the operands.
    bytes_per_cycle : float [D]
        Bandwidth of the memory.
    dataflow : str
        Dataflow of all arrays: ``os``, ``ws`` or ``is``.
    is_overlapped : bool
        Whether a fold fills while the one before it computes.
    word_bytes : int
    operand_bytes : (int, int, int), optional
        Of X, W and Y, where each has a buffer and a port to memory of its own; ``buffer_bytes`` is then their sum.
    tile_sides : tuple of int, optional
        Of the output tiles that ``arrays_per_core`` arrays compute together, as the multiprocessor of a GPU does;
        empty: an array takes what it holds.
    tile_cycles : float
        That a round of such tiles takes besides its products.
    compute_ratio : float
        Of the multipliers' peak that is reached.
    cache_bytes_per_cycle : float
        Between the buffer and the cores.
    memory_pj_per_bit : float
    """

    rows: Ints
    cols: Ints
    count: Ints
    num_lanes: Ints
    buffer_bytes: Ints
    bytes_per_cycle: Floats
    dataflow: str = "ws"
    is_overlapped: bool = False
    word_bytes: int = 2
    operand_bytes: tuple[int, int, int] | None = None
    tile_sides: tuple[int, ...] = ()
    arrays_per_core: int = 1
    tile_cycles: float = 0.0
    compute_ratio: float = 1.0
    cache_bytes_per_cycle: float = np.inf
    memory_pj_per_bit: float = 3.9

    def __post_init__(self) -> None:
        """Refuse what is no machine.

        Raises
        ------
        InputError
            A count or rate is not above zero, or the dataflow is unknown; names the field and the value.
        """
        if self.dataflow not in DATAFLOWS:
            known = ", ".join(DATAFLOWS)
            raise InputError(f"no dataflow is called {self.dataflow!r}", where="dataflow", fix=f"one of {known}")
        for name in (*_COLUMNS, "word_bytes"):
            values = np.atleast_1d(getattr(self, name))
            is_wrong = ~(np.isfinite(values) & (values > 0))
            if is_wrong.any():
                raise InputError(f"{name} must be above zero, not {values[is_wrong][0]}", where=f"field {name}")

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(
        cls,
        templates: Templates,
        *,
        clock_hz: float = 1.05e9,
        bandwidth_bytes_per_s: float = 1.2e12,
        dataflow: str = "ws",
        is_overlapped: bool = False,
        word_bytes: int = 2,
    ) -> Machines:
        """Templates with a clock and a memory: the depth of a tensor core lies along the rows, its width across."""
        return cls(
            rows=templates.depth,
            cols=templates.width,
            count=templates.num_tensor_cores,
            num_lanes=templates.num_vector_cores * templates.vector_width,
            buffer_bytes=templates.sram_bytes,
            bytes_per_cycle=np.full(len(templates), bandwidth_bytes_per_s / clock_hz),
            dataflow=dataflow,
            is_overlapped=is_overlapped,
            word_bytes=word_bytes,
        )

    @classmethod
    def of_accelerator(cls, chip: Accelerator, arrays: Arrays) -> Machines:
        """Return a chip with one of its kinds of arrays."""
        assert chip.clock_hz is not None  # an accelerator without a clock cannot be made
        sram, rate = chip.sram_bytes, chip.bandwidth_bytes_per_s * chip.memory_ratio / chip.clock_hz
        numbers = (arrays.rows, arrays.cols, arrays.count, chip.num_lanes, chip.buffer_bytes)
        rows, cols, count, num_lanes, buffer_bytes = (np.array([number], dtype=np.int64) for number in numbers)
        return cls(
            rows, cols, count, num_lanes, buffer_bytes,
            bytes_per_cycle=np.array([rate]),
            dataflow=arrays.dataflow,
            is_overlapped=arrays.is_overlapped,
            word_bytes=chip.word_bytes,
            operand_bytes=None if "global" in sram else (sram["x"], sram["w"], sram["y"]),
            tile_sides=arrays.tile_sides,
            arrays_per_core=arrays.per_core,
            tile_cycles=arrays.tile_cycles,
            compute_ratio=arrays.compute_ratio,
            cache_bytes_per_cycle=(chip.cache_bandwidth_bytes_per_s or np.inf) / chip.clock_hz,
            memory_pj_per_bit=chip.memory_pj_per_bit,
        )  # fmt: skip

    def take(self, rows: slice) -> Machines:
        """Return the machines in ``rows``."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return replace(self, **columns)


def product_cycles(products: Gemms, machines: Machines, mode: str = "tiled") -> Floats:
    """Cycles of every product on every machine, float [P, D] (whole but for the memory's part).

    Parameters
    ----------
    products : Gemms
    machines : Machines
    mode : str
        One of ``MODES``.

    Raises
    ------
    InputError
        The mode is unknown, or a buffer is smaller than one tile.

    Examples
    --------
    >>> one = Machines.of(Templates.of(8, 128, 128, 2, 128, 2**27))
    >>> product_cycles(Gemms.of(4096, 4096, 4096), one, "peak").item()
    524288.0
    """
    if mode not in MODES:
        raise InputError(f"no mode is called {mode!r}", where="mode", fix=f"one of {', '.join(MODES)}")
    result = np.empty((len(products), len(machines)))
    step = max(_MAX_PAIRS // max(len(products), 1), 1)
    for begin in range(0, len(machines), step):
        part = slice(begin, begin + step)
        result[:, part] = _cycles(products, machines.take(part), mode)
    return result


def _cycles(products: Gemms, machines: Machines, mode: str) -> Floats:
    m, n, k, count = (getattr(products, name)[:, None] for name in ("m", "n", "k", "count"))
    if mode == "peak":
        multipliers = machines.rows * machines.cols * machines.count
        return np.asarray(m * n * k * count / multipliers[None, :], dtype=np.float64)
    compute = _compute(m, n, k, count, machines)
    if mode == "compute":
        return compute
    if mode == "stream":
        return _count_stream_cycles(m, n, k, count, compute, machines)
    moved = count_moved_words(m, n, k, machines)
    cycles_per_word = machines.word_bytes / machines.bytes_per_cycle
    ends = (moved.first + moved.last) * cycles_per_word
    hidden = np.maximum(moved.words * count * cycles_per_word - ends, 0.0)
    tiled = np.maximum(compute, hidden) + ends
    if machines.operand_bytes is None:
        return np.asarray(tiled, dtype=np.float64)
    return np.asarray(np.minimum(tiled, _count_stream_cycles(m, n, k, count, compute, machines)), dtype=np.float64)


def _count_stream_cycles(m: Ints, n: Ints, k: Ints, count: Ints, compute: Floats, machines: Machines) -> Floats:
    """Return cycles with a port per operand, which passes twice for each pass over it unless it fits into its buffer.

    Loads before the first cycle and stores behind the last are not counted, as in SCALE-Sim's user-bandwidth mode.
    """
    if machines.operand_bytes is None:
        raise InputError("the operands share a buffer", where="mode stream", fix="give x, w and y their own, or tile")
    laid = folds(m, n, k, machines.rows, machines.cols, machines.dataflow)
    read = accesses_of(m, n, k, laid, machines.dataflow)
    ports = [compute, count * _lines(read.y, machines)]
    for words, size, buffer_bytes in zip((read.x, read.w), (m * k, k * n), machines.operand_bytes[:2], strict=True):
        is_streamed = size * machines.word_bytes > _ACTIVE * buffer_bytes
        ports.append(np.where(is_streamed, 2 * count * (words // size) * _lines(size, machines), 0))
    return np.asarray(reduce(np.maximum, ports), dtype=np.float64)


def _lines(words: Ints, machines: Machines) -> Floats:
    return np.asarray(np.ceil(words * machines.word_bytes / machines.bytes_per_cycle), dtype=np.float64)


def count_moved_words(m: Ints, n: Ints, k: Ints, machines: Machines) -> Traffic:
    """Words between memory and the chip, [P, D] from sizes [P, 1]; machines with equal buffers move the same."""
    sizes, index = np.unique(machines.buffer_bytes // machines.word_bytes, return_inverse=True)
    operand_words = machines.operand_bytes and [size // machines.word_bytes for size in machines.operand_bytes]
    result = traffic(m, n, k, sizes[None, :], operand_words)
    return Traffic(result.words[:, index], result.first[:, index], result.last[:, index])


def _compute(m: Ints, n: Ints, k: Ints, count: Ints, machines: Machines) -> Floats:
    """Rounds over the arrays, at the best split of a fold's steps, and with the best tiles."""
    most = int(min(machines.count.max(), _SPLITS[-1]))
    splits = [item for item in _SPLITS if item <= most]
    if machines.tile_sides:
        tiles = [
            _tile_rounds(m, n, k, count, machines, (high, wide), split)
            for high, wide in product(machines.tile_sides, repeat=2)
            for split in splits
        ]
        return np.asarray(reduce(np.minimum, tiles), dtype=np.float64)
    rounds = [_fold_rounds(m, n, k, count, machines, split) for split in splits]
    return np.asarray(reduce(np.minimum, rounds) / machines.compute_ratio, dtype=np.float64)


def _fold_rounds(m: Ints, n: Ints, k: Ints, count: Ints, machines: Machines, split: int) -> Ints:
    laid = folds(m, n, k, machines.rows, machines.cols, machines.dataflow)
    rounds = -(-laid.count * count * split // machines.count)
    steps = -(-laid.steps // split)
    if machines.is_overlapped:
        spent = (rounds - 1) * np.maximum(steps, machines.rows) + steps + laid.fill - 1
    else:
        spent = rounds * (steps + laid.fill) - 1
    if machines.dataflow == "os" and split > 1:  # parts of a sum are added up on the arrays' edges
        spent = spent + -(-(split - 1) * m * n * count // (machines.cols * machines.count))
    return spent


def _tile_rounds(
    m: Ints, n: Ints, k: Ints, count: Ints, machines: Machines, tile: tuple[int, int], split: int
) -> Floats:
    """Waves of output tiles over cores; what the tiles read of the cache, parts of a sum in full width among it."""
    high, wide = tile
    tiles = -(-m // high) * -(-n // wide) * count * split
    depth = -(-k // split)
    steps = -(-high // machines.rows) * -(-wide // machines.cols) / machines.arrays_per_core * depth
    rounds = -(-tiles // (machines.count // machines.arrays_per_core))
    read_bytes = tiles * ((high + wide) * depth * machines.word_bytes + (split > 1) * high * wide * _PARTIAL_BYTES)
    spent = rounds * (steps / machines.compute_ratio + machines.tile_cycles)
    return np.maximum(spent, read_bytes / machines.cache_bytes_per_cycle)
