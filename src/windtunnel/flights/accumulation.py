"""Several batches before every update (flight of "gradient-accumulation").

In: a live program. Out: its optimizers step, and its gradients are zeroed, only at every k-th of their calls; k
iterations of the program are then one of the changed program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.flights.proof import proven_by, scales
from windtunnel.graph import Graph
from windtunnel.sources.torch.live import LiveProgram, SuspendedCall, Undo, adapt_by, swap
from windtunnel.whatifs.another_batch import passes_per_update

if TYPE_CHECKING:
    import torch


def _per_own_update(graph: Graph, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The what-if counts all passes of an update; the flight, how many of the program's own updates become one."""
    return {**given, "passes": given["passes"] // passes_per_update(graph)}


@registry.flight("gradient-accumulation", source="Ott et al., WMT 2018")
@adapt_by(_per_own_update)
@proven_by(scales("updates", lambda given: 1 / given["passes"]))
@contextmanager
def gradient_accumulation(program: LiveProgram, *, passes: int = 4) -> Iterator[None]:
    """Update once after ``passes`` forward and backward passes."""
    if passes < 2:
        raise InputError(f"{passes} passes accumulate nothing", fix="use 2 or more")
    num_calls: dict[int, int] = {}

    def step(optimizer: torch.optim.Optimizer, update: SuspendedCall) -> Any:
        _require_separate(optimizer, update)
        num_calls[id(optimizer)] = num_calls.get(id(optimizer), 0) + 1
        return update() if num_calls[id(optimizer)] % passes == 0 else None

    def keep_gradients(optimizer: torch.optim.Optimizer) -> Undo:
        # a script zeroes gradients in each iteration, which would drop what the passes before have added
        zero_grad = optimizer.zero_grad

        def zero_after_update(*args: Any, **kwargs: Any) -> None:
            if num_calls.get(id(optimizer), 0) % passes == 0:
                zero_grad(*args, **kwargs)

        return swap(optimizer, "zero_grad", zero_after_update)

    before, program.iterations_per_sample = program.iterations_per_sample, passes
    with program.each_step(step), program.each_optimizer(keep_gradients):
        yield
    program.iterations_per_sample = before


def _require_separate(optimizer: torch.optim.Optimizer, update: SuspendedCall) -> None:
    """Refuse a program whose updates cannot be left out."""
    where = f"the step of {type(optimizer).__name__}"
    if update.takes_function:
        raise NotApplicableError(
            "the step calls back for the loss, so no pass can be had without an update",
            where=where,
            fix="call backward before step() to accumulate",
        )
    if update.is_compiled:
        raise NotApplicableError(
            "the update is called within compiled code, where it cannot be left out of single iterations",
            where=where,
            fix="call optimizer.step() outside of torch.compile; the model itself may stay compiled",
        )
