"""Peak memory after a change.

In: a captured graph whose ``meta.memory`` says what one real step held, and notes of the form in which a what-if
runs its program. Out: the predicted peak. The program runs alone in its old and in its new form; the difference is
added to the real peak, separately for the passes and for the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from windtunnel.cost.rerun import Form, PeakNeed, ProgramPeak, UpdateForm, UpdatePeakNeed, price_needs
from windtunnel.errors import InputError, PriceError, WindtunnelError
from windtunnel.graph import Graph
from windtunnel.hardware import device
from windtunnel.simulate import MemoryCurve, Timeline
from windtunnel.whatifs.measured import require_program

__all__ = ["capacity_of", "change_peak", "note_form", "peak_of_capture", "peak_of_replay", "predict_peak_bytes"]


def note_form(graph: Graph, form: Form | None = None, update: UpdateForm | None = None) -> Graph:
    """Note in what form the program runs from now on; what does not change stays as an earlier what-if left it."""
    entries: dict[str, Any] = {}
    if form is not None:
        changed = {name: _plain(value) for name, value in asdict(form).items() if value != getattr(Form(), name)}
        entries["memory_form"] = {**(graph.meta.memory_form or {}), **changed}
    if update is not None:
        entries["memory_update"] = {**(graph.meta.memory_update or {}), **dict(update.options)}
    return graph.note(entries)


def peak_of_capture(graph: Graph) -> int | None:
    """Peak memory of the captured step in bytes; None if the capture did not measure it."""
    peak = graph.meta.memory.get("peak_bytes")
    return None if peak is None else int(peak)


def peak_of_replay(timeline: Timeline) -> int | None:
    """Largest memory in use by any one worker, or None where the graph has no memory columns."""
    curve = _fullest(timeline)
    return None if curve is None else curve.peak_bytes


def change_peak(seen_bytes: int, before: Timeline, after: Timeline) -> int:
    """The peak of a real step, changed as replays change; without memory columns, as it was.

    A replay frees what a task returns when its last reader ends, and so holds more than the real step did. What the
    step did not hold cannot be saved: savings are as large a fraction of the real peak as of the replayed one.
    """
    curves = _fullest(before), _fullest(after)
    if curves[0] is None or curves[1] is None:
        return seen_bytes
    base_bytes = curves[1].base_bytes - curves[0].base_bytes
    transient_bytes = curves[1].peak_bytes - curves[0].peak_bytes - base_bytes
    if transient_bytes < 0 and curves[0].peak_bytes > seen_bytes:
        held = [max(0, peak_bytes - curves[0].base_bytes) for peak_bytes in (seen_bytes, curves[0].peak_bytes)]
        transient_bytes = round(transient_bytes * held[0] / held[1])
    return max(0, seen_bytes + base_bytes + transient_bytes)


def _fullest(timeline: Timeline) -> MemoryCurve | None:
    """Memory of the worker that holds most, or None where the graph has no memory columns."""
    graph = timeline.graph
    if "output_bytes" not in graph.tasks:
        return None
    if graph.num_ranks == 1:
        return timeline.memory()
    ranks = np.unique(graph.tasks["rank"]).tolist()
    return max((timeline.memory(graph.select(rank=rank)) for rank in ranks), key=lambda curve: curve.peak_bytes)


def capacity_of(graph: Graph) -> int:
    """Memory of the device that a graph is priced for; 0 where it is priced for none of the catalog."""
    try:
        return device(graph.meta.priced_for).memory_bytes if graph.meta.priced_for else 0
    except InputError:  # this host, or a sheet that is no longer there
        return 0


def predict_peak_bytes(graph: Graph) -> int | None:
    """The predicted peak of a graph in which forms are noted; None where none are, or it cannot be known."""
    memory = graph.meta.memory
    form, update = graph.meta.memory_form, graph.meta.memory_update
    if not memory or (form is None and update is None):
        return None
    passes, stepping = int(memory["passes"]["peak_bytes"]), int(memory["update"]["peak_bytes"])
    if form is not None:
        changed = Form(**{name: _value(value) for name, value in form.items()})
        try:
            program_peaks = _price(PeakNeed(require_program(graph), changed))
        except PriceError:
            return None
        if program_peaks is None:
            return None
        before, after = program_peaks
        passes += after.peak_bytes - before.peak_bytes
        passes += round(_beside(memory["passes"], before) * (changed.batch_ratio - 1))
        stepping += after.input_bytes - before.input_bytes
    if update is not None:
        extra_bytes = _price(UpdatePeakNeed(list(graph.meta.optimizers), update))
        if extra_bytes is None:
            return None
        stepping += extra_bytes
    return max(passes, stepping)


def _price(need: PeakNeed | UpdatePeakNeed) -> Any:
    """None where it cannot be known."""
    result = price_needs([need])[need]
    return None if isinstance(result, WindtunnelError) else result


def _beside(passes: Mapping[str, Any], alone: ProgramPeak) -> int:
    """Bytes that the program's variables hold at the peak beyond what operators need; they grow with the batch.

    Weights and gradients are in both; the optimizers' state, and data at rest, grow with nothing.
    """
    held = passes["by_category"]
    seen: int = passes["peak_bytes"] - held["optimizer state"] - held["input"]
    return max(0, seen - (alone.peak_bytes - alone.input_bytes))


def _plain(value: Any) -> Any:
    """As a note holds it, before and after it is stored."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _value(value: Any) -> Any:
    """As a ``Form`` has it."""
    return tuple(_value(item) for item in value) if isinstance(value, list | tuple) else value
