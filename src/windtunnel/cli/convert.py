"""``windtunnel convert``: a graph in another form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, show, suggest
from windtunnel.cli.files import open_graph, require_free
from windtunnel.cli.options import AlignChoice, AllowMissing, Force, GraphPath, Json, KinetoPath, ReadLimitSize
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.graph import Graph

__all__ = ["convert"]


@registry.verb("convert", source="windtunnel")
def convert(
    graph: GraphPath,
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="Output: NAME.wt, or Chakra traces (NAME.et or .json, optionally .gz)."),
    ],
    align: AlignChoice = "auto",
    allow_missing: AllowMissing = False,
    force: Force = False,
    kineto: KinetoPath = None,
    read_limit: ReadLimitSize = "",
    as_json: Json = False,
) -> None:
    """Example: windtunnel convert train.wt train.et

    Convert a graph or a trace to a stored graph, or to one Chakra trace per rank.
    """
    with Progress(f"converting {graph.name}", heartbeat=True) as progress:
        opened = open_graph(
            graph,
            progress=progress,
            kineto=kineto,
            read_limit=read_limit,
            align=align,
            allow_missing=allow_missing,
            needs_times=False,
        )
        written = _write_graph(opened, target, force=force)
    counts = {"num_tasks": opened.num_tasks, "num_edges": opened.num_edges, "num_ranks": opened.num_ranks}
    document = {"schema": "windtunnel.conversion/1", "paths": [str(path) for path in written], **counts}
    more = "" if len(written) == 1 else f" and {len(written) - 1} more, one per rank"
    line = f"{written[0]}{more}: {opened.num_tasks:,} tasks, {opened.num_edges:,} edges"
    show(document, [line], as_json=as_json)
    suggest("windtunnel", "explain", "--table", "resources", written[0])


def _write_graph(graph: Graph, target: Path, *, force: bool) -> list[Path]:
    from windtunnel.graph import save
    from windtunnel.sources.chakra.writer import SUFFIXES, paths_of, save_chakra

    if target.suffix == ".wt":
        return [save(graph, require_free(target, force=force), overwrite=force)]
    if not target.name.endswith(SUFFIXES):
        raise InputError(f"{target.name} is no form to convert to", fix=f"let it end in .wt, {', '.join(SUFFIXES)}")
    for path in paths_of(graph, target).values():
        require_free(path, force=force)
    return save_chakra(graph, target)
