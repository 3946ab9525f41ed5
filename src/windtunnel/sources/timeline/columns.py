"""Columns that describe the tasks of a timeline: collectives, kinds, phases, operators (sources, timeline).

In: `Events`, their host slices and device tasks. Out: arrays over tasks: the S slices first, then the D device tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Kind, Phase, Strings
from windtunnel.graph.flops import sums_products
from windtunnel.graph.kernel_classes import collective_of
from windtunnel.graph.meta import ProcessGroup
from windtunnel.sources.timeline.device import Device
from windtunnel.sources.timeline.events import Category, Events
from windtunnel.sources.timeline.host import Host, Labels
from windtunnel.sources.timeline.names import HOST_COLLECTIVE, matching
from windtunnel.sources.timeline.slices import fill_between, inherit

__all__ = ["Collectives", "encode", "find_collectives", "kinds", "op_column", "phases"]

# N rows, E host events, S slices, D device tasks, T = S + D
Int64s = NDArray[np.int64]
_FORM = (
    r"^aten::(empty\w*|new_empty\w*|resize_\w*|set_|as_strided|_?(unsafe_)?view|reshape|_reshape_alias|t|transpose|permute"
    r"|swapaxes|movedim|expand|expand_as|squeeze|unsqueeze|select|slice|narrow|split\w*|chunk|unbind|detach|alias"
    r"|flatten|unflatten|diagonal|result_type|resolve_conj|resolve_neg)_?$"
)
"""Operators that make room or change the form: they compute nothing, and who calls only them computes itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Collectives:
    """The C tasks that are collectives, by task number.

    ``name`` is a code into ``names``, ``group`` into ``groups`` or -1; ``message_bytes`` is 0 and ``sequence`` -1
    where unknown; ``peer`` is the other rank of a message, or -1.
    """

    task: Int64s
    name: NDArray[np.int32]
    message_bytes: Int64s
    group: NDArray[np.int32]
    sequence: Int64s
    peer: NDArray[np.int32]
    names: tuple[str, ...]
    groups: tuple[ProcessGroup, ...]

    def spread(self, values: NDArray[np.integer], num_tasks: int, other: int) -> NDArray[np.integer]:
        """Column [T] with the values of the collectives, and ``other`` elsewhere."""
        column = np.full(num_tasks, other, values.dtype)
        column[self.task] = values
        return column


def find_collectives(events: Events, host: Host, device: Device) -> Collectives:
    """Collectives by their arguments, by those of the operator that issued them, else by name."""
    table = [collective_of(text) for text in events.names]
    records = events.collectives
    names = tuple(dict.fromkeys([*table, *records.names]))
    codes = {name: code for code, name in enumerate(names)}
    is_named = np.array([bool(name) for name in table], bool)
    on_host = is_named & matching(events.names, HOST_COLLECTIVE)
    host_task = np.flatnonzero(on_host[events.name[host.row[host.event]]])
    device_task = np.flatnonzero(is_named[events.name[device.row]])
    row = np.concatenate([host.row[host.event[host_task]], device.row[device_task]])
    name = np.array([codes[text] for text in table], np.int32)[events.name[row]]
    message_bytes, sequence = np.zeros(len(row), np.int64), np.full(len(row), -1, np.int64)
    group, peer = np.full(len(row), -1, np.int32), np.full(len(row), -1, np.int32)
    if len(records.row):
        record = _records_of_rows(events, host, device)[row]
        known = np.flatnonzero(record >= 0)
        record = record[known]
        name[known] = np.array([codes[text] for text in records.names], np.int32)[records.name[record]]
        message_bytes[known], sequence[known] = records.message_bytes[record], records.sequence[record]
        group[known], peer[known] = records.group[record], records.peer[record]
    task = np.concatenate([host_task, host.num_slices + device_task])
    return Collectives(task, name, message_bytes, group, sequence, peer, names, records.groups)


def _records_of_rows(events: Events, host: Host, device: Device) -> NDArray[np.int32]:
    """Record that describes each row [N]: its own, else that of the operator around it or around its launch."""
    own = np.full(events.num_rows, -1, np.int32)
    own[events.collectives.row] = np.arange(len(events.collectives.row))
    record = np.full(events.num_rows, -1, np.int32)
    record[host.row] = inherit(host.parent, own[host.row])
    launched = device.call >= 0
    record[device.row[launched]] = record[device.call[launched]]
    return np.where(own >= 0, own, record)


def kinds(events: Events, host: Host, device: Device, collectives: Collectives) -> NDArray[np.int8]:
    """Kind of every task [T]. Without a device the leaves of the operators are the computation."""
    kind = np.full(host.num_slices + device.num_tasks, Kind.HOST, np.int8)
    own = kind[: host.num_slices]
    if not device.num_tasks:
        own[_computes(events, host)[host.event]] = Kind.COMPUTE
    own[host.is_return] = Kind.SYNC
    copies = matching(events.names, "(?i)memcpy|memset|^Copy")[events.name[device.row]]
    copies |= events.category[device.row] == Category.COPY
    kind[host.num_slices :] = np.where(copies, Kind.COPY, Kind.COMPUTE)
    kind[collectives.task] = Kind.COMM
    return kind


def _computes(events: Events, host: Host) -> NDArray[np.bool_]:
    """Operators that compute themselves [E]: those that call none that does, and products whose calls make none."""
    is_op = host.category == Category.OPERATOR
    name = events.name[host.row]
    is_form = is_op & matching(events.names, _FORM)[name]
    sums = is_op & np.array([sums_products(text) for text in events.names], dtype=bool)[name]
    calls, makes = np.zeros(len(host.row), bool), np.zeros(len(host.row), bool)
    inner = host.parent >= 0
    calls[host.parent[inner & ((is_op & ~is_form) | (host.category == Category.CALL))]] = True
    makes[host.parent[inner & sums]] = True
    computes: NDArray[np.bool_] = is_op & ~is_form & (~calls | (sums & ~makes))
    return computes


def phases(host: Host, labels: Labels) -> NDArray[np.int8]:
    """Phase of each slice [S]; what lies between two slices of one phase on a thread belongs to it."""
    phase = labels.phase.astype(np.int8)[host.event]
    fill_between(host.thread, phase, int(Phase.OTHER))
    return phase


def op_column(events: Events, host: Host, device: Device, labels: Labels, collectives: Collectives) -> Strings:
    """Operator of every task [T]: that of the slice or of the launch; of a collective its name."""
    base = len(events.names)
    code = np.zeros(host.num_slices + device.num_tasks, np.int32)
    code[: host.num_slices] = np.maximum(labels.op[host.event], 0)
    launched = np.flatnonzero(device.call >= 0)
    code[host.num_slices + launched] = np.maximum(labels.op[host.position[device.call[launched]]], 0)
    code[collectives.task] = base + collectives.name
    return encode(code, (*events.names, *collectives.names))


def encode(codes: NDArray[np.integer], values: tuple[str, ...]) -> Strings:
    """A text column with only the values that it uses, equal ones merged."""
    used = np.flatnonzero(np.bincount(codes, minlength=len(values))).tolist()
    index: dict[str, int] = {}
    table = np.zeros(len(values), np.int32)
    for code in used:
        table[code] = index.setdefault(values[code], len(index))
    return Strings(table[codes], tuple(index))
