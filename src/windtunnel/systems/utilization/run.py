"""Measurement of advice on shapes.

In: ``Advice``. Out: ``FlownAdvice``: the predicted and the measured gain, layer before against
layer after in turn, or the whole model at both batch sizes. Not here: what to advise (``search``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.cost.lookup import Stand
from windtunnel.errors import NotApplicableError
from windtunnel.measure.threads import threads
from windtunnel.measure.turns import quiet
from windtunnel.systems.utilization.inference import fly_nets
from windtunnel.systems.utilization.search import Advice

if TYPE_CHECKING:
    import torch

__all__ = ["FlownAdvice", "fly_advice"]

Clock = Callable[[], int]


@dataclass(frozen=True)
class FlownAdvice:
    """Measured advice.

    Parameters
    ----------
    advice : Advice
    measured_gain : float
        Work per second after, over before.
    before_ns, after_ns : float
        Lower quartiles.
    """

    advice: Advice
    measured_gain: float
    before_ns: float
    after_ns: float


def fly_advice(
    advice: Advice,
    model: torch.nn.Module | None = None,
    inputs: Sequence[Any] = (),
    *,
    num_threads: int = 1,
    rounds: int = 30,
    clock: Clock = time.perf_counter_ns,
) -> FlownAdvice:
    """Measure a layer, or the model, before and after the advised change.

    Parameters
    ----------
    advice : Advice
    model : Module, optional
        Needed where only the whole model shows the gain (``batch``).
    inputs : sequence
        Of the model, at the batch size as it is.
    num_threads, rounds : int
    clock : callable
        See :class:`windtunnel.cost.lookup.Stand`.

    Raises
    ------
    NotApplicableError
        The model is needed and not given, or a kernel cannot be run alone.
    """
    require("torch", extra="torch")
    if advice.before:
        before_ns, after_ns = _fly_layers(advice, num_threads, rounds, clock)
    elif model is not None:
        factor = round(advice.work_ratio)
        nets = {"before": (model, list(inputs)), "after": (model, list(_repeat_batch(inputs, factor)))}
        before, after = fly_nets(nets, {}, num_threads=num_threads, rounds=max(3, rounds // 4), clock=clock)
        before_ns, after_ns = before.measured_ns, after.measured_ns
    else:
        raise NotApplicableError(f"{advice.kind} shows only in the whole model", fix="give fly_advice the model")
    if not before_ns > 0 or not after_ns > 0:
        raise NotApplicableError("a kernel of this advice cannot be run alone", where=", ".join(advice.layers))
    return FlownAdvice(advice, advice.work_ratio * before_ns / after_ns, before_ns, after_ns)


def _fly_layers(advice: Advice, num_threads: int, rounds: int, clock: Clock) -> tuple[float, float]:
    with threads(num_threads):
        stand = Stand((*advice.before, *advice.after), clock)
        stand.rehearse()
        for _ in range(rounds):
            stand.round()
    table = {kernel: quiet(times) for kernel, times in stand.times.items()}
    # equal kernels stand once and run as often as they are named
    return sum(table[item] for item in advice.before), sum(table[item] for item in advice.after)


def _repeat_batch(inputs: Iterable[Any], factor: int) -> Iterable[Any]:
    import torch

    for value in inputs:
        yield torch.cat([value] * factor) if isinstance(value, torch.Tensor) and value.dim() else value
