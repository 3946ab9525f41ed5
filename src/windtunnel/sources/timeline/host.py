"""Host threads of a timeline as leaf slices with operator, phase and layer (sources, timeline).

In: `Events` and the calls that wait. Out: a `Host`: slices [S] in the order in which each thread runs
them, and what is known of the events [H] that they were cut from. Not here: edges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph import Phase
from windtunnel.graph.kernel_classes import BACKENDS
from windtunnel.sources.timeline.device import Device
from windtunnel.sources.timeline.events import MISSING, Category, Events
from windtunnel.sources.timeline.lines import find_lines
from windtunnel.sources.timeline.names import INNER, matching, phase_of
from windtunnel.sources.timeline.slices import cut_slices, inherit, match_latest

__all__ = ["Host", "Labels", "cut_threads", "label_events"]

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
_ACCUMULATES = r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
_PATH = "wt:module:"  # the mark of a capture of ours, with the module's whole path
_NO_LAYER = re.compile(
    rf"^(ProfilerStep|Optimizer\.|({'|'.join(BACKENDS)}):|enumerate\(|DistributedDataParallel\.|wt:|Torch-Compiled)|"
    r"^[#\s]*(forward|backward|optimi[sz]er|zero_grad)[#\s]*$|^PyTorch Profiler"
)


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """Events [H] by thread and time, and the slices [S] cut from them.

    ``row`` is the row of each event, ``parent`` its enclosing event or -1, ``first`` and ``last`` its slices.
    ``event`` is the event of each slice, ``is_return`` tells the empty slice that ends a waiting call. ``position``
    [N] leads from rows to events.
    """

    row: Int32s
    category: NDArray[np.uint8]
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
        """A copy without start and end, for use after they were copied."""
        nothing = np.empty(0, np.int64)
        return replace(self, start=nothing, end=nothing)

    def times(self, device: Device) -> tuple[Int64s, Int64s]:
        """Measured start and end of every task: slices, then device tasks."""
        return np.concatenate([self.start, device.start]), np.concatenate([self.end, device.end])


def cut_threads(events: Events, waiting_calls: Int64s) -> Host:
    """Cut the events of every thread into leaf slices."""
    is_host = (events.category >= Category.ANNOTATION) & (events.category <= Category.CALL)
    row = np.flatnonzero(is_host).astype(np.int32)
    row = row[np.lexsort((-events.duration_ns[row], events.start_ns[row], events.thread[row]))]
    kind = events.category[row]
    position = np.full(events.num_rows, -1, np.int32)
    position[row] = np.arange(len(row), dtype=np.int32)
    returns = np.zeros(len(row), bool)
    returns[position[waiting_calls]] = True
    is_task = (kind == Category.OPERATOR) | (kind == Category.CALL)
    thread, start = events.thread[row], events.start_ns[row]
    event, begin, end, is_return, first, last, parent, num_cut, cut = cut_slices(
        thread, start, start + events.duration_ns[row], is_task, returns
    )
    first_cut = int(events.index[row[cut]]) if num_cut else -1
    return Host(
        row, kind, parent, first, last, position, event, thread[event], begin, end, is_return, int(num_cut), first_cut
    )


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """What is known of each host event [H]: codes of the events' names, of ``layers``, lines and calls; -1 none."""

    op: Int32s
    phase: Int32s
    layer: Int32s
    line: Int32s
    call: Int32s
    is_repeated: Int32s  # 1 of what a checkpoint runs again, else -1
    layers: tuple[str, ...]
    forward_of: Int32s  # event of the forward operator of a backward operator, -1 for none


def label_events(events: Events, host: Host) -> Labels:
    """Find operator, phase and layer of every host event."""
    is_op = host.category == Category.OPERATOR
    is_named = is_op & ~(matching(events.names, INNER)[events.name[host.row]] & (host.parent >= 0))
    op = inherit(host.parent, np.where(is_named, events.name[host.row], -1).astype(np.int32))
    own_phase = np.array([phase_of(text) for text in events.names], np.int32)[events.name[host.row]]
    own_phase[host.category == Category.CALL] = -1
    phase = inherit(host.parent, own_phase)
    sequence = events.sequence_number.column(events.num_rows)[host.row]
    has_sequence = is_op & (sequence != MISSING) & (sequence >= 0)
    # without gradients operators have no sequence numbers, but they run within modules
    phase[(has_sequence | (host.category == Category.MODULE)) & (phase < 0)] = Phase.FORWARD
    phase = inherit(host.parent, phase)
    forward_of = _forward_of(events, host, sequence, has_sequence, phase == Phase.BACKWARD)
    layer, layers = _layers(events, host)
    borrowed = (layer < 0) | (forward_of >= 0)
    own_layer = np.where(forward_of >= 0, layer[forward_of], -1)
    own_layer = np.where(borrowed & (own_layer >= 0), own_layer, layer).astype(np.int32)
    maker = _forward_or_previous(events, host, forward_of)
    line = find_lines(events, host.row, host.parent, maker)
    own_layer = np.where((own_layer < 0) & (maker >= 0), layer[maker], own_layer).astype(np.int32)
    call = np.full(events.num_rows, -1, np.int32)
    call[events.call.row] = events.call.value
    call = inherit(host.parent, call[host.row])
    repeated = np.full(events.num_rows, -1, np.int32)
    repeated[events.repeated] = 1
    repeated = inherit(host.parent, repeated[host.row])
    return Labels(op, phase, _inherit_layer(host, own_layer, maker), line, call, repeated, tuple(layers), forward_of)


def _forward_or_previous(events: Events, host: Host, forward_of: Int32s) -> Int32s:
    """The forward operator [H] whose backward runs; a gradient is accumulated right after the node that made it."""
    is_node = matching(events.names, _ACCUMULATES)[events.name[host.row]] & (forward_of < 0)
    latest = np.maximum.accumulate(np.where(forward_of >= 0, np.arange(len(forward_of)), -1))
    thread = events.thread[host.row]
    follows = is_node & (latest >= 0) & (thread == thread[latest])
    return np.where(follows, forward_of[latest], forward_of).astype(np.int32)


def _inherit_layer(host: Host, layer: Int32s, maker: Int32s) -> Int32s:
    """Children of a backward operator take its layer."""
    is_known = (maker >= 0) & (layer >= 0)
    source = inherit(host.parent, np.where(is_known, np.arange(len(layer)), -1).astype(np.int32))
    return np.where(source >= 0, layer[source], layer).astype(np.int32)


def _forward_of(
    events: Events, host: Host, sequence: Int64s, has_sequence: NDArray[np.bool_], is_backward: NDArray[np.bool_]
) -> Int32s:
    """The forward operator of each outermost backward one: the latest before it with its sequence number."""
    ts = events.start_ns[host.row]
    forward = np.flatnonzero(has_sequence & ~is_backward)
    forward = forward[np.lexsort((ts[forward], sequence[forward]))]
    above = np.where(host.parent >= 0, sequence[host.parent], MISSING)
    backward = np.flatnonzero(has_sequence & is_backward & (above != sequence))
    index = match_latest(sequence[forward], ts[forward], sequence[backward], ts[backward])
    forward_of = np.full(len(sequence), -1, np.int32)
    forward_of[backward[index >= 0]] = forward[index[index >= 0]]
    if not has_sequence.any():
        _pair_by_arrows(events, host, forward_of)
    return forward_of


def _pair_by_arrows(events: Events, host: Host, forward_of: Int32s) -> None:
    """Pair by arrows: each end lies at the start of its operator."""
    arrows = events.arrows
    operators = (
        {
            (int(events.thread[row]), int(events.start_ns[row])): event
            for event, row in enumerate(host.row)
            if host.category[event] == Category.OPERATOR
        }
        if len(arrows.id)
        else {}
    )
    ends: dict[int, dict[bool, int]] = {}
    columns = (arrows.thread, arrows.time_ns, arrows.id, arrows.is_head)
    for thread, time_ns, arrow, is_head in zip(*(column.tolist() for column in columns), strict=True):
        event = operators.get((thread, time_ns))
        if event is not None:
            ends.setdefault(arrow, {})[is_head] = event
    for pair in ends.values():
        if len(pair) == 2:
            forward_of[pair[True]] = pair[False]


def _layers(events: Events, host: Host) -> tuple[Int32s, list[str]]:
    """Layer of each event by the modules around it, else by the user's annotations around it; -1 for none."""
    if events.layers:
        reported = np.full(events.num_rows, -1, np.int32)
        reported[events.layer.row] = events.layer.value
        return inherit(host.parent, reported[host.row]), list(events.layers)
    layers: list[str] = []
    is_layer = host.category == Category.MODULE
    if not is_layer.any():
        is_no_layer = matching(events.names, _NO_LAYER.pattern)[events.name[host.row]]
        is_layer = (host.category == Category.ANNOTATION) & ~is_no_layer
    own = np.full(len(host.row), -1, np.int32)
    nearest = inherit(host.parent, np.where(is_layer, np.arange(len(own)), -1).astype(np.int32))
    known: dict[tuple[int, str], int] = {}
    for event in np.flatnonzero(is_layer).tolist():
        parent = int(host.parent[event])
        above = int(own[nearest[parent]]) if parent >= 0 and nearest[parent] >= 0 else -1
        mark = events.names[events.name[host.row[event]]]
        if mark.startswith(_PATH):
            above = -1
        name = mark.removeprefix(_PATH).removeprefix("nn.Module: ").strip("# ")
        if (above, name) not in known:
            known[above, name] = len(layers)
            layers.append(f"{layers[above]}.{name}" if above >= 0 else name)
        own[event] = known[above, name]
    return inherit(host.parent, own), layers
