"""What each cause of lost time costs: how much sooner an iteration ends without it.

In: a graph and its replay. Out: losses, the largest first, each from a replay of the graph in which that one cause is
taken out whole, with the name of the what-if that takes out what one can. Not here: words for them (``reports``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.simulate import Timeline, replay
from windtunnel.simulate.iterations import iteration_ns
from windtunnel.whatifs.balance import balance_ranks
from windtunnel.whatifs.faster import faster_cpu, faster_link
from windtunnel.whatifs.insert_tasks import is_on_host
from windtunnel.whatifs.pauses import allocator_warmup

__all__ = ["Loss", "find_losses"]

Mask = NDArray[np.bool_]
GONE = 1e6  # times as fast
_MIN_SHARE = 0.005
_MAX_RANKS = 16  # asked one by one


@dataclass(frozen=True, slots=True)
class Loss:
    """One cause of lost time.

    Attributes
    ----------
    cause : str
        ``stragglers``, ``straggler``, ``communication``, ``communication and peers`` (of one rank of several, whose
        collectives hold its waits), ``late senders``, ``host``, ``loading``, ``copies`` or ``driver memory``.
    cost_ns : float
        Of an iteration, that a replay saves without the cause. Causes that hide behind each other cost less together
        or more, so costs do not add up.
    ratio : float
        Of the iteration.
    whatif : str
        What-if that takes out what one can, and applies to this graph; empty if there is none.
    rank : int
        Whose; -1 for no one's.
    """

    cause: str
    cost_ns: float
    ratio: float
    whatif: str
    rank: int = -1


def find_losses(graph: Graph, timeline: Timeline | None = None) -> tuple[Loss, ...]:
    """Replay the graph without each cause of lost time.

    Parameters
    ----------
    graph : Graph
    timeline : Timeline, optional
        Its replay, if there is one already.

    Returns
    -------
    tuple of Loss
        The largest first; those below half a percent of an iteration are left out.
    """
    timeline = replay(graph) if timeline is None else timeline
    before_ns = iteration_ns(timeline, graph.num_iterations)
    result = []
    for cause, whatifs, edit in _CAUSES:
        changed = _try_edit(edit, graph)
        if changed is not None:
            result.append(_loss(cause, _first_applicable(whatifs, graph), before_ns, changed))
    result += _stragglers(graph, before_ns)
    worth = [loss for loss in result if loss.ratio >= _MIN_SHARE]
    return tuple(sorted(worth, key=lambda loss: (-loss.cost_ns, loss.cause, loss.rank)))


def _first_applicable(names: Sequence[str], graph: Graph) -> str:
    for name in names:
        with suppress(WindtunnelError):
            registry.get("whatif", name).function(graph)
            return name
    return ""


def _try_edit(edit: Callable[[Graph], Graph], graph: Graph) -> Graph | None:
    try:
        return edit(graph)
    except NotApplicableError:
        return None


def _loss(cause: str, whatif: str, before_ns: float, changed: Graph, rank: int = -1) -> Loss:
    cost_ns = before_ns - iteration_ns(replay(changed), changed.num_iterations)
    return Loss(cause, cost_ns, cost_ns / before_ns if before_ns else 0.0, whatif, rank)


def _stragglers(graph: Graph, before_ns: float) -> Iterator[Loss]:
    """Each of the slowest ranks made as the median one."""
    if graph.num_ranks < 2:
        return
    for rank in _latest_ranks(graph)[:_MAX_RANKS]:
        changed = _try_edit(partial(balance_ranks, rank=rank), graph)
        if changed is not None:
            yield _loss("straggler", f"balance-ranks:rank={rank}", before_ns, changed, rank)


def _latest_ranks(graph: Graph) -> list[int]:
    """Ranks by when they began and how much they work, the latest first."""
    works = ~graph.select(kind=(Kind.COMM, Kind.SYNC, Kind.VIRTUAL))
    ranks, member = np.unique(graph.tasks["rank"][works], return_inverse=True)
    worked, began = np.zeros(len(ranks), np.int64), np.full(len(ranks), np.iinfo(np.int64).max // 2)
    np.add.at(worked, member, graph.duration_ns[works])
    np.minimum.at(began, member, graph.tasks.get("start_ns", np.zeros(graph.num_tasks, np.int64))[works])
    latest: list[int] = ranks[np.argsort(-(began + worked), kind="stable")].tolist()
    return latest


def _without_host(graph: Graph) -> Graph:
    """Launches cost nothing; where the host computes, that is the work itself."""
    if not graph.has_streams:
        raise NotApplicableError("no task runs on a device")
    return faster_cpu(graph, GONE)


def _without_communication(graph: Graph, *, many: bool) -> Graph:
    if (graph.num_ranks > 1) != many:
        raise NotApplicableError("the graph is of another number of ranks")
    return faster_link(graph, GONE)


def _without_loading(graph: Graph) -> Graph:
    """Batches are there when they are wanted."""
    loads = graph.select(phase=Phase.DATA) & is_on_host(graph)
    return _free(graph, loads, "nothing loads data")


def _without_copies(graph: Graph) -> Graph:
    return _free(graph, graph.select(kind=Kind.COPY), "nothing is copied")


def _free(graph: Graph, mask: Mask, why_not: str) -> Graph:
    if not graph.duration_ns[mask].any():
        raise NotApplicableError(why_not)
    nothing: Any = np.zeros(int(mask.sum()), np.int64)
    return graph.set_duration(mask, nothing, cost_source="taken out")


def _without_senders(graph: Graph) -> Graph:
    """Messages from one rank to another are there when they are wanted."""
    if graph.num_ranks < 2:
        raise NotApplicableError("there is one rank")
    src, dst, rank = graph.edges["src"], graph.edges["dst"], graph.tasks["rank"]
    meets = graph.tasks["kind"] == Kind.VIRTUAL
    late = (graph.edges["kind"] == EdgeKind.MESSAGE) & (rank[src] != rank[dst]) & ~meets[src] & ~meets[dst]
    if not late.any():
        raise NotApplicableError("no rank waits for a message of another")
    return graph.disconnect(late)


_CAUSES: tuple[tuple[str, tuple[str, ...], Callable[[Graph], Graph]], ...] = (
    ("stragglers", ("balance-ranks",), balance_ranks),
    ("communication", ("faster-link",), partial(_without_communication, many=True)),
    ("communication and peers", ("faster-link",), partial(_without_communication, many=False)),
    ("late senders", ("balance-ranks", "faster-link"), _without_senders),
    ("host", ("cuda-graphs", "faster-cpu"), _without_host),
    ("loading", ("loader-workers", "prefetch", "faster-cpu"), _without_loading),
    ("copies", ("pinned-memory",), _without_copies),
    ("driver memory", ("allocator-warmup",), allocator_warmup),
)
