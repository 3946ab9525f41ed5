"""``windtunnel hotspots``: the operators that take most of a step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from hotspots.model import find_hotspots
from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import show
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
    document = {"schema": "hotspots/1", "operators": [dataclasses.asdict(hotspot) for hotspot in found]}
    rows = [(hotspot.operator, hotspot.duration_ns, hotspot.num_tasks) for hotspot in found]
    table = Table({"operator": str, "time": format_duration, "calls": "{}"}, rows)
    show(document, [table], as_json=as_json)
