"""Processes that each hold a served model, on exclusive cores.

In: what is served, cores. Out: processes that answer batches, and how long one took. Not here: what they are asked, and
when (``run`` for profiles and splits, ``live`` for requests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.errors import InputError
from windtunnel.hardware.host import cpu_quota_cores, socket_cores
from windtunnel.measure.workers import Workers

__all__ = ["Config", "Order", "fitting", "instances", "server_cores"]

_PATIENCE_S = 600.0
# pools that wait must not burn the cores of their neighbors
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


@dataclass(frozen=True)
class Config:
    """The configuration of all instances: job, threads by rank, largest batch."""

    job: str
    threads: tuple[int, ...]
    max_inputs: int


@dataclass(frozen=True)
class Order:
    """A batch to answer. The reply has the ns since ``moment_ns``, the outputs if there are bodies, and the memory.

    Parameters
    ----------
    inputs : int
    moment_ns : int
        When to begin.
    bodies : list, optional
        Bodies of the requests; without them the synthetic inputs of the model are used.
    asks_bytes : bool
        Whether the reply contains the peak private memory of the process.
    """

    inputs: int
    moment_ns: int
    bodies: list[Any] | None = None
    asks_bytes: bool = False


def server_cores() -> tuple[int, ...]:
    """Return the cores for instances: physical cores of one socket, within the affinity mask and the quota."""
    largest = max(socket_cores(), key=len)
    quota = cpu_quota_cores()
    return largest if quota is None else largest[: max(1, int(quota))]


def fitting(threads: Sequence[int]) -> Sequence[int]:
    """The same numbers of threads.

    Raises
    ------
    InputError
        There are fewer cores than the largest; names both.
    """
    cores = len(server_cores())
    if max(threads) > cores:
        raise InputError(
            f"{max(threads)} threads do not fit on {cores} cores",
            where="threads",
            fix=f"ask for {cores} or fewer: more threads than cores only wait for each other",
        )
    return threads


def instances(job: str, cores: Sequence[Sequence[int]], max_inputs: int) -> Workers:
    """Start a process for each set of cores; it reports "ready" when its model is built."""
    return Workers(
        "windtunnel.systems.serving.instance",
        Config(job, tuple(map(len, cores)), max_inputs),
        num_ranks=len(cores),
        title="instance",
        cores=cores,
        environment=_ENVIRONMENT,
        patience_s=_PATIENCE_S,
    )
