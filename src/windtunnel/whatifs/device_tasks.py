"""Which tasks a device runs, and which of them are kernels.

In: a graph. Out: masks. On a graph without devices the operators that compute on the CPU take their part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph, Kind, ResourceKind

__all__ = ["device_kernels", "lies_on_device"]


def device_kernels(graph: Graph) -> NDArray[np.bool_]:
    """Tasks that compute on a device, bool [T]; those on CPU threads where there is no device.

    Raises
    ------
    NotApplicableError
        Nothing computes.
    """
    computes = graph.select(kind=Kind.COMPUTE)
    on_device = computes & lies_on_device(graph)
    result: NDArray[np.bool_] = on_device if on_device.any() else computes
    if not result.any():
        raise NotApplicableError("no task computes anything", where=f"{graph.num_tasks} tasks")
    return result


def lies_on_device(graph: Graph) -> NDArray[np.bool_]:
    """Tasks on streams and devices, bool [T]: kernels, copies, messages."""
    kinds = np.append(graph.resources["kind"], -1)[graph.tasks["resource"]]
    result: NDArray[np.bool_] = np.isin(kinds, (ResourceKind.STREAM, ResourceKind.DEVICE))
    return result
