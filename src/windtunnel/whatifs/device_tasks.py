"""Which tasks a device runs, and which of them are kernels.

In: a graph. Out: masks. Where nothing computes on a device, ``device_kernels`` takes what computes on the CPU.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph, Kind, ResourceKind

__all__ = ["computes_on_device", "device_kernels", "lies_on_device"]

_ON_DEVICE = (ResourceKind.STREAM, ResourceKind.DEVICE)


def device_kernels(graph: Graph) -> NDArray[np.bool_]:
    """Tasks that compute on a device, bool [T]; those on CPU threads where there is no device.

    Raises
    ------
    NotApplicableError
        Nothing computes.
    """
    on_device = computes_on_device(graph)
    result: NDArray[np.bool_] = on_device if on_device.any() else graph.select(kind=Kind.COMPUTE)
    if not result.any():
        raise NotApplicableError("no task computes anything", where=f"{graph.num_tasks} tasks")
    return result


def lies_on_device(graph: Graph) -> NDArray[np.bool_]:
    """Tasks on streams and devices, bool [T]: kernels, copies, messages."""
    return graph.select(resource_kind=_ON_DEVICE)


def computes_on_device(graph: Graph) -> NDArray[np.bool_]:
    """Kernels of devices, bool [T]; none on a graph of a CPU."""
    return graph.select(kind=Kind.COMPUTE, resource_kind=_ON_DEVICE)
