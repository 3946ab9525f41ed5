"""One process of a script that runs in several.

In: ``Orders`` and a rank. Out: the graph of that rank in a folder, and word of it, or of what went wrong and when. The
script finds the environment that ``torchrun`` would give it.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from windtunnel.errors import WindtunnelError
from windtunnel.graph import save
from windtunnel.measure.workers import Place
from windtunnel.sources.torch.launch import Meeting, join_job
from windtunnel.sources.torch.script import IncompleteCaptureError, capture_script

__all__ = ["Orders", "main"]


class Orders(msgspec.Struct, frozen=True):
    """What all ranks do."""

    script: str
    argv: tuple[str, ...]
    iterations: int
    warmup: int
    folder: str
    meeting: Meeting


def main(place: Place) -> int:
    """Capture one rank; a failure is reported with its time, as the peers fail after the first rank."""
    orders: Orders = place.config
    join_job(place.rank, place.num_ranks, orders.meeting)

    def tell(what: str, done: int, total: int) -> None:
        place.tell({"progress": (what, done, total)})

    try:
        graph = capture_script(
            orders.script, orders.argv, iterations=orders.iterations, warmup=orders.warmup, progress=tell
        )
    except WindtunnelError as error:
        place.tell(_failure(error))
        return 0
    path = f"{orders.folder}/rank{place.rank}.wt"
    save(graph, path, overwrite=True)
    place.tell({"path": path})
    return 0


def _failure(error: WindtunnelError) -> dict[str, Any]:
    # what a rank raises once its peers are gone came second
    reported = {"error": error.message, "where": error.where, "fix": error.fix, "at_ns": time.monotonic_ns()}
    return reported | {"is_incomplete": isinstance(error, IncompleteCaptureError)}
