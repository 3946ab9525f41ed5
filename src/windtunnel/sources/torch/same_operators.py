"""What one richly profiled iteration knows of its operators, applied to the operators of other iterations.

In: the `Events` of a rich iteration and those of light ones, of one program. Out: the light events with the inputs, the
work, the layers, the lines, the calls and the allocations of the rich ones; the program, as a capture on the host keeps
it. Operators are matched by their order on threads of one role, iteration by iteration: a light profile holds no number
that a rich one repeats. Traces of others name no parameters: those that a forward pass reads and an optimizer's step
changes are numbered.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.sources.kineto.trace import COMPLETE, Trace
from windtunnel.sources.timeline.device import find_device
from windtunnel.sources.timeline.events import MISSING, Category, Events, MemoryRecords, OperatorRecords, Sparse
from windtunnel.sources.timeline.host import Labels, cut_threads, label_events
from windtunnel.sources.timeline.names import STEP, matching, thread_roles
from windtunnel.sources.timeline.operators import find_operators, label_updates
from windtunnel.sources.torch import profile
from windtunnel.sources.torch.annotate import PARAMETER, Discovery
from windtunnel.sources.torch.lines import without_lines
from windtunnel.sources.torch.ops import describe, is_tensor_record
from windtunnel.sources.torch.profile import plain
from windtunnel.sources.torch.program import keep_program
from windtunnel.sources.torch.timeline_points import match_in_order

__all__ = ["add_program", "find_parameters", "profile_events", "share_operators"]

# N rows of the light events, K matched rows
Int = NDArray[np.int64]
_APART = 2**50  # between the addresses of blocks of two iterations
_GRAPH_LAUNCH = r"^(cuda|hip|cu)GraphLaunch"  # belongs to no operator
_STEP, _BACKWARD = "Optimizer.step#", "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True)
class _Match:
    """Rows [K] of the light events, ascending, the rich row of each, and the iteration that it is in."""

    light: Int
    rich: Int
    iteration: Int


def share_operators(light: Events, rich: Events) -> tuple[Events, float]:
    """The light events with what the rich ones know; and the share of the light operators that were matched."""
    match, num_operators = _match_rows(light, rich)
    labels, position = _labels(rich)
    known = {name: _spread(match, getattr(labels, name), position) for name in ("layer", "line", "call")}
    shared = replace(
        light,
        layer=known["layer"],
        layers=labels.layers,
        frame=known["line"],
        lines=rich.lines,
        call=known["call"],
        repeated=match.light[np.isin(match.rich, rich.repeated)].astype(np.int32),
        operators=_share_records(match, rich.operators),
        memory=_share_memory(match, light, rich),
    )
    return shared, len(match.light) / max(num_operators, 1)


def _labels(rich: Events) -> tuple[Labels, Int]:
    """Labels of the host events of the rich iteration, and the event of each row."""
    host = cut_threads(rich, np.empty(0, np.int64))
    computes = np.zeros(host.num_slices, bool)
    operators = find_operators(rich, host, find_device(rich), computes)
    return label_updates(operators, host, label_events(rich, host)), host.position.astype(np.int64)


def _spread(match: _Match, codes: NDArray[np.int32], position: Int) -> Sparse:
    value = codes[position[match.rich]]
    return Sparse(match.light[value >= 0].astype(np.int32), value[value >= 0].astype(np.int64))


def _match_rows(light: Events, rich: Events) -> tuple[_Match, int]:
    theirs = _by_role(rich)
    pairs: list[tuple[int, int, int]] = []
    num_operators = 0
    for (iteration, role), rows in _by_role(light).items():
        num_operators += len(rows)
        other = theirs.get((0, role), [])
        found = match_in_order(_names(light, rows), _names(rich, other))
        if found is not None:
            pairs += [
                (row, other[index], iteration) for row, index in zip(rows, found.tolist(), strict=True) if index >= 0
            ]
    columns = np.array(sorted(pairs), np.int64).reshape(-1, 3).T
    return _Match(*columns), num_operators


def _names(events: Events, rows: list[int]) -> list[str]:
    return [events.names[code] for code in events.name[rows].tolist()]


def _by_role(events: Events) -> dict[tuple[int, str], list[int]]:
    """Operators by iteration and by the role of their thread, in the order of their beginning."""
    is_step = matching(events.names, STEP)[events.name] & (events.category == Category.ANNOTATION)
    steps = np.flatnonzero(is_step)
    steps = steps[np.argsort(events.start_ns[steps], kind="stable")]
    is_graph = matching(events.names, _GRAPH_LAUNCH)[events.name] & (events.category == Category.CALL)
    rows = np.flatnonzero((events.category == Category.OPERATOR) | is_graph)
    rows = rows[np.lexsort((-events.duration_ns[rows], events.start_ns[rows]))]
    iteration = np.searchsorted(events.start_ns[steps], events.start_ns[rows], side="right") - 1
    ends = events.start_ns[steps] + events.duration_ns[steps]
    inside = (iteration >= 0) & (events.start_ns[rows] < ends[np.maximum(iteration, 0)])
    roles = thread_roles(events)
    result: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, number in zip(rows[inside].tolist(), iteration[inside].tolist(), strict=True):
        result[number, roles[events.thread[row]]].append(row)
    return result


def _share_records(match: _Match, records: OperatorRecords) -> OperatorRecords:
    """Records of the matched rows; data flows within each iteration."""
    record = np.full(int(match.rich.max(initial=-1)) + 2, -1, np.int64)
    usable = records.row < len(record)
    record[records.row[usable]] = np.flatnonzero(usable)
    kept = np.flatnonzero(record[match.rich] >= 0)
    chosen, iteration = record[match.rich[kept]], match.iteration[kept]
    sources, targets, sizes = [], [], []
    for number in np.unique(iteration).tolist():
        index = np.full(len(records), -1, np.int64)
        local = np.flatnonzero(iteration == number)
        index[chosen[local]] = local
        source, target = index[records.source], index[records.target]
        both = (source >= 0) & (target >= 0)
        sources.append(source[both])
        targets.append(target[both])
        sizes.append(records.size_bytes[both])
    columns = ("schema", "shapes", "dtypes", "strides", "arguments", "flops", "bytes_read", "bytes_written")
    taken = {name: getattr(records, name)[chosen] for name in (*columns, "node", "computes")}
    empty = np.empty(0, np.int64)
    return OperatorRecords(
        row=match.light[kept].astype(np.int32),
        **taken,
        source=np.concatenate([empty, *sources]).astype(np.int32),
        target=np.concatenate([empty, *targets]).astype(np.int32),
        size_bytes=np.concatenate([empty, *sizes]),
        texts=records.texts,
    )


def _share_memory(match: _Match, light: Events, rich: Events) -> MemoryRecords:
    """Changes of memory at the same share of the time of the operator that ran, in every iteration."""
    memory = rich.memory
    if not len(memory.time_ns) or not len(match.rich):
        return light.memory
    columns: list[MemoryRecords] = []
    leftover = _blocks_of_previous_iteration(memory)
    for turn, number in enumerate(np.unique(match.iteration).tolist()):
        block = np.where((leftover != MISSING) & (turn > 0), leftover - _APART, memory.address) + turn * _APART
        local = np.flatnonzero(match.iteration == number)
        time_ns, thread = np.zeros(len(memory.time_ns), np.int64), np.full(len(memory.time_ns), -1, np.int32)
        for code in np.unique(memory.thread).tolist():
            own = local[rich.thread[match.rich[local]] == code]
            own = own[np.argsort(rich.start_ns[match.rich[own]], kind="stable")]
            changes = np.flatnonzero(memory.thread == code)
            index = np.searchsorted(rich.start_ns[match.rich[own]], memory.time_ns[changes], side="right") - 1
            changes, index = changes[index >= 0], index[index >= 0]
            theirs, ours = match.rich[own[index]], match.light[own[index]]
            share = (memory.time_ns[changes] - rich.start_ns[theirs]) / np.maximum(rich.duration_ns[theirs], 1)
            passed = np.minimum(share, 1.0) * light.duration_ns[ours]
            time_ns[changes], thread[changes] = light.start_ns[ours] + passed.astype(np.int64), light.thread[ours]
        kept = np.flatnonzero(thread >= 0)
        columns.append(
            MemoryRecords(
                time_ns[kept],
                thread[kept],
                memory.change_bytes[kept],
                memory.total_bytes[kept],
                block[kept],
                memory.on_device[kept],
            )
        )
    fields = MemoryRecords.__slots__
    return MemoryRecords(*(np.concatenate([getattr(part, name) for part in columns]) for name in fields))


def _blocks_of_previous_iteration(memory: MemoryRecords) -> Int:
    """Address of the block [M] that each record frees although no record allocated it, MISSING for the other records.

    An iteration frees what the one before left, such as gradients: blocks of the same sizes as those that it leaves.
    """
    order = np.argsort(memory.time_ns, kind="stable").tolist()
    alive: dict[int, int] = {}
    freed: list[int] = []
    for record in order:
        address, change = int(memory.address[record]), int(memory.change_bytes[record])
        if change < 0 and alive.pop(address, 0) == 0:
            freed.append(record)
        elif change > 0:
            alive[address] = change
    left: dict[int, list[int]] = defaultdict(list)
    for address, size in alive.items():
        left[size].append(address)
    result = np.full(len(memory.time_ns), MISSING, np.int64)
    for record in freed:
        if blocks := left[-int(memory.change_bytes[record])]:
            result[record] = blocks.pop(0)
    return result


def add_program(
    trace: Trace,
    events: Events,
    nodes: dict[int, dict[str, Any]],
    discovery: Discovery,
    operators: profile.Events | None = None,
) -> tuple[Events, dict[str, Any]]:
    """The events with the call that each operator belongs to, and the program of the first iteration."""
    recorded, row_of = profile_events(trace, nodes)
    program, call_of, repeated = keep_program(without_lines(recorded), discovery, operators)
    calls = sorted((row_of[record], call) for record, call in call_of.items() if record in row_of)
    columns = np.array(calls, np.int64).reshape(-1, 2).T
    call = Sparse(columns[0].astype(np.int32), columns[1])
    again = np.array(sorted(row_of[record] for record in repeated if record in row_of), np.int32)
    return replace(events, call=call, repeated=again), program


def find_parameters(nodes: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Marks that name the parameters of a trace of others, by numbers that no node has.

    A parameter is what a forward pass reads and an optimizer's step changes.
    """
    ordered = sorted(nodes.values(), key=lambda node: int(node["id"]))
    region: dict[int, str] = {}
    for node in ordered:
        own = next((mark for mark in (_STEP, _BACKWARD) if str(node["name"]).startswith(mark)), "")
        region[node["id"]] = own or region.get(node["ctrl_deps"], "")
    changed = {
        span.storage
        for node in ordered
        if region[node["id"]] == _STEP and node["schema"]
        for span in describe(node).mutates
    }
    found: dict[int, list[Any]] = {}
    views: set[int] = set()
    for node in ordered:
        if not region[node["id"]] and node["schema"]:
            for value in node["inputs"]["values"]:
                if is_tensor_record(value) and value[1] in changed and value[0] not in views:
                    found.setdefault(int(value[0]), value)
            results = {value[0] for value in node["outputs"]["values"] if is_tensor_record(value)}
            views |= results - found.keys()
    return {
        -1 - number: {
            "id": -1 - number,
            "name": f"{PARAMETER}parameter{number}",
            "ctrl_deps": -1 - number,
            "schema": "",
            "inputs": {"values": [value]},
        }
        for number, value in enumerate(found.values())
    }


def profile_events(trace: Trace, nodes: dict[int, dict[str, Any]]) -> tuple[profile.Events, dict[int, int]]:
    """Return operators and marks of a trace as a profile has them, and the row of each by its record-function id."""
    record_id = trace.argument("Record function id")
    rows = np.flatnonzero((record_id != MISSING) & (trace.letter == COMPLETE))
    rows = rows[np.lexsort((-trace.dur[rows], trace.ts[rows]))]
    sequence, forward = trace.argument("Sequence number"), trace.argument("Fwd thread id")
    names = [_iteration_name(plain(trace.strings[code])) for code in trace.name[rows].tolist()]
    recorded = profile.Events(
        names=names,
        start_ns=trace.ts[rows],
        end_ns=trace.ts[rows] + trace.dur[rows],
        thread=trace.thread[rows].astype(np.int64),
        sequence=np.where(sequence[rows] == MISSING, -1, sequence[rows]),
        forward_thread=np.maximum(forward[rows], 0),
        record_id=record_id[rows],
        nodes=nodes,
    )
    return recorded, dict(zip(record_id[rows].tolist(), rows.tolist(), strict=True))


def _iteration_name(name: str) -> str:
    """The mark of an iteration: that of torch.profiler stands for ours."""
    return profile.ITERATION if name.startswith("ProfilerStep#") else name
