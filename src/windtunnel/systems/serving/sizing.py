"""Sizing of a server: the fewest threads that keep a latency target.

In: a profile, arrival times, a latency limit for a fraction of the answers. Out: a ``Server`` with its predictions.
The search covers all numbers of threads, power-of-two batches, and a few waiting times. Not here: the prediction for
one server (``tail``), real servers (``run``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import InfeasibleError, InputError
from windtunnel.systems.serving.model import Slowdown
from windtunnel.systems.serving.profile import Profile
from windtunnel.systems.serving.search import best_splits
from windtunnel.systems.serving.tail import Answered, Server, answer, batch_latencies

__all__ = ["Sized", "predict_server", "size_servers"]

_WAITS = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the limit


@dataclass(frozen=True)
class Sized:
    """A server and its predicted latencies.

    Parameters
    ----------
    server : Server
    answered : Answered
    latency_ns : float
        Predicted latency of the requested percentile.
    """

    server: Server
    answered: Answered
    latency_ns: float


def size_servers(
    profile: Profile,
    arrival_ns_R: NDArray[np.int64],
    limit_ns: int,
    *,
    share: float = 0.99,
    num_threads: int = 0,
    slowdown: Slowdown | None = None,
    max_bytes: float = math.inf,
    progress: Progress | None = None,
) -> list[Sized]:
    """Return the best server for every number of threads, ascending; the first within the limit is the cheapest.

    Parameters
    ----------
    profile : Profile
        Of one instance alone.
    arrival_ns_R : int64 [R]
        Ascending.
    limit_ns : int
        For an answer.
    share : float
        Of the answers that have to keep it, in (0, 1].
    num_threads : int
        At most; 0 as the profile has.
    slowdown : Slowdown, optional
        By busy neighbors.
    max_bytes : float
        Memory of all instances together.
    progress : callable, optional

    Raises
    ------
    InputError
        There is no time limit, the share is none, or the profile knows no server of that size.
    """
    if limit_ns <= 0 or not 0 < share <= 1:
        raise InputError(
            f"{share:.3g} of the answers within {limit_ns} ns is no aim", fix="give a limit above 0 and a share up to 1"
        )
    most = num_threads or profile.max_threads
    beside_busy = profile if slowdown is None else slowdown.of(profile)
    result = []
    for threads in range(1, most + 1):
        try:
            splits = best_splits(beside_busy, threads, max_bytes)
        except InfeasibleError:
            splits = {}
        tried = [
            predict_server(Server(split, round(limit_ns * wait)), arrival_ns_R, latency_ns_B, share)
            for split in splits.values()
            for latency_ns_B in [batch_latencies(profile, split, slowdown)]
            for wait in _WAITS
        ]
        if tried:
            result.append(min(tried, key=lambda server: server.latency_ns))
        if progress is not None:
            progress("sizing", threads, most)
    if not result:
        raise InfeasibleError(
            "no server of these threads has an instance in the profile that fits", fix="profile more threads"
        )
    return result


def predict_server(
    server: Server, arrival_ns_R: NDArray[np.int64], latency_ns_B: NDArray[np.float64], share: float
) -> Sized:
    """Predict the latencies of a server from its batch latencies (``batch_latencies``)."""
    answered = answer(arrival_ns_R, server, latency_ns_B)
    return Sized(server, answered, answered.latency_ns(share))
