"""What instructions take on this host, measured in the processes that run them.

In: an executor with plans. Out: a ``Calibration``: times by kind and amount of work, and what a message and an event
cost besides. Kept like all that is measured. Not here: the replay (``simulated``).

All instructions of one kind and size run one after the other, on as many ranks at once as there are cores, so that
their data come from memory, and memory is as busy, as in a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.errors import PriceError
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.fingerprint import machine
from windtunnel.systems.collectives.executor import Executor
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
_MESSAGE, _EVENT = ("message", 1), ("event", 1)


def work_of(item: Instruction, rank: RankPlan) -> Work | None:
    """What an instruction does apart from waiting; None where that is nothing.

    Examples
    --------
    >>> rank = RankPlan(0, {"x": Buffer(8, "float32")}, {})
    >>> work_of(Send(1, 0, View("x", 0, (4,))), rank)
    ('copy float32', 4)
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
    kind = item.reduction if isinstance(item, ReceiveReduce) else "copy"
    return f"{kind} {rank.buffers[view.buffer].dtype}", view.size


@dataclass(frozen=True)
class Calibration:
    """Times of instructions.

    Attributes
    ----------
    durations_ns : mapping of (kind, amount) to float
    message_ns : float
        From the end of a send to the beginning of what its receiver does with it, without the link.
    event_ns : float
        From a signal to the end of the wait.
    copies_all : bool
        Whether sends copy also what stays as it is until it is received, as gloo does.
    """

    durations_ns: Mapping[Work, float]
    message_ns: float = 0.0
    event_ns: float = 0.0
    copies_all: bool = False

    def duration_ns(self, work: Work | None) -> int:
        """The time of some work; between measured amounts it is linear, beyond them it has the rate of the nearest.

        Raises
        ------
        PriceError
            Nothing of this kind was measured.
        """
        if work is None:
            return 0
        kind, amount = work
        if work in self.durations_ns:
            return round(self.durations_ns[work])
        known = sorted((size, time_ns) for (other, size), time_ns in self.durations_ns.items() if other == kind)
        if not known:
            kinds = ", ".join(sorted({other for other, _ in self.durations_ns}))
            raise PriceError(f"nothing was measured of {kind}", where=kinds, fix="calibrate with this plan")
        sizes, times_ns = np.array(known, dtype=np.float64).T
        if not sizes[0] < amount < sizes[-1]:
            nearest = 0 if amount < sizes[0] else -1
            return round(float(times_ns[nearest]) * amount / max(float(sizes[nearest]), 1.0))
        return round(float(np.interp(amount, sizes, times_ns)))


def calibrate(
    executor: Executor, numbers: Iterable[int], *, num_cores: int, database: ProfileDatabase | None = None
) -> Calibration:
    """Measure the instructions of loaded plans, unless they are known.

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
            samples.setdefault(work, (number, positions))
    keys = {work: _measurement(work, executor).key for work in (*samples, _MESSAGE, _EVENT)}
    known = database.find_all(keys.values()) if database is not None else {}
    result = {work: known[key].new_ns for work, key in keys.items() if key in known and known[key].is_trusted}
    missing = [work for work in keys if work not in result]
    for work in missing:
        if work in samples:
            number, positions = samples[work]
            busy = {rank: positions[rank] for rank in sorted(positions)[:num_cores]}
            answers = executor.time_instructions(number, busy)
            result[work] = float(np.median([answers[rank] for rank in busy]))
    if not {_MESSAGE, _EVENT} <= result.keys():
        result[_MESSAGE], result[_EVENT] = _measure_waits(executor)
    if database is not None:
        database.add(_measurement(work, executor, result[work]) for work in missing)
    message_ns, event_ns = result.pop(_MESSAGE), result.pop(_EVENT)
    return Calibration(result, message_ns, event_ns, executor.transport != "shared_memory")


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
        f"plan {work[0]}", str(work[1]), "forward", where, 1, machine(), libraries, duration_ns, duration_ns
    )


def _measure_waits(executor: Executor) -> tuple[float, float]:
    """What a message and an event take besides copies, in ns: a small one goes to and fro."""
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
    copies_ns = sum(executor.time_instructions(numbers[0], {0: [("compute", index)]})[0] for index in (0, 1))
    return max(float(rounds_ns[0]) - copies_ns - link_ns, 0.0), float(rounds_ns[1])
