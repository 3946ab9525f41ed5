"""Schedules by their names.

In: a name, numbers of ranks, microbatches, chunks and batches. Out: a ``Schedule``. Not here: how each is made
(``schedules``, ``chunked``, ``bidirectional``).
"""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.errors import InputError
from windtunnel.systems.pipelines.bidirectional import dualpipe, dualpipe_v
from windtunnel.systems.pipelines.chunked import interleaved, zb_h1, zbv
from windtunnel.systems.pipelines.schedules import (
    Schedule,
    forward_only,
    gpipe,
    one_forward_one_backward,
    pipedream,
    pipedream_2bw,
    repeat_schedule,
)

__all__ = ["NEVER_EMPTIED", "SCHEDULES", "generate"]

_EMPTIED: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zbv": zbv,
    "dualpipe": dualpipe,
    "dualpipev": dualpipe_v,
    "forward-only": forward_only,
}
_NEVER_EMPTIED: dict[str, Callable[[int, int, int], Schedule]] = {"2bw": pipedream_2bw, "pipedream": pipedream}
NEVER_EMPTIED = tuple(_NEVER_EMPTIED)
"""Schedules whose batches do not wait for each other."""
SCHEDULES = (*_EMPTIED, *_NEVER_EMPTIED)
"""Names that ``generate`` knows."""


def generate(
    name: str, num_ranks: int, num_microbatches: int, *, num_batches: int = 1, num_chunks: int | None = None
) -> Schedule:
    """The schedule of that name.

    Parameters
    ----------
    name : str
        One of ``SCHEDULES``.
    num_ranks, num_microbatches, num_batches : int
    num_chunks : int, optional
        Stages per rank of ``interleaved``, by default 2.

    Raises
    ------
    InputError
        No schedule has that name, or it cannot have these numbers.
    """
    if name not in SCHEDULES:
        raise InputError(f"no schedule is called {name!r}", where="schedule", fix=", ".join(SCHEDULES))
    if num_chunks is not None and name == "interleaved":
        return repeat_schedule(interleaved(num_ranks, num_microbatches, num_chunks), num_batches)
    if name in _NEVER_EMPTIED:
        schedule = _NEVER_EMPTIED[name](num_ranks, num_microbatches, num_batches)
    else:
        schedule = repeat_schedule(_EMPTIED[name](num_ranks, num_microbatches), num_batches)
    if num_chunks is not None and num_chunks * num_ranks != schedule.num_stages:
        raise InputError(
            f"{num_chunks} chunks per rank", where=name, fix=f"{schedule.num_stages // num_ranks}, or interleaved"
        )
    return schedule
