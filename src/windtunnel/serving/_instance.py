"""A process that holds one copy of a served model and answers batches when it is told to (room serving, private).

In: what is served, threads of each rank; over the line a batch and the moment to begin. Out: how long after that moment
the batch was answered. It keeps to its cores before torch is imported, as ``measure`` starts it so.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from windtunnel.measure.together import elapsed_since_ns

if TYPE_CHECKING:
    from windtunnel.measure.workers import Place

__all__ = ["main"]


def main(place: Place) -> None:
    """Answer batches until the line is closed."""
    import torch

    from windtunnel.serving.job import served

    torch.set_num_threads(place.config.threads[place.rank])
    torch.set_num_interop_threads(1)
    what = served(place.config.job, place.config.most_inputs)
    kept: dict[int, tuple[Any, ...]] = {}

    def answer(batch: int) -> None:
        what.model(*kept[batch])

    place.tell("ready")
    with torch.inference_mode():
        while True:
            try:
                batch, moment_ns = place.order()
            except EOFError:
                return
            if batch not in kept:
                kept[batch] = what.inputs(batch)
            place.tell(elapsed_since_ns(moment_ns, partial(answer, batch)))
