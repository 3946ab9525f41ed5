"""The engine of transforms counted cycle by cycle: butterflies, multipliers, samples in flight.

In: a layer, an engine, a batch. Out: cycles until the last result. A level of a transform begins when the one before
it is done; butterflies are free for any level that may begin, inverse transforms of the oldest sample first; products
follow transforms in order. Not here: the closed form
(``chips.accelerators.fourier_engine``), which it lies within 2 % of.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from windtunnel.hardware.parts import FourierEngine
from windtunnel.systems.chips.accelerators.fourier_engine import LATENCY, BlockLayer

__all__ = ["counted_cycles"]

_AHEAD = 8  # samples that are transformed before the oldest is done: buffers of the engine


def counted_cycles(layer: BlockLayer, engine: FourierEngine, batch: int = 1) -> int:
    """Cycles of a batch.

    Examples
    --------
    >>> from windtunnel.systems.chips.accelerators.fourier_engine import engine_use
    >>> layer, engine = BlockLayer(512, 512, 32), FourierEngine()
    >>> counted_cycles(layer, engine, 64) / engine_use(layer, engine, 64).cycles < 1.02
    True
    """
    down, across = layer.num_blocks
    slots, products = engine.num_butterflies * engine.depth, down * (layer.block // 2 + 1)
    # quarters of butterflies, as k / 4 of them are no whole number for k = 2
    return int(_count(down, across, layer.block, layer.levels, 4 * slots, products, engine.num_multipliers, batch))


@njit(cache=True)
def _count(down: int, across: int, quarters: int, levels: int, slots: int, products: int, multipliers: int,
           batch: int) -> int:  # fmt: skip
    """``quarters`` of a butterfly are a level of a transform; ``slots`` quarters are done in a cycle."""
    most = (_AHEAD + 1) * (down + across)
    # transforms in flight: sample, whether inverse, level, quarters that are left of it, when it may begin
    flight = np.zeros((most, 5), np.int64)
    num_flight = 0
    waiting = np.zeros((batch * across + 1, 2), np.int64)  # products that may begin: sample, when
    first_waiting = num_waiting = 0
    product_left = 0
    summed_S, done_S = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    begun_S = np.zeros(batch, np.int64)
    sample_in = oldest = now = 0
    while oldest < batch:
        # new transforms, as long as there are buffers for their sample
        while sample_in < batch and sample_in < oldest + _AHEAD and num_flight < most - down:
            flight[num_flight, 0], flight[num_flight, 1], flight[num_flight, 2] = sample_in, 0, 0
            flight[num_flight, 3], flight[num_flight, 4] = quarters, now
            num_flight += 1
            begun_S[sample_in] += 1
            if begun_S[sample_in] == across:
                sample_in += 1
        left = slots
        for turn in range(2):  # inverse transforms first
            for one in range(num_flight):
                if left == 0:
                    break
                if flight[one, 1] != 1 - turn or flight[one, 4] > now or flight[one, 3] == 0:
                    continue
                taken = min(left, flight[one, 3])
                flight[one, 3] -= taken
                left -= taken
                if flight[one, 3] == 0:
                    flight[one, 2] += 1
                    flight[one, 4] = now + LATENCY
                    if flight[one, 2] < levels:
                        flight[one, 3] = quarters
                    elif flight[one, 1] == 0:
                        waiting[num_waiting, 0], waiting[num_waiting, 1] = flight[one, 0], now + LATENCY
                        num_waiting += 1
                    else:
                        done_S[flight[one, 0]] += 1
        kept = 0
        for one in range(num_flight):
            if flight[one, 2] < levels:
                flight[kept] = flight[one]
                kept += 1
        num_flight = kept
        left = multipliers
        while left > 0 and first_waiting < num_waiting and waiting[first_waiting, 1] <= now:
            if product_left == 0:
                product_left = products
            taken = min(left, product_left)
            product_left -= taken
            left -= taken
            if product_left == 0:
                sample = waiting[first_waiting, 0]
                summed_S[sample] += 1
                first_waiting += 1
                if summed_S[sample] == across:
                    for _ in range(down):
                        flight[num_flight, 0], flight[num_flight, 1], flight[num_flight, 2] = sample, 1, 0
                        flight[num_flight, 3], flight[num_flight, 4] = quarters, now + LATENCY
                        num_flight += 1
        now += 1
        while oldest < batch and done_S[oldest] == down:
            oldest += 1
    return now + LATENCY - 1
