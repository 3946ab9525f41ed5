"""What a server that goes on has done: plain values.

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
    """What a request got.

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
    """A batch that was answered: by which split, how many inputs, when."""

    split: Split
    inputs: int
    begun_ns: int
    answered_ns: int


@dataclass(frozen=True)
class Change:
    """From one split to another, or to the same one after an instance has died.

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
