"""Estimate of the batch size that a server should use.

In: how many requests are unanswered, time and again. Out: a power of two. Not here: the server (``live``), what it
changes to (``adapt``).

References
----------
Packrat, ICML 2025, and its authors' program: a moving mean of the queue's length, and the most frequent of the last ten
powers of two.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

__all__ = ["BatchEstimate"]

_WEIGHT = 0.1  # of the newest length
_KEPT = 10


class BatchEstimate:
    """The batch size that the queue demands, period by period.

    Parameters
    ----------
    batch : int
        That the server answers at first.
    most : int, optional
        That it can.
    """

    def __init__(self, batch: int, most: int | None = None) -> None:
        self.batch, self.most = batch, most
        self._last: deque[int] = deque(maxlen=_KEPT)

    def after(self, depths: Sequence[int]) -> int:
        """Return the batch size after a period with these queue depths; 1 after a period without requests.

        Examples
        --------
        >>> BatchEstimate(1).after([16] * 100)
        16
        """
        mean, stable = float(self.batch), 1
        for depth in depths if any(depths) else ():
            mean = (1 - _WEIGHT) * mean + _WEIGHT * depth
            self._last.append(1 << (max(1, round(mean)).bit_length() - 1))
            # of several as frequent, the one that is there longest
            stable = Counter(self._last).most_common(1)[0][0]
        self.batch = stable if self.most is None else min(stable, self.most)
        return self.batch
