"""Schedules of tasks: sequences of primitives, drawn at random or done again.

In: a ``Task`` and a seed, or the rows of an earlier schedule. Out: ``Scheduled``: the scheduled function and its steps,
which as rows of whole numbers are what TLP reads and what builds the same program again. Not here: which steps are
drawn (``sampling``), building.

A row is a one-hot of the primitive (11), the block's token, and up to ten arguments. Loops are meant by their index
among the loops of the block at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.program_set import SCHEDULE_SHAPE
from windtunnel.systems.tensor_programs.run.definitions import BLOCKS, primitive_function
from windtunnel.systems.tensor_programs.run.tasks import Task

__all__ = [
    "PATTERNS",
    "PRIMITIVES",
    "Scheduled",
    "Step",
    "from_rows",
    "replay",
    "to_rows",
    "token",
]

PRIMITIVES = (
    "split",
    "reorder",
    "fuse",
    "parallel",
    "vectorize",
    "unroll",
    "cache",
    "compute_at",
    "inline",
    "init",
    "rfactor",
)
MAX_STEPS = SCHEDULE_SHAPE[0]
PATTERNS = ("SSRSRS", "SSSRRS", "SRSSRS", "SSRSR", "SRSRS", "SSRRS", "SRRS", "SRSR", "RSRS", "SRS", "")
"""Orders of loops: S the next level of the spatial axes, R of the reduced ones; none: one loop goes to the end."""
_BLOCKS = tuple(base + suffix for base in BLOCKS for suffix in ("", "_global", "_init", "_rf"))
_EXPLICIT = "pragma_unroll_explicit"
_MAX_STEP = "pragma_auto_unroll_max_step"


@dataclass(frozen=True)
class Step:
    """A schedule primitive that is applied to a block."""

    primitive: str
    block: str
    arguments: tuple[int, ...] = ()


@dataclass
class Scheduled:
    """A task under a schedule that grows step by step.

    A step that is not legal changes nothing and is not kept.
    """

    task: Task
    schedule: Any
    steps: list[Step] = field(default_factory=list)

    @classmethod
    def of(cls, task: Task) -> Scheduled:
        """The task without any schedule yet."""
        s_tir = require("tvm.s_tir", extra="tvm")
        function = primitive_function(task)
        return cls(task, s_tir.Schedule(function, debug_mask="none", error_render_level="none"))

    @property
    def module(self) -> Any:
        """The scheduled program (``tvm.IRModule``)."""
        return self.schedule.mod

    @property
    def num_left(self) -> int:
        """Steps that there is still room for."""
        return MAX_STEPS - len(self.steps)

    def loops(self, block: str) -> list[Any]:
        """Handles of the loops around a block, outermost first."""
        return list(self.schedule.get_loops(_block(self.schedule, block)))

    def extents(self, block: str) -> list[int]:
        """Extents of the loops around a block, outermost first; 0 where one changes with an outer loop."""
        extents = [self.schedule.get(loop).extent for loop in self.loops(block)]
        return [int(extent) if hasattr(extent, "value") else 0 for extent in extents]

    def try_step(self, primitive: str, block: str, *arguments: int) -> bool:
        """Do a step if it is legal here; says whether it was done."""
        if self.num_left == 0:
            return False
        # TVM checks legality itself; what it refuses leaves the schedule as it was.
        errors = _refusals()
        try:
            _DO[primitive](self.schedule, block, *arguments)
        except errors:
            return False
        self.steps.append(Step(primitive, block, arguments))
        return True


def _refusals() -> tuple[type[BaseException], ...]:
    error: type[BaseException] = require("tvm.s_tir", extra="tvm").ScheduleError
    return (error, RuntimeError, ValueError, IndexError)


def replay(task: Task, rows: ArrayLike) -> Scheduled:
    """Do the steps of a schedule again."""
    scheduled = Scheduled.of(task)
    for number, step in enumerate(from_rows(rows)):
        if not scheduled.try_step(step.primitive, step.block, *step.arguments):
            raise InputError(
                f"step {number} of the schedule, {step.primitive} of {step.block}, is not legal here",
                where=task.name,
                fix="a schedule can only be replayed on the task that it was drawn for",
            )
    return scheduled


def to_rows(steps: Sequence[Step]) -> NDArray[np.int16]:
    """Steps as whole numbers, int16 [25, 22]; rows of zeros behind the last."""
    rows = np.zeros(SCHEDULE_SHAPE, np.int16)
    for row, step in zip(rows, steps, strict=False):
        row[PRIMITIVES.index(step.primitive)] = 1
        row[len(PRIMITIVES)] = token(step.block)
        # 0 is "no argument"; the shift by one keeps an argument 0 apart from it
        shifted = [argument + 1 for argument in step.arguments]
        row[len(PRIMITIVES) + 1 : len(PRIMITIVES) + 1 + len(shifted)] = shifted
    return rows


def from_rows(rows: ArrayLike) -> list[Step]:
    """The steps that ``to_rows`` wrote down."""
    table = np.asarray(rows)
    if table.shape != SCHEDULE_SHAPE:
        raise InputError(f"a schedule has shape {list(SCHEDULE_SHAPE)}, this one {list(table.shape)}")
    steps = []
    for row in table[table.any(axis=1)]:
        kinds, token, arguments = np.flatnonzero(row[:11]), int(row[11]), [int(value) for value in row[12:]]
        if len(kinds) != 1 or not 1 <= token <= len(_BLOCKS):
            raise InputError(f"{row.tolist()} is no step of a schedule")
        while arguments and arguments[-1] == 0:
            arguments.pop()
        steps.append(Step(PRIMITIVES[kinds[0]], _BLOCKS[token - 1], tuple(argument - 1 for argument in arguments)))
    return steps


def token(block: str) -> int:
    """A block's number: its name in ``BLOCKS`` and what it was made by."""
    return 1 + _BLOCKS.index(block)


def _block(schedule: Any, name: str) -> Any:
    """A block by its name; one whose start was taken out of it is called an update."""
    try:
        return schedule.get_sblock(name)
    except _refusals():
        return schedule.get_sblock(f"{name}_update")


def _split(schedule: Any, block: str, loop: int, *inner: int) -> None:
    schedule.split(schedule.get_loops(_block(schedule, block))[loop], [None, *inner])


def _reorder(schedule: Any, block: str, spatial: int, reduced: int, inner: int, pattern: int) -> None:
    """Tile order of a block; the axes of the bits ``spatial`` and ``reduced`` have as many loops as the pattern levels.

    Other spatial axes stay outermost, other reduced ones go with the first R; axis ``inner`` is the last of its level.
    Without a pattern, loop ``inner`` becomes the innermost.
    """
    if not PATTERNS[pattern]:
        last = schedule.get_loops(_block(schedule, block))[inner:]
        schedule.reorder(*last[1:], last[0])
        return
    loops = iter(schedule.get_loops(_block(schedule, block)))
    #      pattern SSRSRS, axes i, j | k   ->   i0 j0 | i1 j1 | k0 | i2 j2 | k1 | i3 j3
    # Level n of the pattern takes the n-th loop of each split axis of its kind.
    tiles: dict[str, list[list[Any]]] = {kind: [[] for _ in range(PATTERNS[pattern].count(kind))] for kind in "SR"}
    whole: list[Any] = []
    for kind, axis, is_split in _axes(schedule, block, spatial, reduced):
        if is_split:
            for level, loop in zip(tiles[kind], loops, strict=False):
                level.append((axis, loop))
        elif kind == "R":
            tiles[kind][0].append((axis, next(loops)))
        else:
            whole.append(next(loops))
    tiles["S"][-1].sort(key=lambda item: item[0] == inner)
    queues = {kind: iter(levels) for kind, levels in tiles.items()}
    schedule.reorder(*whole, *(loop for kind in PATTERNS[pattern] for _, loop in next(queues[kind])))


def _axes(schedule: Any, block: str, spatial: int, reduced: int) -> list[tuple[str, int, bool]]:
    kinds = ["R" if int(axis.iter_type) == 2 else "S" for axis in schedule.get(_block(schedule, block)).iter_vars]
    result, counts = [], {"S": 0, "R": 0}
    for kind in kinds:
        axis = counts[kind]
        counts[kind] += 1
        result.append((kind, axis, bool((spatial if kind == "S" else reduced) >> axis & 1)))
    return result


def _fuse(schedule: Any, block: str, first: int, count: int) -> None:
    schedule.fuse(*schedule.get_loops(_block(schedule, block))[first : first + count])


def _parallel(schedule: Any, block: str, loop: int) -> None:
    schedule.parallel(schedule.get_loops(_block(schedule, block))[loop])


def _vectorize(schedule: Any, block: str, loop: int) -> None:
    schedule.vectorize(schedule.get_loops(_block(schedule, block))[loop])


def _unroll(schedule: Any, block: str, loop: int, max_step: int) -> None:
    """Unroll one loop, or with ``max_step`` all below it that together have no more steps."""
    target = schedule.get_loops(_block(schedule, block))[loop]
    if max_step == 0:
        schedule.unroll(target)
        return
    schedule.annotate(target, _MAX_STEP, max_step)
    schedule.annotate(target, _EXPLICIT, 1)


def _cache(schedule: Any, block: str) -> None:
    """A temporary for what a block writes."""
    schedule.cache_write(_block(schedule, block), 0, "global")


def _compute_at(schedule: Any, block: str, target: int, loop: int, is_reverse: int) -> None:
    """Move a block into a loop of another one."""
    other = _BLOCKS[target - 1]
    index = schedule.get_loops(_block(schedule, other))[loop]
    move = schedule.reverse_compute_at if is_reverse else schedule.compute_at
    move(_block(schedule, block), index, False)


def _inline(schedule: Any, block: str) -> None:
    schedule.compute_inline(_block(schedule, block))


def _init(schedule: Any, block: str, loop: int) -> None:
    target = _block(schedule, block)
    schedule.decompose_reduction(target, schedule.get_loops(target)[loop])


def _rfactor(schedule: Any, block: str, loop: int, axis: int) -> None:
    schedule.rfactor(schedule.get_loops(_block(schedule, block))[loop], axis)


_DO: dict[str, Callable[..., None]] = {
    "split": _split,
    "reorder": _reorder,
    "fuse": _fuse,
    "parallel": _parallel,
    "vectorize": _vectorize,
    "unroll": _unroll,
    "cache": _cache,
    "compute_at": _compute_at,
    "inline": _inline,
    "init": _init,
    "rfactor": _rfactor,
}
