"""Where the time of an unprofiled iteration goes, by phase.

``PhaseClock`` reads the clock where a backward pass and an optimizer step begin and end: a few readings per
iteration, in bare and profiled iterations alike. So what a profile distorts beyond its cost per event (caches,
memory) is put right for each stretch of the iteration by itself, and not by one factor for all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

__all__ = ["Marks", "PhaseClock", "Stretches", "stretches"]

Marks = tuple[tuple[str, int], ...]  # (what begins here, ns since the iteration began)
Int = NDArray[np.int64]
_autograd: Any = torch.autograd
# how far a stretch may believably lie from the others; what is measured less surely is drawn to them
_BELIEVABLE_RATIO = 0.05
_SEAM_NS = 5_000  # a seam lies that near to where the profile has it


class PhaseClock:
    """Reads the clock at the seams of an iteration."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, int]] = []
        self._begun_ns = 0
        self._hooks: list[Any] = []
        self._original: Callable[..., Any] | None = None

    def install(self) -> None:
        """Begin to listen; a clock that listens already goes on."""
        if self._hooks:
            return
        self._hooks = [
            register_optimizer_step_pre_hook(lambda *_: self._mark("update")),
            register_optimizer_step_post_hook(lambda *_: self._mark("after update")),
        ]
        self._original = _autograd._engine_run_backward
        _autograd._engine_run_backward = self._run_backward

    def remove(self) -> None:
        """Stop listening."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._original is not None:
            _autograd._engine_run_backward = self._original
            self._original = None

    def begin(self, begun_ns: int) -> None:
        """Start an iteration."""
        self._marks, self._begun_ns = [], begun_ns

    def marks(self) -> Marks:
        """The seams of the iteration so far."""
        return tuple(self._marks)

    def _mark(self, what: str) -> None:
        self._marks.append((what, time.perf_counter_ns() - self._begun_ns))

    def _run_backward(self, *args: Any, **kwargs: Any) -> Any:
        assert self._original is not None
        self._mark("backward")
        try:
            return self._original(*args, **kwargs)
        finally:
            self._mark("after backward")


@dataclass(frozen=True)
class Stretches:
    """K stretches of an iteration: names, the stretch of every slice [P - 1], bare durations int64 [B, K]."""

    names: tuple[str, ...]
    of_slice: Int
    bare_ns: Int

    def titles(self) -> list[str]:
        """The names, numbered where one comes again."""
        return [f"{index} {name}" for index, name in enumerate(self.names)]

    def ratios(self, corrected_IP: NDArray[np.float64], overall: float) -> NDArray[np.float64]:
        """Bare over profiled time of each stretch [K]; the less sure, the nearer to the overall ratio."""
        count = len(self.names)
        light_IK = np.stack([corrected_IP[:, self.of_slice == k].sum(axis=1) for k in range(count)], axis=1)
        bare, light = np.median(self.bare_ns, axis=0), np.median(light_IK, axis=0)
        known = (bare > 0) & (light > 0)
        ratio = np.where(known, bare / np.maximum(light, 1), overall)
        doubt = _relative_error(self.bare_ns, bare) + _relative_error(light_IK, light) + _SEAM_NS / np.maximum(bare, 1)
        weight = np.where(known, 1 / (1 + (doubt / _BELIEVABLE_RATIO) ** 2), 0.0)
        sampled: NDArray[np.float64] = overall + weight * (ratio - overall)
        return sampled


def _relative_error(samples: NDArray[Any], median: NDArray[Any]) -> NDArray[np.float64]:
    spread = 1.4826 * np.median(np.abs(samples - median), axis=0)
    error: NDArray[np.float64] = 1.25 * spread / np.sqrt(len(samples)) / np.maximum(median, 1)
    return error


def stretches(slices_IP: Int, light: list[tuple[int, Marks]], bare: list[tuple[int, Marks]]) -> Stretches | None:
    """Join the seams of bare and profiled iterations; None where they have no common form.

    ``light`` and ``bare`` hold the length and the seams of every iteration.
    """
    forms = Counter(tuple(what for what, _ in marks) for _, marks in bare)
    if not forms:
        return None
    form = forms.most_common(1)[0][0]
    light_seams = _seams(light, form)
    bare_seams = _seams(bare, form)
    if not form or len(light_seams) < 2 or len(bare_seams) < 2:
        return None
    middle = np.cumsum(slices_IP, axis=1).mean(axis=0) - slices_IP.mean(axis=0) / 2
    of_slice = np.searchsorted(light_seams[:, 1:-1].mean(axis=0), middle)
    return Stretches(("begin", *form), of_slice.astype(np.int64), np.diff(bare_seams, axis=1))


def _seams(iterations: list[tuple[int, Marks]], form: tuple[str, ...]) -> Int:
    rows = [
        [0, *(at_ns for _, at_ns in marks), length]
        for length, marks in iterations
        if tuple(what for what, _ in marks) == form
    ]
    return np.array(rows, dtype=np.int64).reshape(len(rows), len(form) + 2)
