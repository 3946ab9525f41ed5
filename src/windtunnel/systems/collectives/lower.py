"""Lower scheduled programs to plans: instructions on buffers for each rank.

In: a program with its fusions and overlaps. Out: a ``Plan``. Not here: which schedule pays (``search``), how an
instruction runs.

    unit ─┬─ computation ────────▶ one kernel call
          ├─ collective ─────────▶ hops of a ring, whole chunks
          └─ fused collective, ──▶ ``stream``: piece by piece, with a thread for communication where a producer overlaps
             overlap

References
----------
Jangda et al., ASPLOS 2022, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from windtunnel.systems.collectives.kernel_source import (
    clear_kernel,
    kernel_space,
    make_kernel,
    place_of_rank,
    total_kernel,
)
from windtunnel.systems.collectives.kernels import Kernel, storage_dtype
from windtunnel.systems.collectives.layouts import TensorType, block, ring_dim
from windtunnel.systems.collectives.memory import Memory, Pieces, chunk_range, is_contiguous
from windtunnel.systems.collectives.plan import Call, Copy, Instruction, MatMul, Plan, RankPlan, Receive, Send, View
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.rings import Hop, RingPlace, broadcast, gather_hops, reduce_hops, to_root
from windtunnel.systems.collectives.rules import REDUCTIONS
from windtunnel.systems.collectives.transforms import unit_predecessors, units

__all__ = ["Lowering", "in_order", "lower"]


def in_order(items: Iterable[str], before: Mapping[str, set[str]]) -> list[str]:
    """Items after all that must come before them, otherwise as they come."""
    result: list[str] = []
    left = list(items)
    while left:
        item = next(item for item in left if not before[item] & set(left) - {item})
        left.remove(item)
        result.append(item)
    return result


def lower(program: Program, num_pieces: int = 0) -> Plan:
    """The plan of a scheduled program.

    Parameters
    ----------
    program : Program
    num_pieces : int
        Into how many pieces a chunk is cut where collectives are pipelined, and rows of products are; by default pieces
        of about 256 KiB, at most 16. Programs that shall agree bit for bit need equal numbers.

    Examples
    --------
    >>> from windtunnel.systems.collectives.workloads import sgd
    >>> plan = lower(sgd(num_ranks=2, num_parameters=8))
    >>> [rank.sent_bytes() for rank in plan.ranks]
    [32, 32]
    """
    chain_of = {item: chain for chain in program.overlaps for item in chain.items}
    members = {name: names for name, names in units(program).items() if any(item in program.live for item in names)}
    before = unit_predecessors(program)
    # an overlap runs as one, as a fusion does
    groups = {chain_of[name].items if name in chain_of else (name,): "" for name in members}
    keys = {name: " ".join(group) for group in groups for name in group}
    between = {
        " ".join(group): {keys[name] for item in group for name in before.get(item, ()) if name in keys}
        - {" ".join(group)}
        for group in groups
    }
    by_key = {" ".join(group): group for group in groups}
    plans = []
    for group, size in enumerate(program.group_sizes):
        for rank in range(size):
            lowering = Lowering(program, group, rank, num_pieces)
            for key in in_order(by_key, between):
                chain = chain_of.get(by_key[key][0])
                lowering.add([members[name] for name in by_key[key] if name in members], chain.order if chain else "")
            plans.append(lowering.plan())
    return Plan(program.name, program.group_sizes, tuple(plans))


class Lowering:
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

    def add(self, unit_members: Sequence[Sequence[str]], order: str = "") -> None:
        """Add a unit, or the units of an overlap."""
        from windtunnel.systems.collectives.stream import Stream

        names = [name for members in unit_members for name in members if name in self.program.live]
        stages = [self.program.by_name[name] for name in names]
        if not any(self.group in self._groups(stage) for stage in stages):
            return
        stages = self.add_slices(stages)
        is_stream = any(stage.communicates for stage in stages) and len(stages) > 1
        live = [[name for name in members if name in self.program.live] for members in unit_members]
        if is_stream and Stream.fits(self.program, live):
            Stream(self, unit_members, order or "ring").add()
            return
        for members in unit_members:
            self.add_unit([stage for stage in stages if stage.name in members])

    def _groups(self, stage: Stage) -> set[int]:
        """The groups that run a stage."""
        return {self.program.types[name].group for name in (stage.name, *stage.reads)}

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
        loop = Loop(self, stages)
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
        items += flatten(reduce_hops(self.place, own.__getitem__, wide, work, tag, stage.setting("reduction", "sum")))
        if wide != result:
            items.append(Copy(wide, result))
        if stage.op == "reduce_scatter":
            return items

        def part(chunk: int) -> View:
            return target.part(*chunk_range(item, dim, chunk, self.num_ranks))

        if stage.op == "reduce":
            return [*items, *to_root(self.place, part, stage.setting("root"), tag)]
        return [*items, *flatten(gather_hops(self.place, part, tag))]

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

            return [*self.put(source, part(self.rank)), *flatten(gather_hops(self.place, part, tag))]
        unused: list[Instruction] = []
        packed = self._pack(stage, target, item, dim, unused)
        items = self.put(source, packed[self.rank])
        items += flatten(gather_hops(self.place, packed.__getitem__, tag))
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


def flatten(hops: Iterable[Hop]) -> list[Instruction]:
    """Instructions of hops, in order."""
    return [item for hop in hops for item in (*hop.sends, *hop.rest)]


class Loop:
    """A kernel of stages on one rank, and its calls on ranges of elements.

    Parameters
    ----------
    lowering : Lowering
    stages : sequence of Stage
    """

    def __init__(self, lowering: Lowering, stages: Sequence[Stage]) -> None:
        self.lowering, self.stages = lowering, stages
        program, memory = lowering.program, lowering.memory
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
        self.kernel: Kernel = make_kernel(program, names, stored, by_value, lowering.rank)
        self.views = {name: memory.view(value) for value, name in by_value.items()}
        self.base = place_of_rank(self.space, lowering.rank, lowering.num_ranks)
        self.sums = {
            stage.name: memory.buffer(f"{stage.name} sums", self._num_blocks(stage), "float64")
            for stage in stages
            if stage.op in REDUCTIONS
        }

    def _is_stored(self, value: str, names: Sequence[str]) -> bool:
        """Whether something outside the kernel reads a value."""
        program = self.lowering.program
        stage = program.by_name[value]
        if stage.op in REDUCTIONS:
            return False
        is_read = any(user.name not in names and user.name in program.live for user in program.users[value])
        return is_read or value in program.outputs or stage.op == "update"

    def _num_blocks(self, stage: Stage) -> int:
        item = self.lowering.program.types[stage.reads[0]]
        # a replicated tensor is summed block by block, as ranks sum their slices
        return self.lowering.num_ranks if item.layout.is_replicated and not item.is_scalar else 1

    def blocks(self) -> list[tuple[int, int]]:
        """Ranges of elements that a call works on: all, or blocks where sums of them are kept."""
        size = self.lowering.memory.local_size(self.space)
        if all(view.size == 1 for view in self.sums.values()):
            return [(0, size)]
        dim = ring_dim(self.space, self.lowering.num_ranks)
        return [chunk_range(self.space, dim, c, self.lowering.num_ranks) for c in range(self.lowering.num_ranks)]

    def clear(self) -> list[Instruction]:
        """Set its sums to zero."""
        return [Call(clear_kernel(), (view,)) for view in self.sums.values()]

    def total(self) -> list[Instruction]:
        """Round its sums to the values that the program reads."""
        types = self.lowering.program.types
        return [
            Call(total_kernel(storage_dtype(types[name].dtype)), (view, self.lowering.memory.view(name)))
            for name, view in self.sums.items()
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
