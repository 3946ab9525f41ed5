"""``windtunnel diff``: what changed between two graphs (room cli)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windtunnel.cli._console import Progress, print_json, print_table, say, suggest
from windtunnel.cli._files import open_graph
from windtunnel.cli._options import GraphPath, Json, ReadLimitSize

__all__ = ["diff"]

_WHEN = ("before", "after")


def diff(
    before: GraphPath,
    after: Annotated[Path, typer.Argument(metavar="OTHER", help="The graph to compare with it.")],
    by: Annotated[str, typer.Option("--by", metavar="DIVISION", help="phase, kind, layer, op or source.")] = "op",
    top: Annotated[int, typer.Option(min=1, help="How many differences to list.")] = 15,
    read_limit: ReadLimitSize = "",
    as_json: Json = False,
) -> None:
    """Example: windtunnel diff before.wt after.wt

    Compare the replays of two graphs: the whole, and the parts that differ most.
    """
    from windtunnel.simulate import prediction_interval, replay
    from windtunnel.units import format_duration

    with Progress("replaying both", heartbeat=True):
        graphs = [open_graph(path, read_limit=read_limit) for path in (before, after)]
        difference = replay(graphs[0]).diff(replay(graphs[1]), by=by)
        intervals = [prediction_interval(graph) for graph in graphs]
        changes = [change for change in difference.table().to_pylist() if change["change_ns"]]
    if as_json:
        whole = {"before_ns": difference.before_ns, "after_ns": difference.after_ns, "by": by}
        spans = {f"{when}_interval_ns": [one.low_ns, one.high_ns] for when, one in zip(_WHEN, intervals, strict=True)}
        print_json({"schema": "windtunnel.diff/1", **whole, **spans, "changes": changes})
    else:
        say(f"{difference}" if changes else f"{difference}, no difference")
        for when, one in zip(_WHEN, intervals, strict=True):
            if len(one.makespans_ns) > 1:
                say(f"  {when}: {one}, {len(one.makespans_ns)} iterations")
        rows = [
            (
                f"waits ({change['label']})" if change["is_wait"] else change["label"] or f"(no {by})",
                format_duration(change["before_ns"]),
                format_duration(change["after_ns"]),
                f"{'+' if change['change_ns'] > 0 else ''}{format_duration(change['change_ns'])}",
            )
            for change in changes[:top]
        ]
        if rows:
            print_table((by, "before", "after", "change"), rows, numbers=(1, 2, 3))
        if len(changes) > top:
            say(f"and {len(changes) - top:,} smaller changes")
    suggest("windtunnel", "report", after)
