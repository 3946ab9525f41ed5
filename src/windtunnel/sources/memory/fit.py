"""The largest batch that fits.

In: a function that says the peak of a batch size, and a limit. Out: the largest batch whose peak is within the limit,
and a next one, at most 0.4 % larger, whose peak is not; both are asked for. A peak grows nearly in proportion to the
batch, so that the search interpolates, and needs few answers. Not here: what says the peak (a job on fake tensors, in a
process of its own).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from windtunnel.errors import InputError

__all__ = ["Fit", "largest_batch"]

MAX_BATCH = 2**20
_NUM_WITHOUT_GROWTH = 4  # doubles of a batch that hold no more
_MAX_STEP = 64  # over the largest batch that is known to fit
_RESOLUTION = 256  # a batch is found to one part of this many
_BISECT_EVERY = 3  # steps of the search, where interpolation alone could be slow


@dataclass
class Fit:
    """What a search has found.

    Parameters
    ----------
    limit_bytes : int
    peaks : dict of int to int
        Peak in bytes by batch size, in the order in which they were asked for.
    failures : dict of int to str
        Why a batch size gave no answer.
    held : dict of int to int
        Bytes that tensors hold at the peak, by batch size. An allocator reserves memory in segments, which may be as
        many for a range of batches.
    """

    limit_bytes: int
    peaks: dict[int, int] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        """The largest batch that fits; 0 if none does."""
        return max((batch for batch, peak in self.peaks.items() if peak <= self.limit_bytes), default=0)

    @property
    def next_batch_size(self) -> int:
        """The smallest batch that does not fit, or gave no answer; 0 if all do."""
        too_large = [batch for batch, peak in self.peaks.items() if peak > self.limit_bytes]
        return min([*too_large, *self.failures], default=0)


def largest_batch(
    peak_of: Callable[[int], tuple[int, int]], limit_bytes: int, start: int = 8, *, max_batch: int = MAX_BATCH
) -> Fit:
    """Search for the largest batch that fits.

    Parameters
    ----------
    peak_of : callable
        Peak in bytes of a batch size, and what tensors hold of it; an ``InputError`` says that there is no such job.
    limit_bytes : int
    start : int
        The first batch size to ask for.
    max_batch : int
        The largest to ask for.

    Raises
    ------
    InputError
        The first batch gives no answer, or the peak does not grow with the batch.

    Examples
    --------
    >>> found = largest_batch(lambda batch: (1000 + 7 * batch, 7 * batch), limit_bytes=1500)
    >>> found.batch_size, found.next_batch_size, len(found.peaks)
    (71, 72, 4)
    """
    fit = Fit(limit_bytes)
    _ask(fit, peak_of, start)
    while not fit.next_batch_size and fit.batch_size < max_batch:
        _ask(fit, peak_of, min(_further(fit), max_batch))
    num_steps = 0
    while fit.next_batch_size - fit.batch_size > max(fit.batch_size // _RESOLUTION, 1):
        num_steps += 1
        _ask(fit, peak_of, _between(fit, bisects=num_steps % _BISECT_EVERY == 0))
    return fit


def _ask(fit: Fit, peak_of: Callable[[int], tuple[int, int]], batch: int) -> None:
    try:
        fit.peaks[batch], fit.held[batch] = peak_of(batch)
    except InputError as error:
        if not fit.peaks:
            raise
        fit.failures[batch] = error.message


def _further(fit: Fit) -> int:
    """A batch that is likely to be near the limit, or twice the largest that is known."""
    batches = sorted(fit.peaks)
    if len(batches) == 1:
        return 2 * batches[-1]
    growth = (fit.peaks[batches[-1]] - fit.peaks[batches[-2]]) / (batches[-1] - batches[-2])
    if growth <= 0:
        if len(batches) >= _NUM_WITHOUT_GROWTH and fit.held[batches[-1]] <= fit.held[batches[0]]:
            raise InputError(
                f"the peak does not grow with the batch: {fit.held[batches[0]]:,} bytes at {batches[0]:,} and at "
                f"{batches[-1]:,}",
                where="search for the largest batch",
                fix="name the option of the script that sets its batch size with --batch-option",
            )
        return 2 * batches[-1]
    nearest = batches[-1] + int((fit.limit_bytes - fit.peaks[batches[-1]]) / growth) + 1
    return min(max(nearest, batches[-1] + 1), _MAX_STEP * batches[-1])


def _between(fit: Fit, *, bisects: bool) -> int:
    """A batch between the largest that fits and the smallest that does not."""
    low, high = fit.batch_size, fit.next_batch_size
    middle = (low + high) // 2
    if bisects or not low or high not in fit.peaks:
        return middle
    growth = (fit.peaks[high] - fit.peaks[low]) / (high - low)
    return min(max(low + int((fit.limit_bytes - fit.peaks[low]) / growth), low + 1), high - 1)
