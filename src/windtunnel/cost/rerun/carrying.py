"""How much computing slows while the same cores carry messages, measured between processes of this host.

In: how many processes, and the link between them. Out: the time that a product loses, per time for which a message is
under way. Threads of gloo and the kernel's own work for packets both count, which no profile of a job that waits for
its messages shows. Not here: what messages take (``averaging``).
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import Any

from windtunnel.base.extras import require
from windtunnel.errors import InputError, PriceError
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.links import shape_link
from windtunnel.measure.workers import WorkerError, Workers

__all__ = ["Lost", "carrying_ratio"]

_MESSAGE_S = 0.1
_LOOPBACK_BYTES = 1 << 26
_UNLIMITED = 1e11  # bytes per second, where only a latency is given
_TIMEOUT_S = 120
_ROUNDS = 11


class Lost(float):
    """Time that computing loses per time of a message, and the interquartile range of the slowdown over it."""

    spread_ratio: float


def carrying_ratio(
    num_ranks: int,
    bandwidth_bytes_per_s: float | None = None,
    latency_ns: int = 0,
    *,
    database: ProfileDatabase | None = None,
) -> Lost:
    """Measure what processes that compute with one thread each lose while all-reduces are under way.

    Measured once per host, number of processes and link, and kept in the database.

    Parameters
    ----------
    num_ranks : int
    bandwidth_bytes_per_s : float, optional
        Of each process's link; by default the loopback.
    latency_ns : int
    database : ProfileDatabase, optional

    Raises
    ------
    PriceError
        The processes could not be run, or links cannot be shaped here.
    """
    link = f"{bandwidth_bytes_per_s or 0:.0f} {latency_ns}"
    signature = hashlib.sha256(f"{link} {_ROUNDS}".encode()).hexdigest()[:16]
    key = ("all_reduce", signature, "products", f"gloo:{num_ranks} {link}", 1, machine(), libraries())
    measured = database.find(key) if database is not None else None
    if measured is None or not measured.is_trusted:
        old_ns, new_ns, spread = _fly(num_ranks, bandwidth_bytes_per_s, latency_ns)
        measured = Measurement(*key, old_ns=old_ns, new_ns=new_ns, spread_ratio=spread, rounds=_ROUNDS)
        if database is not None:
            database.add([measured])
    lost = Lost(max(0.0, measured.new_ns / measured.old_ns - 1))
    lost.spread_ratio = measured.spread_ratio
    return lost


def _fly(num_ranks: int, bandwidth_bytes_per_s: float | None, latency_ns: int) -> list[float]:
    """Time of a product without messages and with them, in ns, and the spread of their ratio."""
    require("torch", extra="torch")
    size_bytes = _LOOPBACK_BYTES
    if bandwidth_bytes_per_s:  # of which a ring sends 2 (k - 1) / k
        size_bytes = round(_MESSAGE_S * bandwidth_bytes_per_s * num_ranks / (2 * max(num_ranks - 1, 1)))
    config, module = (size_bytes, _ROUNDS), "windtunnel.cost.rerun.carrying_worker"
    try:
        with ExitStack() as stack:
            options: dict[str, Any] = {}
            if bandwidth_bytes_per_s or latency_ns:
                rate = bandwidth_bytes_per_s or _UNLIMITED
                link = stack.enter_context(shape_link(num_ranks, rate, latency_ns, is_in_kernel=True))
                options = {"environment": link.environment, "prefixes": link.prefixes}
            workers = stack.enter_context(
                Workers(module, config, num_ranks=num_ranks, title="products", patience_s=_TIMEOUT_S, **options)
            )
            result: list[float] = workers.gather()[0]
    except (WorkerError, InputError) as error:
        raise PriceError(
            f"what messages cost computing could not be measured here: {error.message}",
            fix="state how much longer computing takes meanwhile (slowdown=1.2), or take published prices",
        ) from error
    return result
