"""A placement as people read it: its proof, devices and moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from windtunnel.base.tables import Table
from windtunnel.units import format_duration, format_ratio, format_size

if TYPE_CHECKING:
    from windtunnel.search.placement.throughput import Plan

__all__ = ["lines_of_plan"]


def lines_of_plan(document: dict[str, Any], plan: Plan) -> Iterator[str | Table]:
    """The value, its proof, what every device does, and, where they were asked for, the even split and moves."""
    value, bound = (_time(document[name]) for name in ("value_ns", "bound_ns"))
    proof = f"no {plan.searched} is below it"
    quality = proof if plan.is_optimal else f"at least {bound}: at most {format_ratio(plan.gap)} above the best"
    yield f"{value} per sample by {plan.solver} in {plan.seconds:.2f} s; {quality}"
    if plan.note:
        yield f"  {plan.note}"
    yield ""
    times = {"load": ["load_ns"], "compute": ["compute_ns"], "sends": ["sent_ns"], "receives": ["received_ns"]}
    if (plan.replicas > 1).any():  # all of them side by side are too wide
        moved = times.pop("sends") + times.pop("receives")
        times |= {"transfers": moved, "agrees": ["sync_ns"]}
    rows = []
    for index, item in enumerate(document["devices"]):
        name = f"{index} {item['kind']}" + (f" x {item['replicas']}" if item["replicas"] > 1 else "")
        spent = [sum(item[key] for key in keys) for keys in times.values()]
        rows.append((name, item["num_nodes"], *spent, round(item["memory_bytes"]), item["bound_by"]))
    columns = {"device": str, "nodes": "{}", **dict.fromkeys(times, _time), "memory": format_size, "bound": str}
    yield Table(columns, rows)
    even, moves = document.get("even"), document.get("moves")
    if even:
        ratio = f", {even['value_ns'] / document['value_ns']:.2f}x of the plan" if document["value_ns"] else ""
        note = f"; {even['note']}" if even["note"] else ""
        yield ""
        yield f"even split: {_time(even['value_ns'])}{ratio}{note}"
    if moves:
        cells = [
            (", ".join(item["nodes"][:3]), f"{item['source']} to {item['target']}",
             f"{'+' if item['change_ns'] >= 0 else ''}{_time(item['change_ns'])}")
            for item in moves
        ]  # fmt: skip
        yield ""
        yield "cheapest moves of one node to a neighboring device:"
        yield Table({"node": str, "devices": str, "costs": "{}"}, cells)


def _time(time_ns: float) -> str:
    return format_duration(round(time_ns))
