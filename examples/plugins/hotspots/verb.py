"""``windtunnel hotspots``: the operators that take most of a step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from hotspots.model import find_hotspots
from windtunnel import registry
from windtunnel.cli.console import print_json, print_table
from windtunnel.cli.files import open_graph
from windtunnel.cli.options import Json
from windtunnel.units import format_duration


@registry.verb("hotspots", source="an example")
def hotspots(
    path: Annotated[Path, typer.Argument(metavar="GRAPH", help="A .wt folder or a trace.")],
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, help="Number of operators.")] = 10,
    as_json: Json = False,
) -> None:
    """Example: windtunnel hotspots train.wt

    Show the operators that take most of a step.
    """
    found = find_hotspots(open_graph(path), max_rows)
    if as_json:
        print_json({"schema": "hotspots/1", "operators": [dataclasses.asdict(hotspot) for hotspot in found]})
        return
    rows = [[item.operator, format_duration(item.duration_ns), str(item.num_tasks)] for item in found]
    print_table(["operator", "time", "calls"], rows, numbers=(1, 2))
