"""What messages take and what they cost computing on the same cores, measured between processes of this host.

In: how many processes, the link between them, and the module that sends. Out: the time that a product loses, per time
for which a message is under way, and what each half of an all-reduce takes meanwhile: a part per message and a part per
byte. Threads of the transport and the kernel's own work for packets both count, which no profile of a job that waits
for its messages shows. Not here: how halves are sent (the module that is handed in), all-reduces (``averaging``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.errors import InputError, PriceError
from windtunnel.measure.database import ProfileDatabase, find_or_measure
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.links import shape_link
from windtunnel.measure.workers import WorkerError, Workers

__all__ = ["CarryingCost", "MessageCost", "carrying_cost", "link_options"]

_MESSAGE_S = 0.1  # of all messages of a round
_NUM_MESSAGES = (4, 16)  # that the same bytes travel in
_LOOPBACK_BYTES = 1 << 26
_UNLIMITED = 1e11  # bytes per second, where only a latency is given
_TIMEOUT_S = 120
_ROUNDS = 15
_HALVES = ("reduce_scatter", "all_gather")


@dataclass(frozen=True, slots=True)
class MessageCost:
    """What a message takes: a part that is the same for all sizes, and a part per byte."""

    latency_ns: float
    ns_per_byte: float

    @classmethod
    def fit(cls, size_bytes: Sequence[float], duration_ns: Sequence[float]) -> MessageCost:
        """A line through messages, neither part below 0; of one size alone: all by the byte.

        Examples
        --------
        >>> round(MessageCost.fit([1000, 3000], [2500, 6500]).duration_ns(2000))
        4500
        """
        size, used = np.asarray(size_bytes, np.float64), np.asarray(duration_ns, np.float64)
        if len(np.unique(size)) > 1:
            per_byte, latency = np.polyfit(size, used, 1)
            if per_byte > 0 and latency >= 0:
                return cls(float(latency), float(per_byte))
        return cls(0.0, float(used.sum() / max(size.sum(), 1.0)))

    def duration_ns(self, size_bytes: float) -> float:
        """Duration of a message of this size, in ns."""
        return self.latency_ns + self.ns_per_byte * size_bytes


@dataclass(frozen=True, slots=True)
class CarryingCost:
    """What messages take and cost between ranks that compute.

    Attributes
    ----------
    lost_ratio : float
        Time that computing loses per time for which a message is under way.
    reduce_scatter, all_gather : MessageCost
        Of each half of an all-reduce, by the bytes of the whole tensor.
    spread_ratio : float
        Interquartile range of the slowdown over it.
    """

    lost_ratio: float
    reduce_scatter: MessageCost
    all_gather: MessageCost
    spread_ratio: float = 0.0


def carrying_cost(
    num_ranks: int,
    bandwidth_bytes_per_s: float | None = None,
    latency_ns: int = 0,
    *,
    worker: str,
    database: ProfileDatabase | None = None,
) -> CarryingCost:
    """Measure what halves of all-reduces take while processes compute with one thread each, and what these lose.

    Measured once per host, number of processes and link, and kept in the database.

    Parameters
    ----------
    num_ranks : int
    bandwidth_bytes_per_s : float, optional
        Of each process's link; by default the loopback.
    latency_ns : int
    worker : str
        Module whose ``main(place)`` sends and computes; ``place.config`` is bytes, numbers of messages and rounds.
    database : ProfileDatabase, optional

    Raises
    ------
    PriceError
        The processes could not be run, or links cannot be shaped here.
    """
    link = f"{bandwidth_bytes_per_s or 0:.0f} {latency_ns}"
    size_bytes = _LOOPBACK_BYTES
    if bandwidth_bytes_per_s:  # of which each half of a ring sends (k - 1) / k
        size_bytes = round(_MESSAGE_S * bandwidth_bytes_per_s * num_ranks / max(num_ranks - 1, 1))
    config = (size_bytes, _NUM_MESSAGES, _ROUNDS)
    signature = hashlib.sha256(f"{worker} {link} {config}".encode()).hexdigest()[:16]
    keys = [
        (name, signature, "products", f"gloo:{num_ranks} {link}", 1, machine(), libraries())
        for name in ("products", *_HALVES)
    ]
    products, *halves = find_or_measure(
        database, keys, lambda: _fly(num_ranks, bandwidth_bytes_per_s, latency_ns, worker, config), _ROUNDS
    )
    few, many = _NUM_MESSAGES
    sizes = (size_bytes / few, size_bytes / many)
    scatter, gather = (MessageCost.fit(sizes, (item.old_ns / few, item.new_ns / many)) for item in halves)
    return CarryingCost(max(0.0, products.new_ns / products.old_ns - 1), scatter, gather, products.spread_ratio)


def link_options(
    stack: ExitStack, num_ranks: int, bandwidth_bytes_per_s: float | None, latency_ns: int
) -> dict[str, Any]:
    """Options of workers that talk over a link which lasts as long as the stack; of the loopback none."""
    if not (bandwidth_bytes_per_s or latency_ns):
        return {}
    rate = bandwidth_bytes_per_s or _UNLIMITED
    link = stack.enter_context(shape_link(num_ranks, rate, latency_ns, is_in_kernel=True))
    return {"environment": link.environment, "prefixes": link.prefixes}


def _fly(
    num_ranks: int, bandwidth_bytes_per_s: float | None, latency_ns: int, worker: str, config: tuple[Any, ...]
) -> list[list[float]]:
    """Of a product, without messages and with them, and of each half, in few messages and in many: ns and spread."""
    require("torch", extra="torch")
    try:
        with ExitStack() as stack:
            options = link_options(stack, num_ranks, bandwidth_bytes_per_s, latency_ns)
            workers = stack.enter_context(
                Workers(worker, config, num_ranks=num_ranks, title="products", patience_s=_TIMEOUT_S, **options)
            )
            result: list[list[float]] = workers.gather()[0]
    except (WorkerError, InputError) as error:
        raise PriceError(
            f"what messages cost computing could not be measured here: {error.message}",
            fix="state how much longer computing takes meanwhile (slowdown=1.2), or take published prices",
        ) from error
    return result
