"""Computations of one rank as calls of kernels on ranges of elements.

In: stages that run as one loop, and where their values lie. Out: calls. A sum over elements is cleared before the
calls, and rounded after them. Not here: communication, the order of units.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.systems.collectives.kernel_source import (
    clear_kernel,
    kernel_space,
    make_kernel,
    place_of_rank,
    total_kernel,
)
from windtunnel.systems.collectives.kernels import Kernel
from windtunnel.systems.collectives.layouts import ring_dim
from windtunnel.systems.collectives.memory import Memory, chunk_range
from windtunnel.systems.collectives.plan import Call, Instruction
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.rules import REDUCTIONS

__all__ = ["Loop"]


class Loop:
    """A kernel of stages on one rank, and its calls on ranges of elements.

    Parameters
    ----------
    program : Program
    memory : Memory
        Of the rank.
    stages : sequence of Stage
    """

    def __init__(self, program: Program, memory: Memory, stages: Sequence[Stage]) -> None:
        self.program, self.memory, self.stages = program, memory, stages
        self.space = kernel_space(program, stages)
        names = [stage.name for stage in stages]
        stored = [name for name in names if self._is_stored(name, names)]
        outside = [name for stage in stages for name in stage.reads if name not in names]
        # values that share memory share an argument
        self.memory_of: dict[tuple[str, int], str] = {}
        by_value = {}
        for value in (*outside, *stored):
            view = memory.view(value)
            key = (view.buffer, view.start)
            if key not in self.memory_of:
                is_taken = view.buffer in self.memory_of.values()
                self.memory_of[key] = f"{view.buffer}_{view.start}" if is_taken else view.buffer
            by_value[value] = self.memory_of[key]
        self.kernel: Kernel = make_kernel(program, names, stored, by_value, memory.rank)
        self.views = {name: memory.view(value) for value, name in by_value.items()}
        self.base = place_of_rank(self.space, memory.rank, memory.num_ranks)
        self.sums = {
            stage.name: memory.buffer(f"{stage.name} sums", self._num_blocks(stage), "float64")
            for stage in stages
            if stage.op in REDUCTIONS
        }

    def _is_stored(self, value: str, names: Sequence[str]) -> bool:
        """Whether something outside the kernel reads a value."""
        program = self.program
        stage = program.by_name[value]
        if stage.op in REDUCTIONS:
            return False
        is_read = any(user.name not in names and user.name in program.live for user in program.users[value])
        return is_read or value in program.outputs or stage.op == "update"

    def _num_blocks(self, stage: Stage) -> int:
        item = self.program.types[stage.reads[0]]
        # a replicated tensor is summed block by block, as ranks sum their slices
        return self.memory.num_ranks if item.layout.is_replicated and not item.is_scalar else 1

    def blocks(self) -> list[tuple[int, int]]:
        """Ranges of elements that a call works on: all, or blocks where sums of them are kept."""
        size = self.memory.local_size(self.space)
        if all(view.size == 1 for view in self.sums.values()):
            return [(0, size)]
        dim = ring_dim(self.space, self.memory.num_ranks)
        return [chunk_range(self.space, dim, c, self.memory.num_ranks) for c in range(self.memory.num_ranks)]

    def clear(self) -> list[Instruction]:
        """Set its sums to zero."""
        return [Call(clear_kernel(), (view,)) for view in self.sums.values()]

    def total(self) -> list[Instruction]:
        """Round its sums to the values that the program reads."""
        types = self.program.types
        return [
            Call(total_kernel(types[name].dtype), (view, self.memory.view(name))) for name, view in self.sums.items()
        ]

    def calls(self, block_index: int, first: int, size: int) -> list[Instruction]:
        """The call on a range, which lies in a block of the sums."""
        if not size:
            return []
        views = []
        for argument in self.kernel.arguments:
            if argument.role == "sum":
                sums = self.sums[argument.name]
                # blocks are added in the order of the ring that sums the slices of ranks
                views.append(sums.part((block_index - 1) % sums.size, 1))
            else:
                view = self.views[argument.name]
                views.append(view.part(first, size) if argument.role == "range" else view)
        return [Call(self.kernel, tuple(views), first, self.base)]
