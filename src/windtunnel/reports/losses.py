"""What lost time costs, in words.

In: losses that replays found. Out: lines. Not here: what they cost (``whatifs.losses``).
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.units import format_duration, format_ratio
from windtunnel.whatifs.losses import Loss

__all__ = ["loss_lines"]

_MOST = 8
_WORDS = {
    "stragglers": "ranks are unlike, and wait for the slowest or the last to begin",
    "straggler": "rank {rank} is slower than the median one, or began later",
    "communication": "communication has nothing to hide behind",
    "communication and peers": "communication, with its waits for other ranks, has nothing to hide behind",
    "late senders": "messages of other ranks come late",
    "host": "the device waits for what the host launches",
    "loading": "the step waits for its batch",
    "copies": "copies have nothing to hide behind",
    "driver memory": "memory is asked of the driver, or given back",
}


def loss_lines(losses: Sequence[Loss]) -> list[str]:
    """One line per loss, the largest first, each with the what-if that removes it.

    Examples
    --------
    >>> for line in loss_lines([Loss("host", 2e6, 0.25, "cuda-graphs")]):
    ...     print(line)
    what an iteration loses, each by a replay without it; they do not add up:
      2.00 ms (25 %), whatif cuda-graphs: the device waits for what the host launches
    """
    if not losses:
        return []
    lines = ["what an iteration loses, each by a replay without it; they do not add up:"]
    for loss in losses[:_MOST]:
        words = _WORDS[loss.cause].format(rank=loss.rank)
        hint = f", whatif {loss.whatif}" if loss.whatif else ""
        lines.append(f"  {format_duration(loss.cost_ns)} ({format_ratio(loss.ratio)}){hint}: {words}")
    return lines
