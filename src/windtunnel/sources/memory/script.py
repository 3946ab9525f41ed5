"""The memory of an unmodified training script.

In: a path and its arguments. Out: a ``MemoryProfile`` of some of its iterations, on real or on fake tensors. The script
runs by :func:`windtunnel.sources.torch.script.run_until_enough`, as it does for a capture.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.sources.memory.profile import MemoryProfile
from windtunnel.sources.torch.hooks import StepHooks, loop_loaders
from windtunnel.sources.torch.script import EndOfScript, check_script, run_until_enough

if TYPE_CHECKING:
    from windtunnel.hardware import Device
    from windtunnel.sources.memory.watch import Watch

__all__ = ["track_script"]


def track_script(
    path: str | Path,
    argv: Sequence[str] = (),
    *,
    warmup: int = 2,
    steps: int = 1,
    fake: bool = False,
    chip: Device | None = None,
    limit_bytes: int | None = None,
    guesses: bool = False,
    loader_batch: int = 0,
) -> MemoryProfile:
    """Run a script as if it were the main program, follow its memory through some iterations, then end it.

    Parameters
    ----------
    path : path
        The script.
    argv : sequence of str
        Its arguments.
    warmup : int
        Whole iterations before, after its loop has been recognized; source lines are learnt in the last of them.
    steps : int
        Iterations to follow.
    fake : bool
        On fake tensors: nothing is allocated or computed; its loaders fetch in its own process.
    chip : Device, optional
        With fake tensors: the GPU that it would run on.
    limit_bytes : int or None
        End with an error before more than this is held.
    guesses : bool
        With fake tensors: let the script decide by values that only a real run has; all of them are 1.
    loader_batch : int
        With fake tensors: batch size of its data loaders, in place of their own.

    Returns
    -------
    MemoryProfile

    Raises
    ------
    InputError
        The file is not there, is no Python, or ended before enough was seen.
    """
    require("torch", extra="torch")

    script = check_script(path)
    if fake:
        from windtunnel.sources.dry.host_side import HostSide
        from windtunnel.sources.dry.no_compute import run_without_compute
        from windtunnel.sources.memory.host_data import HostData

        host = HostSide()

        def make_host() -> HostSide:
            nonlocal host
            host = HostSide()
            return host

        def make_pilot(_: Any) -> _Pilot:
            host_data = HostData(host, imagines_device=chip is not None)
            return _Pilot(warmup, steps, is_fake=True, limit_bytes=limit_bytes, host_data=host_data)

        ended, pilot = run_without_compute(
            script,
            argv,
            make_pilot,
            has_device=chip is not None,
            guesses=guesses,
            loader_batch=loader_batch,
            make_host=make_host,
        )
    else:
        pilot = _Pilot(warmup, steps, workspace=True, limit_bytes=limit_bytes)
        ended = run_until_enough(script, argv, pilot)
    _require_batch(ended.hooks, loader_batch, script)
    if pilot.profile is None:
        message, fix = ended.reason("--steps")
        raise InputError(
            f"{message}; its memory was not followed through a whole iteration", where=ended.place(), fix=fix
        ) from ended.failure
    return pilot.profile if chip is None else pilot.profile.on(chip)


def _require_batch(hooks: StepHooks, loader_batch: int, script: Path) -> None:
    """Refuse a batch that no loader of the loop can fill."""
    for loader, _ in loop_loaders(hooks) if loader_batch else ():
        if (
            loader.batch_size == loader_batch
            and isinstance(loader.sampler, Sized)
            and len(loader.sampler) < loader_batch
        ):
            raise InputError(
                f"a loader of the loop has {len(loader.sampler):,} samples, too few for a batch of {loader_batch:,}",
                where=str(script),
                fix="use a smaller batch or more samples",
            )


class _Pilot:
    """Puts the watch on and takes it off at the boundaries between iterations."""

    def __init__(self, warmup: int, steps: int, *, is_fake: bool = False, **options: Any) -> None:
        self.profile: MemoryProfile | None = None
        self._warmup, self._steps = warmup, steps
        self._is_fake, self._options = is_fake, options
        self._watch: Watch | None = None
        self._learning: AbstractContextManager[Watch] | None = None
        self._pattern: tuple[Any, ...] = ()
        self._seen = 0

    def at_boundary(self, hooks: StepHooks, is_regular: bool) -> None:
        """Count whole iterations; one of another form begins anew."""
        if self.profile is not None:
            raise EndOfScript
        pattern = hooks.finder.pattern
        if not pattern or pattern != self._pattern or not is_regular:
            self.close()
            self._pattern, self._seen = pattern, self._seen if pattern == self._pattern else 0
        else:
            self._seen += 1
        if self._learning is not None:
            self._end_learning()
            self._follow()
        elif self._watch is not None:
            if self._seen == self._warmup + self._steps:
                self.close()
                raise EndOfScript
            self._watch.next_iteration()
        elif pattern and self._seen >= self._warmup - (not self._is_fake):
            self._begin(hooks)

    def _begin(self, hooks: StepHooks) -> None:
        from windtunnel.sources.memory.watch import Watch

        self._watch = Watch(is_fake=self._is_fake, **self._options)
        self._watch.discovery.add(hooks.models, hooks.optimizers)
        if self._is_fake:
            self._follow()
            return
        self._learning = self._watch.learning()
        self._learning.__enter__()
        self._expect_data()

    def _end_learning(self) -> None:
        if self._learning is not None:
            self._learning.__exit__(None, None, None)
            self._learning = None

    def _follow(self) -> None:
        assert self._watch is not None
        self._seen = self._warmup
        self._watch.__enter__()
        self._expect_data()

    def _expect_data(self) -> None:
        if self._watch is not None and self._pattern[0].kind == "next":
            self._watch.expect_data()

    def close(self) -> None:
        """Take the watch off; keep what it saw if that is whole."""
        if self._learning is not None:
            self._end_learning()
        elif self._watch is not None:
            self._watch.__exit__(None, None, None)
            if self._seen == self._warmup + self._steps:
                self.profile = self._watch.profile()
        self._watch = None
