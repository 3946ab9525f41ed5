"""``windtunnel whatif --search``: the fastest strategy of a data-parallel job; ``verify`` runs what it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import advise, show, suggest
from windtunnel.errors import InputError
from windtunnel.units import format_duration, parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.systems.strategy.optimizer import Strategy

__all__ = ["load", "search"]

_ENOUGH_SIZES = 4  # of messages, to fit what they take to their bytes


@registry.page("strategy-search", source="dPRO")
def search(
    graph: Graph,
    path: Path,
    *,
    captured: Path,
    lossy: bool,
    memory: str,
    max_plans: int,
    latency: str,
    bandwidth: str,
    prices: str,
    database: Any,
    progress: Any,
    as_json: bool,
) -> None:
    """Search the fastest strategy of a captured data-parallel job, write it to ``path`` and print it."""
    from windtunnel.systems.strategy.optimizer import optimize

    given = (
        parse_duration(latency) if latency else None,
        parse_rate(bandwidth) if bandwidth else None,
    )
    latency_ns, bandwidth_bytes_per_s = given if any(given) else _measure_averaging(graph, database, progress)
    result = optimize(
        graph,
        lossy=lossy,
        memory_bytes=parse_size(memory) if memory else None,
        budget=max_plans,
        latency_ns=latency_ns,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        prices=prices,
        database=database,
        path=str(captured.resolve()),
        progress=progress,
    )
    result.save(path)
    show(result.to_dict(), _lines(result), as_json=as_json)
    advise(f"wrote {path}")
    suggest("windtunnel", "verify", path)


@registry.page("strategy", source="dPRO")
def load(path: Path) -> tuple[str, Graph]:
    """Return the what-if request of a strategy and the capture that it was made from.

    Raises
    ------
    InputError
        The strategy changes nothing, or does not name its capture.
    """
    from windtunnel.graph import load as load_graph
    from windtunnel.systems.strategy.optimizer import load_strategy

    result = load_strategy(path)
    if not result.request:
        raise InputError("this strategy changes nothing", where=str(path), fix="choose one that does")
    if not result.graph:
        fix = "name the script, and give the request with --whatif"
        raise InputError("this strategy does not name its capture", where=str(path), fix=fix)
    return result.request, load_graph(result.graph)


def _measure_averaging(graph: Graph, database: Any, progress: Any) -> tuple[float | None, float | None]:
    """Measure latency and rate of averaging on the captured link if the job has few distinct message sizes."""
    from windtunnel.comm.links import averaging_rate, measure_link
    from windtunnel.sources.torch.launch import Ranks
    from windtunnel.whatifs.buckets import averaging_of

    ranks = Ranks.of(graph.meta.origin.get("ranks", {}))
    sizes = graph.tasks["message_bytes"][averaging_of(graph).messages[0]]
    if ranks.num_ranks < 2 or len(set(sizes.tolist())) >= _ENOUGH_SIZES:
        return None, None
    sweep = measure_link(
        ranks.num_ranks, ranks.bandwidth_bytes_per_s, ranks.latency_ns, database=database, progress=progress
    )
    return averaging_rate(sweep.fit, ranks.num_ranks)


def _lines(strategy: Strategy) -> Iterator[str | Table]:
    baseline, predicted = format_duration(strategy.baseline_ns), format_duration(strategy.predicted_ns)
    if strategy.request:
        yield f"{strategy.speedup:.2f}x, {baseline} to {predicted} per step: {strategy.request}"
    else:
        yield f"no strategy is predicted to be faster than the baseline: {baseline} per step"
    columns = {"search": str, "messages": "{:.0f}", "chain time": format_duration, "plans": "{:,.0f}"}
    names = ("num_messages", "chain_ns", "num_asked")
    yield Table(columns, [(name, *(found[key] for key in names)) for name, found in strategy.searches.items()])
    yield from (f"  {speedup:.2f}x {request}" for request, speedup in strategy.others)
    yield f"{strategy.num_replays} replays of the full graph"
