"""Ask many what-ifs of one graph.

In: a graph and names. Out: answers, best first, with the reasons of those that do not apply. Each request is applied
step by step, each step one recorded edit. What all changes need is priced together, each need once; all changes that
keep the edges are replayed in batches. Not here: running anything (``cost`` prices, ``flights`` fly), intervals
(``flights``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from windtunnel import registry
from windtunnel.base.progress import Progress, Stages
from windtunnel.cost.rerun import Need, price_needs
from windtunnel.errors import AbsentDeviceError, InEffectError, InputError, NotApplicableError, WindtunnelError
from windtunnel.graph import Graph, Table
from windtunnel.measure import ProfileDatabase
from windtunnel.simulate import Timeline, replay
from windtunnel.simulate.iterations import iteration_ns, iterations_ns
from windtunnel.whatifs.answer import Answer, Status
from windtunnel.whatifs.insert_tasks import gpu_of_prices
from windtunnel.whatifs.limiter import Limiter
from windtunnel.whatifs.measured import MEASURE, PUBLISHED, Pricer, Unpriced, check_prices, price_change
from windtunnel.whatifs.placing import overlap_steps
from windtunnel.whatifs.request import Request, Step, parse_requests

__all__ = ["Database", "apply", "apply_steps", "call_whatif", "needs_of", "pricer_of", "whatif"]

Database = ProfileDatabase | str | None
Changed = tuple[Request, tuple[Graph, ...]]  # the graphs after each step
Outcome = tuple[Request, tuple[Graph, ...] | WindtunnelError]
ALL = "all"
_BATCH = 32  # changes replayed at once
_KEPT_TASKS = 200_000  # larger graphs are made again when they are looked at
# columns that no replay reads: changing them leaves a change a pure change of durations
_UNPLAYED = (
    "cost_source", "duration_ns", "duration_std_ns", "price_spread_ratio", "samples_ns", "name", "op", "flops"
)  # fmt: skip


def apply(
    graph: Graph,
    request: Request,
    *,
    prices: str = "auto",
    database: Database = None,
    budget_s: float | None = None,
    pricer: Pricer | None = None,
) -> Graph:
    """Do the steps of a request one after the other, and return the graph after the last.

    Parameters
    ----------
    graph : Graph
    request : Request
    prices : str
        ``auto``, ``measured`` or ``paper``; see :func:`windtunnel.whatif`.
    database : ProfileDatabase or path, optional
        The user's own by default.
    budget_s : float, optional
        Time to measure one need.
    pricer : callable, optional
        Who prices instead.

    Raises
    ------
    NotApplicableError
        A step has nothing to act on.
    PriceError
        What it needs cannot be priced.
    """
    return apply_steps(graph, request, check_prices(prices), pricer or pricer_of(database, budget_s))[-1]


def apply_steps(graph: Graph, request: Request, prices: str, pricer: Pricer) -> tuple[Graph, ...]:
    """The graphs after each step of a request; errors as of :func:`apply`."""
    graphs = [graph]
    for step in request.steps:
        change = call_whatif(graphs[-1], step)
        changed = price_change(change, prices, pricer, graphs[-1]) if isinstance(change, Unpriced) else change
        graphs.append(changed.as_one_edit(graphs[-1], step.name, step.parameters))
    return tuple(graphs[1:])


def call_whatif(graph: Graph, step: Step) -> Graph | Unpriced:
    """What a what-if makes of a graph: the changed one, or what it needs to make it.

    Raises
    ------
    NotApplicableError
        It has nothing to act on.
    """
    if not graph.num_tasks:
        raise NotApplicableError("the graph has no tasks", fix="capture at least one whole iteration")
    change: Graph | Unpriced = registry.get("whatif", step.name).function(graph, **step.parameters)
    chip = gpu_of_prices(graph)
    if chip is None or not isinstance(change, Unpriced) or change.finish is None:
        return change
    # What operators gain on this host says nothing of a GPU that is not here.
    refusal = AbsentDeviceError(
        f"the times of this graph are prices of {chip.name}, and what {step.name} gains there cannot be measured here",
        where=step.name,
        fix="run the changed script in capture --dry-run or --fake, and compare: windtunnel predict GRAPH --on ..."
        if change.published is None
        else "take published ratios (prices='paper'), or capture the step on that GPU and ask again",
    )
    if change.published is None:
        raise refusal
    return Unpriced.from_paper(change.published, refusal)


def needs_of(change: Graph | Unpriced, prices: str) -> tuple[Sequence[Need], bool]:
    """What must be priced for a change, and whether by measuring."""
    if not isinstance(change, Unpriced) or change.finish is None or change.way(prices) == PUBLISHED:
        return (), False
    return change.needs, change.way(prices) == MEASURE


def pricer_of(database: Database = None, budget_s: float | None = None, progress: Progress | None = None) -> Pricer:
    """A pricer that asks ``cost`` for each need once."""
    known: dict[tuple[Need, bool], Any] = {}

    def price(needs: Sequence[Need], is_run: bool) -> Mapping[Need, Any]:
        new = [need for need in needs if (need, is_run) not in known]
        if new:
            result = price_needs(new, database=database, budget_s=budget_s, is_run=is_run, progress=progress)
            known.update({(need, is_run): value for need, value in result.items()})
        return {need: known[need, is_run] for need in needs}

    return price


def whatif(
    graph: Graph,
    names: str | Iterable[str | Request] = ALL,
    *,
    pairs: bool = False,
    prices: str = "auto",
    database: Database = None,
    budget_s: float | None = None,
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
    prices : str
        Where durations come from that the graph does not hold. ``measured``: from the profile database, else the
        changed operators run here, the old form interleaved with the new one. ``paper``: ratios as published. ``auto``:
        measured where the graph knows its operators, published otherwise.
    database : ProfileDatabase or path, optional
        The user's own by default.
    budget_s : float, optional
        Time to measure one change of operators; 6 s by default.
    progress : callable
        Called with (what, percent done, 100).

    Returns
    -------
    list of Answer
        The fastest first; those that do not apply come last, each with its reason.

    Raises
    ------
    InputError
        A name or a parameter is not known, a value does not fit, or no task of the graph has a duration.
    """
    stages = Stages(progress)
    graph = overlap_steps(graph)
    requests = _all_requests() if names == ALL else parse_requests(names)
    baseline = replay(graph, again=True)
    edit = _Editor(check_prices(prices), pricer_of(database, budget_s, stages.stage(5, 85)), Limiter(baseline))
    if graph.num_tasks and not baseline.makespan_ns:
        raise InputError(
            "the graph takes no time, so nothing can make it faster",
            where=f"{graph.num_tasks:,} tasks of duration 0, source {graph.meta.source}",
            fix="price its tasks first, or load an execution trace together with the Kineto trace of its run",
        )
    #      price what all first steps need, together  ->  edit  ->  replay in batches  ->  rank
    # Measuring is by far the slowest part: needs are gathered over all requests, so that operators that
    # several changes share are run once.
    edit.price_first_steps(graph, requests, stages.stage(0, 5))
    outcomes = _apply_requests(graph, requests, edit, stages.stage(85, 90 if pairs else 100))
    if not pairs:
        return _rank_answers(_answer_outcomes(baseline, outcomes, edit))
    singles = list(outcomes)
    answers = _answer_outcomes(baseline, singles, edit)
    applicable = [(request, changed) for request, changed in singles if isinstance(changed, tuple)]
    combined = _apply_pairs(applicable, edit, stages.stage(90, 100))
    return _rank_answers(answers + _answer_outcomes(baseline, combined, edit))


def _all_requests() -> list[Request]:
    return [Request((Step(name),)) for name in registry.all("whatif")]


@dataclass(frozen=True)
class _Editor:
    """Edits with one choice of prices and one pricer, which measures nothing twice."""

    prices: str
    pricer: Pricer
    limiter: Limiter

    def attempt(self, graph: Graph, request: Request) -> tuple[Graph, ...] | WindtunnelError:
        """The graphs after each step, or why there are none."""
        try:
            return apply_steps(graph, request, self.prices, self.pricer)
        except WindtunnelError as error:
            return error

    def price_first_steps(self, graph: Graph, requests: Sequence[Request], tell: Progress) -> None:
        """Price what all requests need first, together; later steps need the graph that the first ones leave."""
        needs: dict[bool, list[Need]] = {True: [], False: []}
        for done, step in enumerate(dict.fromkeys(str(request.steps[0]) for request in requests)):
            tell(f"asking what {step} needs", done, len(requests))
            try:
                change = call_whatif(
                    graph, next(request.steps[0] for request in requests if str(request.steps[0]) == step)
                )
            except WindtunnelError:
                continue
            need, is_run = needs_of(change, self.prices)
            needs[is_run] += need
        for is_run, need in needs.items():
            self.pricer(need, is_run)


def _apply_requests(graph: Graph, requests: Sequence[Request], edit: _Editor, tell: Progress) -> Iterator[Outcome]:
    for done, request in enumerate(requests):
        tell(f"editing {request}", done, len(requests))
        yield request, edit.attempt(graph, request)


def _apply_pairs(singles: Sequence[Changed], edit: _Editor, tell: Progress) -> Iterator[Outcome]:
    """Each two of different families, in the order in which both apply; those that never do are left out.

    The second is applied to what the first one left, so that nothing is edited, or measured, twice.
    """
    pairs = [pair for pair in combinations(singles, 2) if _families(pair[0][0]).isdisjoint(_families(pair[1][0]))]
    for done, pair in enumerate(pairs):
        tell(f"editing {pair[0][0]}+{pair[1][0]}", done, len(pairs))
        for (first, changed), (second, _) in (pair, pair[::-1]):
            outcome = edit.attempt(changed[-1], second)
            if isinstance(outcome, tuple):
                yield Request(first.steps + second.steps), changed + outcome
                break


def _families(request: Request) -> set[str]:
    return {registry.get("whatif", step.name).function.__module__ for step in request.steps}


def _answer_outcomes(baseline: Timeline, outcomes: Iterable[Outcome], edit: _Editor) -> list[Answer]:
    """Replay what was changed; what keeps the edges is gathered and replayed in batches."""
    answers, waiting = [], list[Changed]()
    for request, outcome in outcomes:
        if isinstance(outcome, WindtunnelError):
            answers.append(_answer_refusal(baseline, request, outcome))
        # A change of durations alone keeps the order of tasks: up to 32 of them are replayed in one sweep over
        # the graph (K variants side by side). Changed edges need a replay of their own.
        elif _keeps_order(baseline.graph, outcome[-1]):
            waiting.append((request, outcome))
        else:
            timeline = replay(outcome[-1], like=baseline)
            time_ns = iteration_ns(timeline, baseline.graph.num_iterations)
            answers.append(_answer(baseline, edit, request, outcome, time_ns, timeline))
        if len(waiting) == _BATCH:
            answers += _answer_batch(baseline, edit, waiting)
            waiting = []
    return answers + _answer_batch(baseline, edit, waiting)


def _answer_batch(baseline: Timeline, edit: _Editor, changes: Sequence[Changed]) -> list[Answer]:
    if not changes:
        return []
    graph = baseline.graph
    durations_KT = np.stack([graphs[-1].duration_ns for _, graphs in changes])
    times = iterations_ns(graph, durations_KT, graph.num_iterations, baseline).tolist()
    return [_answer(baseline, edit, *change, time_ns) for change, time_ns in zip(changes, times, strict=True)]


def _answer(
    baseline: Timeline,
    edit: _Editor,
    request: Request,
    graphs: tuple[Graph, ...],
    time_ns: float,
    timeline: Timeline | None = None,
) -> Answer:
    changed = graphs[-1]
    before, after = (graph.meta.samples_ratio for graph in (baseline.graph, changed))
    answer = Answer(
        request,
        baseline,
        time_ns,
        after / before,
        price_spread_ratio=changed.meta.price_spread_ratio,
        price_waited_ratio=changed.meta.price_waited_ratio,
    )
    limits, violation = edit.limiter.check_answer(request.steps, graphs, time_ns)
    if violation:
        return replace(
            answer,
            predicted_ns=float("nan"),
            status=Status.IMPLAUSIBLE,
            reason=f"this answer breaks a physical limit, so windtunnel made a mistake: {violation}",
            advice="please report it, with the graph",
        )
    answer = replace(answer, limits=limits)
    if changed.num_tasks <= _KEPT_TASKS:
        return answer.keeping(changed, timeline)
    return replace(answer, remake=partial(apply, baseline.graph, request, prices=edit.prices, pricer=edit.pricer))


def _answer_refusal(baseline: Timeline, request: Request, error: WindtunnelError) -> Answer:
    """Nothing is predicted, and why."""
    about: dict[str, Any] = {"reason": error.message, "advice": error.fix}
    if isinstance(error, InEffectError):
        return Answer(request, baseline, status=Status.IN_EFFECT, reverse=error.reverse, **about)
    return Answer(request, baseline, status=Status.NOT_APPLICABLE, **about)


def _keeps_order(graph: Graph, changed: Graph) -> bool:
    """Whether only durations (and what no replay reads) differ."""
    if changed.num_tasks != graph.num_tasks or changed.edges is not graph.edges:
        return False
    # Identity, not equality: edits share what they leave alone, so that comparing is free.
    return changed.resources is graph.resources and _same_columns(graph.tasks, changed.tasks)


def _same_columns(before: Table, after: Table) -> bool:
    names = (set(before) | set(after)) - set(_UNPLAYED)
    return all(name in before and name in after and before[name] is after[name] for name in names)


def _rank_answers(answers: Iterable[Answer]) -> list[Answer]:
    return sorted(answers, key=lambda answer: (not answer.is_applicable, -_finite(answer.speedup), str(answer.request)))


def _finite(speedup: float) -> float:
    return 0.0 if np.isnan(speedup) else speedup
