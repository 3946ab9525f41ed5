"""Which tasks are kernels of a device.

In: a graph. Out: a mask. On a graph without devices the operators that compute on the CPU take their part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph, Kind, ResourceKind

__all__ = ["device_kernels"]


def device_kernels(graph: Graph) -> NDArray[np.bool_]:
    """Tasks that compute on a device, bool [T]; those on CPU threads where there is no device.

    Raises
    ------
    NotApplicableError
        Nothing computes.
    """
    computes = graph.select(kind=Kind.COMPUTE)
    kinds = np.append(graph.resources["kind"], -1)[graph.tasks["resource"]]
    on_device = computes & np.isin(kinds, (ResourceKind.STREAM, ResourceKind.DEVICE))
    result: NDArray[np.bool_] = on_device if on_device.any() else computes
    if not result.any():
        raise NotApplicableError("no task computes anything", where=f"{graph.num_tasks} tasks")
    return result
