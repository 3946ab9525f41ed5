"""Requests that are sent to a real server at predefined times.

In: a server, arrival times. Out: when each request was answered. Not here: arrival times (``requests``), predictions
(``tail``).
"""

# R requests

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.measure.together import moment_in, wait_for
from windtunnel.systems.serving.live import LiveServer
from windtunnel.systems.serving.tail import Answered, Server

__all__ = ["fly_requests", "send"]

_SOON_NS = 1_000_000


def send(
    live: LiveServer,
    arrival_ns_R: NDArray[np.int64],
    *,
    progress: Progress | None = None,
    more: Callable[[int], Any] | None = None,
) -> Answered:
    """Send requests to a server at given times, whether or not earlier ones are answered (open loop).

    Parameters
    ----------
    live : LiveServer
    arrival_ns_R : int64 [R]
        Ascending, from now on.
    progress : callable, optional
    more : callable, optional
        Number of a request -> what it brings.

    Raises
    ------
    InputError, FlightError
        A request was not answered.
    """
    first_batch = len(live.batches)
    origin_ns = moment_in(_SOON_NS)
    futures = []
    for index, arrival_ns in enumerate(arrival_ns_R.tolist()):
        wait_for(origin_ns + arrival_ns)
        futures.append(live.submit(None if more is None else more(index), origin_ns + arrival_ns))
        if progress is not None:
            progress("answering", index, len(arrival_ns_R))
    answered = np.array([future.result().answered_ns - origin_ns for future in futures], dtype=np.int64)
    return Answered(arrival_ns_R, answered, len(live.batches) - first_batch)


def fly_requests(
    job: str, server: Server, arrival_ns_R: NDArray[np.int64], *, progress: Progress | None = None
) -> Answered:
    """Answer requests by a real server with one split; parameters and errors as for ``LiveServer`` and ``send``."""
    with LiveServer(job, server) as live:
        return send(live, arrival_ns_R, progress=progress)
