"""``windtunnel optimize``: the fastest strategy of a data-parallel job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import Progress, advise, print_json, print_table, say, say_wrapped, suggest
from windtunnel.cli.files import database_of, derived, open_graph, require_free
from windtunnel.cli.options import Force, Fresh, GraphPath, Json, Output, PricesChoice

if TYPE_CHECKING:
    from windtunnel.graph import Graph
    from windtunnel.systems.strategy.optimizer import Strategy

__all__ = ["optimize"]

_ENOUGH_SIZES = 4  # of messages, to fit what they take to their bytes


@registry.verb("optimize", source="dPRO")
def optimize(
    graph: GraphPath,
    lossy: Annotated[bool, typer.Option("--lossy", help="Also compress gradients: other numbers are sent.")] = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="What a rank may hold, such as 16GiB.")] = "",
    budget: Annotated[int, typer.Option(min=1, metavar="N", help="Plans per search on the chain.")] = 2000,
    latency: Annotated[str, typer.Option(metavar="TIME", help="Of a message of gradients; fitted by default.")] = "",
    bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="Of gradients that are averaged; fitted by default.")
    ] = "",
    prices: PricesChoice = "auto",
    fresh: Fresh = False,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Example: windtunnel optimize train.wt, then windtunnel fly train.strategy.json

    Search which gradients travel together and what else makes a captured data-parallel job faster.

    The job is captured with windtunnel capture --nproc N.
    """
    from windtunnel.systems.strategy.optimizer import optimize as search
    from windtunnel.units import parse_duration, parse_rate, parse_size

    path = require_free(derived(graph, ".strategy.json", output), force=force)
    with Progress("searching", heartbeat=True) as progress:
        opened, database = open_graph(graph, progress=progress), database_of(fresh=fresh)
        given = (
            parse_duration(latency) if latency else None,
            parse_rate(bandwidth) if bandwidth else None,
        )
        latency_ns, bandwidth_bytes_per_s = given if any(given) else _measured(opened, database, progress)
        found = search(
            opened,
            lossy=lossy,
            memory_bytes=parse_size(memory) if memory else None,
            budget=budget,
            latency_ns=latency_ns,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
            prices=prices,
            database=database,
            path=str(graph.resolve()),
            progress=progress,
        )
    found.save(path)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    advise(f"written: {path}")
    suggest("windtunnel", "fly", path)


def _measured(graph: Graph, database: Any, progress: Any) -> tuple[float | None, float | None]:
    """Latency and rate of averaging, sent over the link that the job was captured on where its own messages are few."""
    from windtunnel.comm.run import averaging_rate, measure_link
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


def _print(found: Strategy) -> None:
    from windtunnel.units import format_duration

    if not found.request:
        say(f"nothing is predicted to be faster than the job as it is: {format_duration(found.baseline_ns)} a step")
    else:
        times = f"{format_duration(found.baseline_ns)} to {format_duration(found.predicted_ns)}"
        say_wrapped(f"{found.speedup:.2f}x, {times} a step: {found.request}")
    rows = [
        (name, f"{one['num_messages']:.0f}", format_duration(one["chain_ns"]), f"{one['num_asked']:,.0f}")
        for name, one in found.searches.items()
    ]
    print_table(("search", "messages", "on the chain", "plans"), rows, numbers=(1, 2, 3))
    for request, speedup in found.others:
        say_wrapped(f"  {speedup:.2f}x {request}")
    say(f"{found.num_replays} replays of the whole graph")
