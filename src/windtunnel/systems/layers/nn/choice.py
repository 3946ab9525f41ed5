"""Choice of the quickest of several implementations on this host.

In: methods by name, and the plain one that always works. Out: the name of the quickest by interleaved measurements: the
plain one unless another is clearly quicker, so that a choice never loses by more than its measurement is off. Not here:
clocks and rounds (``measure``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windtunnel.measure.turns import elapsed_ns, quiet, rounds

__all__ = ["coarse", "quickest"]

_FEWEST, _MOST = 3, 15
_MARGIN = 0.03  # what another way must win by


def quickest(ways: Mapping[str, Callable[[], Any]], plain: str, *, budget_s: float = 0.3) -> str:
    """The name of the way that takes the least time.

    Parameters
    ----------
    ways : mapping of name to callable
        Each does the same work.
    plain : str
        The way that is kept where no other is clearly quicker.
    budget_s : float
        Time limit of all rounds; at least three are run.
    """
    times_ns: dict[str, list[int]] = {name: [] for name in ways}
    for turn in rounds(_FEWEST, _MOST, budget_s, warmup=1):
        for name, way in ways.items():
            spent_ns = elapsed_ns(way)
            if turn >= 0:
                times_ns[name].append(spent_ns)
    best = min(ways, key=lambda name: quiet(times_ns[name]))
    return best if quiet(times_ns[best]) < (1 - _MARGIN) * quiet(times_ns[plain]) else plain


def coarse(count: int, per_doubling: int = 1) -> int:
    """The next of few sizes: a program has many, and what is quickest changes slowly with them.

    Parameters
    ----------
    count : int
    per_doubling : int
        Sizes from one power of two to the next: 1, 2 or 4.

    Examples
    --------
    >>> coarse(35), coarse(35, 4), coarse(20, 4), coarse(64), coarse(0)
    (64, 40, 20, 64, 0)
    """
    unit = 1 << max((count - 1).bit_length() - per_doubling.bit_length(), 0)
    return -(-count // unit) * unit
