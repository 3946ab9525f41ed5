"""What a training loop does only now and then: validation, checkpoints, logging.

In: a script under ``StepHooks``, and the use of each of its iterations. Out: per kind how often it comes, and what it
costs. A call of ``eval()`` shows a validation, ``torch.save`` a checkpoint, ``print`` and ``logging`` a log, a training
loader at its end an epoch. Saving and logging are timed where they happen. A validation and what an epoch's end needs
cost what their iteration takes above its like without them: iterations are compared only under the same instrument.
Not here: measuring the step itself (``recorder``).
"""

from __future__ import annotations

import builtins
import functools
import itertools
import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from windtunnel.sources.torch.hooks import StepHooks, steps_per_epoch

__all__ = ["IrregularWatch"]

_VALIDATION, _CHECKPOINT, _LOGGING, _EPOCH = "validation", "checkpoint", "logging", "end of epoch"
_RARE = 0.5  # what comes in more of the iterations belongs to every step
_FEWEST = 2  # iterations without it that one with it is compared with


@dataclass
class _Iteration:
    """One iteration: its number, instrument and duration, and what was done in it, with the time where it was timed."""

    step: int
    instrument: str
    elapsed_ns: int
    spans_ns: dict[str, int] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        return not {_VALIDATION, _CHECKPOINT, _EPOCH} & set(self.spans_ns)


class IrregularWatch:
    """Notes what each iteration of a script does besides the step. Install before the script runs, remove after."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.iterations: list[_Iteration] = []
        self._clock = clock
        self._hooks: StepHooks | None = None
        self._spans: dict[str, int] = {}
        self._steps: dict[str, list[int]] = defaultdict(list)
        self._num_ended = 0
        self._begun_ns = 0
        self._depth = 0
        self._patched: list[tuple[Any, str, Any]] = []

    # --- what is seen ---------------------------------------------------------------------------------------

    def follow(self, hooks: StepHooks) -> None:
        """Count in the optimizer steps of this script."""
        self._hooks = hooks

    def install(self) -> None:
        """Begin to watch."""
        import torch

        self._patch(torch, "save", functools.partial(self._time_calls, _CHECKPOINT))
        self._patch(builtins, "print", functools.partial(self._time_calls, _LOGGING))
        self._patch(logging.Logger, "handle", functools.partial(self._time_calls, _LOGGING))
        self._patch(torch.nn.Module, "eval", self._mark_validation)

    def remove(self) -> None:
        """Stop watching."""
        for owner, name, original in reversed(self._patched):
            setattr(owner, name, original)
        self._patched = []

    def _patch(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        self._patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, wrapper(getattr(owner, name)))

    def _time_calls(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._depth or not self._is_home():
                return original(*args, **kwargs)
            self._depth += 1
            begun_ns = self._clock()
            try:
                return original(*args, **kwargs)
            finally:
                self._depth -= 1
                self._note(kind, self._clock() - begun_ns)

        return call

    def _mark_validation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def eval_(module: Any) -> Any:
            if self._is_home() and module.training:
                self._note(_VALIDATION, 0)
            return original(module)

        return eval_

    def _is_home(self) -> bool:
        return self._hooks is not None and self._hooks.is_home

    def _note(self, kind: str, elapsed_ns: int) -> None:
        assert self._hooks is not None
        self._spans[kind] = self._spans.get(kind, 0) + elapsed_ns
        steps = self._steps[kind]
        if not steps or steps[-1] != self._hooks.num_steps:
            steps.append(self._hooks.num_steps)

    # --- iteration by iteration -----------------------------------------------------------------------------

    def end(self, instrument: str) -> bool:
        """An iteration lies behind; returns whether it did something that most do not."""
        if self._hooks is not None and self._hooks.num_epochs_ended > self._num_ended:
            self._num_ended = self._hooks.num_epochs_ended
            self._note(_EPOCH, 0)
        spans, self._spans = self._spans, {}
        num_steps = self._hooks.num_steps if self._hooks is not None else 0
        if self._begun_ns:
            self.iterations.append(_Iteration(num_steps, instrument, self._clock() - self._begun_ns, spans))
        return any(self._is_rare(kind) for kind in spans if kind != _LOGGING)

    def begin(self) -> None:
        """The next iteration begins."""
        self._begun_ns = self._clock()

    def restart(self) -> None:
        """Drop the iterations so far: the loop has another form than they had."""
        self.iterations = []

    def _is_rare(self, kind: str) -> bool:
        num_with = sum(kind in iteration.spans_ns for iteration in self.iterations)
        return num_with < max(1.0, _RARE * len(self.iterations))

    # --- what it comes to -----------------------------------------------------------------------------------

    def as_meta(self) -> dict[str, Any]:
        """How often each kind comes and what it costs; empty where nothing but steps was seen."""
        costs: dict[str, list[float]] = defaultdict(list)
        for iteration in sorted(self.iterations, key=_disturbance):
            for kind, cost_ns in self._costs_ns(iteration).items():
                costs[kind].append(cost_ns)
        pattern = self._hooks.finder.pattern if self._hooks is not None else ()
        per_iteration = max(1, sum(token.kind == "step" for token in pattern))
        events = [
            {
                "kind": kind,
                "num_seen": len(costs[kind]),
                "every": _period(self._steps[kind], per_iteration),
                "cost_ns": int(statistics.median(costs[kind][: self._num_trusted(kind)])),
            }
            for kind in (_VALIDATION, _CHECKPOINT, _LOGGING, _EPOCH)
            if costs[kind] and self._is_rare(kind)
        ]
        if not events:
            return {}
        epoch = steps_per_epoch(self._hooks) if self._hooks is not None else None
        return {"num_iterations": len(self.iterations), "iterations_per_epoch": epoch, "events": events}

    def _num_trusted(self, kind: str) -> int:
        """Number of the least disturbed iterations with this kind determine its cost: all under the best instrument."""
        ranks = sorted(_disturbance(iteration) for iteration in self.iterations if kind in self._costs_ns(iteration))
        return ranks.count(ranks[0])

    def _costs_ns(self, iteration: _Iteration) -> dict[str, float]:
        """What each kind costs in an iteration; what is not timed takes what is left above a plain iteration."""
        spans = iteration.spans_ns
        costs = {kind: float(spans[kind]) for kind in (_CHECKPOINT, _LOGGING) if kind in spans}
        rest = next((kind for kind in (_VALIDATION, _EPOCH) if kind in spans), None)
        plain_ns = self._plain_ns(iteration.instrument)
        if rest is not None and plain_ns is not None:
            left_ns = iteration.elapsed_ns - plain_ns - sum(costs.values())
            unprofiled_ns = min(filter(None, map(self._plain_ns, {other.instrument for other in self.iterations})))
            costs[rest] = max(0.0, left_ns) * unprofiled_ns / plain_ns
        return costs

    def _plain_ns(self, instrument: str) -> float | None:
        """The usual duration of an iteration that does nothing else, under the same instrument."""
        plain = [
            iteration.elapsed_ns - iteration.spans_ns.get(_LOGGING, 0)
            for iteration in self.iterations
            if iteration.instrument == instrument and iteration.is_plain
        ]
        return statistics.median(plain) if len(plain) >= _FEWEST else None


def _disturbance(iteration: _Iteration) -> int:
    """How much an instrument slows what is not part of the step: bare, lightly profiled, anything else."""
    return {"bare": 0, "none": 0, "device": 0, "light": 1}.get(iteration.instrument, 2)


def _period(steps: list[int], per_iteration: int) -> int | None:
    """Iterations from one to the next: the usual distance; None where it was seen once."""
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    return max(1, round(statistics.median(gaps) / per_iteration)) if gaps else None
