"""What a change must know before it can be priced: plain values that run nothing.

In: a captured program, optimizers or parameters, and the form that they would have. Out: ``Need`` values. Two needs
with one key are the same need, and are measured once. Not here: measuring them (``prices``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel.cost.rerun.form import Form
from windtunnel.cost.rerun.optimizer import UpdateForm
from windtunnel.cost.rerun.program import Program

__all__ = [
    "AveragingNeed",
    "CarryingNeed",
    "Need",
    "OperatorsNeed",
    "PeakNeed",
    "ReducingNeed",
    "UpdateNeed",
    "UpdatePeakNeed",
]

_MIB = 1 << 20


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


@dataclass(frozen=True, eq=False)
class AveragingNeed(Need):
    """Averaging of gradients between processes of this host; its price is a duration in ns."""

    size_bytes: int
    num_ranks: int

    @property
    def key(self) -> str:
        """Bytes and processes."""
        return f"averaging of {self.size_bytes} bytes between {self.num_ranks} processes"


@dataclass(frozen=True, eq=False)
class CarryingNeed(Need):
    """What processes that compute with a thread each lose while messages are under way; its price is a ratio of times.

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
        rate = f"{self.bandwidth_bytes_per_s:.0f} bytes/s" if self.bandwidth_bytes_per_s else "the loopback"
        return f"computing of {self.num_ranks} processes while messages use {rate}, {self.latency_ns} ns"


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
