"""How long-running functions report progress: the task, the parts done, all parts.

Not here: showing it (``cli``).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "Stages"]

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


class Stages:
    """Stages of a long task, each with parts of its own, as one progress in percent that never moves back.

    Parameters
    ----------
    progress : callable, optional
        Called with (what, percent done, 100).

    Examples
    --------
    >>> stages = Stages(print)
    >>> measure, write = stages.stage(0, 90), stages.stage(90, 100)
    >>> measure("measuring", 2, 3)
    measuring 60 100
    >>> measure("measuring what was forgotten", 0, 1)
    measuring what was forgotten 60 100
    >>> write("writing", 1, 2)
    writing 95 100
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._percent = 0

    def stage(self, start: int, stop: int) -> Progress:
        """The progress of a stage that takes from ``start`` to ``stop`` percent of the whole."""

        def report(what: str, done: int, total: int) -> None:
            if self._progress is not None:
                reached = start + (stop - start) * done // total if total else start
                self._percent = max(self._percent, reached)
                self._progress(what, self._percent, 100)

        return report
