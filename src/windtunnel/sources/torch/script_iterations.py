"""Who leads a recorder through a script, from boundary to boundary.

In: a recorder. Out: its calls between the iterations of a script, and the end of the script once there is enough. Not
here: running the script (``script``).
"""

from __future__ import annotations

from typing import Any

from windtunnel.sources.torch.hooks import StepHooks
from windtunnel.sources.torch.irregular import IrregularWatch

__all__ = ["EndOfScript", "RankPilot", "RecorderPilot"]


class EndOfScript(BaseException):
    """Raised inside of a script to end it; not an ``Exception``, so that its own handlers let it pass."""


class RecorderPilot:
    """Leads the recorder from boundary to boundary, and ends the script."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.irregular = IrregularWatch()
        self.irregular.install()
        self._pattern: tuple[Any, ...] = ()

    def at_boundary(self, hooks: StepHooks, is_regular: bool) -> None:
        """Lead on; an iteration that did more than most is measured again, as one of another form is."""
        does_more = self.irregular.end(self.recorder.instrument)
        self._lead(hooks, is_regular and not does_more)
        self.irregular.begin()

    def _lead(self, hooks: StepHooks, is_regular: bool) -> None:
        """A loop that has changed its form begins anew."""
        if self.recorder.is_complete:
            self._end()
            return
        pattern = hooks.finder.pattern
        if pattern and pattern != self._pattern:  # the first, or the loop has changed its form
            self._pattern = pattern
            self.recorder.restart()
            self.irregular.restart()
            self.recorder.recording.discovery.add(hooks.models, hooks.optimizers)
            self.recorder.begin()
            return
        self.recorder.boundary(is_regular=is_regular)
        if self.recorder.is_complete:
            self._end()

    def _end(self) -> None:
        """End the script, or let it run on until its peers have enough, too."""
        raise EndOfScript

    def close(self) -> None:
        """Take the recorder and the watch away."""
        self.irregular.remove()
        self.recorder.close()


class RankPilot(RecorderPilot):
    """Leads the recorder in one of several processes: a rank that has enough runs on until all have, as peers wait."""

    _KEY = "windtunnel/complete"

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._has_told = False

    def _end(self) -> None:
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            raise EndOfScript
        reported = int(not self._has_told)
        self._has_told = True
        try:
            num_complete = distributed.distributed_c10d._get_default_store().add(self._KEY, reported)
        except (RuntimeError, ValueError):  # the store's host has ended
            raise EndOfScript from None
        if num_complete >= distributed.get_world_size():
            raise EndOfScript
