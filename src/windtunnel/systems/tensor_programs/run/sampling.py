"""Random legal schedules.

In: a ``Task`` and a seed. Out: a ``Scheduled``; the same seed gives the same schedule. As a tuner for CPUs would: the
main block is tiled on six levels (S S R S R S), its outer loops are fused and run in parallel, the last axis is made
vectors, operators behind it are moved into its tiles; what is drawn are the sizes of tiles, how much is fused, where
producers are computed, and how far is unrolled. Not here: which schedule is good.

Source: the sketches of Ansor (Zheng et al., OSDI 2020, section 4) for CPUs.
"""

from __future__ import annotations

import math

import numpy as np

from windtunnel.systems.tensor_programs.run.schedules import PATTERNS, Scheduled, token
from windtunnel.systems.tensor_programs.run.tasks import Task

__all__ = ["ROWS", "TILED", "Draw", "sample"]

TILES = "SSRSRS"
MIN_VECTOR, MAX_VECTOR = 4, 64
MAX_TILE = 4096
UNROLL_STEPS = (0, 16, 64, 512)
TILED = (
    "matmul",
    "dense",
    "bmm",
    "conv2d",
    "depthwise_conv2d",
    "max_pool2d",
    "avg_pool2d",
    "global_avg_pool",
    "reduce_sum",
)
ROWS = ("softmax", "layer_norm")


def sample(task: Task, seed: int) -> Scheduled:
    """Draw a random schedule for a task."""
    return Draw(Scheduled.of(task), np.random.default_rng(seed)).sample()


class Draw:
    """Random choices for one schedule."""

    def __init__(self, scheduled: Scheduled, generator: np.random.Generator) -> None:
        self.scheduled = scheduled
        self._random = generator
        self.do = scheduled.try_step
        task = scheduled.task
        self.after = [f"op{index}" for index in range(len(task.ops))]
        self.has_pad = task.shape.get("pad_h", 0) + task.shape.get("pad_w", 0) > 0

    def sample(self) -> Scheduled:
        """Sample all choices for the task's kind."""
        kind = self.scheduled.task.kind
        if kind in ROWS:
            self.sample_rows()
        elif kind in TILED:
            self.sample_tiled_reduction()
        else:
            self.sample_elements()
        return self.scheduled

    def chance(self, probability: float) -> bool:
        """True as often as a share says."""
        return bool(self._random.random() < probability)

    def pick(self, *choices: int) -> int:
        """Return one of some values at random."""
        return int(choices[self._random.integers(len(choices))])

    def factor(self, extent: int, largest: int | None = None) -> int:
        """A divisor of an extent, not above ``largest``."""
        bound = min(extent, largest or MAX_TILE)
        return self.pick(*(factor for factor in range(1, bound + 1) if extent % factor == 0))

    def _factors(self, extent: int, parts: int, largest_inner: int, *, is_vector: bool = False) -> list[int]:
        """Inner factors of a split into ``parts + 1`` loops."""
        result: list[int] = []
        left = extent
        # From the innermost loop on: each takes a divisor of what the loops inside of it leave.
        for part in range(parts):
            inner = self._vector(left) if is_vector else self.factor(left, largest_inner)
            result.insert(0, inner if part == 0 else self.factor(left))
            left //= result[0]
        return result

    def _vector(self, extent: int) -> int:
        """A divisor that fills a vector register of some kind, or the largest where there is none."""
        bound = min(extent, MAX_VECTOR)
        divisors = [factor for factor in range(1, bound + 1) if extent % factor == 0]
        return self.pick(*([factor for factor in divisors if factor >= MIN_VECTOR] or divisors[-1:]))

    def sample_tiled_reduction(self) -> None:
        """A reduction with all that stands before and behind it."""
        final = self.inline_all_but_last(self.after)
        # Each step is drawn and tried; ``do`` says whether it was legal, and a refused step changes nothing.
        if self.has_pad and self.chance(0.3):
            self.has_pad = not self.do("inline", "pad")
        if final is None and self.chance(0.5) and self.do("cache", "main"):
            final = "main_global"
        if (
            (self.scheduled.task.kind in ("global_avg_pool", "reduce_sum"))
            and self.chance(0.5)
            and self._split_reduction(final)
        ):
            return
        num_outer = self._tile_main()
        num_fused = self._parallel_outer("main", num_outer)
        outer = num_outer - max(0, num_fused - 1)
        if self.has_pad:
            self._place_pad(outer)
        if final is not None:
            self._place_final(final, outer)
        self._vectorize_inner("main")
        self._unroll("main")
        self._decompose("main", outer)

    def sample_rows(self) -> None:
        """Several reductions over each row, then the result."""
        names = (
            ["row_max", "row_exp", "row_sum"] if self.scheduled.task.kind == "softmax" else ["row_sum", "row_square"]
        )
        final = self.inline_all_but_last(self.after) or "out"
        if final != "out":
            self.do("inline", "out")
        if "row_exp" in names and self.chance(0.3) and self.do("inline", "row_exp"):
            names.remove("row_exp")
        for name in names:
            if name != "row_exp" and self.chance(0.5):
                self._rfactor(name, 1)
        num_outer = self._split_rows(final)
        self._vectorize_last(final)
        self._parallel_outer(final, 1)
        for name in reversed(names):
            self._place_producer(name, final, num_outer)
        self._unroll(final)

    def sample_elements(self) -> None:
        """Sample a schedule of an elementwise or data-movement task, which has no reduction."""
        names = (["main"] if self.scheduled.task.kind == "transpose" else []) + self.after
        final = self.inline_all_but_last(names) or "main"
        self._spatial(final)
        for name in names[:-1]:
            if self._is_alive(name):
                self._spatial(name)

    def _is_alive(self, block: str) -> bool:
        return not any(step.primitive == "inline" and step.block == block for step in self.scheduled.steps)

    def inline_all_but_last(self, names: list[str]) -> str | None:
        """Inline blocks into the last one, and give its name."""
        for name in names[:-1]:
            self.do("inline", name)
        return names[-1] if names else None

    def _rfactor(self, block: str, num_spatial: int) -> bool:
        """Add up parts of a row side by side, so that the inner loop can be a vector."""
        extent = self.scheduled.extents(block)[num_spatial]
        factor = self.factor(extent, MAX_VECTOR)
        if factor == 1 or not self.do("split", block, num_spatial, factor):
            return False
        return self.do("rfactor", block, num_spatial + 1, num_spatial)

    def _split_reduction(self, final: str | None) -> bool:
        """Split the reduction of the main block in two blocks; the rest is as for rows."""
        if not self._rfactor("main", 2):
            return False
        target = final or "main"
        self.do("fuse", target, 0, 2)
        self._parallel_outer(target, 1)
        if final is not None:
            self._place_producer("main", final, 1)
        self._place_producer("main_rf", target, 1)
        self._unroll(target)
        return True

    def _tile_main(self) -> int:
        """Split and reorder the main block; says how many loops stand outermost."""
        extents = self.scheduled.extents("main")
        num_spatial = len(self.scheduled.task.output_shape)
        pattern = PATTERNS.index(TILES)
        levels = {kind: TILES.count(kind) for kind in "SR"}
        inner = num_spatial - 1
        # Axes of extent 1 are not split; the masks say which ones were, so that the schedule can be replayed.
        masks, index = [0, 0], 0
        for axis, extent in enumerate(extents):
            is_reduced = axis >= num_spatial
            parts = levels["R" if is_reduced else "S"] - 1
            if extent > 1:
                factors = self._factors(extent, parts, 64 if is_reduced else 16, is_vector=axis == inner)
                self.do("split", "main", index, *factors)
                masks[is_reduced] |= 1 << (axis - num_spatial if is_reduced else axis)
                index += parts
            index += 1
        self.do("reorder", "main", masks[0], masks[1], inner, pattern)
        return num_spatial

    def _parallel_outer(self, block: str, num_loops: int) -> int:
        """Fuse some of the outermost loops of a block and run them in parallel; says how many."""
        extents = self.scheduled.extents(block)[:num_loops]
        # At least up to the first loop that has more than one step, else there would be nothing to run in parallel.
        fewest = next((index + 1 for index, extent in enumerate(extents) if extent > 1), num_loops)
        count = int(self._random.integers(fewest, num_loops + 1)) if self.chance(0.5) else num_loops
        if count > 1 and not self.do("fuse", block, 0, count):
            count = 1
        self.do("parallel", block, 0)
        return count

    def _place_pad(self, num_outer: int) -> None:
        depth = len(self.scheduled.loops("main"))
        # groups of channels that a fused loop cuts through are of changing length
        if self.chance(0.75) and self.scheduled.task.shape.get("groups", 1) == 1:
            index = int(self._random.integers(0, max(1, min(depth - 1, num_outer + 6))))
            if self.do("compute_at", "pad", token("main"), index, 0):
                self._vectorize_last("pad")
                return
        self._spatial("pad")

    def _place_final(self, final: str, num_outer: int) -> None:
        num_spatial = len(self.scheduled.task.output_shape)
        index = num_outer - 1 + (num_spatial if self.chance(0.4) else 0)
        if self.do("compute_at", final, token("main"), index, 1):
            self._vectorize_last(final)
        else:
            self._spatial(final)

    def _place_producer(self, name: str, final: str, num_outer: int) -> None:
        """Compute a row's reduction inside its consumer's loop, or in a loop of its own before it."""
        if self.chance(0.75):
            self.do("compute_at", name, token(final), int(self._random.integers(0, num_outer)), 0)
        else:
            self.do("parallel", name, 0)
        factors = [
            step.arguments[-1] for step in self.scheduled.steps if step.block == name and step.primitive == "split"
        ]
        if self._has_parts(name) and factors:
            self._place_parts(f"{name}_rf", final, factors[0])
        if self.chance(0.5):
            self.do("init", name, max(0, len(self.scheduled.loops(name)) - 1))

    def _has_parts(self, name: str) -> bool:
        return any(step.primitive == "rfactor" and step.block == name for step in self.scheduled.steps)

    def _place_parts(self, part: str, final: str, factor: int) -> None:
        """Compute partial sums inside their consumer's loop, with the loop over them innermost and vectorized."""
        self.do("compute_at", part, token(final), 0, 0)
        if self.chance(0.6):
            self.do("init", part, max(0, len(self.scheduled.loops(part)) - 2))
        extents = self.scheduled.extents(part)
        indices = [index for index in range(len(extents) - 1, -1, -1) if extents[index] == factor and index > 0]
        if indices and indices[0] < len(extents) - 1:
            self.do("reorder", part, 0, 0, indices[0], PATTERNS.index(""))
        if indices:
            self.do("vectorize", part, len(extents) - 1)

    def _split_rows(self, block: str) -> int:
        """Rows in blocks, columns in vectors; says how many loops go over rows."""
        rows, columns = self.scheduled.extents(block)[:2]
        self.do("split", block, 1, self._vector(columns))
        if rows > 1 and self.chance(0.6):
            self.do("split", block, 0, self.factor(rows, 64))
            return 2
        return 1

    def _spatial(self, block: str) -> None:
        """Schedule a block without reduction in loops of its own: fused, split, parallel and vectorized."""
        extents = self.scheduled.extents(block)
        if self.scheduled.task.kind == "transpose" and block == "main" and self.chance(0.7):
            self.do("split", block, 2, self._vector(extents[2]))
            self.do("fuse", block, 0, 2)
            self.do("parallel", block, 0)
            self._vectorize_last(block)
            self._unroll(block)
            return
        if len(extents) > 1:
            self.do("fuse", block, 0, len(extents))
        total = math.prod(extents)
        self.do("split", block, 0, *self._factors(total, self.pick(1, 2), MAX_VECTOR, is_vector=True))
        self.do("parallel", block, 0)
        self._vectorize_last(block)
        self._unroll(block)

    def _vectorize_last(self, block: str) -> None:
        """Make the innermost loop a vector; a long one is split first."""
        extents = self.scheduled.extents(block)
        if extents and extents[-1] > MAX_VECTOR:
            self.do("split", block, len(extents) - 1, self._vector(extents[-1]))
        self._vectorize_inner(block)

    def _vectorize_inner(self, block: str) -> None:
        extents = self.scheduled.extents(block)
        if extents and 1 < extents[-1] <= MAX_VECTOR:
            self.do("vectorize", block, len(extents) - 1)

    def _unroll(self, block: str) -> None:
        steps = self.pick(*UNROLL_STEPS)
        if steps:
            self.do("unroll", block, 0, steps)

    def _decompose(self, block: str, num_outer: int) -> None:
        """Set the result to zero before the reduction and not in its first step."""
        depth = len(self.scheduled.loops(block))
        # Outermost legal position most of the time, as there zeroing costs least; sometimes the innermost.
        indices = [*range(num_outer, depth)]
        while indices:
            index = indices.pop(0) if self.chance(0.8) else indices.pop()
            if self.do("init", block, index):
                self._vectorize_last(f"{block}_init")
                return
