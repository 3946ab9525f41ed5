"""Edited training steps really run, and what a search over them came to.

In: a workload. Out: the edits that keep loss and gradients, predicted from what each operator takes alone and flown in
a fresh process. Not here: drawing edits and choosing among them, which are those of every kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.hardware.host import usable_cores
from windtunnel.measure.sandbox import Limits
from windtunnel.measure.stats import Estimate, estimate_speedup
from windtunnel.measure.turns import quiet
from windtunnel.measure.workers import Workers
from windtunnel.systems.kernels.edits import Edit, Individual, apply, key, sort_edits
from windtunnel.systems.kernels.flow import is_target
from windtunnel.systems.kernels.ir import Function
from windtunnel.systems.kernels.model import Evaluation
from windtunnel.systems.kernels.search import Options, evolve
from windtunnel.systems.kernels.steps.model import Order, Setup, Step, predict_time_ratio, step_of

__all__ = ["OPERATORS", "StepResult", "evolve_step"]

OPERATORS = "crismp"
_SEEDS, _UNSEEN = (0, 1), (0, 5, 6, 7)
_PAIRS, _PAIRS_LAST = 7, 201
_MAX_JUDGED = 6


@dataclass(frozen=True)
class StepResult:
    """Result of a search over a training step.

    Attributes
    ----------
    name : str
    edits : frozenset
        Minimized; empty where nothing is surely faster.
    predicted : float
        Speed-up from what each operator takes alone.
    measured : Estimate
        Measured speedup with its 95 % interval.
    num_operators, num_left : int
        Operators that run before and after.
    words : tuple of str
        What each edit does.
    counts : dict
        What became of candidates.
    """

    name: str
    edits: Individual
    predicted: float
    measured: Estimate
    num_operators: int
    num_left: int
    words: tuple[str, ...]
    counts: dict[str, int]

    @property
    def error_ratio(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured.value - 1

    def json(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        return {
            "schema": "windtunnel.evolve-step/1", "step": self.name, "edits": [[list(p) for p in item] for item in
            sort_edits(self.edits)], "predicted": self.predicted, "measured": self.measured.value,
            "measured_low": self.measured.low, "measured_high": self.measured.high, "error_ratio": self.error_ratio,
            "num_operators": self.num_operators, "num_left": self.num_left, "words": list(self.words),
            "counts": self.counts,
        }  # fmt: skip


class _StepBench:
    """Processes that run edited steps. Use as a context manager."""

    def __init__(self, setup: Setup, tolerance: float, num_workers: int) -> None:
        self._setup, self._tolerance = setup, tolerance
        self._cores = usable_cores()[:num_workers]
        self._workers: list[Workers] = []
        self._ends = contextlib.ExitStack()
        self._known: dict[str, Evaluation] = {}
        self.counts: dict[str, int] = {}
        self.function: Function
        self.costs_ns: dict[str, float] = {}

    def __enter__(self) -> _StepBench:
        with contextlib.ExitStack() as stack:
            self._workers = [
                stack.enter_context(
                    Workers("windtunnel.systems.kernels.steps.worker", self._setup, title="process that runs steps",
                            cores=[[core]], environment={"OMP_NUM_THREADS": "1"})
                )
                for core in self._cores
            ]  # fmt: skip
            for worker in self._workers:
                self.function, self.costs_ns = worker.receive()
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def evaluate(self, candidates: Sequence[Individual]) -> list[Evaluation]:
        """Return the evaluation of each candidate; those not seen before are run."""
        fresh = {key(candidate): candidate for candidate in candidates if key(candidate) not in self._known}
        result = self.again(list(fresh.values()), _PAIRS)
        for item in result:
            self.counts[item.kind] = self.counts.get(item.kind, 0) + 1
        self._known |= dict(zip(fresh, result, strict=True))
        return [self._known[key(candidate)] for candidate in candidates]

    def again(self, candidates: Sequence[Individual], num_pairs: int) -> list[Evaluation]:
        """Run each, whatever was seen before."""
        result: list[Evaluation] = []
        for index in range(0, len(candidates), len(self._workers)):
            group = candidates[index : index + len(self._workers)]
            sent = []
            for workers, edits in zip(self._workers, group, strict=False):
                try:
                    workers.send(Order(apply(self.function, edits), self._tolerance, num_pairs))
                    sent.append(True)
                except InputError:
                    sent.append(False)
            for workers, is_sent in zip(self._workers, sent, strict=False):
                result.append(_evaluation(workers.receive()) if is_sent else Evaluation("unverifiable"))
        return result

    def pairs(self, edits: Individual, num_pairs: int) -> tuple[Evaluation, Any]:
        """Return all timings of one candidate."""
        self._workers[0].send(Order(apply(self.function, edits), self._tolerance, num_pairs))
        answer = self._workers[0].receive()
        return _evaluation(answer), np.asarray(answer[4], dtype=np.float64)


def _evaluation(answer: tuple[Any, ...]) -> Evaluation:
    kind, error, is_exact, detail, pairs = answer
    if kind != "ok":
        return Evaluation(kind, error=error, detail=detail)
    before, after = quiet([pair[0] for pair in pairs]), quiet([pair[1] for pair in pairs])
    return Evaluation("ok", after / before, error, is_exact=is_exact, times_ns=((before, after),))


def evolve_step(
    name: str,
    options: Options,
    *,
    parameters: dict[str, Any] | None = None,
    tolerance: float = 0.0,
    folder: Path | None = None,
    progress: Progress | None = None,
    num_workers: int = 2,
) -> StepResult:
    """Search a workload's step for operators that loss and gradients do not need.

    Parameters
    ----------
    name : str
        Of a workload that says what its step is made of.
    options : Options
    parameters : dict, optional
        Parameters of the workload.
    tolerance : float
        The relative error of loss and gradients that is still right; 0 asks for the same bits.
    folder, progress, num_workers
        As for a kernel.

    Raises
    ------
    WorkerError
        The step cannot be traced.
    """
    given = parameters or {}
    step, _ = step_of(name, given)
    limits = Limits(wall_s=60.0, cpu_s=60.0, memory_bytes=8 << 30)
    with _StepBench(Setup(name, given, _SEEDS, limits), tolerance, num_workers) as bench:
        seeds = _skipping(bench)
        result = evolve(bench.function, bench.evaluate, options, folder=folder, progress=progress, seeds=seeds)
        costs, counts = bench.costs_ns, dict(bench.counts)
    # a step's operators gain less each than a few timings tell apart: the flight decides among what is predicted best
    ranked = sorted((item for item in result.population if item.edits),
                    key=lambda item: predict_time_ratio(step, apply(step.function, item.edits), costs))  # fmt: skip
    shortened = [_drop_useless_edits(step, item.edits, costs) for item in ranked[:_MAX_JUDGED]]
    nothing = StepResult(name, frozenset(), 1.0, Estimate(1.0, 1.0, 1.0), len(costs), len(costs), (), counts)
    with _StepBench(Setup(name, given, _UNSEEN, limits), tolerance, 1) as fresh:
        for edits in filter(None, shortened):
            outcome, pairs = fresh.pairs(edits, _PAIRS_LAST)
            if outcome.kind != "ok":
                continue
            measured = estimate_speedup(pairs[:, 0], pairs[:, 1], confidence=0.95)
            if measured.low > 1:
                changed = apply(step.function, edits)
                left = [uid for uid in step.list_needed_instructions(changed) if uid in costs]
                words = tuple(_words(step.nodes, edit) for edit in sort_edits(edits))
                return StepResult(name, edits, 1 / predict_time_ratio(step, changed, costs), measured, len(costs),
                                  len(left), words, counts)  # fmt: skip
    return nothing


def _skipping(bench: _StepBench) -> list[Individual]:
    """For each operator: let those who use its result use what it was made of; those that pass, and all together."""
    function = bench.function
    sources = {
        instruction.uid: operand.uid
        for instruction in function.instructions()
        for operand in instruction.operands
        if instruction.type and operand.type == instruction.type and is_target(instruction)
    }
    alone = [frozenset([_skip(function, uid, source)]) for uid, source in sources.items()]
    reported = dict(zip(sources, bench.evaluate(alone), strict=True))
    passing = {uid: source for uid, source in sources.items() if reported[uid].kind == "ok"}
    whole = frozenset(_skip(function, uid, _origin_of(uid, passing)) for uid in passing)
    return [whole, *(frozenset([_skip(function, uid, source)]) for uid, source in passing.items())] if passing else []


def _origin_of(uid: str, sources: dict[str, str]) -> str:
    """Return the original source of a value behind all skipped operators."""
    while uid in sources:
        uid = sources[uid]
    return uid


def _skip(function: Function, uid: str, source: str) -> Edit:
    uses = [
        ("-p", f"{user.uid}.OP{slot},{source}")
        for user in function.instructions()
        for slot, value in enumerate(user.operands)
        if value.uid == uid
    ]
    return (("-c", uid), *uses)


def _drop_useless_edits(step: Step, edits: Individual, costs: dict[str, float]) -> Individual:
    """Without the edits that take no operator away."""
    kept = edits
    best = predict_time_ratio(step, apply(step.function, kept), costs)
    for edit in sort_edits(edits):
        try:
            ratio = predict_time_ratio(step, apply(step.function, kept - {edit}), costs)
        except InputError:
            continue
        if ratio <= best:
            kept, best = kept - {edit}, ratio
    return kept


def _words(nodes: dict[str, Any], edit: tuple[tuple[str, str], ...]) -> str:
    """An edit with names of operators in place of numbers."""
    verbs = {"-c": "drops", "-i": "does once more", "-m": "moves", "-r": "copies in place of another",
             "-s": "exchanges", "-p": "gives another operand to"}  # fmt: skip
    op, text = edit[0]
    names = [str(nodes[part.split(".")[0]].target) for part in text.split(",") if part.split(".")[0] in nodes]
    return f"{verbs[op]} {', '.join(names)} ({text})"
