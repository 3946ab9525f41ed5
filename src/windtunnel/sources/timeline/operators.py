"""Which task does the work of each recorded operator of a timeline (sources, timeline).

In: `Events` with their `OperatorRecords`, host slices, device tasks. Out: per record the task that stands for it, and
the kernels that are parts of an operator for which another kernel stands. An operator's work lies on the device where
it launched any, else in the longest of its own slices. Updates take the layer of the gradients that they use.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase, Strings
from windtunnel.sources.timeline.device import Device
from windtunnel.sources.timeline.events import Category, Events, OperatorRecords
from windtunnel.sources.timeline.host import Host, Labels
from windtunnel.sources.timeline.names import INNER, matching
from windtunnel.sources.timeline.slices import inherit

__all__ = ["Operators", "find_operators", "label_updates", "operator_columns"]

# H host events, S slices, D device tasks, T = S + D, O records
Int64s = NDArray[np.int64]
_TEXTS = {
    "op_schema": "schema",
    "input_shapes": "shapes",
    "input_dtypes": "dtypes",
    "input_strides": "strides",
    "input_args": "arguments",
}
_WORK = ("flops", "bytes_read", "bytes_written")


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """``task`` [O] stands for each record, -1 for none; ``acts`` [O] tells whether it does the record's work.

    ``event`` [O] is the host event that the record describes, -1 where a function around it is described. ``part``
    are the device tasks of records for which another task stands.
    """

    records: OperatorRecords
    event: Int64s
    task: Int64s
    acts: NDArray[np.bool_]
    part: Int64s


def find_operators(events: Events, host: Host, device: Device, computes: NDArray[np.bool_]) -> Operators:
    """Find the tasks of the records; ``computes`` [S] tells slices that compute on the host."""
    records = events.operators
    record = np.full(events.num_rows, -1, np.int32)
    record[records.row] = np.arange(len(records), dtype=np.int32)
    own = record[host.row]
    # the operator that torch's own function calls is described where that function is
    inner = matching(events.names, INNER)[events.name[host.row]] & (host.parent >= 0)
    own[inner & (own[host.parent] >= 0)] = -1
    around = inherit(host.parent, np.where(own >= 0, np.arange(len(own)), -1).astype(np.int32))
    task, part = _device_tasks(events, host, device, around)
    is_launched = task >= 0
    main = _longest_slices(host)
    position = np.full(len(records), -1, np.int64)
    position[own[own >= 0]] = np.flatnonzero(own >= 0)
    known = position >= 0
    result = np.full(len(records), -1, np.int64)
    result[known] = np.where(is_launched[position[known]], task[position[known]], main[position[known]])
    acts = np.zeros(len(records), bool)
    on_host = known & (result >= 0) & (result < host.num_slices)
    acts[on_host] = computes[result[on_host]] & (records.computes[on_host] != 0)
    acts |= on_host & (records.computes == 1)
    acts |= result >= host.num_slices
    return Operators(records, position, result, acts, part)


def _device_tasks(events: Events, host: Host, device: Device, around: NDArray[np.int32]) -> tuple[Int64s, Int64s]:
    """The longest task that each host event [H] launched, -1 for none, and the other ones of these events."""
    longest = np.full(len(around), -1, np.int64)
    tasks = np.flatnonzero(device.call >= 0)
    event = around[host.position[device.call[tasks]]]
    tasks, event = tasks[event >= 0], event[event >= 0]
    is_kernel = events.category[device.row[tasks]] == Category.KERNEL
    duration = (device.end - device.start)[tasks]
    order = np.lexsort((duration, is_kernel, event))
    longest[event[order]] = host.num_slices + tasks[order]  # the last of each event stays
    parts = host.num_slices + tasks[is_kernel]
    return longest, parts[~np.isin(parts, longest)]


def _longest_slices(host: Host) -> Int64s:
    """The longest slice of each event [H], -1 where it has none."""
    main = np.full(len(host.row), -1, np.int64)
    order = np.lexsort((-np.arange(host.num_slices), host.end - host.start, host.event))
    main[host.event[order]] = order
    return main


def label_updates(operators: Operators, host: Host, labels: Labels) -> Labels:
    """Labels in which an update has the innermost layer that holds all parameters whose gradients it uses.

    Updates that pass data to each other are of the same parameters, and some of them read the gradients.
    """
    records, event = operators.records, operators.event
    known = np.append(event >= 0, False)
    is_update = np.append(labels.phase[event] == Phase.UPDATE, False) & known
    if not is_update.any() or not len(records.source):
        return labels
    parent = np.arange(len(records))

    def root(record: int) -> int:
        while parent[record] != record:
            parent[record] = parent[parent[record]]
            record = int(parent[record])
        return record

    reads = records.size_bytes >= 0
    pairs = list(zip(records.source[reads].tolist(), records.target[reads].tolist(), strict=True))
    for source, target in pairs:
        if is_update[source] and is_update[target]:
            parent[root(source)] = root(target)
    used: dict[int, set[int]] = {}
    for source, target in pairs:
        if is_update[target] and known[source] and not is_update[source] and labels.layer[event[source]] >= 0:
            used.setdefault(root(target), set()).add(int(labels.layer[event[source]]))
    codes = {name: code for code, name in enumerate(labels.layers)}
    layer = np.full(len(labels.layer), -1, np.int32)
    for record in np.flatnonzero(is_update[:-1]).tolist():
        name = _common(labels.layers[code] for code in used.get(root(record), ()))
        if name:
            layer[event[record]] = codes.setdefault(name, len(codes))
    inherited = inherit(host.parent, layer)
    return replace(labels, layer=np.where(labels.layer < 0, inherited, labels.layer), layers=tuple(codes))


def _common(paths: Iterable[str]) -> str:
    """Path of the innermost module that holds all of these."""
    rows = [path.split(".") for path in paths]
    alike = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*rows, strict=False))
    return ".".join(parts[0] for parts in alike)


def operator_columns(operators: Operators, num_tasks: int) -> dict[str, Any]:
    """Build the columns that only traces with recorded inputs have."""
    records = operators.records
    if not len(records):
        return {}
    rows = np.flatnonzero(operators.acts)
    tasks = operators.task[rows]
    columns: dict[str, Any] = {}
    for column, name in _TEXTS.items():
        if (codes := getattr(records, name)).any():
            spread = np.zeros(num_tasks, np.int32)
            spread[tasks] = codes[rows]
            columns[column] = Strings(spread, records.texts).compact()
    for name in _WORK:
        columns[name] = np.zeros(num_tasks, np.int64)
        columns[name][tasks] = getattr(records, name)[rows]
    if (records.node >= 0).any():
        columns["node"] = np.full(num_tasks, -1, np.int64)
        columns["node"][operators.task[operators.task >= 0]] = records.node[operators.task >= 0]
    if len(operators.part):
        columns["is_part"] = np.zeros(num_tasks, bool)
        columns["is_part"][operators.part] = True
    return columns
