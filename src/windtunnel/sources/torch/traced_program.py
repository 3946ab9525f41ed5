"""The program of an iteration whose operators lie in two traces of the profiler.

In: a Kineto trace and the nodes of an execution trace of the same run. Out: the call that each operator belongs to, and
the program, as a capture on the host keeps it. Traces of others name no parameters: those that a forward pass reads and
an optimizer's step changes are numbered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from windtunnel.sources.kineto.trace import COMPLETE, Trace
from windtunnel.sources.timeline.events import MISSING, Events, Sparse
from windtunnel.sources.torch import profile
from windtunnel.sources.torch.annotate import PARAMETER, Discovery
from windtunnel.sources.torch.labels import plain
from windtunnel.sources.torch.lines import without_lines
from windtunnel.sources.torch.ops import describe, is_tensor_record
from windtunnel.sources.torch.program import keep_program

__all__ = ["add_program", "find_parameters", "profile_events"]

_STEP, _BACKWARD = "Optimizer.step#", "autograd::engine::evaluate_function"


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
