"""``windtunnel capture --dry-run``: a job of many ranks without hardware, kept as the graph of its distinct ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.cli.console import Progress, advise, show, stdout_to_stderr, suggest
from windtunnel.cli.options import whole_numbers
from windtunnel.units import format_size

if TYPE_CHECKING:
    from windtunnel.graph import Graph

__all__ = ["capture_dry_run"]

_SHOWN_LINES = 3


def capture_dry_run(
    script: Path,
    arguments: Sequence[str],
    path: Path,
    ranks_to_trace: str,
    *,
    force: bool,
    as_json: bool,
    **traced: Any,
) -> None:
    """Trace a distributed training script without its hardware; ``traced`` goes to :func:`dry_run`."""
    from windtunnel.graph import save
    from windtunnel.sources.dry.run import dry_run

    selected = whole_numbers(ranks_to_trace, "--ranks-to-trace")
    with Progress(f"tracing {script.name}") as progress, stdout_to_stderr():
        graph = dry_run(script, arguments, ranks_to_trace=selected, progress=progress, **traced)
    save(graph, path, overwrite=force)
    show(_document(graph, path), _lines(graph, path), as_json=as_json)
    unknown = list(graph.meta.distributed["values_read"])
    if unknown and not as_json:
        more = f" and {len(unknown) - _SHOWN_LINES} more lines" if len(unknown) > _SHOWN_LINES else ""
        advise(
            f"note: the script read values that were not computed; they count as 1: "
            f"{', '.join(unknown[:_SHOWN_LINES])}{more}"
        )
    suggest("windtunnel", "predict", path, "--on", "h100")


def _document(graph: Graph, path: Path) -> dict[str, Any]:
    counts = {"num_tasks": graph.num_tasks, "num_edges": graph.num_edges, "num_resources": graph.num_resources}
    messages = [dict(zip(("op", "group", "num", "bytes"), row, strict=True)) for row in _messages(graph)]
    return {
        "schema": "windtunnel.dry_run/1",
        "path": str(path),
        **counts,
        "messages": messages,
        "distributed": dict(graph.meta.distributed),
        "groups": [{"name": group.name, "num_ranks": len(group.ranks)} for group in graph.meta.groups],
    }


def _messages(graph: Graph) -> list[tuple[str, int, int, int]]:
    """Messages of one rank by operation and size of its group: how many, how many bytes."""
    from windtunnel.graph import Kind

    tasks, result = graph.tasks, dict[tuple[str, int], tuple[int, int]]()
    first = int(tasks["rank"].min(initial=0))
    ops = tasks.strings("op")
    for row in graph.select(kind=Kind.COMM).nonzero()[0].tolist():
        if tasks["rank"][row] == first:
            size = len(graph.meta.groups[int(tasks["group"][row])].ranks)
            count, size_bytes = result.get((ops.decode(row), size), (0, 0))
            result[ops.decode(row), size] = (count + 1, size_bytes + int(tasks["message_bytes"][row]))
    return [(op, size, count, size_bytes) for (op, size), (count, size_bytes) in result.items()]


def _lines(graph: Graph, path: Path) -> Iterator[str]:
    reported = graph.meta.distributed
    stands_for = ", ".join(f"rank {rank} for {count:,}" for rank, count in reported["stands_for"].items())
    yield f"{path}: {graph.num_tasks:,} tasks without times (nothing was run)"
    yield f"  {reported['world_size']:,} ranks: {stands_for}"
    yield f"  peak memory per rank {format_size(max(reported['peak_bytes'].values()))}"
    for op, size, count, size_bytes in _messages(graph):
        yield f"  {count:,} {op} among {size:,} ranks, {format_size(size_bytes)} in total"
