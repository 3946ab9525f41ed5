"""Several batches before every update (flight of "gradient-accumulation").

In: a live program. Out: its optimizers step, and its gradients are zeroed, only at every k-th of their calls; k
iterations of the program are then one of the changed program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.flights._witness import proven_by, scales
from windtunnel.sources.torch.live import LiveProgram, Undo, swap

if TYPE_CHECKING:
    import torch


@registry.flight("gradient-accumulation", source="Ott et al., WMT 2018")
@proven_by(scales("updates", lambda given: 1 / given["passes"]))
@contextmanager
def gradient_accumulation(program: LiveProgram, *, passes: int = 4) -> Iterator[None]:
    """Update once after ``passes`` forward and backward passes."""
    if passes < 2:
        raise InputError(f"{passes} passes accumulate nothing", fix="use 2 or more")
    num_calls: dict[int, int] = {}

    def step(optimizer: torch.optim.Optimizer, update: Callable[[], Any]) -> Any:
        if _calls_back(update):
            raise NotApplicableError(
                "the step calls back for the loss, so no pass can be had without an update",
                where=f"the step of {type(optimizer).__name__}",
                fix="call backward before step() to accumulate",
            )
        num_calls[id(optimizer)] = num_calls.get(id(optimizer), 0) + 1
        return update() if num_calls[id(optimizer)] % passes == 0 else None

    def keep_gradients(optimizer: torch.optim.Optimizer) -> Undo:
        zero_grad = optimizer.zero_grad

        def zero_after_update(*args: Any, **kwargs: Any) -> None:
            if num_calls.get(id(optimizer), 0) % passes == 0:
                zero_grad(*args, **kwargs)

        return swap(optimizer, "zero_grad", zero_after_update)

    before, program.iterations_per_sample = program.iterations_per_sample, passes
    with program.each_step(step), program.each_optimizer(keep_gradients):
        yield
    program.iterations_per_sample = before


def _calls_back(update: Callable[[], Any]) -> bool:
    """Whether a step was given a closure."""
    return isinstance(update, partial) and any(map(callable, (*update.args, *update.keywords.values())))
