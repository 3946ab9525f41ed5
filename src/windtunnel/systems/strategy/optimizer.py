"""Search of the fastest strategy of a data-parallel job: ``whatif --search``.

In: a captured graph of all ranks. Out: a ``Strategy``: what-ifs that together are predicted to be faster, and that can
be flown. Gradients are grouped on the chain first (one rank stands for all, and only what a group changes is played
again: the paper's coarsened view and partial replay); the whole graph is replayed for what the chain prefers, then with
each other change on top. Where memory is short, what saves it comes first. Not here: flying.

Source: Hu et al., dPRO, MLSys 2022, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from windtunnel.base.documents import json_text
from windtunnel.base.outputs import replacing
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.simulate import replay
from windtunnel.systems.strategy.model import Chain, groups_of
from windtunnel.systems.strategy.search import SEARCHES, Plan, Worth, worth_of
from windtunnel.units import format_size
from windtunnel.whatifs import Answer, Request, parse_request, whatif
from windtunnel.whatifs.buckets import Averaging, averaging_of

__all__ = ["EQUIVALENT", "LOSSY", "SAVES_MEMORY", "SCHEMA", "Strategy", "chain_of", "load_strategy", "optimize"]

SCHEMA = "windtunnel.strategy/1"
# the same training in another order of work
EQUIVALENT = ("foreach-optimizer", "fused-optimizer", "optimizer-in-backward", "compile-block", "channels-last")
# other numbers are sent
LOSSY = ("fp16-gradients", "powersgd")
SAVES_MEMORY = (
    "activation-checkpointing",
    *(f"gradient-accumulation:passes={passes}" for passes in (2, 4, 8)),
)
_WIDTH = 2
_MIN_GAIN = 0.005  # of a step, for which no change is made more


class Strategy(msgspec.Struct, frozen=True):
    """A strategy and its predicted effect.

    Attributes
    ----------
    request : str
        As ``whatif`` and ``verify`` take it; empty where nothing is better than what there is.
    speedup, baseline_ns, predicted_ns : float
    peak_bytes : int or None
        Of one rank.
    searches : mapping
        Of each search on the chain: messages, predicted ns on the chain, plans it asked for.
    num_replays : int
        Replays of the whole graph.
    others : tuple
        The next best, with their speed-ups.
    origin : mapping
        Which program this is about, as ``Meta.origin``.
    graph : str
        Where its capture lies.
    """

    request: str
    speedup: float
    baseline_ns: float
    predicted_ns: float
    peak_bytes: int | None = None
    searches: Mapping[str, Mapping[str, float]] = {}
    num_replays: int = 0
    others: tuple[tuple[str, float], ...] = ()
    origin: Mapping[str, Any] = {}
    graph: str = ""
    schema: str = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Return the strategy as plain JSON values."""
        return msgspec.structs.asdict(self)

    def save(self, path: str | Path) -> None:
        """Write the strategy as JSON, atomically."""
        with replacing(Path(path)) as scratch:
            scratch.write_text(json_text(self.to_dict(), indent=1) + "\n")


def load_strategy(path: str | Path) -> Strategy:
    """Read a strategy.

    Raises
    ------
    InputError
        The file is not there, is no strategy, or of another version.
    """
    try:
        result = msgspec.json.decode(Path(path).read_bytes(), type=Strategy)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}", fix="windtunnel whatif GRAPH --search writes one"
        ) from error
    except msgspec.DecodeError as error:
        raise InputError(
            f"this is no strategy: {error}", where=str(path), fix="windtunnel whatif GRAPH --search writes one"
        ) from (error)
    if result.schema != SCHEMA:
        raise InputError(f"this strategy is of version {result.schema!r}", where=str(path), fix=f"known: {SCHEMA}")
    return result


@dataclass
class _Asking:
    """Evaluates what-ifs of one graph, each once, and caches the answers."""

    graph: Graph
    options: Mapping[str, Any]
    known: dict[str, Answer] = field(default_factory=dict)

    def __call__(self, strings: Sequence[str]) -> list[Answer]:
        """Return the answers to valid, applicable requests; new requests are priced and replayed together."""
        requests = {str(item): item for item in map(_request, strings) if item is not None}
        new = [request for key, request in requests.items() if key not in self.known]
        if new:
            self.known |= {str(answer.request): answer for answer in whatif(self.graph, new, **self.options)}
        return [self.known[key] for key in requests if self.known[key].is_applicable]


def _request(text: str) -> Request | None:
    """Parse a combination of changes; None if two of them conflict."""
    try:
        return parse_request(text)
    except InputError:
        return None


def optimize(
    graph: Graph,
    *,
    lossy: bool = False,
    memory_bytes: int | None = None,
    budget: int = 2000,
    latency_ns: float | None = None,
    bandwidth_bytes_per_s: float | None = None,
    prices: str = "auto",
    database: Any = None,
    path: str = "",
    progress: Progress | None = None,
) -> Strategy:
    """Search the fastest strategy of a captured data-parallel job.

    Parameters
    ----------
    graph : Graph
        Of two or more ranks under DistributedDataParallel.
    lossy : bool
        Also send gradients in half precision or as factors, which changes what is trained.
    memory_bytes : int, optional
        What a rank may hold; where it is too little, what saves memory comes first, the fastest that fits.
    budget : int
        Plans that each search on the chain may ask for.
    latency_ns, bandwidth_bytes_per_s : float, optional
        Of messages of gradients; fitted to those that were captured by default.
    prices, database : optional
        As in :func:`windtunnel.whatif`.
    path : str
        Where the graph lies, for the strategy's file.
    progress : callable, optional

    Returns
    -------
    Strategy

    Raises
    ------
    NotApplicableError
        The graph averages no gradients, or nothing makes it fit.
    """
    averaging = averaging_of(graph, latency_ns, bandwidth_bytes_per_s)
    ask = _Asking(graph, {"prices": prices, "database": database, "progress": progress})
    chain = chain_of(graph, averaging)
    plans, searches = _plans(chain, budget)
    given = {"latency_ns": latency_ns, "bandwidth_bytes_per_s": bandwidth_bytes_per_s}
    link = "".join(f",{name}={value}" for name, value in given.items() if value is not None)
    buckets = [f"gradient-buckets:caps_bytes={caps}{link}" for caps in dict.fromkeys(_caps(plans, averaging))]
    base = _fitting(ask, memory_bytes)
    front = _best([base, *ask([_join_requests(base, bucket) for bucket in buckets])])
    result = _climb(ask, front, (*EQUIVALENT, *(LOSSY if lossy else ())), memory_bytes)
    baseline_ns = float(replay(graph).makespan_ns)
    ranked = [item for item in result if _worth(item) > 1]
    best = ranked[0] if ranked else base
    others = tuple((str(item.request), float(item.speedup)) for item in ranked[1:6])
    common: dict[str, Any] = {
        "searches": searches,
        "num_replays": len(ask.known),
        "others": others,
        "origin": dict(graph.meta.origin),
        "graph": path,
    }
    if best is None:
        return Strategy("", 1.0, baseline_ns, baseline_ns, **common)
    predicted_ns = float(best.predicted_ns)
    return Strategy(
        str(best.request), float(best.speedup), baseline_ns, predicted_ns, peak_bytes=best.peak_bytes, **common
    )


def chain_of(graph: Graph, averaging: Averaging) -> Chain:
    """Return the backward pass as a chain, with the last rank's gradient times and the cost of averaging."""
    finish_ns = replay(graph).finish_ns[averaging.ready].max(axis=0)
    ends = np.maximum.accumulate(finish_ns.astype(np.float64))
    return Chain(
        np.diff(ends, prepend=ends[:1]),
        averaging.size_bytes,
        lambda size_bytes, parts: parts * averaging.message.latency_ns + averaging.message.ns_per_byte * size_bytes,
        begin_ns=float(ends[0]),
    )


def _plans(chain: Chain, budget: int) -> tuple[list[Plan], dict[str, dict[str, float]]]:
    """Return the plan of each search on the chain, each with its own budget, and the common defaults."""
    plans, reported = [Plan.apart(chain.num_operators), Plan.together(chain.num_operators)], {}
    for name, search in SEARCHES.items():
        worth: Worth = worth_of(chain, budget)
        plan = search(chain, worth)
        plans.append(plan)
        reported[name] = {
            "num_messages": len(plan.gradients),
            "chain_ns": worth_of(chain)(plan),
            "num_asked": worth.num_asked,
        }
    return list(dict.fromkeys(plans)), reported


def _caps(plans: Sequence[Plan], averaging: Averaging) -> list[str]:
    """Express each plan as bucket caps: the bytes of a group close it; the last cap holds for all later buckets."""
    sizes, result = averaging.size_bytes, []
    for plan in plans:
        caps = [int(sizes[first : last + 1].sum()) for first, last in groups_of(plan.gradients, len(sizes))]
        while len(caps) > 1 and caps[-1] == caps[-2]:
            caps.pop()
        result.append("/".join(map(str, caps)))
    return result


def _join_requests(base: Answer | None, request: str) -> str:
    return request if base is None else f"{base.request}+{request}"


def _best(answers: Sequence[Answer | None]) -> list[Answer | None]:
    """Return the fastest few answers; None is the unchanged job."""
    return sorted(answers, key=_worth, reverse=True)[:_WIDTH]


def _worth(answer: Answer | None) -> float:
    """Return the speedup, minus the minimum gain that each change has to bring."""
    return 1.0 if answer is None else answer.speedup / (1 + _MIN_GAIN) ** len(answer.request.steps)


def _climb(ask: _Asking, front: list[Answer | None], moves: Sequence[str], memory_bytes: int | None) -> list[Answer]:
    """Add each move to the best few while one of them helps; return all evaluated answers, the fastest first."""
    seen: list[Answer | None] = list(front)
    while True:
        steps = [
            _join_requests(item, move)
            for item in front
            for move in moves
            if item is None or move not in str(item.request)
        ]
        result = [item for item in ask(steps) if _fits(item, memory_bytes)]
        better = _best([*front, *result])
        seen += result
        if better == front:
            distinct = {str(item.request): item for item in seen if item is not None}
            return sorted(distinct.values(), key=_worth, reverse=True)
        front = better


def _fits(answer: Answer, memory_bytes: int | None) -> bool:
    return memory_bytes is None or answer.peak_bytes is None or answer.peak_bytes <= memory_bytes


def _fitting(ask: _Asking, memory_bytes: int | None) -> Answer | None:
    """Return nothing if the job fits into memory, else the fastest change that makes it fit."""
    if memory_bytes is None:
        return None
    answers = ask(SAVES_MEMORY)
    peaks = [answer.baseline_peak_bytes for answer in answers if answer.baseline_peak_bytes is not None]
    if peaks and peaks[0] <= memory_bytes:
        return None
    fitting = [answer for answer in answers if answer.peak_bytes is not None and answer.peak_bytes <= memory_bytes]
    if not fitting:
        least = min((answer.peak_bytes for answer in answers if answer.peak_bytes is not None), default=None)
        reported = "its memory is not known" if least is None else f"the least that helps needs {format_size(least)}"
        raise NotApplicableError(
            f"nothing makes this job fit into {format_size(memory_bytes)}: {reported}",
            where=f"asked: {', '.join(SAVES_MEMORY)}",
            fix="give more memory, or a smaller batch",
        )
    return max(fitting, key=lambda answer: answer.speedup)
