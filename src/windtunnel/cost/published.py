"""What the best kernels of a GPU's family were measured to reach.

In: work with its flops and bytes, a GPU. Out: its bound, computing at the published share of the peak instead of all of
it. The shares are facts of the catalog (``hardware/achieved.csv``), each with its source: matrix products and attention
in 16 bits at their best shapes. A small product reaches less. Not here: what was never published, and CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.pricer import Prices, exact_prices
from windtunnel.cost.work import Work
from windtunnel.graph.kernel_classes import class_of
from windtunnel.hardware import Device, efficiency_ratios

__all__ = ["PublishedPricer", "published"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PublishedPricer:
    """Bounds with the peak that was reached; how sure that is was not published.

    Parameters
    ----------
    compared : tuple of Device
        Devices whose answers are compared: a share that was not published for all of them is used for none, since it
        would make the better known device the slower one.
    """

    compared: tuple[Device, ...] = ()

    name: ClassVar[str] = "published"

    def covers(self, work: Work, device: Device) -> NDArray[np.bool_]:
        """Products and attention in a type of which something was published for the GPU or its family, bool [P]."""
        known = [np.isfinite(_ratios(work, item)) for item in (device, *self.compared)]
        return np.asarray(np.all([work.flops > 0, *known], axis=0), dtype=np.bool_)

    def price(self, work: Work, device: Device) -> Prices:
        """Prices of rows that it covers."""
        bound = bounds_on(device, work.flops, work.bytes_moved, dtype=work.dtype.tolist())
        busy_ns = np.maximum(bound.compute_ns / _ratios(work, device), bound.memory_ns)
        return exact_prices(bound, bound.bound_ns / np.maximum(bound.bound_ns, busy_ns))

    def among(self, devices: Sequence[Device]) -> PublishedPricer:
        """The same pricer for a comparison of devices."""
        return PublishedPricer(tuple(devices))


def _ratios(work: Work, device: Device) -> Floats:
    """Reached over peak [P]; NaN where nothing was published."""
    known = efficiency_ratios(device)
    pairs = zip(work.operator.tolist(), work.dtype.tolist(), strict=True)
    return np.array([known.get((class_of(operator), dtype), np.nan) for operator, dtype in pairs])


@registry.cost_model("published", source="Bekman, Machine Learning Engineering; Dao, FlashAttention-2, ICLR 2024")
def published() -> PublishedPricer:
    """Products and attention in 16 bits at what the best kernels were measured to reach."""
    return PublishedPricer()
