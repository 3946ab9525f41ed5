"""CoCoNet's schedule in a job under DistributedDataParallel that knows nothing of it (flight of "sliced-optimizer").

In: a live program in each of several processes. Out: its models under DDP reduce-scatter their gradients, its
optimizer updates slices, and parameters are gathered in the background (``sliced``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights.proof import falls_if_any, proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, SuspendedCall, at_start, swap

if TYPE_CHECKING:
    import torch

    from windtunnel.systems.collectives.sliced import SlicedOptimizer

__all__ = ["sliced_optimizer"]

_KEPT = "models with sliced optimizers"


@registry.flight("sliced-optimizer", source="Jangda et al., CoCoNet, ASPLOS 2022")
@proven_by(rises("reduce-scatters"), falls_if_any("optimizer state bytes"))
@at_start
@contextmanager
def sliced_optimizer(program: LiveProgram, *, overlaps_forward: bool = True) -> Iterator[None]:
    """Reduce-scatter gradients, update a slice on each rank, and gather parameters during the next forward pass."""
    from torch.nn.parallel import DistributedDataParallel as Reducing

    from windtunnel.systems.collectives.sliced import SlicedOptimizer

    sliced: list[SlicedOptimizer] = program.kept.setdefault(_KEPT, [])
    original: Any = Reducing.__init__

    def add(model: Any) -> None:
        if sliced:
            raise FlightError(
                "the program has several models under DistributedDataParallel",
                where="sliced-optimizer",
                fix="ask for the prediction only",
            )
        sliced.append(SlicedOptimizer(model, overlaps_forward=overlaps_forward, counts=program.counts))

    @functools.wraps(original)
    def construct(model: Any, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **{**kwargs, "gradient_as_bucket_view": True})
        add(model)

    def step(optimizer: torch.optim.Optimizer, call: SuspendedCall) -> Any:
        if call.takes_function:
            raise FlightError("optimizer.step(closure) computes gradients itself", fix="ask for the prediction only")
        return sliced[0].step(optimizer, call) if sliced else call()

    def close() -> None:
        while sliced:
            sliced.pop().close()

    with ExitStack() as stack:
        stack.callback(close)
        stack.callback(swap(Reducing, "__init__", construct))
        for model in program.models:
            if isinstance(model, Reducing):
                add(model)
        _change_slices(stack, sliced)
        stack.enter_context(program.each_step(step))
        yield


def _change_slices(stack: ExitStack, sliced: list[SlicedOptimizer]) -> None:
    """Let torch's functions that change gradients change slices, or refuse; scripts that start now find them."""
    import torch.nn.utils as utils
    from torch.amp.grad_scaler import GradScaler
    from torch.nn.utils import clip_grad

    unscale: Any = GradScaler._unscale_grads_
    norm, value = clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_

    @functools.wraps(norm)
    def clip_norm(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        listed = [parameters] if hasattr(parameters, "grad") else list(parameters)
        if sliced and sliced[0].owns(listed):
            return sliced[0].clip_gradients(listed, max_norm, norm_type)
        return norm(listed, max_norm, norm_type, *args, **kwargs)

    @functools.wraps(value)
    def clip_value(parameters: Any, *args: Any, **kwargs: Any) -> None:
        listed = [parameters] if hasattr(parameters, "grad") else list(parameters)
        if sliced and sliced[0].owns(listed):
            raise FlightError(
                "gradients are clipped by value, and after backward() each rank has its own",
                where="clip_grad_value_",
                fix="ask for the prediction only, or clip by norm",
            )
        value(listed, *args, **kwargs)

    @functools.wraps(unscale)
    def refuse_to_unscale(*args: Any, **kwargs: Any) -> Any:
        if sliced and sliced[0].is_in_effect:
            raise FlightError(
                "a GradScaler unscales the gradients of each rank while they are still being reduced",
                where="GradScaler",
                fix="ask for the prediction only, or train in bfloat16, which needs no scaler",
            )
        return unscale(*args, **kwargs)

    stack.callback(swap(GradScaler, "_unscale_grads_", refuse_to_unscale))
    for owner in (utils, clip_grad):
        stack.callback(swap(owner, "clip_grad_norm_", clip_norm))
        stack.callback(swap(owner, "clip_grad_value_", clip_value))
