"""A process that holds a training step and forks for every edited one.

In: orders over its line. Out: what became of each. Torch computes on one thread here, as what it forks has no others.
Not here: which edits (``kernels.search``).
"""

from __future__ import annotations

import gc
import math
import pickle
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from windtunnel.measure.pairs import take_pairs
from windtunnel.measure.sandbox import Lock, run_in_fork
from windtunnel.measure.turns import elapsed_ns, quiet
from windtunnel.measure.workers import Place
from windtunnel.systems.kernels.steps.model import Order, Setup, Step, inputs_of, step_of

__all__ = ["main"]

_ROUNDS = 9


@dataclass
class _State:
    step: Step
    batches: list[list[Any]]
    right: list[list[Any]]
    original: Any


def main(process: Place) -> int:
    """Trace the step, then answer until there are no orders."""
    setup: Setup = process.config
    step, workload = step_of(setup.name, setup.parameters)
    batches = [[item.detach() for item in inputs_of(workload, seed)] for seed in setup.seeds]
    original = step.program(step.function)
    state = _State(step, batches, [_run(original, batch, 0) for batch in batches], original)
    process.tell((step.function, _costs(state)))
    gc.collect()
    gc.freeze()
    while True:
        try:
            order: Order = process.order()
        except EOFError:
            return 0
        ending = run_in_fork(partial(_evaluate_order, state, order), setup.limits)
        result = (ending.kind, math.inf, False, ending.detail, ())
        process.tell(pickle.loads(ending.answer) if ending.kind == "done" else result)


def _run(program: Any, batch: list[Any], seed: int) -> list[Any]:
    torch.manual_seed(seed)
    with torch.no_grad():
        result: list[Any] = program(*batch)
    return result


def _costs(state: _State) -> dict[str, float]:
    """Return the isolated duration of each operator in ns, a lower quartile of some runs."""
    used: dict[str, list[int]] = {}
    names = {node: uid for uid, node in state.step.nodes.items()}

    class Watch(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            kept: list[Any] = []
            spent = elapsed_ns(lambda: kept.append(torch.fx.Interpreter.run_node(self, node)))
            if node.op == "call_function":
                used.setdefault(names[node], []).append(spent)
            return kept[0]

    with torch.no_grad():
        for _ in range(_ROUNDS):
            Watch(state.step.module).run(*state.batches[0])
    return {uid: quiet(times) for uid, times in used.items()}


def _evaluate_order(state: _State, order: Order, lock: Lock) -> bytes:
    del lock  # operators of torch are known
    try:
        program = state.step.program(order.function)
        worst, is_exact = 0.0, True
        for batch, right in zip(state.batches, state.right, strict=True):
            result = _run(program, batch, 0)
            error, same = _difference(result, right)
            worst, is_exact = max(worst, error), is_exact and same
            if error > order.tolerance or (order.tolerance == 0 and not same):
                return pickle.dumps(("wrong", worst, False, "loss or gradients differ", ()))
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        return pickle.dumps(("crash", math.inf, False, f"{type(error).__name__}: {str(error)[:200]}", ()))
    batch = state.batches[0]
    pairs = take_pairs(partial(_run, state.original, batch, 0), partial(_run, program, batch, 0), lambda: None,
                       order.num_pairs)  # fmt: skip
    return pickle.dumps(("ok", worst, is_exact, "", pairs.tolist()))


def _difference(results: list[Any], right: list[Any]) -> tuple[float, bool]:
    """Largest relative error by norm, and whether all bits are the same."""
    worst, is_exact = 0.0, True
    for item, other in zip(results, right, strict=True):
        if item.shape != other.shape:
            return math.inf, False
        if torch.equal(item, other):
            continue
        is_exact = False
        error = float((item - other).norm() / other.norm().clamp_min(1e-30))
        worst = math.inf if math.isnan(error) else max(worst, error)
    return worst, is_exact
