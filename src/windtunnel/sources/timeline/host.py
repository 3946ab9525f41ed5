"""Host threads of a Kineto trace as leaf slices with operator, phase and layer (sources, Kineto).

In: a `Trace`, its roles and the calls that wait. Out: a `Host`: slices [S] in the order in which each thread runs
them, and what is known of the events [H] that they were cut from. Not here: edges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase
from windtunnel.sources.kineto.roles import Role, matching, phase_of
from windtunnel.sources.kineto.trace import MISSING, Trace, is_string
from windtunnel.sources.timeline.device import Device
from windtunnel.sources.timeline.slices import cut_slices, inherit, match_latest

__all__ = ["Host", "Labels", "cut_threads", "label_events"]

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """Events [H] by thread and time, and the slices [S] cut from them.

    ``row`` is the trace row of each event, ``parent`` its enclosing event or -1, ``first`` and ``last`` its slices.
    ``event`` is the event of each slice, ``is_return`` tells the empty slice that ends a waiting call. ``position``
    [N] leads from trace rows to events.
    """

    row: Int32s
    role: NDArray[np.uint8]
    parent: Int32s
    first: Int32s
    last: Int32s
    position: Int32s
    event: Int32s
    thread: Int32s
    start: Int64s
    end: Int64s
    is_return: NDArray[np.bool_]
    num_cut: int
    first_cut: int

    @property
    def num_slices(self) -> int:
        """Leaf slices of all threads."""
        return len(self.event)

    def without_times(self) -> Host:
        """The same without start and end, for when they were copied."""
        nothing = np.empty(0, np.int64)
        return replace(self, start=nothing, end=nothing)

    def times(self, device: Device) -> tuple[Int64s, Int64s]:
        """Measured start and end of every task: slices, then device tasks."""
        return np.concatenate([self.start, device.start]), np.concatenate([self.end, device.end])


def cut_threads(trace: Trace, role: NDArray[np.uint8], waiting_calls: Int64s) -> Host:
    """Cut the events of every thread into leaf slices."""
    is_host = (role >= Role.ANNOTATION) & (role <= Role.CALL)
    row = np.flatnonzero(is_host).astype(np.int32)
    row = row[np.lexsort((-trace.dur[row], trace.ts[row], trace.thread[row]))]
    kind = role[row]
    position = np.full(trace.num_rows, -1, np.int32)
    position[row] = np.arange(len(row), dtype=np.int32)
    returns = np.zeros(len(row), bool)
    returns[position[waiting_calls]] = True
    is_task = (kind == Role.OP) | (kind == Role.CALL)
    thread, start = trace.thread[row], trace.ts[row]
    event, begin, end, is_return, first, last, parent, num_cut, cut = cut_slices(
        thread, start, start + trace.dur[row], is_task, returns
    )
    first_cut = int(trace.index[row[cut]]) if num_cut else -1
    return Host(
        row, kind, parent, first, last, position, event, thread[event], begin, end, is_return, int(num_cut), first_cut
    )


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """What is known of each host event [H]; ``op`` codes the trace's strings, ``layer`` codes ``layers``; -1 none."""

    op: Int32s
    phase: Int32s
    layer: Int32s
    layers: tuple[str, ...]
    forward_of: Int32s  # event of the forward operator of a backward operator, -1 for none


def label_events(trace: Trace, host: Host) -> Labels:
    """Find operator, phase and layer of every host event."""
    is_op = host.role == Role.OP
    op = inherit(host.parent, np.where(is_op, trace.name[host.row], -1).astype(np.int32))
    own_phase = np.array([phase_of(text) for text in trace.strings], np.int32)[trace.name[host.row]]
    own_phase[host.role == Role.CALL] = -1
    phase = inherit(host.parent, own_phase)
    sequence = trace.argument("Sequence number")[host.row]
    has_sequence = is_op & (sequence != MISSING) & (sequence >= 0)
    # without gradients operators have no sequence numbers, but they run within modules
    phase[(has_sequence | (host.role == Role.MODULE)) & (phase < 0)] = Phase.FORWARD
    phase = inherit(host.parent, phase)
    forward_of = _forward_of(trace, host, sequence, has_sequence, phase == Phase.BACKWARD)
    layer, layers = _layers(trace, host)
    borrowed = (layer < 0) | (forward_of >= 0)
    own_layer = np.where(forward_of >= 0, layer[forward_of], -1)
    own_layer = np.where(borrowed & (own_layer >= 0), own_layer, layer).astype(np.int32)
    return Labels(op, phase, _inherit_layer(host, own_layer, forward_of), tuple(layers), forward_of)


def _inherit_layer(host: Host, layer: Int32s, forward_of: Int32s) -> Int32s:
    """Children of a backward operator take its layer."""
    source = inherit(host.parent, np.where(forward_of >= 0, np.arange(len(layer)), -1).astype(np.int32))
    return np.where(source >= 0, layer[source], layer).astype(np.int32)


def _forward_of(
    trace: Trace, host: Host, sequence: Int64s, has_sequence: NDArray[np.bool_], is_backward: NDArray[np.bool_]
) -> Int32s:
    """The forward operator of each outermost backward one: the latest before it with its sequence number."""
    ts = trace.ts[host.row]
    forward = np.flatnonzero(has_sequence & ~is_backward)
    forward = forward[np.lexsort((ts[forward], sequence[forward]))]
    above = np.where(host.parent >= 0, sequence[host.parent], MISSING)
    backward = np.flatnonzero(has_sequence & is_backward & (above != sequence))
    place = match_latest(sequence[forward], ts[forward], sequence[backward], ts[backward])
    forward_of = np.full(len(sequence), -1, np.int32)
    forward_of[backward[place >= 0]] = forward[place[place >= 0]]
    if not has_sequence.any():
        _pair_by_arrows(trace, host, forward_of)
    return forward_of


def _pair_by_arrows(trace: Trace, host: Host, forward_of: Int32s) -> None:
    """Pair by `fwdbwd` flow events: each end lies at the start of its operator."""
    rows, ids = trace.rare("flow id")
    operators = (
        {
            (int(trace.thread[row]), int(trace.ts[row])): event
            for event, row in enumerate(host.row)
            if host.role[event] == Role.OP
        }
        if len(rows)
        else {}
    )
    ends: dict[int, dict[int, int]] = {}
    for row, value in zip(rows.tolist(), ids.tolist(), strict=True):
        event = operators.get((int(trace.thread[row]), int(trace.ts[row])))
        if event is not None:
            ends.setdefault(value, {})[int(trace.letter[row])] = event
    for pair in ends.values():
        if len(pair) == 2:
            forward_of[pair[ord("f")]] = pair[ord("s")]


_NO_LAYER = re.compile(
    r"^(ProfilerStep|Optimizer\.|nccl:|gloo:|mpi:|ucc:|enumerate\(|DistributedDataParallel\.|wt:|Torch-Compiled)|"
    r"^[#\s]*(forward|backward|optimi[sz]er|zero_grad)[#\s]*$|^PyTorch Profiler"
)


def _layers(trace: Trace, host: Host) -> tuple[Int32s, list[str]]:
    """Layer of each event by the modules around it, else by the user's annotations around it; -1 for none."""
    layers: list[str] = []
    told_rows, told = trace.rare("Module Hierarchy")
    texts = {value: trace.text(value) for value in np.unique(told).tolist() if is_string(value)}
    if any(texts.values()):
        codes = {value: code for code, value in enumerate(value for value, text in texts.items() if text)}
        own = np.full(trace.num_rows, -1, np.int32)
        own[told_rows] = [codes.get(value, -1) for value in told.tolist()]
        return inherit(host.parent, own[host.row]), [texts[value] for value in codes]
    is_layer = host.role == Role.MODULE
    if not is_layer.any():
        is_layer = (host.role == Role.ANNOTATION) & ~matching(trace, _NO_LAYER.pattern)[trace.name[host.row]]
    own = np.full(len(host.row), -1, np.int32)
    nearest = inherit(host.parent, np.where(is_layer, np.arange(len(own)), -1).astype(np.int32))
    known: dict[tuple[int, str], int] = {}
    for event in np.flatnonzero(is_layer).tolist():
        parent = int(host.parent[event])
        above = int(own[nearest[parent]]) if parent >= 0 and nearest[parent] >= 0 else -1
        name = trace.strings[trace.name[host.row[event]]].removeprefix("nn.Module: ").strip("# ")
        if (above, name) not in known:
            known[above, name] = len(layers)
            layers.append(f"{layers[above]}.{name}" if above >= 0 else name)
        own[event] = known[above, name]
    return inherit(host.parent, own), layers
