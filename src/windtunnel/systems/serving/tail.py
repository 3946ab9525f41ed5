"""Latencies of requests to a batching server.

In: when requests come, a split, how many a batch takes and how long it waits for more. Out: when each is answered. A
batch begins when it is full or its first request has waited long enough, and the batch before is answered; all that
have come by then take part. Not here: which server (``sizing``), a real one (``run``).
"""

# R requests, B inputs

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.systems.serving.model import Slowdown, Split
from windtunnel.systems.serving.profile import Profile

__all__ = ["Answered", "Server", "answer", "batch_latencies"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Server:
    """A split that answers requests in batches.

    Parameters
    ----------
    split : Split
        Its batch is the largest number of requests that are answered together.
    wait_ns : int
        Longest time that a request waits for others while the server is idle.
    """

    split: Split
    wait_ns: int

    def __str__(self) -> str:
        return f"{self.split}, at most {self.split.batch} together"


@dataclass(frozen=True, eq=False)
class Answered:
    """Arrival and answer times of requests.

    Parameters
    ----------
    arrival_ns_R, answered_ns_R : int64 [R]
    num_batches : int
    """

    arrival_ns_R: Ints
    answered_ns_R: Ints
    num_batches: int

    @property
    def latencies_ns(self) -> Ints:
        """From arrival to answer, int64 [R]."""
        return self.answered_ns_R - self.arrival_ns_R

    def latency_ns(self, quantile: float) -> float:
        """Return a quantile of the latencies."""
        return float(np.quantile(self.latencies_ns, quantile))


def answer(arrival_ns_R: Ints, server: Server, latency_ns_B: Floats) -> Answered:
    """Simulate the answers of a server to requests.

    Parameters
    ----------
    arrival_ns_R : int64 [R]
        Ascending.
    server : Server
    latency_ns_B : float64 [B + 1]
        Latency by batch size, from ``batch_latencies``.

    Examples
    --------
    >>> from windtunnel.systems.serving.model import Instance
    >>> server = Server(Split((Instance(1, 2, 10.0),), 2), wait_ns=4)
    >>> answer(np.array([0, 1, 2, 50]), server, np.array([0.0, 6.0, 10.0])).latencies_ns.tolist()
    [11, 10, 15, 10]
    """
    arrivals, durations, most = arrival_ns_R.tolist(), latency_ns_B.round().astype(int).tolist(), server.split.batch
    answered = np.empty(len(arrivals), dtype=np.int64)
    index, free_ns, num_batches = 0, 0, 0
    while index < len(arrivals):
        # When a batch starting with request ``index`` closes: it is full, or its first request waited long
        # enough.
        limit_ns = arrivals[index] + server.wait_ns
        begun_ns = max(
            min(limit_ns, arrivals[index + most - 1]) if index + most <= len(arrivals) else limit_ns, free_ns
        )
        upto = min(bisect_right(arrivals, begun_ns, lo=index), index + most)
        free_ns = begun_ns + durations[upto - index]
        answered[index:upto] = free_ns
        index, num_batches = upto, num_batches + 1
    return Answered(arrival_ns_R, answered, num_batches)


def batch_latencies(profile: Profile, split: Split, slowdown: Slowdown | None = None) -> Floats:
    """Return the latency in ns of every batch of up to B inputs, float64 [B + 1]; row 0 is 0.

    Between batches of the profile it is linear, below the smallest it stays. With a slow-down instances pay for
    neighbors that have inputs, too, by the share of the other threads that these have.

    Parameters
    ----------
    profile : Profile
        Of one instance alone.
    split : Split
    slowdown : Slowdown, optional

    Raises
    ------
    InputError
        The profile has no instance with such threads, or none with so large a batch.
    """
    known = {item.threads: _column(profile, item.threads) for item in split.instances}
    for instance in split.instances:
        if instance.batch > known[instance.threads][0][-1]:
            raise InputError(
                f"the profile has no instance of {instance.threads} threads with a batch of {instance.batch}",
                fix="profile larger batches",
            )
    result = np.zeros(split.batch + 1)
    for inputs in range(1, split.batch + 1):
        # A short batch leaves some instances idle, so that the busy ones are slowed down less: the slow-down is
        # scaled by the share of neighbor threads that are busy.
        parts = split.parts(inputs)
        busy = sum(item.threads for item, part in zip(split.instances, parts, strict=True) if part)
        times = [0.0]
        for instance, part in zip(split.instances, parts, strict=True):
            if part:
                alone_ns = float(np.interp(part, *known[instance.threads]))
                share = (busy - instance.threads) / max(1, split.threads - instance.threads)
                more = 0.0 if slowdown is None else slowdown.factor_at(instance.threads) - 1
                times.append(alone_ns * (1 + more * share))
        result[inputs] = max(times)
    return result


def _column(profile: Profile, threads: int) -> tuple[Ints, Floats]:
    own = profile.threads_C == threads
    if not own.any():
        raise InputError(f"the profile has no instance of {threads} threads", fix="profile one")
    return profile.batch_C[own], profile.latency_ns_C[own]
