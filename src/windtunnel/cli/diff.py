"""``windtunnel diff``: what changed between two graphs (room cli)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windtunnel.cli._console import Progress, advise, print_json, print_table, say
from windtunnel.cli._files import open_graph
from windtunnel.cli._options import GraphPath, Json, ReadLimitSize

__all__ = ["diff"]


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
    from windtunnel.simulate import replay
    from windtunnel.units import format_duration

    with Progress("replaying both", heartbeat=True):
        first, second = (open_graph(path, read_limit=read_limit) for path in (before, after))
        difference = replay(first).diff(replay(second), by=by)
        changes = [change for change in difference.table().to_pylist() if change["change_ns"]]
    if as_json:
        whole = {"before_ns": difference.before_ns, "after_ns": difference.after_ns, "by": by}
        print_json({"schema": "windtunnel.diff/1", **whole, "changes": changes})
    else:
        say(f"{difference}" if changes else f"{difference}, no difference")
        rows = [
            (
                f"waits ({change['label']})" if change["is_wait"] else change["label"],
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
    advise(f"next: windtunnel report {after}")
