"""The columns of a graph: names, types and enumerations.

In: nothing. Out: what every other file of the room, and every reader of a stored graph, agrees on.
A column that is not known yet is absent, never zero. A column of a plug-in carries its name and a dot,
``chakra.stream``; any other that is not here is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import DTypeLike

__all__ = [
    "EDGE_COLUMNS",
    "RESOURCE_COLUMNS",
    "SCHEMA_VERSION",
    "TASK_COLUMNS",
    "UNPLACED",
    "Column",
    "Discipline",
    "EdgeKind",
    "Kind",
    "Phase",
    "ResourceKind",
]

SCHEMA_VERSION = 2
UNPLACED = -1


class Kind(IntEnum):
    """What a task does."""

    HOST = 0
    COMPUTE = 1
    COMM = 2
    COPY = 3
    IO = 4
    SYNC = 5
    VIRTUAL = 6


class Phase(IntEnum):
    """The part of a training iteration that a task belongs to."""

    DATA = 0
    FORWARD = 1
    BACKWARD = 2
    UPDATE = 3
    OTHER = 4


class EdgeKind(IntEnum):
    """Why one task waits for another."""

    DATA = 0
    ORDER = 1
    LAUNCH = 2
    SYNC = 3
    MESSAGE = 4
    CONTROL = 5


class ResourceKind(IntEnum):
    """What runs tasks."""

    HOST_THREAD = 0
    STREAM = 1
    DEVICE = 2
    LINK = 3
    STORAGE = 4
    POOL = 5


class Discipline(IntEnum):
    """How a resource chooses among ready tasks: by readiness, by priority, or all at once."""

    FIFO = 0
    PRIORITY = 1
    SHARED = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type, whether every graph has it, and what its values may be.

    ``dtype`` None means dictionary-encoded text. ``merge`` says what a fused task gets: the sum, the largest, or
    the first of its members' values. ``default`` fills rows that an edit adds without a value. ``may_be_nan`` allows
    a float that is not known.
    """

    dtype: DTypeLike | None
    required: bool = False
    enum: type[IntEnum] | None = None
    merge: str = "first"
    default: int | float | str = 0
    minimum: int | None = None
    may_be_nan: bool = False


_TEXT = Column(None, default="")
_WORK = Column(np.int64, merge="sum", minimum=0)
_EFFICIENCY = Column(np.float64, default=math.nan, may_be_nan=True)

TASK_COLUMNS: dict[str, Column] = {
    "name": Column(None, required=True, default=""),
    "op": _TEXT,
    "layer": _TEXT,
    "line": _TEXT,  # FILE:NUMBER of the program that calls the operator; of a backward one, its forward
    "kind": Column(np.int8, required=True, enum=Kind, default=int(Kind.COMPUTE)),
    "phase": Column(np.int8, enum=Phase, default=int(Phase.OTHER)),
    "iteration": Column(np.int32, minimum=0),
    "rank": Column(np.int32, minimum=0),
    "flops": _WORK,
    "bytes_read": _WORK,
    "bytes_written": _WORK,
    "message_bytes": _WORK,
    "group": Column(np.int32, default=-1),
    # the n-th collective of its group; for a message between two ranks, the other rank and the tag
    "sequence": Column(np.int64, default=-1),
    "peer": Column(np.int32, default=-1, minimum=-1),
    "tag": Column(np.int64, default=-1),
    # entry of meta.routes over whose links message_bytes flow, after duration_ns, their latency; -1: they do not
    "route": Column(np.int32, default=-1, minimum=-1),
    "param_bytes": _WORK,
    "output_bytes": _WORK,
    "freed_bytes": _WORK,
    "workspace_bytes": Column(np.int64, merge="max", minimum=0),
    "resource": Column(np.int32, required=True, default=UNPLACED),
    "priority": Column(np.int32, merge="min"),
    "order": Column(np.int64),
    "duration_ns": Column(np.int64, required=True, merge="sum", minimum=0),
    "duration_std_ns": Column(np.int64, merge="rss", minimum=0),
    "samples_ns": Column(np.int64, merge="sum", minimum=0),
    "cost_source": _TEXT,
    "earliest_ns": Column(np.int64, merge="max", minimum=0),
    "start_ns": Column(np.int64),
    "is_arrival_join": Column(np.bool_),
    # row of the captured program's calls that a task belongs to; rows that an edit adds belong to none
    "call": Column(np.int32, default=-1, minimum=-1),
    # work of the forward pass that a checkpoint runs again in the backward pass, and the Python that calls it
    "is_recomputed": Column(np.bool_),
    # position in the trace's file; id of the trace's node, and of the node that called it
    "event": Column(np.int64, default=-1, minimum=-1),
    "node": Column(np.int64, default=-1),
    "parent": Column(np.int64, default=-1),
    # what the operator was called with, as JSON
    "op_schema": _TEXT,
    "input_shapes": _TEXT,
    "input_dtypes": _TEXT,
    "input_strides": _TEXT,
    "input_args": _TEXT,
    # a kernel of an operator that launches several: another one stands for the operator, with its inputs and its work
    "is_part": Column(np.bool_),
    # why a device task began when it did (sources.timeline.device.Cause), and what of its wait nothing explains
    "start_cause": Column(np.int8, default=-1, minimum=-1),
    "unexplained_ns": Column(np.int64, minimum=0),
    # of a price: what limits the task, the share of that limit that it reaches, and how sure that is; NaN: not known
    "binding": _TEXT,
    "efficiency": _EFFICIENCY,
    "efficiency_low": _EFFICIENCY,
    "efficiency_high": _EFFICIENCY,
    # of a price that was measured for a what-if: interquartile range over the price; 0: none, or it did not vary
    "price_spread_ratio": Column(np.float64, merge="max", default=0.0),
}

EDGE_COLUMNS: dict[str, Column] = {
    "src": Column(np.int32, required=True, minimum=0),
    "dst": Column(np.int32, required=True, minimum=0),
    "kind": Column(np.int8, required=True, enum=EdgeKind),
    "size_bytes": Column(np.int64, minimum=0),
    "lag_ns": Column(np.int64, minimum=0),
    "from_start": Column(np.bool_),
}

RESOURCE_COLUMNS: dict[str, Column] = {
    "name": Column(None, required=True, default=""),
    "kind": Column(np.int8, required=True, enum=ResourceKind),
    "machine": Column(np.int32, default=0),
    "device": Column(np.int32, default=0),
    "discipline": Column(np.int8, required=True, enum=Discipline),
    "slots": Column(np.int32, required=True, minimum=1, default=1),
    # of a link on a route: bytes per second
    "rate": Column(np.float64, default=1.0),
    "slowdown": Column(np.float64, default=1.0),
}
