"""Columns that describe the tasks of a Kineto trace: collectives, kinds, phases, operators (sources, Kineto).

In: a `Trace`, its host slices and device tasks. Out: arrays over tasks: the S slices first, then the D device tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Kind, Phase, Strings
from windtunnel.graph.flops import sums_products
from windtunnel.graph.meta import ProcessGroup
from windtunnel.sources.kineto.roles import Role, collective_of, dtype_bytes, matching
from windtunnel.sources.kineto.trace import MISSING, Trace
from windtunnel.sources.timeline.device import Device
from windtunnel.sources.timeline.host import Host, Labels
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


def find_collectives(trace: Trace, host: Host, device: Device) -> Collectives:
    """Collectives by their arguments, by those of the operator that issued them, else by name."""
    table = [collective_of(text) for text in trace.strings]
    told_names = {value: collective_of(trace.text(value), is_collective=True) for value in _told_names(trace)}
    names = tuple(dict.fromkeys([*table, *told_names.values()]))
    codes = {name: code for code, name in enumerate(names)}
    is_named = np.array([bool(name) for name in table], bool)
    on_host = is_named & matching(trace, "^(gloo|mpi|ucc):")
    host_task = np.flatnonzero(on_host[trace.name[host.row[host.event]]])
    device_task = np.flatnonzero(is_named[trace.name[device.row]])
    row = np.concatenate([host.row[host.event[host_task]], device.row[device_task]])
    name = np.array([codes[text] for text in table], np.int32)[trace.name[row]]
    message_bytes, sequence = np.zeros(len(row), np.int64), np.full(len(row), -1, np.int64)
    group, groups = np.full(len(row), -1, np.int32), tuple[ProcessGroup, ...]()
    peer = group.copy()
    if told_names:
        source = _argument_rows(trace, host, device)[row]
        known = np.flatnonzero(source >= 0)
        at = source[known]
        size = np.maximum(trace.argument("In msg nelems")[at], trace.argument("Out msg nelems")[at])
        message_bytes[known] = np.maximum(size, 0) * dtype_bytes(trace, trace.argument("dtype")[at])
        name[known] = [codes[told_names[value]] for value in trace.argument("Collective name")[at].tolist()]
        sequence[known] = np.maximum(trace.argument("Seq")[at], -1)
        group_of, groups = _groups(trace)
        group[known] = group_of[at]
        is_send = name[known] == codes.get("send", -1)
        peer[known] = _peers(trace, at, is_send, group_of[at], groups)
    task = np.concatenate([host_task, host.num_slices + device_task])
    return Collectives(task, name, message_bytes, group, sequence, peer, names, groups)


def _told_names(trace: Trace) -> list[int]:
    values: list[int] = np.unique(trace.rare("Collective name")[1]).tolist()
    return values


def _argument_rows(trace: Trace, host: Host, device: Device) -> Int64s:
    """Row whose arguments describe each row [N]: its own, else those of the operator around it or around its launch."""
    source = np.full(trace.num_rows, -1, np.int64)
    told = trace.rare("Collective name")[0]
    own = np.full(trace.num_rows, -1, np.int32)
    own[told] = told
    source[host.row] = inherit(host.parent, own[host.row])
    launched = device.call >= 0
    source[device.row[launched]] = source[device.call[launched]]
    source[told] = told
    return source


def _groups(trace: Trace) -> tuple[NDArray[np.int32], tuple[ProcessGroup, ...]]:
    """Process group of each row that names one [N], and what the trace says of each."""
    names, ranks = trace.argument("Process Group Name"), trace.argument("Process Group Ranks")
    rows = np.flatnonzero((names != MISSING) | (ranks != MISSING))
    group = np.full(trace.num_rows, -1, np.int32)
    pairs, number = np.unique(np.stack([names[rows], ranks[rows]]), axis=1, return_inverse=True)
    group[rows] = number.reshape(-1)

    def text(value: int) -> str:
        return "" if value == MISSING else trace.text(value)

    return group, tuple(ProcessGroup.read(text(name), text(members)) for name, members in pairs.T.tolist())


def _peers(
    trace: Trace,
    at: Int64s,
    is_send: NDArray[np.bool_],
    group: NDArray[np.int32],
    groups: tuple[ProcessGroup, ...],
) -> list[int]:
    """The other rank of each message: profilers give its place in the group."""
    told = np.where(is_send, trace.argument("Dst Rank")[at], trace.argument("Src Rank")[at])
    found = []
    for place, number in zip(np.where((told >= 0) & (told < 2**31), told, -1).tolist(), group.tolist(), strict=True):
        members = groups[number].ranks if number >= 0 else ()
        found.append(members[place] if 0 <= place < len(members) else place)
    return found


def kinds(trace: Trace, host: Host, device: Device, collectives: Collectives) -> NDArray[np.int8]:
    """Kind of every task [T]. Without a device the leaves of the operators are the computation."""
    kind = np.full(host.num_slices + device.num_tasks, Kind.HOST, np.int8)
    own = kind[: host.num_slices]
    if not device.num_tasks:
        own[_computes(trace, host)[host.event]] = Kind.COMPUTE
    own[host.is_return] = Kind.SYNC
    copies = matching(trace, "(?i)memcpy|memset|^Copy")[trace.name[device.row]]
    copies |= matching(trace, "(?i)memcpy|memset")[trace.cat[device.row]]
    kind[host.num_slices :] = np.where(copies, Kind.COPY, Kind.COMPUTE)
    kind[collectives.task] = Kind.COMM
    return kind


def _computes(trace: Trace, host: Host) -> NDArray[np.bool_]:
    """Operators that compute themselves [E]: those that call none that does, and products whose calls make none."""
    is_op = host.role == Role.OP
    name = trace.name[host.row]
    is_form = is_op & matching(trace, _FORM)[name]
    sums = is_op & np.array([sums_products(text) for text in trace.strings], dtype=bool)[name]
    calls, makes = np.zeros(len(host.row), bool), np.zeros(len(host.row), bool)
    inner = host.parent >= 0
    calls[host.parent[inner & ((is_op & ~is_form) | (host.role == Role.CALL))]] = True
    makes[host.parent[inner & sums]] = True
    computes: NDArray[np.bool_] = is_op & ~is_form & (~calls | (sums & ~makes))
    return computes


def phases(host: Host, labels: Labels) -> NDArray[np.int8]:
    """Phase of each slice [S]; what lies between two slices of one phase on a thread belongs to it."""
    phase = labels.phase.astype(np.int8)[host.event]
    fill_between(host.thread, phase, int(Phase.OTHER))
    return phase


def op_column(trace: Trace, host: Host, device: Device, labels: Labels, collectives: Collectives) -> Strings:
    """Operator of every task [T]: that of the slice or of the launch; of a collective its name."""
    base = len(trace.strings)
    code = np.zeros(host.num_slices + device.num_tasks, np.int32)
    code[: host.num_slices] = np.maximum(labels.op[host.event], 0)
    launched = np.flatnonzero(device.call >= 0)
    code[host.num_slices + launched] = np.maximum(labels.op[host.position[device.call[launched]]], 0)
    code[collectives.task] = base + collectives.name
    return encode(code, (*trace.strings, *collectives.names))


def encode(codes: NDArray[np.integer], values: tuple[str, ...]) -> Strings:
    """A text column with only the values that it uses, equal ones merged."""
    used = np.flatnonzero(np.bincount(codes, minlength=len(values))).tolist()
    index: dict[str, int] = {}
    table = np.zeros(len(values), np.int32)
    for code in used:
        table[code] = index.setdefault(values[code], len(index))
    return Strings(table[codes], tuple(index))
