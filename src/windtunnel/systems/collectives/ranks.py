"""Instructions of one rank: computations, and collectives on whole chunks.

In: stages. Out: instructions on the rank's buffers, and its plan once all units are added. Not here: the order of units
(``lower``), work on pieces (``stream``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from windtunnel.systems.collectives.layouts import TensorType, block, ring_dim, sum_dtype
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
        self.place = RingPlace(rank, self.num_ranks, program.groups[group].start)
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
        item = self.program.types[stage.reads[0]]
        own = self.chunks(self.memory.view(stage.reads[0]), item, stage.setting("dim"))[self.rank]
        target = self.memory.view(stage.name)
        return [] if own == target else copies([own], [target])

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
        item, tag = self.program.types[stage.reads[0]], self.tags[stage.name]
        dim = stage.setting("dim") if stage.op == "reduce_scatter" else ring_dim(item, self.num_ranks)
        target, dtype = self.memory.view(stage.name), sum_dtype(item.dtype)
        own = self.chunks(self.memory.view(stage.reads[0]), item, dim)
        total = result = target if stage.op == "reduce_scatter" else self.chunks(target, item, dim)[self.rank]
        items: list[Instruction] = []
        if dtype != item.dtype:
            total = self.memory.buffer(f"{stage.name} sum", result.size, dtype)
        if dtype != item.dtype or not is_contiguous(dim):
            packed = self.consecutive(f"{stage.name} packed", own, dtype)
            items += copies(own, packed)
            own = packed
        work = self.work([view.size for view in own], dtype)
        reduction = stage.setting("reduction", "sum")
        items += flatten_hops(reduce_hops(self.place, own.__getitem__, total, work, tag, reduction))
        if total != result:
            items += copies([total], [result])
        if stage.op == "reduce_scatter":
            return items
        parts = self.chunks(target, item, dim)
        if stage.op == "reduce":
            return [*items, *to_root(self.place, parts.__getitem__, stage.setting("root"), tag)]
        return [*items, *flatten_hops(gather_hops(self.place, parts.__getitem__, tag))]

    def gather(self, stage: Stage) -> list[Instruction]:
        """All-gather."""
        item = self.program.types[stage.reads[0]]
        chunks = self.chunks(self.memory.view(stage.name), item, item.layout.dim)
        parts = chunks
        if not is_contiguous(item.layout.dim):
            parts = self.consecutive(f"{stage.name} packed", chunks, item.dtype)
        items = self.put(self.memory.view(stage.reads[0]), parts[self.rank])
        items += flatten_hops(gather_hops(self.place, parts.__getitem__, self.tags[stage.name]))
        return items if parts is chunks else [*items, *copies(parts, chunks)]

    def work(self, sizes: Iterable[int], dtype: str) -> tuple[View, View]:
        """Two buffers for partial sums of chunks."""
        size = max(sizes)
        return self.memory.buffer(f"work 0 {dtype}", size, dtype), self.memory.buffer(f"work 1 {dtype}", size, dtype)

    def chunks(self, full: View, item: TensorType, dim: int) -> list[View]:
        """Blocks of a full tensor; those of later dimensions are matrices with strides."""
        if is_contiguous(dim):
            return [full.part(*chunk_range(item, dim, chunk, self.num_ranks)) for chunk in range(self.num_ranks)]
        before, after = math.prod(item.shape[:dim]), math.prod(item.shape[dim + 1 :])
        views = []
        for chunk in range(self.num_ranks):
            start, stop = block(item.shape[dim], chunk, self.num_ranks)
            shape, strides = (before, (stop - start) * after), (item.shape[dim] * after, 1)
            views.append(View(full.buffer, full.start + start * after, shape, strides))
        return views

    def consecutive(self, name: str, chunks: Sequence[View], dtype: str) -> list[View]:
        """Memory for packed chunks, one behind the other."""
        ends = list(itertools.accumulate(view.size for view in chunks))
        buffer = self.memory.buffer(name, ends[-1], dtype)
        return [buffer.part(end - view.size, view.size) for view, end in zip(chunks, ends, strict=True)]

    @staticmethod
    def put(source: View, target: View) -> list[Instruction]:
        """A copy, unless it lies there already."""
        is_there = (source.buffer, source.start, source.size) == (target.buffer, target.start, target.size)
        return [] if is_there else copies([source], [target])


def copies(sources: Sequence[View], targets: Sequence[View]) -> list[Instruction]:
    """Copies between views of equal sizes, of which one side may be packed."""
    items: list[Instruction] = []
    for source, target in zip(sources, targets, strict=True):
        shape = (source if source.strides else target).shape
        pair = [view if view.strides else view.reshape(*shape) for view in (source, target)]
        items += [Copy(*pair)] if target.size else []
    return items
