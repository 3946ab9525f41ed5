"""What nodes need of devices: the plain columns that every search over cuts works on.

In: nothing. Out: ``DeviceType``, ``Groups`` of what nodes send, and ``Work``. Not here: names, colors, phases
(``placement.model``), how a problem becomes these columns (``placement.contraction``).
"""

# N nodes, G groups, T device types

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["DeviceType", "Groups", "Work"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DeviceType:
    """Devices that are alike.

    Parameters
    ----------
    name : str
    count : int
    memory_bytes : float
        Of each; infinite where nothing is limited.
    comm_scale : float
        Factor on what communication costs; 0 for a CPU, where data lies in host memory already.
    max_replicas : int
        Number of devices of each type: the maximum number of replicas of a stage.
    sync_ns_per_byte : float
        Of a stage with r replicas: its weights take (r - 1) / r**2 times this.
    """

    name: str
    count: int
    memory_bytes: float = math.inf
    comm_scale: float = 1.0
    max_replicas: int = 1
    sync_ns_per_byte: float = 0.0

    def agree_ns_per_byte(self, num_replicas: int) -> float:
        """Time per sample and byte of weights in which ``num_replicas`` replicas synchronize them."""
        # ``cost.collective.ring_ratio`` of one pass, per sample, since each replica takes one in r; in one division, as
        # the published tables round
        return self.sync_ns_per_byte * (num_replicas - 1) / num_replicas**2


@dataclass(frozen=True, eq=False)
class Groups:
    """What nodes send: each group is one node's output and the set of other nodes that read it.

    Several nodes of the original graph may lie in one node here; each sends separately, once per device that it enters.

    Parameters
    ----------
    own_G : int32 [G]
        Node that sends.
    target_ptr, targets : int64 [G + 1], int32
        Nodes that read the result, each once, without the sender.
    cost_G : float64 [G]
        Of one transfer.
    is_backward_G : bool [G]
    """

    own_G: NDArray[np.int32]
    target_ptr: NDArray[np.int64]
    targets: NDArray[np.int32]
    cost_G: Floats
    is_backward_G: NDArray[np.bool_]

    @property
    def num_targets(self) -> NDArray[np.int32]:
        """How many nodes read each."""
        return np.diff(self.target_ptr).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Work:
    """What nodes need.

    Parameters
    ----------
    types : tuple of DeviceType
    compute_NT : float64 [N, T]
        Time on a device of each type.
    memory_N : float64 [N]
        Bytes.
    barred_NT : int64 [N, T]
        Above 0 where a node cannot run on a type.
    groups : Groups
    weights_N : float64 [N]
        Bytes that replicas synchronize.
    link_scale : float64 [T, T], optional
        Factor on a transfer from a device of one type to one of another; all alike unless given.
    """

    types: tuple[DeviceType, ...]
    compute_NT: Floats
    memory_N: Floats
    barred_NT: NDArray[np.int64]
    groups: Groups
    weights_N: Floats
    link_scale: Floats | None = None
