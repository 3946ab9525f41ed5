"""What a change must know before it can be priced, and the prices: looked up in the database, else measured here.

In: a captured program, optimizers or parameters, and the form that they would have. Out: ``Need`` values, which run
nothing: two needs with one key are the same need, and are measured once, however many what-ifs have it; a price of
each, or the reason why there is none. Not here: what is done with a price (``whatifs``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.base.progress import Progress
from windtunnel.cost.rerun.all_reduces import all_reduce_times
from windtunnel.cost.rerun.averaging import averaging_ns, reducing_ns
from windtunnel.cost.rerun.carrying import carrying_cost
from windtunnel.cost.rerun.form import BASELINE, Form
from windtunnel.cost.rerun.memory import program_peaks, update_extra_bytes
from windtunnel.cost.rerun.optimizer import UpdateForm, measure_update
from windtunnel.cost.rerun.partial import measure_ratios
from windtunnel.cost.rerun.program import Program
from windtunnel.cost.rerun.ratios import look_up_ratios
from windtunnel.errors import WindtunnelError
from windtunnel.measure import ProfileDatabase

__all__ = [
    "AllReduceNeed",
    "AveragingNeed",
    "CarryingNeed",
    "Need",
    "OperatorsNeed",
    "PeakNeed",
    "ReducingNeed",
    "UpdateNeed",
    "UpdatePeakNeed",
    "price_needs",
]

_MIB = 1 << 20
_OPERATORS_S, _UPDATE_S = 6.0, 2.0


class Need:
    """Something that must be priced; equal to every other of the same key."""

    @property
    def key(self) -> str:
        """What is asked, as one line of text."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Need) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        """What is measured, for people."""
        return self.key


@dataclass(frozen=True, eq=False)
class OperatorsNeed(Need):
    """How much longer every operator of a program takes in another form; its price is ``Ratios``."""

    program: Program = field(repr=False)
    form: Form

    @property
    def key(self) -> str:
        """Program and form."""
        return f"operators of {self.program.fingerprint} on {self.program.threads} threads: {self.form.label}"

    def __str__(self) -> str:
        return f"operators: {', '.join(self.form.changes).replace('_', ' ')}"


@dataclass(frozen=True, eq=False)
class UpdateNeed(Need):
    """How much longer the optimizers' updates take in another form; its price is the ratio, a float.

    Parameters
    ----------
    optimizers : list of dict
        As a capture describes them.
    form : UpdateForm
    threads : int
        Of the old form; 0: as torch has them now.
    touched : mapping of parameter name to float
        Share of the rows that get a gradient other than zero.
    device : str
        Where the parameters lie: ``cpu`` or ``cuda``.
    captured_on : sequence of str
        Names of the GPUs that the capture saw.
    """

    optimizers: Sequence[Mapping[str, Any]] = field(repr=False)
    form: UpdateForm
    threads: int = 0
    touched: Mapping[str, float] = field(default_factory=dict, repr=False)
    device: str = "cpu"
    captured_on: Sequence[str] = ()

    @property
    def key(self) -> str:
        """Optimizers, threads and form."""
        where = f"{self.threads} threads" if self.device == "cpu" else self.device
        return f"update {_digest([self.optimizers, self.touched])} on {where}: {self.form.label}"

    def __str__(self) -> str:
        return "updates of the optimizer"


@dataclass(frozen=True, eq=False)
class AveragingNeed(Need):
    """Averaging of gradients between processes of this host; its price is a duration in ns."""

    size_bytes: int
    num_ranks: int

    @property
    def key(self) -> str:
        """Bytes and processes."""
        return f"averaging of {self.size_bytes} bytes between {self.num_ranks} processes"


def _describe_link(num_ranks: int, bandwidth_bytes_per_s: float | None, latency_ns: int) -> str:
    rate = f"{bandwidth_bytes_per_s:.0f} bytes/s" if bandwidth_bytes_per_s else "the loopback"
    return f"{num_ranks} processes, {rate}, {latency_ns} ns"


@dataclass(frozen=True, eq=False)
class AllReduceNeed(Need):
    """What all-reduces of any size take between processes of this host; its price is ``AllReduceTimes``.

    Parameters
    ----------
    num_ranks : int
    bandwidth_bytes_per_s : float or None
        Of each process's link; None is the loopback.
    latency_ns : int
    """

    num_ranks: int
    bandwidth_bytes_per_s: float | None = None
    latency_ns: int = 0

    @property
    def key(self) -> str:
        """Processes and link."""
        return f"all-reduces between {_describe_link(self.num_ranks, self.bandwidth_bytes_per_s, self.latency_ns)}"


@dataclass(frozen=True, eq=False)
class CarryingNeed(Need):
    """What messages take and cost between processes that compute with a thread each; its price is a ``CarryingCost``.

    Parameters
    ----------
    worker : str
        Module that sends halves of all-reduces and computes meanwhile.
    num_ranks : int
    bandwidth_bytes_per_s : float or None
        Of each process's link; None is the loopback.
    latency_ns : int
    """

    worker: str
    num_ranks: int
    bandwidth_bytes_per_s: float | None = None
    latency_ns: int = 0

    @property
    def key(self) -> str:
        """Processes, link and who sends."""
        return f"{self.worker}: {_describe_link(self.num_ranks, self.bandwidth_bytes_per_s, self.latency_ns)}"


@dataclass(frozen=True, eq=False)
class ReducingNeed(Need):
    """What one model's reducer adds to a pass, for parameters of these very shapes; its price is in ns.

    Parameters
    ----------
    shapes : sequence of shapes
        Of the trained parameters, in order of registration.
    num_ranks : int
        1: copies and hooks only, nothing is sent.
    sender : str
        A communication hook by name; empty is DistributedDataParallel's own all-reduce.
    options : mapping
        Of the sender.
    bucket_bytes, first_bucket_bytes : int
    """

    shapes: Sequence[Sequence[int]]
    num_ranks: int
    sender: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    bucket_bytes: int = 25 * _MIB
    first_bucket_bytes: int = _MIB

    @property
    def key(self) -> str:
        """All of it."""
        caps = f"buckets of {self.bucket_bytes} and {self.first_bucket_bytes} bytes"
        sent = f"{self.sender or 'all-reduce'} {_digest([self.shapes, self.options])}"
        return f"reducing by {sent} between {self.num_ranks} processes, {caps}"


@dataclass(frozen=True, eq=False)
class PeakNeed(Need):
    """What a program holds at its peak as captured and in another form; its price is two ``ProgramPeak``."""

    program: Program = field(repr=False)
    form: Form

    @property
    def key(self) -> str:
        """Program and form."""
        return f"peak of {self.program.fingerprint}: {self.form.label}"


@dataclass(frozen=True, eq=False)
class UpdatePeakNeed(Need):
    """What updates hold beyond parameters, gradients and state, with other options less as captured; in bytes."""

    optimizers: Sequence[Mapping[str, Any]] = field(repr=False)
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Optimizers and options."""
        return f"peak of updates {_digest([self.optimizers, self.options])}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:16]


def price_needs(
    needs: Iterable[Need],
    *,
    database: ProfileDatabase | str | None = None,
    budget_s: float | None = None,
    is_run: bool = True,
    progress: Progress | None = None,
) -> dict[Need, Any]:
    """Price each need once.

    Parameters
    ----------
    needs : iterable of Need
    database : ProfileDatabase or path, optional
        The user's own by default.
    budget_s : float, optional
        Time for the interleaved rounds of one need; 6 s for operators and 2 s for updates by default.
    is_run : bool
        Whether to measure what the database does not know; else its price is None.
    progress : callable, optional
        Called with (what, done, total).

    Returns
    -------
    dict of Need to price
        As the class of the need says; a ``WindtunnelError`` where it cannot be priced.
    """
    requested = list(dict.fromkeys(needs))
    prices: dict[Need, Any] = {}
    for done, need in enumerate(requested):
        if progress is not None:
            progress(f"measuring {need}", done, len(requested))
        try:
            if isinstance(need, PeakNeed | UpdatePeakNeed):
                prices[need] = _peak(need)  # counted, not timed: nothing to keep
            else:
                known = database if isinstance(database, ProfileDatabase) else ProfileDatabase(database or None)
                prices[need] = _price(need, known, budget_s) if is_run else _look_up(need, known)
        except WindtunnelError as error:
            prices[need] = error
    return prices


def _look_up(need: Need, database: ProfileDatabase) -> Any:
    if isinstance(need, OperatorsNeed):
        return look_up_ratios(need.program, need.form, BASELINE, database=database)
    return None


def _price(need: Need, database: ProfileDatabase, budget_s: float | None) -> Any:
    if isinstance(need, OperatorsNeed):
        return measure_ratios(need.program, need.form, database=database, budget_s=budget_s or _OPERATORS_S)
    if isinstance(need, UpdateNeed):
        return measure_update(
            [dict(optimizer) for optimizer in need.optimizers],
            need.form,
            threads=need.threads,
            touched=need.touched,
            database=database,
            budget_s=budget_s or _UPDATE_S,
            device=need.device,
            captured_on=need.captured_on,
        )
    if isinstance(need, AveragingNeed):
        return averaging_ns(need.size_bytes, need.num_ranks, database=database)
    if isinstance(need, AllReduceNeed):
        return all_reduce_times(need.num_ranks, need.bandwidth_bytes_per_s, need.latency_ns, database=database)
    if isinstance(need, CarryingNeed):
        return carrying_cost(
            need.num_ranks, need.bandwidth_bytes_per_s, need.latency_ns, worker=need.worker, database=database
        )
    assert isinstance(need, ReducingNeed)
    return reducing_ns(
        need.shapes,
        need.num_ranks,
        sender=need.sender,
        options=need.options,
        bucket_bytes=need.bucket_bytes,
        first_bucket_bytes=need.first_bucket_bytes,
        database=database,
    )


def _peak(need: PeakNeed | UpdatePeakNeed) -> Any:
    if isinstance(need, PeakNeed):
        return tuple(program_peaks(need.program, BASELINE, need.form))
    before, after = (update_extra_bytes(need.optimizers, UpdateForm(options=item)) for item in ({}, need.options))
    return after - before
