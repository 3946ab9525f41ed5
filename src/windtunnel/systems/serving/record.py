"""The record of a long-running server, in plain values.

In: nothing. Out: ``Reply`` to a request, ``Batch`` that was answered, ``Change`` of its split. Not here: the server
(``live``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windtunnel.systems.serving.model import Split

__all__ = ["Batch", "Change", "Reply"]


@dataclass(frozen=True)
class Reply:
    """The reply to a request, with times.

    Parameters
    ----------
    output : any
        As ``Served.postprocess`` gives it; None where the request brought nothing.
    arrived_ns, answered_ns : int
        By the clock of all processes.
    """

    output: Any
    arrived_ns: int
    answered_ns: int


@dataclass(frozen=True)
class Batch:
    """An answered batch: its split, number of inputs and times."""

    split: Split
    inputs: int
    begun_ns: int
    answered_ns: int


@dataclass(frozen=True)
class Change:
    """A change of the split, or a restart of the same split after an instance died.

    Parameters
    ----------
    before, after : Split
    begun_ns, serving_ns, ended_ns : int
        When new instances were begun, when all batches went to them, when the old ones had ended.
    failed : str
        Why it did not take place; the instances from before serve on.
    """

    before: Split
    after: Split
    begun_ns: int
    serving_ns: int
    ended_ns: int
    failed: str = ""
