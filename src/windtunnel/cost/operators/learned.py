"""The shipped model of operators as a cost model.

In: work of a graph, a GPU. Out: prices whose efficiency was learned from timings of an H100 and an H200, with their
interval, which widens with the distance between the GPU and these two. Not here: the model (``learned_model``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.bounds import bounds_on
from windtunnel.cost.operators.facts import facts_of
from windtunnel.cost.operators.learned_model import LearnedModel, load_learned_model, read_shipped_model
from windtunnel.cost.operators.recurrent import split_recurrent
from windtunnel.cost.pricer import Prices
from windtunnel.cost.work import Work
from windtunnel.hardware import Device
from windtunnel.hardware import device as device_by_name

__all__ = ["LearnedPricer", "learned"]

_REFERENCE = "h200-sxm5-141g"


@dataclass(frozen=True)
class LearnedPricer:
    """Prices operators on GPUs by a learned model.

    Parameters
    ----------
    model : LearnedModel, optional
        By default the shipped one.
    is_comparing : bool
        Use the factors of one measured device for all devices, so that only what their sheets state tells them apart:
        a device that matches another one in every limit is then never the slower one.
    """

    model: LearnedModel | None = None
    is_comparing: bool = False

    name: ClassVar[str] = "learned"

    def covers(self, work: Work, device: Device) -> NDArray[np.bool_]:
        """Operators of a learned family on a GPU that has a peak for their type, bool [P]."""
        if device.kind != "gpu":
            return np.zeros(len(work), dtype=bool)
        has_peak = np.array([name in device.peak_flops_per_s for name in work.dtype.tolist()], dtype=bool)
        parts = split_recurrent(work, device.peak_flops_per_s)
        unknown = np.bincount(parts.owner, ~self._model.covers(facts_of(parts.work)), len(work)) > 0
        covered: NDArray[np.bool_] = has_peak & ~unknown
        return covered

    def price(self, work: Work, device: Device) -> Prices:
        """Prices of rows that it covers."""
        parts = split_recurrent(work, device.peak_flops_per_s)
        facts = facts_of(parts.work)
        reference = device_by_name(_REFERENCE) if self.is_comparing else device
        parts_ns = self._model.durations_ns(facts, device, reference)
        duration = parts.sum(parts_ns, len(work))
        # parts of one layer err together: their intervals are averaged by time
        low, high = (parts.sum(parts_ns * end, len(work)) / duration for end in self._model.log_ends(facts, device))
        bounds = bounds_on(device, work.flops, work.bytes_moved, dtype=work.dtype.tolist())
        efficiency = bounds.efficiency(duration)
        return Prices(bounds, efficiency, efficiency * np.exp(-high), efficiency * np.exp(-low), self._model.level)

    def among(self, devices: Sequence[Device]) -> LearnedPricer:  # noqa: ARG002 - one device stands for all
        """The same model for a comparison of devices."""
        return LearnedPricer(self.model, is_comparing=True)

    @property
    def _model(self) -> LearnedModel:
        return self.model or read_shipped_model()


@registry.cost_model("learned", source="own timings of an H100 and an H200, 2026-11")
def learned(checkpoint: str = "") -> LearnedPricer:
    """Operators on GPUs, from timings of an H100 and an H200, scaled to other GPUs by their data sheets."""
    return LearnedPricer(load_learned_model(checkpoint) if checkpoint else None)
