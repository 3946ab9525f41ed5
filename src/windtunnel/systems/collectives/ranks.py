"""Instructions of one rank: computations, and collectives on whole chunks.

In: stages. Out: instructions on the rank's buffers, and its plan once all units are added. Not here: the order of units
(``lower``), work on pieces (``stream``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from windtunnel.systems.collectives.kernels import storage_dtype
from windtunnel.systems.collectives.layouts import TensorType, block, ring_dim
from windtunnel.systems.collectives.loops import Loop
from windtunnel.systems.collectives.memory import Memory, Pieces, chunk_range, is_contiguous
from windtunnel.systems.collectives.plan import Copy, Instruction, MatMul, RankPlan, Receive, Send, View
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.rings import (
    RingPlace,
    broadcast,
    flatten_hops,
    gather_hops,
    reduce_hops,
    to_root,
)

__all__ = ["RankLowering"]


class RankLowering:
    """Instructions of one rank, unit by unit.

    Parameters
    ----------
    program : Program
    group, rank : int
        The rank within its group.
    num_pieces : int
    """

    def __init__(self, program: Program, group: int, rank: int, num_pieces: int) -> None:
        self.program, self.group, self.rank, self.num_pieces = program, group, rank, num_pieces
        self.num_ranks = program.group_sizes[group]
        self.memory = Memory(program, group, rank)
        self.place = RingPlace(rank, self.num_ranks, sum(program.group_sizes[:group]))
        self.tags = {stage.name: index for index, stage in enumerate(program.stages)}
        self.threads: dict[str, list[Instruction]] = {"compute": [], "communication": []}
        self.labels: dict[str, list[str]] = {"compute": [], "communication": []}
        self.num_events = 0

    def plan(self) -> RankPlan:
        """What has been added."""
        values = {
            name: self.memory.view(name)
            for name in (*self.program.inputs, *self.program.outputs)
            if self.program.types[name].group == self.group
        }
        used = {name: tuple(items) for name, items in self.threads.items() if items or name == "compute"}
        labels = {name: tuple(self.labels[name]) for name in used}
        rank = self.place.start + self.rank
        return RankPlan(rank, dict(self.memory.buffers), used, labels, values)

    def emit(self, items: Iterable[Instruction], label: str, thread: str = "compute") -> None:
        """Append instructions of a unit."""
        for item in items:
            self.threads[thread].append(item)
            self.labels[thread].append(label)

    def event(self) -> int:
        """A new event."""
        self.num_events += 1
        return self.num_events - 1

    def add_slices(self, stages: Sequence[Stage]) -> list[Stage]:
        """Make the slices among stages, which need nothing of the others; returns the others."""
        for stage in stages:
            if stage.op == "slice" and self.program.types[stage.name].group == self.group:
                self.emit(self.slice_of(stage), stage.name)
        return [stage for stage in stages if stage.op != "slice"]

    def add_unit(self, stages: Sequence[Stage]) -> None:
        """Add stages one after the other, computations that are fused as one kernel."""
        if not stages:
            return
        fused = len(stages) > 1 and not any(stage.communicates or stage.op == "matmul" for stage in stages)
        for part in [list(stages)] if fused else [[stage] for stage in stages]:
            label = part[-1].name
            if part[0].communicates:
                self.emit(self.communicate(part[0]), label)
            elif self.program.types[part[0].name].group == self.group:
                self.emit(self.product(part[0]) if part[0].op == "matmul" else self.compute(part), label)

    # --- computation ----------------------------------------------------------------------------------------

    def compute(self, stages: Sequence[Stage]) -> list[Instruction]:
        """One kernel on all elements that the rank stores."""
        loop = Loop(self.program, self.memory, stages)
        ranges = [(index, start, size) for index, (start, size) in enumerate(loop.blocks())]
        calls = [call for index, start, size in ranges for call in loop.calls(index, start, size)]
        return [*loop.clear(), *calls, *loop.total()]

    def product(self, stage: Stage) -> list[Instruction]:
        """Rows of a product, in pieces that do not depend on the schedule, so that their bits do not."""
        pieces = self.row_pieces(stage)
        if pieces is None:
            return [self.rows(stage, 0, self.memory.view(stage.name).size)]
        return [self.rows(stage, *pieces.range(*key)) for key in pieces.all(0, "natural") if pieces.range(*key)[1]]

    def row_pieces(self, stage: Stage) -> Pieces | None:
        """Pieces of a product that is summed over ranks afterwards; none where its chunks are no rows."""
        item = self.program.types[stage.name]
        if not item.layout.is_local or ring_dim(item, self.num_ranks) != 0:
            return None
        return Pieces(item, self.num_ranks, 0, self.num_pieces)

    def rows(self, stage: Stage, first: int, size: int) -> MatMul:
        """The rows of a product that hold a range of its elements."""
        a, b = (self.memory.view(name) for name in stage.reads)
        left, right = (self.program.types[name].local_shape(self.rank, self.num_ranks) for name in stage.reads)
        inner, width = left[-1], right[1]
        start, count = first // max(width, 1), size // max(width, 1)
        return MatMul(
            a.part(start * inner, count * inner).reshape(count, inner),
            b.reshape(inner, width),
            self.memory.view(stage.name).part(first, size).reshape(count, width),
        )

    def slice_of(self, stage: Stage) -> list[Instruction]:
        """A copy of the rank's block, unless it is used where it lies."""
        source, target = self.memory.view(str(stage.operands[0])), self.memory.view(stage.name)
        item, dim = self.program.types[str(stage.operands[0])], stage.setting("dim")
        if is_contiguous(dim):
            own = self.memory.block_of(source, item, dim)
            return [] if own == target or not target.size else [Copy(own, target)]
        strided, packed = self._columns(source, target, item, dim, self.rank)
        return [Copy(strided, packed)] if target.size else []

    def _columns(
        self, full: View, packed: View, item: TensorType, dim: int, rank: int
    ) -> tuple[View, View]:  # fmt: skip
        """A block of a later dimension within a full tensor, and packed, both as matrices."""
        start, stop = block(item.shape[dim], rank, self.num_ranks)
        before, after = 1, 1
        for index, extent in enumerate(item.shape):
            before, after = before * (extent if index < dim else 1), after * (extent if index > dim else 1)
        shape = (before, (stop - start) * after)
        strided = View(full.buffer, full.start + start * after, shape, (item.shape[dim] * after, 1))
        return strided, packed.reshape(*shape)

    # --- communication --------------------------------------------------------------------------------------

    def communicate(self, stage: Stage) -> list[Instruction]:
        """A collective on whole chunks."""
        item = self.program.types[stage.reads[0]]
        if stage.op == "send":
            return self.send(stage)
        if item.group != self.group:
            return []
        if stage.op == "broadcast":
            source, target = self.memory.view(stage.reads[0]), self.memory.view(stage.name)
            return broadcast(self.place, source, target, stage.setting("root"), self.tags[stage.name])
        if stage.op == "all_gather":
            return self.gather(stage)
        return self.reduce(stage)

    def send(self, stage: Stage, ranges: Sequence[tuple[int, int]] = ()) -> list[Instruction]:
        """To the same rank of the next group, all of it or some ranges."""
        source = self.program.types[stage.reads[0]]
        here = source.group == self.group
        view = self.memory.view(stage.reads[0] if here else stage.name)
        tag, peers = self.tags[stage.name], self.program.group_sizes
        items: list[Instruction] = []
        for first, size in ranges or [(0, view.size)]:
            if size and here:
                items.append(Send(self.place.start + peers[self.group] + self.rank, tag, view.part(first, size)))
            elif size:
                items.append(Receive(self.place.start - peers[self.group - 1] + self.rank, tag, view.part(first, size)))
        return items

    def reduce(self, stage: Stage) -> list[Instruction]:
        """All-reduce, reduce-scatter, reduce."""
        item = self.program.types[stage.reads[0]]
        dim = stage.setting("dim") if stage.op == "reduce_scatter" else ring_dim(item, self.num_ranks)
        source, target = self.memory.view(stage.reads[0]), self.memory.view(stage.name)
        items: list[Instruction] = []
        own = {c: source.part(*chunk_range(item, dim, c, self.num_ranks)) for c in range(self.num_ranks)} if (
            is_contiguous(dim)) else self._pack(stage, source, item, dim, items)  # fmt: skip
        if storage_dtype(item.dtype) == "float16":  # sums of 16-bit values are kept in 32 bits
            own = self._widen(stage, own, items)
        result = target if stage.op == "reduce_scatter" else self.memory.block_of(target, item, dim)
        wide = result
        if storage_dtype(item.dtype) == "float16":
            wide = self.memory.buffer(f"{stage.name} sum", result.size, "float32")
        work = self.work([view.size for view in own.values()], self.memory.buffers[own[0].buffer].dtype)
        tag = self.tags[stage.name]
        items += flatten_hops(
            reduce_hops(self.place, own.__getitem__, wide, work, tag, stage.setting("reduction", "sum"))
        )
        if wide != result:
            items.append(Copy(wide, result))
        if stage.op == "reduce_scatter":
            return items

        def part(chunk: int) -> View:
            return target.part(*chunk_range(item, dim, chunk, self.num_ranks))

        if stage.op == "reduce":
            return [*items, *to_root(self.place, part, stage.setting("root"), tag)]
        return [*items, *flatten_hops(gather_hops(self.place, part, tag))]

    def work(self, sizes: Iterable[int], dtype: str) -> tuple[View, View]:
        """Two buffers for partial sums of chunks."""
        size = max(sizes)
        return self.memory.buffer(f"work 0 {dtype}", size, dtype), self.memory.buffer(f"work 1 {dtype}", size, dtype)

    def _pack(
        self, stage: Stage, source: View, item: TensorType, dim: int, items: list[Instruction]
    ) -> dict[int, View]:  # fmt: skip
        """Chunks of columns, one behind the other."""
        packed = self.memory.buffer(f"{stage.name} packed", item.num_elements, storage_dtype(item.dtype))
        views, start = {}, 0
        for chunk in range(self.num_ranks):
            size = self.memory_size(item, dim, chunk)
            views[chunk] = packed.part(start, size)
            start += size
            if size:
                items.append(Copy(*self._columns(source, views[chunk], item, dim, chunk)))
        return views

    def memory_size(self, item: TensorType, dim: int, chunk: int) -> int:
        """Elements of a block of any dimension."""
        start, stop = block(item.shape[dim], chunk, self.num_ranks)
        return item.num_elements // max(item.shape[dim], 1) * (stop - start)

    def _widen(self, stage: Stage, own: Mapping[int, View], items: list[Instruction]) -> dict[int, View]:
        """Chunks in 32 bits."""
        wide = self.memory.buffer(f"{stage.name} wide", sum(view.size for view in own.values()), "float32")
        views, start = {}, 0
        for chunk, view in own.items():
            views[chunk] = wide.part(start, view.size)
            start += view.size
            if view.size:
                items.append(Copy(view, views[chunk]))
        return views

    def gather(self, stage: Stage) -> list[Instruction]:
        """All-gather."""
        item = self.program.types[stage.reads[0]]
        source, target = self.memory.view(stage.reads[0]), self.memory.view(stage.name)
        dim, tag = item.layout.dim, self.tags[stage.name]
        if is_contiguous(dim):

            def part(chunk: int) -> View:
                return target.part(*chunk_range(item, dim, chunk, self.num_ranks))

            return [*self.put(source, part(self.rank)), *flatten_hops(gather_hops(self.place, part, tag))]
        unused: list[Instruction] = []
        packed = self._pack(stage, target, item, dim, unused)
        items = self.put(source, packed[self.rank])
        items += flatten_hops(gather_hops(self.place, packed.__getitem__, tag))
        for chunk, view in packed.items():
            if view.size:
                strided, matrix = self._columns(target, view, item, dim, chunk)
                items.append(Copy(matrix, strided))
        return items

    @staticmethod
    def put(source: View, target: View) -> list[Instruction]:
        """A copy, unless it lies there already."""
        is_there = (source.buffer, source.start, source.size) == (target.buffer, target.start, target.size)
        return [] if is_there or not target.size else [Copy(source, target)]
