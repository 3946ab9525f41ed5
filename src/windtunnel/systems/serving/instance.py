"""A process that holds one copy of a served model and answers batches on request.

In: what is served, threads of each rank; over the line an ``Order``. Out: how long after its moment the batch was
answered, the answers to what requests have brought, memory if that is asked. It keeps to its cores before torch is
imported, as ``measure`` starts it so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windtunnel.hardware.host import peak_own_bytes
from windtunnel.measure.together import time_since_ns

if TYPE_CHECKING:
    from windtunnel.measure.workers import Place
    from windtunnel.systems.serving.instances import Order

__all__ = ["main"]


def main(process: Place) -> None:
    """Answer batches until the connection is closed."""
    import torch

    from windtunnel.systems.serving.job import build_served_model

    torch.set_num_threads(process.config.threads[process.rank])
    torch.set_num_interop_threads(1)
    what = build_served_model(process.config.job, process.config.max_inputs)
    kept: dict[int, tuple[Any, ...]] = {}

    def answer(order: Order) -> list[Any] | None:
        if order.bodies is not None:
            return what.answers(order.bodies)
        what.model(*kept[order.inputs])
        return None

    process.tell("ready")
    with torch.inference_mode():
        while True:
            try:
                order: Order = process.order()
            except EOFError:
                return
            if order.bodies is None and order.inputs not in kept:
                kept[order.inputs] = what.inputs(order.inputs)
            answers: list[Any] = []
            taken_ns = time_since_ns(order.moment_ns, lambda: answers.append(answer(order)))  # noqa: B023, done at once
            process.tell((taken_ns, answers[0], peak_own_bytes() if order.asks_bytes else None))
