"""Ask many what-ifs of one graph (room whatifs).

In: a graph and names. Out: answers, best first, with the reasons of those that do not apply. All changes that keep the
edges are replayed in batches. Not here: running anything (``flights``), intervals (``flights``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np

from windtunnel import registry
from windtunnel.errors import InputError, WindtunnelError
from windtunnel.graph import Graph, Table
from windtunnel.simulate import Timeline, replay, replay_many
from windtunnel.whatifs.answer import Answer, iteration_ns, takes_part
from windtunnel.whatifs.request import Request, Step, apply, parse_requests

__all__ = ["whatif"]

Progress = Callable[[str, int, int], None]
Outcome = tuple[Request, Graph | WindtunnelError]
ALL = "all"
_BATCH = 32  # changes replayed at once
_KEPT_TASKS = 200_000  # larger graphs are made again when they are looked at
# columns that no replay reads: changing them leaves a change a pure change of durations
_UNPLAYED = ("cost_source", "duration_ns", "duration_std_ns", "samples_ns", "name", "op", "flops")


def whatif(
    graph: Graph,
    names: str | Iterable[str | Request] = ALL,
    *,
    pairs: bool = False,
    progress: Progress | None = None,
) -> list[Answer]:
    """Predict what each change would buy.

    Parameters
    ----------
    graph : Graph
        As captured.
    names : str or several
        ``"all"``, or requests such as ``"amp"``, ``"data-parallel:num_ranks=8,link=nvlink4"``, ``"amp+channels-last"``.
    pairs : bool
        Also ask every two of them together, if they are of different families and both apply.
    progress : callable
        Called with (what, done, total).

    Returns
    -------
    list of Answer
        The fastest first; those that do not apply come last, each with its reason.

    Raises
    ------
    InputError
        A name or a parameter is not known, a value does not fit, or no task of the graph has a duration.
    """
    tell = progress or (lambda *_: None)
    requests = _all_requests() if names == ALL else parse_requests(names)
    baseline = replay(graph)
    if graph.num_tasks and not baseline.makespan_ns:
        raise InputError(
            "the graph takes no time, so nothing can make it faster",
            where=f"{graph.num_tasks:,} tasks of duration 0, source {graph.meta.get('source', 'unknown')}",
            fix="price its tasks first, or load an execution trace together with the Kineto trace of its run",
        )
    outcomes = list(_applied(graph, requests, tell))
    answers = _answered(baseline, outcomes)
    if pairs:
        singles = [(request, changed) for request, changed in outcomes if isinstance(changed, Graph)]
        answers += _answered(baseline, _applied_pairs(singles, tell))
    return _ranked(answers)


def _all_requests() -> list[Request]:
    return [Request((Step(name),)) for name in registry.all("whatif")]


def _attempt(graph: Graph, request: Request) -> Graph | WindtunnelError:
    try:
        return apply(graph, request)
    except WindtunnelError as error:
        return error


def _applied(graph: Graph, requests: Sequence[Request], tell: Progress) -> Iterator[Outcome]:
    for done, request in enumerate(requests):
        tell(f"editing {request}", done, len(requests))
        yield request, _attempt(graph, request)


def _applied_pairs(singles: Sequence[tuple[Request, Graph]], tell: Progress) -> Iterator[Outcome]:
    """Each two of different families, in the order in which both apply; those that never do are left out.

    The second is applied to what the first one left, so that nothing is edited, or measured, twice.
    """
    pairs = [pair for pair in combinations(singles, 2) if _families(pair[0][0]).isdisjoint(_families(pair[1][0]))]
    for done, pair in enumerate(pairs):
        tell(f"editing {pair[0][0]}+{pair[1][0]}", done, len(pairs))
        for (first, changed), (second, _) in (pair, pair[::-1]):
            outcome = _attempt(changed, second)
            if isinstance(outcome, Graph):
                yield Request(first.steps + second.steps), outcome
                break


def _families(request: Request) -> set[str]:
    return {registry.get("whatif", step.name).function.__module__ for step in request.steps}


def _answered(baseline: Timeline, outcomes: Iterable[Outcome]) -> list[Answer]:
    """Replay what was changed; what keeps the edges is gathered and replayed in batches."""
    answers, waiting = [], list[tuple[Request, Graph]]()
    for request, outcome in outcomes:
        if not isinstance(outcome, Graph):
            answers.append(Answer(request, baseline, reason=outcome.message, advice=outcome.fix))
        elif _keeps_order(baseline.graph, outcome):
            waiting.append((request, outcome))
        else:
            timeline = replay(outcome)
            time_ns = iteration_ns(timeline, baseline.graph.num_iterations)
            answers.append(_answer(baseline, request, outcome, time_ns, timeline))
        if len(waiting) == _BATCH:
            answers += _answered_batch(baseline, waiting)
            waiting = []
    return answers + _answered_batch(baseline, waiting)


def _answered_batch(baseline: Timeline, changes: Sequence[tuple[Request, Graph]]) -> list[Answer]:
    if not changes:
        return []
    graph = baseline.graph
    counted = takes_part(graph)
    durations_KT = np.stack([changed.duration_ns for _, changed in changes])
    replays = replay_many(graph, durations_KT, finishes=not counted.all())
    ends = replays.makespan_ns if replays.finish_ns is None else replays.finish_ns[:, counted].max(axis=1)
    times = (ends / max(graph.num_iterations, 1)).tolist()
    return [_answer(baseline, *change, time_ns) for change, time_ns in zip(changes, times, strict=True)]


def _answer(
    baseline: Timeline, request: Request, changed: Graph, time_ns: float, timeline: Timeline | None = None
) -> Answer:
    before, after = (float(graph.meta.get("samples_ratio", 1.0)) for graph in (baseline.graph, changed))
    answer = Answer(request, baseline, time_ns, after / before)
    return answer.keeping(changed, timeline) if changed.num_tasks <= _KEPT_TASKS else answer


def _keeps_order(graph: Graph, changed: Graph) -> bool:
    """Whether only durations (and what no replay reads) differ."""
    if changed.num_tasks != graph.num_tasks or changed.edges is not graph.edges:
        return False
    return changed.resources is graph.resources and _same_columns(graph.tasks, changed.tasks)


def _same_columns(before: Table, after: Table) -> bool:
    names = (set(before) | set(after)) - set(_UNPLAYED)
    return all(name in before and name in after and before[name] is after[name] for name in names)


def _ranked(answers: Iterable[Answer]) -> list[Answer]:
    return sorted(answers, key=lambda answer: (not answer.is_applicable, -_finite(answer.speedup), str(answer.request)))


def _finite(speedup: float) -> float:
    return 0.0 if np.isnan(speedup) else speedup
