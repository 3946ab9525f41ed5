"""A process that holds the original and forks for every candidate.

In: orders over its line. Out: an answer for each; a candidate can damage only its own process. Not here:
what a candidate is (``model``).
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from windtunnel.errors import InputError, WindtunnelError
from windtunnel.measure.sandbox import Limits, Lock, allow_time, run_in_fork
from windtunnel.measure.workers import Place
from windtunnel.systems.kernels.candidate_process import Origin, evaluate, golden
from windtunnel.systems.kernels.cases import Case
from windtunnel.systems.kernels.fuzz import BEYOND
from windtunnel.systems.kernels.gpu import Gpu
from windtunnel.systems.kernels.ir import Function

__all__ = ["Order", "Setup", "main"]


@dataclass(frozen=True, eq=False)
class Setup:
    """Configuration of the process."""

    function: Function
    raw: str
    cases: Sequence[Case]
    limits: Limits
    checks: Sequence[Case] = ()
    is_for_gpu: bool = False


@dataclass(frozen=True)
class Order:
    """Order to judge one candidate."""

    text: str
    tolerance: float
    num_pairs: int
    is_forced: bool = False


def main(process: Place) -> int:
    """Prepare the original, then answer until there are no orders."""
    # Without the drawn inputs that the original does not bear.
    kept = [case for case in process.config.checks if BEYOND not in case.name or _bears(process.config, case)]
    setup: Setup = replace(process.config, checks=kept)
    ending = run_in_fork(partial(_try_original, setup), setup.limits)
    if ending.kind != "done":
        process.tell(InputError(
            f"the original fails its own tests: {ending.kind}, {ending.detail}", where=setup.function.name,
            fix="the kernel must end, within its arrays, on every case",
        ))  # fmt: skip
        return 0
    answer = pickle.loads(ending.answer)
    process.tell(answer)
    if isinstance(answer, WindtunnelError):
        return 0
    origin = None if setup.is_for_gpu else _origin(setup)  # a process that opened a GPU cannot fork
    known: set[str] = set()
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, all that it shares with this process
    while True:
        try:
            order: Order = process.order()
        except EOFError:
            return 0
        process.tell(_answer(setup, origin, order, known))


def _bears(setup: Setup, case: Case) -> bool:
    ending = run_in_fork(partial(_try_original, replace(setup, cases=(), checks=(case,))), setup.limits)
    return ending.kind == "done" and isinstance(pickle.loads(ending.answer), str)


def _origin(setup: Setup) -> Origin:
    engine = Gpu() if setup.is_for_gpu else None
    return golden(setup.function, setup.raw, setup.cases, setup.checks, engine)


def _try_original(setup: Setup, _: Lock) -> bytes:
    """The original runs apart once before it runs in this process: its digest, or why it cannot."""
    try:
        return pickle.dumps(_origin(setup).digest)
    except WindtunnelError as error:
        return pickle.dumps(error)


def _answer(setup: Setup, origin: Origin | None, order: Order, known: set[str]) -> tuple[object, ...]:
    seen: set[str] = set() if order.is_forced else known

    def action(lock: Lock) -> bytes:
        if origin is None:  # the driver opens files; what runs on a device does not
            return evaluate(_origin(setup), order.text, seen, order.tolerance, order.num_pairs, allow_time)
        return evaluate(origin, order.text, seen, order.tolerance, order.num_pairs, lock)

    ending = run_in_fork(action, setup.limits)
    if ending.kind != "done":
        return (ending.kind, float("inf"), False, ending.detail, "", ())
    try:
        answer = pickle.loads(ending.answer)
    except Exception as error:
        return ("crash", float("inf"), False, f"its answer is damaged: {type(error).__name__}", "", ())
    if answer[0] in ("ok", "wrong") and answer[4]:
        known.add(answer[4])
    return tuple(answer)
