"""The link that explains measured messages.

In: how long collectives and messages of known sizes took, without waiting: those of a trace, or those that are really
sent between gloo processes of this host and kept like all that is measured. Out: latency, bandwidth and how fast what
arrives is added up, none of them below 0, with the error that is to be expected. Not here: what a process does
(``gloo_worker``).

Legend: α latency in ns, β ns per byte on the wire, γ ns per byte that is added up.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.comm.algorithms import OPERATIONS
from windtunnel.comm.instances import collectives_of
from windtunnel.cost.collective import collective_ns
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.hardware import Link
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.links import ShapedLink, shape_link
from windtunnel.measure.workers import Workers
from windtunnel.units import format_rate

__all__ = [
    "SIZES_BYTES",
    "LinkFit",
    "LinkSample",
    "LinkSweep",
    "averaging_rate",
    "fit_link",
    "measure_link",
    "samples_of",
]

Floats = NDArray[np.float64]
_ROUNDS, _SAME = 30, 1e-9
_HUBER, _MIN_SCALE, _LONGEST_STEP = 1.345, 0.01, 0.7
_MIN_RANGE = 4
_MIN_SPREAD = 0.03
_MANY_BYTES = 10**12
SIZES_BYTES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
_OPERATIONS = ("p2p", "all_reduce")
_PATIENCE_S = 300
_LARGE_BYTES = 1 << 24
# a link of the kernel lets the bytes of its first moments pass at once; these are spent before each message
_BEFORE_S, _MIN_BEFORE_BYTES = 0.008, 1 << 16
_Key = tuple[str, str, str, str, int, str, str]


@dataclass(frozen=True, slots=True)
class LinkSample:
    """One operation of one size, without waiting.

    Parameters
    ----------
    op : str
        As ``windtunnel.cost.collective.COLLECTIVES`` calls it; ``p2p`` is one message.
    num_ranks, size_bytes : int
    duration_ns : float
    spread_ratio : float
        How much it varies, over itself; what varies less counts more.
    """

    op: str
    num_ranks: int
    size_bytes: int
    duration_ns: float
    spread_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkFit:
    """A link, and how well it explains what was measured.

    Attributes
    ----------
    link : Link
        Its ``sum_bytes_per_s`` is None where it cannot be separated from the wire's rate.
    error : float
        Median of |predicted / measured - 1| of samples that the fit had not seen.
    num_samples : int
    """

    link: Link
    error: float
    num_samples: int


def samples_of(graph: Graph) -> list[LinkSample]:
    """What the collectives of a graph say: the shortest of each operation, ranks and size, which waited least.

    Raises
    ------
    NotApplicableError
        It has no collectives, or their sizes are not recorded.
    """
    shortest: dict[tuple[str, int, int], int] = {}
    for result in collectives_of(graph, OPERATIONS):
        used = graph.duration_ns[result.rows].min(axis=1)
        for size, duration in zip(result.size_bytes.tolist(), used.tolist(), strict=True):
            key = (result.op, result.num_members, size)
            if size > 0 and duration > 0:
                shortest[key] = min(duration, shortest.get(key, duration))
    if not shortest:
        raise NotApplicableError("no collective here has a size and a duration", fix="load a trace of a real run")
    return [LinkSample(*key, duration) for key, duration in sorted(shortest.items())]


def fit_link(samples: Sequence[LinkSample], name: str, source: str = "") -> LinkFit:
    """Find the link by least deviations of the logarithm of times; samples that fit badly count less and less.

    Parameters
    ----------
    samples : sequence of LinkSample
    name, source : str
        Of the link.

    Raises
    ------
    InputError
        The sizes are too much alike to tell latency from bandwidth, or time does not grow with size.

    Examples
    --------
    >>> sizes = [1_000, 1_000_000]
    >>> fit = fit_link([LinkSample("p2p", 2, size, 5_000 + size) for size in sizes], "wire")
    >>> fit.link.latency_ns, round(fit.link.bandwidth_bytes_per_s / 1e9, 3)
    (5000, 1.0)
    """
    sizes = [sample.size_bytes for sample in samples]
    if not sizes or max(sizes) < _MIN_RANGE * max(1, min(sizes)):
        raise InputError(
            f"{len(set(sizes))} sizes of messages do not tell latency from bandwidth",
            where=name,
            fix=f"measure sizes that differ {_MIN_RANGE} times or more",
        )
    terms, used = _terms(samples), np.array([sample.duration_ns for sample in samples], dtype=np.float64)
    trust = _MIN_SPREAD / np.maximum([sample.spread_ratio for sample in samples], _MIN_SPREAD)
    alpha, beta, gamma = _fit_coefficients(terms, used, trust).tolist()
    if beta <= 0:
        raise InputError("larger messages do not take longer here", where=name, fix="measure larger ones")
    sums = 1e9 / gamma if gamma > 0 else None
    link = Link(name, 1e9 / beta, latency_ns=round(alpha), source=source, sum_bytes_per_s=sums)
    return LinkFit(link, _unseen_error(terms, used, trust), len(samples))


def _terms(samples: Iterable[LinkSample]) -> Floats:
    """Latencies, bytes on the wire and bytes added up of each sample, float [N, 3]."""
    return np.array([_terms_of(sample) for sample in samples], dtype=np.float64)


def _terms_of(sample: LinkSample) -> tuple[float, float, float]:
    latencies = collective_ns(sample.op, 0, sample.num_ranks, Link("latency", 1e9, latency_ns=1))
    sent_ns = collective_ns(sample.op, _MANY_BYTES, sample.num_ranks, Link("wire", 1e9))
    taken_ns = collective_ns(sample.op, _MANY_BYTES, sample.num_ranks, Link("wire", 1e9, sum_bytes_per_s=1e9))
    return latencies, sent_ns / _MANY_BYTES * sample.size_bytes, (taken_ns - sent_ns) / _MANY_BYTES * sample.size_bytes


def _fit_coefficients(terms: Floats, measured_ns: Floats, trust: Floats) -> Floats:
    """α, β, γ by least squares of log(measured / predicted), in which twice and half are equally wrong (Gauss-Newton).

    Samples count as they are trusted; those that fit badly count less and less (Huber).
    """
    # a term that is proportional to the bytes on the wire cannot be separated from them
    ratio = terms[:, 2] / np.maximum(terms[:, 1], 1e-9)
    columns = [0, 1, 2] if np.ptp(ratio) > 0.1 else [0, 1]
    largest = int(np.argmax(terms[:, 1]))
    result: Floats = np.array([(measured_ns / terms[:, 0]).min(), measured_ns[largest] / terms[largest, 1], 0.0])
    for _ in range(_ROUNDS):
        predicted = np.maximum(terms @ result, 1e-3 * measured_ns)
        off = np.log(measured_ns / predicted)
        scale = max(1.4826 * float(np.median(np.abs(off))), _MIN_SCALE)
        weight = trust * np.sqrt(np.minimum(1, _HUBER * scale / np.maximum(np.abs(off), 1e-12)))
        requested = 1 + np.clip(off, -_LONGEST_STEP, _LONGEST_STEP)
        before = result.copy()
        result[columns] = _not_negative(terms[:, columns] / predicted[:, None], requested, weight)
        if np.allclose(result, before, rtol=_SAME, atol=0):
            break
    # The latency that small messages show by themselves: what varies little are the large ones, which hide it.
    rest = measured_ns - terms[:, 1:] @ result[1:]
    is_small = rest > measured_ns / 2
    shown = float(np.median(rest[is_small] / terms[is_small, 0])) if is_small.any() else 0.0
    return np.array([max(shown, result[0]), *result[1:]])


def _not_negative(terms: Floats, target: Floats, weight: Floats) -> Floats:
    """Least squares with no negative number: the best over all sets of numbers that are not 0."""
    num = terms.shape[1]
    best: tuple[float, Any] = (np.inf, np.zeros(num))
    for kept in itertools.chain.from_iterable(itertools.combinations(range(num), size) for size in range(1, num + 1)):
        scaled = terms[:, kept] * weight[:, None]
        norm = np.maximum(np.linalg.norm(scaled, axis=0), 1e-300)
        solved = np.linalg.lstsq(scaled / norm, target * weight, rcond=None)[0] / norm
        result = np.zeros(num)
        result[list(kept)] = solved
        cost = float((((terms @ result - target) * weight) ** 2).sum())
        if (solved >= 0).all() and cost < best[0] - 1e-15:
            best = (cost, result)
    selected: Floats = best[1]
    return selected


def _unseen_error(terms: Floats, measured_ns: Floats, trust: Floats) -> float:
    """Median relative error of each sample from a fit of all others."""
    if len(measured_ns) < 3:
        return 0.0
    errors = []
    for left_out in range(len(measured_ns)):
        others = np.arange(len(measured_ns)) != left_out
        result = _fit_coefficients(terms[others], measured_ns[others], trust[others])
        errors.append(abs(float(terms[left_out] @ result) / measured_ns[left_out] - 1))
    return float(np.median(errors))


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
