"""What all-reduces of any size take between processes of this host.

In: how many processes, and the link between them. Out: ``AllReduceTimes``: times at several sizes, each from the same
processes in the same rounds, so that the costs of a message and of its bytes are known separately; two messages of a
captured step, which computes meanwhile, do not tell that. Not here: what else a reducer does (``averaging``), what
messages cost computing (``carrying``).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.cost.rerun.carrying import link_options
from windtunnel.errors import InputError, PriceError
from windtunnel.measure.database import ProfileDatabase, find_or_measure
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.workers import WorkerError, Workers

__all__ = ["AllReduceTimes", "all_reduce_times"]

_SIZES_BYTES = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
_MAX_MESSAGE_S = 0.1  # of the largest one, on a slow link
_MIN_SIZES = 3
_ROUNDS = 21
_TIMEOUT_S = 120
_WORKER = "windtunnel.cost.rerun.all_reduce_worker"


@dataclass(frozen=True, slots=True)
class AllReduceTimes:
    """Times of all-reduces by size.

    Parameters
    ----------
    sizes_bytes, durations_ns : tuple of float
        Ascending sizes.
    spread_ratio : float
        How far the times vary by chance: interquartile range of the logarithm, of rounds drawn anew; the median size's.
    lost_ratio : float
        Time that computing on the same cores loses per time for which a message is under way.
    """

    sizes_bytes: tuple[float, ...]
    durations_ns: tuple[float, ...]
    spread_ratio: float = 0.0
    lost_ratio: float = 0.0

    def duration_ns(self, size_bytes: float) -> float:
        """On a line between measured sizes; beyond the largest by the byte, below the smallest as it.

        Examples
        --------
        >>> times = AllReduceTimes((1000.0, 2000.0), (50.0, 80.0))
        >>> [times.duration_ns(size) for size in (0, 1500, 4000)]
        [50.0, 65.0, 160.0]
        """
        more = max(1.0, size_bytes / self.sizes_bytes[-1])
        return more * float(np.interp(size_bytes, self.sizes_bytes, self.durations_ns))


def all_reduce_times(
    num_ranks: int,
    bandwidth_bytes_per_s: float | None = None,
    latency_ns: int = 0,
    *,
    database: ProfileDatabase | None = None,
) -> AllReduceTimes:
    """Time all-reduces between processes that compute nothing meanwhile, and what one of them costs computing.

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
    max_bytes = _MAX_MESSAGE_S * bandwidth_bytes_per_s if bandwidth_bytes_per_s else np.inf
    sizes = [size for size in _SIZES_BYTES if size <= max_bytes]
    sizes = sizes if len(sizes) >= _MIN_SIZES else list(_SIZES_BYTES[:_MIN_SIZES])
    link = f"{bandwidth_bytes_per_s or 0:.0f} {latency_ns}"
    keys = [
        (
            "all_reduce",
            f"{size} of {len(sizes)}",
            "isolated (method 3)",
            f"gloo:{num_ranks} {link}",
            1,
            machine(),
            libraries(),
        )
        for size in (0, *sizes)  # 0: a product, without a message and with one
    ]
    product, *messages = find_or_measure(
        database, keys, lambda: _measure(num_ranks, bandwidth_bytes_per_s, latency_ns, sizes), _ROUNDS
    )
    durations = np.maximum.accumulate([item.new_ns for item in messages])  # more bytes never take less
    spread = float(np.median([item.spread_ratio for item in messages]))
    lost_ratio = max(0.0, 1.0 - product.old_ns / product.new_ns)
    return AllReduceTimes(tuple(map(float, sizes)), tuple(durations.tolist()), spread, lost_ratio)


def _measure(
    num_ranks: int, bandwidth_bytes_per_s: float | None, latency_ns: int, sizes: list[int]
) -> list[list[float]]:
    """Of a product and of each size: ns without messages, ns with them, spread."""
    require("torch", extra="torch")
    try:
        with ExitStack() as stack:
            options: dict[str, Any] = link_options(stack, num_ranks, bandwidth_bytes_per_s, latency_ns)
            workers = stack.enter_context(
                Workers(
                    _WORKER, (sizes, _ROUNDS), num_ranks=num_ranks, title="messages", patience_s=_TIMEOUT_S, **options
                )
            )
            result: list[list[float]] = workers.gather()[0]
    except (WorkerError, InputError) as error:
        raise PriceError(
            f"messages between {num_ranks} processes could not be measured here: {error.message}",
            fix="say what a message takes: gradient-buckets:latency_ns=...,bandwidth_bytes_per_s=...",
        ) from error
    return result
