"""What users of one core or one memory channel cost each other.

In: what is shared. Out: ``Interference``: how many times longer each of n users takes, measured with n processes that
run at the same time, smoothed by a curve, kept in the profile database; and as a ``SHARED`` resource for the replay.
Not here: who uses what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel import hardware
from windtunnel.errors import InputError
from windtunnel.graph import Discipline, Graph, ResourceKind
from windtunnel.hardware.host import usable_cores
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.together import moment_in
from windtunnel.measure.workers import Workers

__all__ = ["SHARED", "Interference", "fit_slowdown", "measure_interference", "share_resource"]

SHARED = ("core", "memory")
_METHOD = 1
_RUN_S, _ROUNDS = 0.4, 3
_START_S, _TIMEOUT_S = 1.0, 60.0


@dataclass(frozen=True)
class Interference:
    """How users of one thing slow each other.

    Parameters
    ----------
    what : str
        ``core``: processes on one core; ``memory``: processes on cores of their own that stream through memory.
    slowdown : tuple of float
        How many times longer each of n users takes than one alone, for n = 1, 2 ...; never below 1, never falling.
    measured : tuple of float
        The same as measured, before the curve.
    """

    what: str
    slowdown: tuple[float, ...]
    measured: tuple[float, ...]


def measure_interference(
    what: str, max_users: int = 0, *, database: ProfileDatabase | None = None, rounds: int = _ROUNDS
) -> Interference:
    """Run 1, 2 ... users at the same time and see how much longer each takes.

    Parameters
    ----------
    what : str
        One of ``SHARED``.
    max_users : int
        0: four on a core, one per core on the memory.
    database : ProfileDatabase, optional
        Looked up first and filled afterwards.
    rounds : int

    Raises
    ------
    InputError
        Nothing of that name is known, or there are too few users.
    FlightError
        A process failed.
    """
    if what not in SHARED:
        raise InputError(f"nothing shared is called {what!r}", where="what", fix=f"choose one of {', '.join(SHARED)}")
    users = max_users or (4 if what == "core" else max(2, hardware.machine().num_cores))
    if users < 1:
        raise InputError(f"{users} users share nothing", fix="use 1 or more")
    keys = [_key(what, number) for number in range(1, users + 1)]
    known = database.find_all(keys) if database is not None else {}
    if len(known) < len(keys):
        ratios = _measure(what, users, rounds)
        created = [Measurement(*key, 1.0, ratio, rounds=rounds) for key, ratio in zip(keys, ratios, strict=True)]
        known = {item.key: item for item in created}
        if database is not None:
            database.add(created)
    ratios = [known[key].new_ns for key in keys]
    return Interference(what, tuple(fit_slowdown(ratios)), tuple(ratios))


def fit_slowdown(ratios: Sequence[float]) -> list[float]:
    """The never falling curve through measured slow-downs that starts at 1 and is nearest to them.

    Pool adjacent violators: two users that measured slower than three are noise, and both get their mean.

    Examples
    --------
    >>> fit_slowdown([1.0, 2.25, 1.75, 4.0])
    [1.0, 2.0, 2.0, 4.0]
    """
    pools: list[tuple[float, int]] = []
    for ratio in ratios:
        pools.append((max(float(ratio), 1.0), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (first, many), (second, few) = pools[-2:]
            pools[-2:] = [((first * many + second * few) / (many + few), many + few)]
    smooth = [value for value, count in pools for _ in range(count)]
    return [1.0, *smooth[1:]]


def share_resource(graph: Graph, interference: Interference, tasks: NDArray[np.bool_], name: str = "") -> Graph:
    """The graph with the tasks on a resource that all of them use at once, and are slowed by each other.

    Parameters
    ----------
    graph : Graph
    interference : Interference
    tasks : bool [T]
    name : str
        Of the resource; that of what is shared by default.

    Raises
    ------
    InputError
        The graph has slow-down curves of another length already.
    """
    curve = np.array(interference.slowdown)
    curves = graph.resources.get("slowdown")
    rows = np.ones((graph.num_resources, len(curve))) if curves is None else np.asarray(curves)
    if rows.shape[1:] != curve.shape:
        raise InputError(
            f"curves of {rows.shape[1]} and of {len(curve)} users in one graph", fix="measure both for as many users"
        )
    columns: dict[str, Any] = {"slots": max(len(curve), 1)}
    from windtunnel.graph.table import Table

    plain = graph.with_resources(
        Table({key: column for key, column in graph.resources.items() if key != "slowdown"}, graph.num_resources)
    )
    extended, row = plain.add_resource(
        name or interference.what, ResourceKind.POOL, discipline=Discipline.SHARED, **columns
    )
    placed = extended.move(tasks, row)
    return placed.with_resources(placed.resources.replace(slowdown=np.vstack([rows, curve])))


def _key(what: str, users: int) -> tuple[str, str, str, str, int, str, str]:
    return f"shared::{what}", f"{users} users", "forward", f"together (method {_METHOD})", 1, machine(), libraries()


def _measure(what: str, max_users: int, rounds: int) -> list[float]:
    """Slow-down by users: the median over rounds of rates alone over mean rates together."""
    ratios = np.array([[_rate(what, users) for users in range(1, max_users + 1)] for _ in range(rounds)])
    return [float(item) for item in np.median(ratios[:, :1] / ratios, axis=0)]


def _rate(what: str, users: int) -> float:
    """Mean rate per second of ``users`` concurrent users."""
    cores = usable_cores()
    begin_ns = moment_in(round(1e9 * _START_S))
    size = 4 * max([*hardware.machine().cache_bytes.values(), 2**24])
    selected = [cores[0] if what == "core" else cores[number % len(cores)] for number in range(users)]
    task = (what, begin_ns, begin_ns + round(1e9 * _RUN_S), min(size, 2**28))
    with Workers(
        "windtunnel.cost.contender",
        task,
        num_ranks=users,
        title=f"user of the {what}",
        cores=[[core] for core in selected],
        patience_s=_TIMEOUT_S,
    ) as workers:
        return float(np.mean(workers.gather()))
