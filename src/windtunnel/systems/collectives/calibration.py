"""What instructions take on this host, measured in the processes that run them.

In: an executor with plans. Out: a ``Calibration``: times by kind and amount of work, and what a message and an event
cost besides. Kept like all that is measured. Not here: the replay (``simulated``).

All instructions of one kind and size run one after the other, on as many ranks at once as there are cores, on data that
have left the caches: between two steps a job touches more than caches hold, and all ranks share the memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import PriceError
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import machine
from windtunnel.measure.turns import quiet_rows, rounds
from windtunnel.systems.collectives.executor import Executor, last_cache_bytes
from windtunnel.systems.collectives.plan import (
    Buffer,
    Call,
    Copy,
    Instruction,
    MatMul,
    Plan,
    RankPlan,
    Receive,
    ReceiveReduce,
    Send,
    Signal,
    View,
    Wait,
)

__all__ = ["Calibration", "Work", "calibrate", "work_of"]

Work = tuple[str, int]  # kind of instruction, and its amount: elements, or rows of a product
_HOPS, _ROUNDS = 40, 9
_MIN_PASSES, _MAX_PASSES, _PASS_S = 3, 7, 0.25
_SEND, _MESSAGE, _EVENT = _WAITS = ("send", 1), ("message", 1), ("event", 1)


def work_of(item: Instruction, rank: RankPlan) -> Work | None:
    """What an instruction does apart from waiting; None where that is nothing.

    Examples
    --------
    >>> rank = RankPlan(0, {"x": Buffer(8, "float32")}, {})
    >>> work_of(Send(1, 0, View("x", 0, (4,))), rank)
    ('send float32', 4)
    """
    if isinstance(item, Signal | Wait):
        return None
    if isinstance(item, Call):
        digest = hashlib.sha256(item.kernel.source.encode()).hexdigest()[:12]
        return f"{item.kernel.name} {digest}", max((view.size for view in item.arguments), default=0)
    if isinstance(item, MatMul):
        (rows, inner), columns = item.a.shape, item.b.shape[1]
        return f"product {rank.buffers[item.target.buffer].dtype} {inner}x{columns}", rows
    view = item.source if isinstance(item, Send | Copy) else item.target
    kind = "send" if isinstance(item, Send) else item.reduction if isinstance(item, ReceiveReduce) else "copy"
    return f"{kind} {rank.buffers[view.buffer].dtype}", view.size


@dataclass(frozen=True)
class Calibration:
    """Times of instructions.

    Attributes
    ----------
    durations_ns : mapping of (kind, amount) to float
        With data that have left the caches.
    cached_ns : mapping of (kind, amount) to float
        With data that were touched last.
    cache_bytes : int
        Of the cache that all ranks share; 0 leaves it out: all data come from memory.
    send_ns : float
        What a send takes besides copies: it wakes its receiver.
    message_ns : float
        From the end of a small message's send to that of its receive, without the link.
    event_ns : float
        From a signal to the end of the wait.
    copies_all : bool
        Whether sends copy also what stays as it is until it is received, as gloo does.
    """

    durations_ns: Mapping[Work, float]
    cached_ns: Mapping[Work, float] = field(default_factory=dict)
    cache_bytes: int = 0
    send_ns: float = 0.0
    message_ns: float = 0.0
    event_ns: float = 0.0
    copies_all: bool = False

    def join(self, other: Calibration) -> Calibration:
        """This one with further instructions of another one."""
        return replace(
            self,
            durations_ns={**other.durations_ns, **self.durations_ns},
            cached_ns={**other.cached_ns, **self.cached_ns},
        )

    def duration_ns(self, work: Work | None, missed_ratio: float = 1.0) -> int:
        """The time of some work of whose bytes a ratio comes from memory.

        Between measured amounts it is linear, beyond them it has the rate of the nearest.

        Raises
        ------
        PriceError
            Nothing of this kind was measured.
        """
        if work is None:
            return 0
        missed_ns = _interpolate(self.durations_ns, work)
        if not self.cache_bytes:
            return round(missed_ns)
        cached_ns = min(_interpolate(self.cached_ns, work), missed_ns)
        return round(cached_ns + missed_ratio * (missed_ns - cached_ns))


def _interpolate(times_ns: Mapping[Work, float], work: Work) -> float:
    if work in times_ns:
        return times_ns[work]
    kind, amount = work
    known = sorted((size, time_ns) for (other, size), time_ns in times_ns.items() if other == kind)
    if not known:
        kinds = ", ".join(sorted({other for other, _ in times_ns}))
        raise PriceError(f"nothing was measured of {kind}", where=kinds, fix="calibrate with this plan")
    sizes, known_ns = np.array(known, dtype=np.float64).T
    if not sizes[0] < amount < sizes[-1]:
        nearest = 0 if amount < sizes[0] else -1
        return float(known_ns[nearest]) * amount / max(float(sizes[nearest]), 1.0)
    return float(np.interp(amount, sizes, known_ns))


def calibrate(
    executor: Executor, numbers: Iterable[int], *, num_cores: int, database: ProfileDatabase | None = None
) -> Calibration:
    """Measure the instructions of loaded plans, unless they are known.

    They take turns, so that what other programs do meanwhile makes none of them dearer than the others.

    Parameters
    ----------
    executor : Executor
    numbers : iterable of int
        What ``executor.load`` returned.
    num_cores : int
        As many ranks work at once.
    database : ProfileDatabase, optional
        Where what is known is taken from, and what is measured is kept.
    """
    samples: dict[Work, tuple[int, dict[int, list[tuple[str, int]]]]] = {}
    for number in numbers:
        for work, positions in _positions(executor.plans[number]).items():
            busy = {rank: positions[rank] for rank in sorted(positions)[:num_cores]}
            samples.setdefault(work, (number, busy))
    keys = {work: _measurement(work, executor).key for work in (*samples, *map(_in_cache, samples), *_WAITS)}
    known = database.find_all(keys.values()) if database is not None else {}
    result = {work: known[key].new_ns for work, key in keys.items() if key in known and known[key].is_trusted}
    missing = [work for work in samples if work not in result or _in_cache(work) not in result]
    passes: dict[Work, list[NDArray[np.float64]]] = {work: [] for work in missing}
    for turn in rounds(_MIN_PASSES, _MAX_PASSES, _PASS_S * len(missing), warmup=1):
        for work in missing:
            times_ns = np.array(list(executor.time_instructions(*samples[work]).values())).mean(axis=0)
            passes[work] += [times_ns] if turn >= 0 else []
    new = {}
    for work in missing:
        new[work], new[_in_cache(work)] = quiet_rows(passes[work]).tolist()
    if not set(_WAITS) <= result.keys():
        new |= zip(_WAITS, _measure_waits(executor), strict=True)
    if database is not None:
        database.add(_measurement(work, executor, time_ns) for work, time_ns in new.items())
    result |= new
    return Calibration(
        {work: result[work] for work in samples},
        {work: result[_in_cache(work)] for work in samples},
        last_cache_bytes(),
        result[_SEND],
        result[_MESSAGE],
        result[_EVENT],
        executor.transport != "shared_memory",
    )


def _in_cache(work: Work) -> Work:
    return f"cached {work[0]}", work[1]


def _positions(plan: Plan) -> dict[Work, dict[int, list[tuple[str, int]]]]:
    """Where each rank does the same work."""
    result: dict[Work, dict[int, list[tuple[str, int]]]] = {}
    for rank in plan.ranks:
        for thread, items in rank.threads.items():
            for index, item in enumerate(items):
                work = work_of(item, rank)
                if work is not None:
                    result.setdefault(work, {}).setdefault(rank.rank, []).append((thread, index))
    return result


def _measurement(work: Work, executor: Executor, duration_ns: float = 0.0) -> Measurement:
    """How a time is kept in the database."""
    link = executor.link.name if executor.link is not None and work == _MESSAGE else ""
    where = f"{executor.num_ranks} ranks over {executor.transport} {link}".rstrip()
    libraries = f"numpy {np.__version__}"
    return Measurement(
        f"plan instruction {work[0]}", str(work[1]), "forward", where, 1, machine(), libraries, duration_ns, duration_ns
    )


def _measure_waits(executor: Executor) -> tuple[float, float, float]:
    """What the send of a small message, which goes to and fro, its way, and an event take, in ns."""
    view, buffers = View("x", 0, (1,)), {"x": Buffer(1, "float32")}
    idle = [RankPlan(rank, buffers, {"compute": ()}) for rank in range(2, executor.num_ranks)]
    there: list[Instruction] = [Send(1, 0, view), Receive(1, 0, view)] * _HOPS
    back: list[Instruction] = [Receive(0, 0, view), Send(0, 0, view)] * _HOPS
    ranks = [RankPlan(rank, buffers, {"compute": tuple(items)}) for rank, items in enumerate((there, back))]
    signals: list[Instruction] = [item for i in range(_HOPS) for item in (Signal(2 * i), Wait(2 * i + 1))]
    waits: list[Instruction] = [item for i in range(_HOPS) for item in (Wait(2 * i), Signal(2 * i + 1))]
    threads = {"compute": tuple(signals), "communication": tuple(waits)}
    names = [Plan("messages", (executor.num_ranks,), (*ranks, *idle))]
    alone = [RankPlan(rank, buffers, {"compute": ()}) for rank in range(1, executor.num_ranks)]
    names.append(Plan("events", (executor.num_ranks,), (RankPlan(0, buffers, threads), *alone)))
    numbers: Sequence[int] = [executor.load(plan) for plan in names]
    rounds_ns = np.percentile(executor.time(numbers, _ROUNDS).max(axis=2), 25, axis=0) / (2 * _HOPS)
    link_ns = executor.link.transfer_ns(4) if executor.link is not None else 0
    spans = executor.timeline(numbers[0])
    send_ns = float(np.median([span.end_ns - span.start_ns for span in spans if span.index % 2 == span.rank]))
    return send_ns, max(float(rounds_ns[0]) - send_ns - link_ns, 0.0), float(rounds_ns[1])
