"""Whether other programs disturbed the iterations that were measured.

In: at the end of each measured iteration, how long it waited for a core. Out: whether to measure it again, which
iterations to keep, and what the graph says of it. Not here: counting (``measure.disturbance``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.measure.disturbance import MAX_WAITED_RATIO, DisturbanceClock, Neighbors
from windtunnel.sources.torch.messages import is_distributed

__all__ = ["QuietWatch", "disturbance_facts", "quiet_iterations"]

_FEWEST = 4  # quiet iterations that stand for all


class QuietWatch:
    """Says of each iteration how much of it others took, and whether it should be measured again.

    Parameters
    ----------
    max_repeats : int
        How many iterations may be measured again; a host that stays busy must not keep a script running forever.
    """

    def __init__(self, max_repeats: int) -> None:
        self._repeats_left = max_repeats
        self._clock = DisturbanceClock()
        self._neighbors: Neighbors | None = None
        self.num_repeated = 0

    def begin(self) -> None:
        """An iteration begins."""
        self._neighbors = self._neighbors or Neighbors()
        self._clock.begin()

    def end(self) -> float:
        """The iteration has ended: the share of it that others took."""
        stretch = self._clock.end()
        is_own = stretch.is_disturbed and self._neighbors is not None and self._neighbors.are_quiet
        return 0.0 if is_own else stretch.lost_ratio

    def wants_again(self, lost_ratio: float) -> bool:
        """Whether to measure the iteration again; ranks of one job must not disagree about it, so they never do."""
        if lost_ratio <= MAX_WAITED_RATIO or not self._repeats_left or is_distributed():
            return False
        self._repeats_left -= 1
        self.num_repeated += 1
        return True


def quiet_iterations(lost_ratios: Sequence[float]) -> NDArray[np.bool_]:
    """Which iterations to keep: the quiet ones where there are enough, else the less disturbed half, bool [I].

    Chosen by how long an iteration waited for a core, never by how long it took.

    Examples
    --------
    >>> quiet_iterations([0.0, 0.4, 0.0, 0.01, 0.0]).tolist()
    [True, False, True, True, True]
    >>> quiet_iterations([0.5, 0.4, 0.6, 0.7]).tolist()
    [True, True, False, False]
    """
    missing = np.asarray(lost_ratios, dtype=np.float64)
    quiet: NDArray[np.bool_] = missing <= MAX_WAITED_RATIO
    if quiet.sum() >= min(_FEWEST, len(missing)):
        return quiet
    least: NDArray[np.bool_] = missing <= np.median(missing)
    return least


def disturbance_facts(bare: Sequence[float], light: Sequence[float], num_repeated: int) -> dict[str, Any]:
    """What ``meta`` says of the iterations that were kept: ``lost_ratio`` is 0 where they were quiet."""
    median = max((float(np.median(missing)) for missing in (bare, light) if len(missing)), default=0.0)
    result: dict[str, Any] = {"lost_ratio": median} if median > MAX_WAITED_RATIO else {}
    return result | ({"num_repeated": num_repeated} if num_repeated else {})
