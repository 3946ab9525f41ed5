"""Messages that are really sent, for the link that they tell.

In: how many processes, and how fast a link between them shall be. Out: what all-reduces and messages of many sizes take
between gloo processes of this host, kept like all that is measured. Not here: the fit (``links``), what a process does
(``gloo_worker``).
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import Any

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.comm.links import LinkFit, LinkSample, fit_link
from windtunnel.cost.collective import collective_ns
from windtunnel.errors import InputError
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.links import ShapedLink, shape_link
from windtunnel.measure.workers import Workers
from windtunnel.units import format_rate

__all__ = ["SIZES_BYTES", "LinkSweep", "averaging_rate", "measure_link"]

SIZES_BYTES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
_OPERATIONS = ("p2p", "all_reduce")
_PATIENCE_S = 300
_LARGE_BYTES = 1 << 24
# a link of the kernel lets the bytes of its first moments pass at once; these are spent before each message
_BEFORE_S, _MIN_BEFORE_BYTES = 0.008, 1 << 16
_Key = tuple[str, str, str, str, int, str, str]


@dataclass(frozen=True, slots=True)
class LinkSweep:
    """What was measured, and the link that it tells."""

    fit: LinkFit
    samples: tuple[LinkSample, ...]


def measure_link(
    num_ranks: int = 2,
    bandwidth_bytes_per_s: float | None = None,
    latency_ns: int = 0,
    *,
    sizes_bytes: tuple[int, ...] | None = None,
    database: ProfileDatabase | None = None,
    progress: Progress | None = None,
) -> LinkSweep:
    """Send messages between processes of this host, and fit a link to what they take.

    Parameters
    ----------
    num_ranks : int
    bandwidth_bytes_per_s : float, optional
        Shape the links in the kernel to this rate; by default they are this host's memory.
    latency_ns : int
        One way, of shaped links.
    sizes_bytes : tuple of int, optional
        ``SIZES_BYTES`` by default.
    database : ProfileDatabase, optional
        Where what is known is taken from, and what is measured is kept.
    progress : callable, optional
        Called with (what, done, total).

    Raises
    ------
    InputError
        Fewer than two processes, a latency without a rate, or the kernel may not shape links here.
    WorkerError
        A process failed; says what it printed.
    """
    if num_ranks < 2:
        raise InputError(f"{num_ranks} processes send nothing", fix="give --nproc 2 or more")
    if latency_ns and bandwidth_bytes_per_s is None:
        raise InputError("a latency is that of a shaped link", fix="give its bandwidth, too")
    name = f"gloo-{num_ranks}"
    if bandwidth_bytes_per_s is not None:
        name += f" at {format_rate(bandwidth_bytes_per_s)}" + (f" and {latency_ns} ns" if latency_ns else "")
    jobs = [(op, size) for op in _OPERATIONS for size in sizes_bytes or SIZES_BYTES]
    both_ways = " both ways" if bandwidth_bytes_per_s is not None else ""
    keys = [_key(op + both_ways, size, name) for op, size in jobs]
    known = database.find_all(keys) if database is not None else {}
    if not all(key in known and known[key].is_trusted for key in keys):
        known = _measure_jobs(jobs, keys, num_ranks, bandwidth_bytes_per_s, latency_ns, progress)
        if database is not None:
            database.add(known.values())
    samples = tuple(
        LinkSample(op, num_ranks if op != "p2p" else 2, size, known[key].new_ns, known[key].spread_ratio)
        for (op, size), key in zip(jobs, keys, strict=True)
    )
    return LinkSweep(fit_link(samples, name, f"measured between processes, {machine()}"), samples)


def averaging_rate(fit: LinkFit, num_ranks: int) -> tuple[float, float]:
    """Latency in ns, and bytes of gradients per second, of an all-reduce over a fitted link."""
    latency_ns = collective_ns("all_reduce", 0, num_ranks, fit.link)
    taken_ns = collective_ns("all_reduce", _LARGE_BYTES, num_ranks, fit.link) - latency_ns
    return float(latency_ns), 1e9 * _LARGE_BYTES / max(taken_ns, 1)


def _key(op: str, size_bytes: int, name: str) -> _Key:
    return ("link", f"{op} {size_bytes}", "forward", name, 1, machine(), libraries())


def _measure_jobs(
    jobs: list[tuple[str, int]],
    keys: list[_Key],
    num_ranks: int,
    bandwidth_bytes_per_s: float | None,
    latency_ns: int,
    progress: Progress | None,
) -> dict[tuple[str | int, ...], Measurement]:
    require("torch", extra="torch")
    with contextlib.ExitStack() as stack:
        started: dict[str, Any] = {}
        before_bytes = 0
        if bandwidth_bytes_per_s is not None:
            link: ShapedLink = stack.enter_context(
                shape_link(num_ranks, bandwidth_bytes_per_s, latency_ns, is_in_kernel=True)
            )
            started = {"prefixes": link.prefixes, "environment": link.environment}
            before_bytes = _MIN_BEFORE_BYTES + round(_BEFORE_S * bandwidth_bytes_per_s)
        workers = stack.enter_context(
            Workers(
                "windtunnel.comm.gloo_worker",
                (jobs, before_bytes),
                num_ranks=num_ranks,
                title="link",
                patience_s=_PATIENCE_S,
                **started,
            )
        )
        done = itertools.count(1)

        def report_progress(_: Any) -> None:
            if progress is not None:
                progress("messages", next(done), len(jobs))

        result = workers.gather(report_progress)[0]
    return {
        key: Measurement(*key, old_ns=quiet_ns, new_ns=quiet_ns, spread_ratio=spread, rounds=rounds)
        for key, (quiet_ns, spread, rounds) in zip(keys, result, strict=True)
    }
