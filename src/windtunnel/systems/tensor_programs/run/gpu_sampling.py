"""Random legal schedules for GPUs.

In: a ``Task`` and a seed. Out: a ``Scheduled``; the same seed gives the same schedule. As a tuner for GPUs would: the
main block is tiled on eight levels (S S S R R S R S) whose outermost three are the grid's blocks, virtual threads and
threads; sums stay in registers; operands are brought to shared memory by all threads of a block together; rows are
added up in parts, one a thread. What is drawn are the sizes of tiles, what is shared, how wide copies are, and how far
is unrolled. Not here: which schedule is good.

Source: the sketches of Ansor (Zheng et al., OSDI 2020, section 4) for GPUs.
"""

from __future__ import annotations

import math

import numpy as np

from windtunnel.systems.tensor_programs.run.sampling import Draw
from windtunnel.systems.tensor_programs.run.schedules import PATTERNS, SCOPES, THREADS, Scheduled, token
from windtunnel.systems.tensor_programs.run.tasks import Task

__all__ = ["sample_gpu"]

TILES = "SSSRRSRS"
NUM_THREADS = (32, 64, 128, 256, 512)
MAX_VIRTUAL, MAX_IN_REGISTERS = 8, 16
UNROLL_STEPS = (0, 16, 64, 512)
STEPS_TO_SHARE = 6
BLOCK, VIRTUAL, THREAD = (THREADS.index(name) for name in ("blockIdx.x", "vthread.x", "threadIdx.x"))
SHARED, LOCAL = SCOPES.index("shared"), SCOPES.index("local")


def sample_gpu(task: Task, seed: int) -> Scheduled:
    """Draw a schedule.

    Raises
    ------
    MissingExtraError
        The extra ``tvm`` is not installed.
    """
    return _GpuDraw(Scheduled.of(task), np.random.default_rng(seed)).whole()


class _GpuDraw(Draw):
    """Choices for one schedule of a GPU."""

    def tiled(self) -> None:
        """A reduction with all that stands before and behind it."""
        final = self.inline_all_but_last(self.after)
        if self.has_pad and self.chance(0.5):
            self.has_pad = not self.do("inline", "pad")
        if final is None and self.do("cache", "main", LOCAL):
            final = "main_local"
        num_axes, num_split, num_threads = self._tile()
        self.do("fuse", "main", 0, num_axes)
        for level, thread in ((1, VIRTUAL), (2, THREAD)) if num_split else ():
            self.do("fuse", "main", level, num_split)
            self.do("parallel", "main", level, thread)
        self.do("parallel", "main", 0, BLOCK)
        if final is not None:
            scope = () if final == "main_local" else (LOCAL,)
            self.do("compute_at", final, token("main"), 2, 1, *scope)
        self._share(num_threads)
        steps = self.pick(*UNROLL_STEPS)
        if steps:
            self.do("unroll", "main", 3, steps)

    def _tile(self) -> tuple[int, int, int]:
        """Split and reorder the main block; says how many loops stand outermost, how many are tiled, the threads."""
        extents = self.scheduled.extents("main")
        num_spatial = len(self.scheduled.task.output_shape)
        left = {"threads": self.pick(*NUM_THREADS), "virtual": MAX_VIRTUAL, "registers": MAX_IN_REGISTERS}
        factors = {axis: self._spatial_factors(extents[axis], left) for axis in reversed(range(num_spatial))}
        masks, at = [0, 0], 0
        for axis, extent in enumerate(extents):
            is_reduced = axis >= num_spatial
            if extent > 1:
                inner = [self.factor(extent, 8)] if is_reduced else factors[axis]
                if is_reduced:
                    inner = [self.factor(extent // inner[0], 8), *inner]
                self.do("split", "main", at, *inner)
                masks[is_reduced] |= 1 << (axis - num_spatial if is_reduced else axis)
                at += len(inner)
            at += 1
        self.do("reorder", "main", masks[0], masks[1], num_spatial - 1, PATTERNS.index(TILES))
        num_split = masks[0].bit_count()
        return num_spatial, num_split, math.prod(factors[axis][1] for axis in range(num_spatial) if extents[axis] > 1)

    def _spatial_factors(self, extent: int, left: dict[str, int]) -> list[int]:
        """Virtual threads, threads, and two levels in registers of an axis, out of what is left of each."""
        found = {}
        for name in ("threads", "registers", "inner", "virtual"):
            of = "registers" if name == "inner" else name
            found[name] = self.factor(extent, left[of])
            extent //= found[name]
            left[of] //= found[name]
        return [found[name] for name in ("virtual", "threads", "registers", "inner")]

    def _share(self, num_threads: int) -> None:
        """Bring operands to shared memory where a reduction goes over them again and again."""
        if len(self.scheduled.loops("main")) < 4 or self.scheduled.task.kind not in _WITH_REUSE:
            if self.has_pad:
                self.do("inline", "pad")
            return
        for operand, name in enumerate(("pad" if self.has_pad else "in0", "in1")):
            if name == "pad":
                self._share_pad(num_threads)
            elif (
                self.scheduled.num_left >= STEPS_TO_SHARE
                and self.chance(0.8)
                and self.do("cache", "main", SHARED, operand)
            ):
                shared = f"{name}_shared"
                if self.do("compute_at", shared, token("main"), 3, 0):
                    self._fetch(shared, 4, num_threads)

    def _share_pad(self, num_threads: int) -> None:
        """The padded picture in shared memory, or made anew at each use."""
        has_room = self.scheduled.num_left >= STEPS_TO_SHARE
        if has_room and self.do("compute_at", "pad", token("main"), 3, 0, SHARED):
            self._fetch("pad", 4, num_threads)
        else:
            self.do("inline", "pad")

    def _fetch(self, block: str, outer: int, num_threads: int) -> None:
        """All threads of a block copy side by side, each some elements in a row."""
        depth = len(self.scheduled.loops(block))
        if depth - outer > 1:
            self.do("fuse", block, outer, depth - outer)
        wide = self.pick(1, 1, 2, 4)
        if wide > 1 and self.scheduled.extents(block)[-1] % (num_threads * wide) == 0:
            self.do("split", block, outer, num_threads, wide)
            self.do("vectorize", block, outer + 2)
        else:
            self.do("split", block, outer, num_threads)
        self.do("parallel", block, outer + 1, THREAD)

    def rows(self) -> None:
        """A block of threads a row: reductions in parts in shared memory, the sum of the parts in each thread."""
        names = (
            ["row_max", "row_exp", "row_sum"] if self.scheduled.task.kind == "softmax" else ["row_sum", "row_square"]
        )
        final = self.inline_all_but_last(self.after) or "out"
        if final != "out":
            self.do("inline", "out")
        if "row_exp" in names:
            self.do("inline", "row_exp")
            names.remove("row_exp")
        columns = self.scheduled.extents(final)[1]
        num_threads = min(self.pick(*NUM_THREADS), 1 << (columns - 1).bit_length())
        for name in names:
            self.do("split", name, 1, num_threads)
            self.do("rfactor", name, 2, 1)
        self.do("split", final, 1, num_threads)
        self.do("parallel", final, 0, BLOCK)
        self.do("parallel", final, 2, THREAD)
        for name in reversed(names):
            self.do("compute_at", name, token(final), 0, 0, LOCAL)
            part = f"{name}_rf"
            self.do("compute_at", part, token(final), 0, 0, SHARED)
            extents = self.scheduled.extents(part)
            if num_threads in extents[1:]:
                self.do("parallel", part, extents.index(num_threads, 1), THREAD)
        steps = self.pick(*UNROLL_STEPS)
        if steps:
            self.do("unroll", final, 1, steps)

    def elements(self) -> None:
        """No reduction: a thread takes some elements in a row."""
        names = (["main"] if self.scheduled.task.kind == "transpose" else []) + self.after
        final = self.inline_all_but_last(names) or "main"
        extents = self.scheduled.extents(final)
        if len(extents) > 1:
            self.do("fuse", final, 0, len(extents))
        total, num_threads = math.prod(extents), self.pick(*NUM_THREADS)
        wide = self.pick(*(width for width in (1, 2, 4) if total % (num_threads * width) == 0 or width == 1))
        self.do("split", final, 0, num_threads, wide)
        self.do("vectorize" if wide > 1 else "unroll", final, 2, *(() if wide > 1 else (0,)))
        self.do("parallel", final, 1, THREAD)
        self.do("parallel", final, 0, BLOCK)


_WITH_REUSE = ("matmul", "dense", "bmm", "conv2d")
