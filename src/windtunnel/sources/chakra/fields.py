"""What Chakra's nodes and attributes are called, and what they stand for.

In: nothing. Out: names that reader and writer agree on. Not here: bytes (``wire``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Kind

__all__ = ["COMM_TYPES", "INTEGERS", "NODE_TYPE", "NODE_TYPES", "OWN_INTEGERS", "RESOURCES", "WORK", "kinds"]

Ints = NDArray[Any]

NODE_TYPES = (
    "INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL",
)  # fmt: skip
COMM_TYPES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter_block", "barrier",
)  # fmt: skip
NODE_TYPE = "chakra.node_type"
# attribute -> task column; a negative value stands for a node that lacks it
_CHAKRA = ("comm_src", "comm_dst", "comm_priority", "stream", "tid")
INTEGERS = {"comm_tag": "tag"} | {name: f"chakra.{name}" for name in _CHAKRA}
WORK = {"comm_size": "message_bytes", "num_ops": "flops"}
# what only our own files say, where it differs from what the rest of the node makes one think
OWN_INTEGERS = ("duration_ns", "kind", "resource", "earliest_ns", "priority", "is_arrival_join")
RESOURCES = "resources"
_MEMORY = (NODE_TYPES.index("MEM_LOAD"), NODE_TYPES.index("MEM_STORE"))


def kinds(types: Ints, is_cpu: Ints) -> Ints:
    """Kind of task of each type of node."""
    kind = np.where(types >= NODE_TYPES.index("COMM_SEND"), Kind.COMM, Kind.COMPUTE)
    kind = np.where(np.isin(types, _MEMORY), Kind.COPY, kind)
    return np.where(types == NODE_TYPES.index("METADATA"), Kind.VIRTUAL, np.where(is_cpu, Kind.HOST, kind))
