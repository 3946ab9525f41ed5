"""From nested events to a line of points, and from many iterations to one line.

Every event of a thread gives two points: it is entered and it is left. Between two neighboring points one event
runs by itself: that is a slice (self time). Iterations with the same operators have the same points at other times,
so that a duration per slice and iteration is a difference of two columns. An iteration with other operators is laid
over the template: what the template lacks counts into the slice where it happened, what the iteration lacks takes no
time. Where no two iterations are alike, as with sequences of any lengths, slices of one kind give each other's times.

``PhaseClock`` reads the clock where a backward pass and an optimizer step begin and end: a few readings per
iteration, in bare and profiled iterations alike. So what a profile distorts beyond its cost per event (caches,
memory) is put right for each stretch of the iteration by itself, and not by one factor for all.
"""

from __future__ import annotations

import difflib
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from windtunnel.sources.torch.profile import Events

__all__ = ["Marks", "PhaseClock", "Points", "Stretches", "align", "by_kind", "match_in_order", "stretches", "walk"]

Int = NDArray[np.int64]
# beyond this many differing points a comparison takes longer than it tells
_MAX_DIFFERENCE = 6000
Marks = tuple[tuple[str, int], ...]  # (what begins here, ns since the iteration began)
# how far a stretch may believably lie from the others; what is measured less surely is drawn to them
_BELIEVABLE_RATIO = 0.05
_SEAM_NS = 5_000  # a seam lies that near to where the profile has it


@dataclass(frozen=True)
class Points:
    """One thread of one iteration: P points, of E events.

    ``tokens`` name what happens at a point (+ for enter, - for leave); ``owner`` is the event (row of ``rows``) that
    runs after the point; ``parent`` [E] is -1 for the outermost.
    """

    tokens: NDArray[np.object_]
    times_ns: Int
    owner: Int
    rows: Int
    parent: Int
    enter: Int
    leave: Int

    @property
    def num_slices(self) -> int:
        """Neighboring pairs of points."""
        return len(self.times_ns) - 1


def walk(events: Events, rows: Int, hidden: str | tuple[str, ...] = "\0") -> Points:
    """Lay out the events ``rows`` of one thread; names that begin with ``hidden`` leave no points."""
    kept = np.array([row for row in rows.tolist() if not events.names[row].startswith(hidden)], dtype=np.int64)
    starts, ends = events.start_ns[kept].tolist(), events.end_ns[kept].tolist()
    names = [events.names[row] for row in kept.tolist()]
    tokens: list[str] = []
    times: list[int] = []
    owner: list[int] = []
    parent = np.full(len(kept), -1, dtype=np.int64)
    enter, leave = np.zeros(len(kept), dtype=np.int64), np.zeros(len(kept), dtype=np.int64)
    #      A |---------------|          tokens   +A  +B  -B  +C  -C  -A
    #        B |---|  C |--|            owner     A   B   A   C   A   .      whose time follows the point
    # Two timelines of one program have the same tokens, wherever their times are: so they are compared.
    stack: list[int] = []

    def close(event: int) -> None:
        leave[event] = len(tokens)
        tokens.append("-" + names[event])
        times.append(ends[event])
        owner.append(parent[event])

    for event, start in enumerate(starts):
        while stack and ends[stack[-1]] <= start and len(stack) > 1:
            close(stack.pop())
        if stack:
            parent[event] = stack[-1]
            ends[event] = min(ends[event], ends[stack[-1]])  # old clocks let a child end after its parent
        enter[event] = len(tokens)
        tokens.append("+" + names[event])
        times.append(start)
        owner.append(event)
        stack.append(event)
    while stack:
        close(stack.pop())
    return Points(
        np.array(tokens, dtype=object),
        np.maximum.accumulate(np.array(times, dtype=np.int64)),
        np.array(owner, dtype=np.int64),
        kept,
        parent,
        enter,
        leave,
    )


def align(template: Points, other: Points) -> Int | None:
    """When each point of the template happened in the other iteration, [P]; None where they have little in common."""
    if np.array_equal(template.tokens, other.tokens):
        return other.times_ns
    matched = match_in_order(template.tokens.tolist(), other.tokens.tolist())
    if matched is None or (matched >= 0).sum() * 2 < len(matched):
        return None
    times = np.where(matched >= 0, other.times_ns[matched], np.iinfo(np.int64).min)
    times[0], times[-1] = other.times_ns[0], other.times_ns[-1]
    aligned: Int = np.maximum.accumulate(times)
    return aligned


def by_kind(template: Points, other: Points) -> Int:
    """When each point of the template would have happened, [P], had its slices taken what their kinds took there.

    A kind is what happens before and after a slice. Kinds that the other lacks take the mean change of the rest.
    """
    own = np.diff(template.times_ns).astype(np.float64)
    kinds, usual, mean = _kinds(template), _mean_by_kind(template), _mean_by_kind(other)
    both = [kind for kind in kinds if kind in mean]
    change = sum(mean[kind] for kind in both) / max(1.0, sum(usual[kind] for kind in both))
    factor = np.array([mean[kind] / usual[kind] if mean.get(kind) and usual[kind] else change for kind in kinds])
    times: Int = np.rint(np.concatenate([[0.0], np.cumsum(own * factor)])).astype(np.int64) + other.times_ns[0]
    return times


def _kinds(points: Points) -> list[str]:
    return [f"{before} {after}" for before, after in itertools.pairwise(points.tokens.tolist())]


def _mean_by_kind(points: Points) -> dict[str, float]:
    """Ns that slices of each kind take on average."""
    used: dict[str, list[int]] = {}
    for kind, length in zip(_kinds(points), np.diff(points.times_ns).tolist(), strict=True):
        used.setdefault(kind, []).append(length)
    return {kind: float(np.mean(lengths)) for kind, lengths in used.items()}


def match_in_order(names: list[str], other_names: list[str]) -> Int | None:
    """Row in ``other_names`` of each of ``names``, -1 where there is none; None where they differ too much."""
    matched = np.full(len(names), -1, dtype=np.int64)
    shortest = min(len(names), len(other_names))
    head = next((row for row in range(shortest) if names[row] != other_names[row]), shortest)
    matched[:head] = np.arange(head)
    rest = shortest - head
    tail = next((row for row in range(rest) if names[-1 - row] != other_names[-1 - row]), rest)
    if tail:
        matched[len(names) - tail :] = np.arange(len(other_names) - tail, len(other_names))
    middle_names, middle_others = names[head : len(names) - tail], other_names[head : len(other_names) - tail]
    if max(len(middle_names), len(middle_others)) > _MAX_DIFFERENCE:
        return None
    matcher = difflib.SequenceMatcher(None, middle_names, middle_others, autojunk=False)
    for block in matcher.get_matching_blocks():
        rows = np.arange(block.size)
        matched[head + block.a + rows] = head + block.b + rows
    return matched


_autograd: Any = torch.autograd


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
