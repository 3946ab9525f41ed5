"""Tiles of outputs on a grid of elements, and who takes over whose work: the cycle-level engine.

In: cycles of each output, which outputs are wanted. Out: cycles of every tile in five modes; a tile lasts as long as
its busiest element. An idle element takes over half of the outputs that the busiest one of its neighbors has not begun,
waits ``steal_cycles`` and for the operands of the first, and begins; only where the busiest is more than twice that
wait from its end, and the other would not end later than it would have. Neighbors stop once an idle one finds nothing.
Not here: memory (``layer``). ``tests/systems/chips/accelerators/sparse`` counts the same cycle by cycle.
"""

# R rows of outputs, N columns, G groups, E elements, K tiles

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.base.bitmaps import Words, bits_at, ones_of
from windtunnel.hardware.parts import SparseGrid
from windtunnel.systems.chips.accelerators.sparse.costs import Costs

__all__ = ["MODES", "PIXELS_OF_WEIGHTS", "tile_cycles", "tile_sides"]

Longs = NDArray[np.int64]

MODES = ("dc", "in", "out", "in+out", "in+out+wr")
"""Dense; zero operands skipped; unwanted outputs skipped; both; both, and work taken over by who is idle."""
PIXELS_OF_WEIGHTS = 512
"""Of a gradient of a weight in one tile."""
_NOBODY = np.zeros((1, 1), dtype=np.uint32)


def tile_sides(grid: SparseGrid, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns that each element takes of a tile: no more than spreads a small layer over all elements.

    Examples
    --------
    >>> tile_sides(SparseGrid(), 64, 64), tile_sides(SparseGrid(), 4096, 512)
    ((4, 4), (4, 8))
    """
    deep = min(grid.pixels_per_element, -(-rows // grid.rows))
    return deep, min(grid.channels_per_element, -(-columns // grid.cols))


def tile_cycles(costs: Costs, group_N: Longs, mask_RW: Words | None, grid: SparseGrid) -> tuple[Longs, Longs]:
    """Cycles of all tiles.

    Parameters
    ----------
    costs : Costs
        [R, G].
    group_N : int64 [N]
        Group of each column of outputs.
    mask_RW : uint32 [R, W], optional
        Outputs that are not skipped, columns along the bits; None: all.
    grid : SparseGrid

    Returns
    -------
    cycles : int64 [5, K]
        Cycles of each mode and tile.
    work : int64 [5]
        Cycles of all elements together, without those that wait.
    """
    rows, columns = len(costs.dense), len(group_N)
    deep, wide = tile_sides(grid, rows, columns)
    num_tiles = -(-rows // (deep * grid.rows)) * -(-columns // (wide * grid.cols))
    cycles, work = np.zeros((len(MODES), num_tiles), np.int64), np.zeros(len(MODES), np.int64)
    mask = _NOBODY if mask_RW is None else mask_RW
    _tiles(
        costs.dense, costs.sparse, group_N, mask, mask_RW is not None, grid.rows, grid.cols, deep, wide,
        grid.steal_group, grid.steal_cycles, cycles, work,
    )  # fmt: skip
    return cycles, work


@njit(cache=True)
def _tiles(dense_RG: Any, sparse_RG: Any, group_N: Any, mask_RW: Any, is_masked: bool, rows: int, cols: int,
           deep: int, wide: int, neighbors: int, wait: int, cycles: Any, work: Any) -> None:  # fmt: skip
    """Cycles of each tile and mode; a tile ends when the slowest of its elements ends."""
    # A tile gives each of rows x cols elements a block of deep x wide outputs:
    #
    #       left ->  | wide | wide | ...      N outputs (filters), group_N names the group of each
    #   top   deep   |  E0  |  E1  |
    #    |    deep   |  E2  |  E3  |          R rows of the patch matrix
    #
    # ``spent`` holds the cycles of one element in the first four ``MODES``, which share no work. ``ends`` holds the
    # running sum of the masked sparse outputs of all elements, so that the cycles of any range of outputs are a
    # difference of two entries; ``_share`` moves such ranges between neighbors.
    elements = rows * cols
    ends = np.zeros(elements * deep * wide + 1, np.int64)  # of outputs one after the other, over all elements
    begin_E = np.zeros(elements + 1, np.int64)
    low_E, high_E = np.zeros(elements, np.int64), np.zeros(elements, np.int64)
    start_E, end_E = np.zeros(elements, np.int64), np.zeros(elements, np.int64)
    spent = np.zeros(4, np.int64)
    num, tile = len(group_N), 0
    for top in range(0, len(dense_RG), rows * deep):
        for left in range(0, num, cols * wide):
            index = 0
            for element in range(elements):
                first, begin = top + element // cols * deep, left + element % cols * wide
                last, stop = min(first + deep, len(dense_RG)), min(begin + wide, num)
                begin_E[element] = index
                for entry in range(len(spent)):
                    spent[entry] = 0
                if begin < stop:
                    # without a change of group all outputs of a row cost the same, and only their number counts
                    is_one = group_N[begin] == group_N[stop - 1]
                    for row in range(first, last):
                        bits = bits_at(mask_RW[row], begin, stop - begin) if is_masked else np.uint32(0xFFFFFFFF)
                        if is_one:
                            dense, sparse = dense_RG[row, group_N[begin]], sparse_RG[row, group_N[begin]]
                            open_ones = int(ones_of(bits)) if is_masked else stop - begin
                            spent[0] += (stop - begin) * dense
                            spent[1] += (stop - begin) * sparse
                            spent[2] += open_ones * dense
                            spent[3] += open_ones * sparse
                            if sparse > 0:
                                for _ in range(open_ones):
                                    ends[index + 1] = ends[index] + sparse
                                    index += 1
                        else:
                            for column in range(begin, stop):
                                dense, sparse = dense_RG[row, group_N[column]], sparse_RG[row, group_N[column]]
                                spent[0] += dense
                                spent[1] += sparse
                                if (bits >> np.uint32(column - begin)) & np.uint32(1):
                                    spent[2] += dense
                                    spent[3] += sparse
                                    if sparse > 0:
                                        ends[index + 1] = ends[index] + sparse
                                        index += 1
                for mode in range(4):
                    cycles[mode, tile] = max(cycles[mode, tile], spent[mode])
                    work[mode] += spent[mode]
            begin_E[elements] = index
            for element in range(elements):
                low_E[element], high_E[element] = begin_E[element], begin_E[element + 1]
                start_E[element] = 0
                end_E[element] = ends[high_E[element]] - ends[low_E[element]]
            for group in range(0, elements, neighbors):
                _share(ends, low_E, high_E, start_E, end_E, group, group + neighbors, wait)
            cycles[4, tile] = end_E.max()
            tile += 1
    work[4] = work[3]


@njit(cache=True)
def _share(ends: Any, low_E: Any, high_E: Any, start_E: Any, end_E: Any, first: int, stop: int, wait: int) -> None:
    """Let idle neighbors take over work, in the order in which they become idle, until one finds nothing."""
    while True:
        idle = busiest = first
        for element in range(first + 1, stop):
            if end_E[element] < end_E[idle]:
                idle = element
            if end_E[element] > end_E[busiest]:
                busiest = element
        now, end = end_E[idle], end_E[busiest]
        if end - now <= 2 * wait:
            return
        # the first output that is not begun: the work until it takes longer than now
        done = now - start_E[busiest] + ends[low_E[busiest]]
        low, high = low_E[busiest], high_E[busiest]
        while low < high:
            middle = (low + high) // 2
            if ends[middle] > done:
                high = middle
            else:
                low = middle + 1
        used = (high_E[busiest] - low + 1) // 2
        if used <= 0:
            return
        index = high_E[busiest] - used
        moved = ends[high_E[busiest]] - ends[index]
        begin = now + wait + ends[index + 1] - ends[index]
        if begin + moved > end:
            return
        low_E[idle], high_E[idle] = index, high_E[busiest]
        start_E[idle], end_E[idle] = begin, begin + moved
        high_E[busiest] = index
        end_E[busiest] = end - moved
