"""Price work by what it computes and what it moves.

In: work with its flops and bytes, and a device. Out: durations that no such device can beat. Good for "which chip",
too hopeful for "how long": nothing here knows what a kernel reaches of its bound.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.pricer import Prices, exact_prices
from windtunnel.cost.work import Work
from windtunnel.hardware import Device

__all__ = ["BOUND_ERROR", "RooflinePricer", "roofline"]

BOUND_ERROR = {"operators": 0.310, "models": 0.254}
"""Mean absolute error of these prices on published measurements: 19,859 kernels in fp32 on six GPUs, and 48 whole
models; nearly all of it too short. ``benchmarks/predict_accuracy.py`` measures both anew."""


class RooflinePricer:
    """The bound itself, with what the device's sheet says of launches and of its last cache."""

    name: ClassVar[str] = "roofline"

    def covers(self, work: Work, device: Device) -> NDArray[np.bool_]:  # noqa: ARG002 - of every device
        """Whatever states flops or bytes, and operators on tensors without elements: those cost a launch."""
        return (work.flops > 0) | (work.bytes_moved > 0) | work.is_empty

    def price(self, work: Work, device: Device) -> Prices:
        """Every efficiency is 1; the error of this bound is unknown.

        Raises
        ------
        InputError
            The device has no peak rate for a type.
        """
        return exact_prices(bounds_on(device, work.flops, work.bytes_moved, dtype=work.dtype.tolist()))


@registry.cost_model("roofline", source="Williams, Waterman and Patterson, Roofline, CACM 2009")
def roofline() -> RooflinePricer:
    """Price tasks by the flops and bytes that they state."""
    return RooflinePricer()
