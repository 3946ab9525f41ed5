"""Partial flights of gradient averaging between processes of this host.

In: how many processes, and how many bytes or which parameters. Out: how much longer a forward and backward pass takes
with DistributedDataParallel over gloo than without, measured here: real processes, real hooks, some computation before
each pass and nothing else runs. The host's own memory is the link, so no data sheet gives its rate; a single process
shows what the reducer and its hook do by themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.errors import PriceError
from windtunnel.measure.database import Measurement, ProfileDatabase, find_or_measure
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.workers import WorkerError, Workers, last_error

__all__ = ["Added", "averaging_ns", "reducing_ns"]

# the smallest is all latency: messages that wake threads of the other process
_SIZES_BYTES = (1 << 12, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_NUM_PARAMETERS = 8
_MIB = 1 << 20
_TIMEOUT_S = 240
ROUNDS = 21


class Added(int):
    """What is added to a pass, in ns, and how far that varied between rounds: interquartile range over it."""

    spread_ratio: float

    @classmethod
    def of(cls, added_ns: float, range_ns: float) -> Added:
        """So much, with such an interquartile range; at least 1 ns, as the ratio of nothing says nothing."""
        added = cls(max(1, round(added_ns)))
        added.spread_ratio = range_ns / added
        return added


def averaging_ns(size_bytes: int, num_ranks: int, *, database: ProfileDatabase | None = None) -> Added:
    """Duration of averaging gradients between ``num_ranks`` processes of this host, in ns.

    Measured once per host and number of processes at the two of six sizes that it lies between, a line between them,
    and kept in the database. The smallest of the six is the price of any averaging at all.

    Parameters
    ----------
    size_bytes : int
        All gradients of one model in one backward pass.
    num_ranks : int
    database : ProfileDatabase, optional

    Raises
    ------
    PriceError
        The processes could not be run.
    """
    sizes = _enclosing_sizes(size_bytes)
    jobs = [_job([[size // 4 // _NUM_PARAMETERS]] * _NUM_PARAMETERS) for size in sizes]
    measured = _measure_jobs(jobs, num_ranks, database)
    added = [max(0.0, item.new_ns - item.old_ns) for item in measured]
    ranges = [item.spread_ratio * item.new_ns for item in measured]  # the ratio's, of the time with averaging
    more = max(1.0, size_bytes / _SIZES_BYTES[-1])
    return Added.of(*(more * float(np.interp(size_bytes, sizes, item)) for item in (added, ranges)))


def _enclosing_sizes(size_bytes: int) -> tuple[int, ...]:
    """Those of the measured sizes that a line for this one needs: its neighbors, or the first or last one.

    Examples
    --------
    >>> [size >> 10 for size in _enclosing_sizes(500_000)], _enclosing_sizes(0), _enclosing_sizes(1 << 20)
    ([256, 1024], (4096,), (1048576,))
    """
    below = [size for size in _SIZES_BYTES if size <= size_bytes][-1:]
    above = [size for size in _SIZES_BYTES if size >= size_bytes][:1]
    return tuple(dict.fromkeys([*below, *above]))


def reducing_ns(
    shapes: Sequence[Sequence[int]],
    num_ranks: int,
    *,
    sender: str = "",
    options: Mapping[str, Any] | None = None,
    bucket_bytes: int = 25 * _MIB,
    first_bucket_bytes: int = _MIB,
    database: ProfileDatabase | None = None,
) -> Added:
    """What the reducer of one model adds to a forward and backward pass, in ns, for parameters of these very shapes.

    Parameters
    ----------
    shapes : sequence of shapes
        Of the trained parameters, in order of registration.
    num_ranks : int
        1: copies and hooks only, nothing is sent.
    sender : str
        One of ``windtunnel.cost.rerun.sending.SENDERS``; empty is DistributedDataParallel's own all-reduce.
    options : dict, optional
        Of the sender.
    bucket_bytes, first_bucket_bytes : int
    database : ProfileDatabase, optional

    Raises
    ------
    PriceError
        The processes could not be run.
    """
    job = _job(shapes, sender, options, bucket_bytes, first_bucket_bytes)
    measured = _measure_jobs([job], num_ranks, database)[0]
    return Added.of(measured.new_ns - measured.old_ns, measured.spread_ratio * measured.new_ns)


def _job(
    shapes: Sequence[Sequence[int]],
    sender: str = "",
    options: Mapping[str, Any] | None = None,
    bucket_bytes: int = 25 * _MIB,
    first_bucket_bytes: int = _MIB,
) -> dict[str, Any]:
    """One thing to time, as the worker reads it."""
    return {
        "shapes": [list(shape) for shape in shapes],
        "sender": sender,
        "options": dict(options or {}),
        "bucket_bytes": bucket_bytes,
        "first_bucket_bytes": first_bucket_bytes,
    }


def _measure_jobs(jobs: list[dict[str, Any]], num_ranks: int, database: ProfileDatabase | None) -> list[Measurement]:
    """The jobs' measurements, all known or all made now."""
    keys = [_key(job, num_ranks) for job in jobs]
    return find_or_measure(database, keys, lambda: _fly(num_ranks, jobs), ROUNDS)


def _key(job: dict[str, Any], num_ranks: int) -> tuple[str, str, str, str, int, str, str]:
    signature = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]
    change = f"gloo:{num_ranks} {job['sender']}".rstrip()
    return ("DistributedDataParallel", signature, "compute, forward and backward", change, 1, machine(), libraries())


def _fly(num_ranks: int, jobs: list[dict[str, Any]]) -> list[list[float]]:
    require("torch", extra="torch")
    module = "windtunnel.cost.rerun.gloo_worker"
    try:
        with Workers(module, (jobs, ROUNDS), num_ranks=num_ranks, title="reducer", patience_s=_TIMEOUT_S) as workers:
            result: list[list[float]] = workers.gather()[0]
    except WorkerError as error:
        reason = last_error(error.log_tail) or (error.log_tail.strip() or error.message).splitlines()[-1]
        raise PriceError(
            f"averaging gradients between {num_ranks} processes could not be measured here: {reason}",
            fix="say how fast the link is: data-parallel:bandwidth_bytes_per_s=...",
        ) from error
    return result
