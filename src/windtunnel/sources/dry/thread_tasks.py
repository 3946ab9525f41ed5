"""What the program's thread does -> rows of tasks.

In: recorded calls, and the thread's stretches in order (``thread``). Out: which calls the host computes itself, and
``ThreadTasks``: all that is on the thread and launches nothing, with the row of every stretch. Not here: kernels and
edges (``build``), what all this takes (``cost.host_times``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windtunnel.graph import Kind, Phase
from windtunnel.graph.host_work import LOADED, MEMCPY, NON_BLOCKING
from windtunnel.sources.dry.recorder import Call, storages_in
from windtunnel.sources.dry.thread import ThreadCall
from windtunnel.sources.torch.build import LOADER
from windtunnel.sources.torch.loader import WAITING

__all__ = ["ThreadTasks", "blocks_thread", "calls_on_host", "tasks_of_thread"]

_MEMCPY = MEMCPY.partition(" (")[0]
_EVALUATE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True, slots=True)
class ThreadTasks:
    """Rows of the thread's tasks in order, and the columns of the H tasks that launch nothing.

    ``row_of_call`` has of a call that is not among them the row of the next one.
    """

    rows: list[int] = field(default_factory=list)
    row_of_call: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    written_bytes: list[int] = field(default_factory=list)


def is_copy(call: Call) -> bool:
    """Whether a call copies what lies on the host to the device."""
    return call.label.startswith(_MEMCPY)


def blocks_thread(call: Call) -> bool:
    """Whether the program goes on only when a copy is done."""
    return is_copy(call) and not call.label.endswith(NON_BLOCKING)


def calls_on_host(calls: Sequence[Call], thread: Sequence[ThreadCall], computes: Sequence[bool]) -> set[int]:
    """Calls that run on the host: copies and reads, and of those that compute what a loader makes or a copy reads."""
    result = {item.call for item in thread if item.is_loading and item.call >= 0}
    copied: set[int] = set()  # storages
    for number in range(len(calls) - 1, -1, -1):
        call = calls[number]
        if call.label or not copied.isdisjoint(storages_in(call.node["outputs"])):
            result.add(number)
            copied.update(storages_in(call.node["inputs"]) if is_copy(call) or not call.label else ())
    return {number for number in result if computes[number] or calls[number].label}


def tasks_of_thread(
    calls: Sequence[Call],
    thread: Sequence[ThreadCall],
    *,
    launches: Sequence[int],
    on_host: set[int],
    phases: Sequence[Phase],
    num_workers: int,
) -> ThreadTasks:
    """Rows of what the thread does; what leads to a call is of its phase and layer.

    Parameters
    ----------
    calls, thread : sequence
    launches : sequence of int
        Calls that launch something; their rows come first.
    on_host : set of int
        Calls that the host computes.
    phases : sequence of Phase
        Of the calls.
    num_workers : int
        Of the program's loaders: where there are any, the thread only takes what they made.
    """
    result = ThreadTasks()
    if not calls:
        return result
    numbers = np.array([item.call for item in thread])
    following = np.minimum.accumulate(np.where(numbers < 0, len(calls) - 1, numbers)[::-1])[::-1].tolist()
    row_of_launch = {number: row for row, number in enumerate(launches)}
    copies = [call for call in calls if is_copy(call)]
    num_loads = max(sum(item.name.startswith(LOADER) for item in thread), 1)
    for (name, number, is_loading), leads_to in zip(thread, following, strict=True):
        is_taken = bool(is_loading and num_workers)
        if is_taken and not name.startswith(LOADER):
            continue
        row = row_of_launch.get(number, 2 * len(launches) + len(result.names))
        result.rows.append(row)
        result.row_of_call.extend([row] * (number + 1 - len(result.row_of_call)))
        if number in row_of_launch:
            continue
        call = calls[number] if number in on_host else None
        label = name if call is None else call.label or name
        written = 0 if call is None else _output_bytes(call.node["outputs"])
        op = label.removeprefix(_EVALUATE)
        if is_taken:  # as of ``host_work.with_host_work``
            label, op = WAITING, f"{LOADED}{max(len(copies) // num_loads, 1)}"
            written = sum(_output_bytes(copy.node["outputs"]) for copy in copies) // num_loads
        result.names.append(label)
        result.ops.append(op)
        result.kinds.append(Kind.IO if name.startswith(LOADER) else Kind.COPY if call and is_copy(call) else Kind.HOST)
        result.phases.append(phases[leads_to])
        result.layers.append(calls[leads_to].layer)
        result.written_bytes.append(written)
    result.row_of_call.extend(result.rows[-1:] * (len(calls) - len(result.row_of_call)))
    return result


def _output_bytes(side: dict[str, Any]) -> int:
    return sum(value[3] * value[4] for value in side["values"] if isinstance(value, list) and len(value) == 6)
