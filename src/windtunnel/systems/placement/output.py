"""A placement as people read it: its proof, devices and moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windtunnel.cli.console import print_table, say, say_wrapped

if TYPE_CHECKING:
    from windtunnel.search.placement.throughput import Plan

__all__ = ["print_even", "print_moves", "print_plan"]


def print_plan(document: dict[str, Any], plan: Plan) -> None:
    """The value, its proof, and what every device does."""
    from windtunnel.units import format_duration, format_ratio, format_size

    value, bound = (format_duration(round(document[name])) for name in ("value_ns", "bound_ns"))
    proof = f"no {plan.searched} is below it"
    quality = proof if plan.is_optimal else f"at least {bound}: at most {format_ratio(plan.gap)} above the best"
    say_wrapped(f"{value} per sample by {plan.solver} in {plan.seconds:.2f} s; {quality}")
    if plan.note:
        say_wrapped(f"  {plan.note}")
    say()
    columns = {"load": ["load_ns"], "compute": ["compute_ns"], "sends": ["sent_ns"], "receives": ["received_ns"]}
    if (plan.replicas > 1).any():  # all of them side by side are too wide
        moved = columns.pop("sends") + columns.pop("receives")
        columns |= {"transfers": moved, "agrees": ["sync_ns"]}
    rows = []
    for index, item in enumerate(document["devices"]):
        name = f"{index} {item['kind']}" + (f" x {item['replicas']}" if item["replicas"] > 1 else "")
        times = [format_duration(round(sum(item[name] for name in names))) for names in columns.values()]
        rows.append([name, str(item["num_nodes"]), *times, format_size(round(item["memory_bytes"])), item["bound_by"]])
    head = ["device", "nodes", *columns, "memory", "bound"]
    print_table(head, rows, numbers=range(1, len(head) - 1), gives_way=0)


def print_even(document: dict[str, Any]) -> None:
    """Print the step of the even split."""
    from windtunnel.units import format_duration

    even = document.get("even")
    if not even:
        return
    ratio = f", {even['value_ns'] / document['value_ns']:.2f}x of the plan" if document["value_ns"] else ""
    note = f"; {even['note']}" if even["note"] else ""
    say()
    say_wrapped(f"even split: {format_duration(round(even['value_ns']))}{ratio}{note}")


def print_moves(document: dict[str, Any]) -> None:
    """Print the cost of moving one node."""
    from windtunnel.units import format_duration

    if not document.get("moves"):
        return
    say()
    say("cheapest moves of one node to a neighboring device:")
    rows = [
        [", ".join(item["nodes"][:3]), f"{item['source']} to {item['target']}",
         f"{'+' if item['change_ns'] >= 0 else ''}{format_duration(round(item['change_ns']))}"]
        for item in document["moves"]
    ]  # fmt: skip
    print_table(["node", "devices", "costs"], rows, numbers=(2,), gives_way=0)
