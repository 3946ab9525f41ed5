"""Fused collectives and overlaps piece by piece.

In: units of a program that run as one. Out: instructions of one rank. A piece of a chunk is reduced, computed on and
gathered while the next one is on its way; a producer makes pieces on a thread of its own. Not here: whole collectives.

    thread compute          rows 0 ──▶ rows 1 ──▶ rows 2           one signal for each chunk and piece
    thread communication       reduce 0 ─ kernel 0 ─ gather 0
                                          reduce 1 ─ kernel 1 ─ gather 1        hops of two pieces alternate

A sum over elements ends a phase: all pieces are reduced and added up, ranks exchange one element, and the next phase
goes over the pieces again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.systems.collectives.grouping import in_order
from windtunnel.systems.collectives.layouts import TensorType, ring_dim, sum_dtype
from windtunnel.systems.collectives.loops import Loop
from windtunnel.systems.collectives.memory import Pieces, is_contiguous
from windtunnel.systems.collectives.plan import Instruction, Signal, View, Wait
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.ranks import RankLowering
from windtunnel.systems.collectives.rings import Hop, gather_hops, merge_hops, reduce_hops
from windtunnel.systems.collectives.rules import REDUCTIONS

__all__ = ["Stream", "cut_dim"]


@dataclass(slots=True)
class _Step:
    """What happens to each piece in a phase: ``reduce`` or ``gather`` of a collective, ``send``, or a kernel."""

    kind: str
    stages: list[Stage]
    loop: Loop | None = None


def cut_dim(program: Program, stage: Stage) -> int:
    """The dimension that a collective cuts."""
    item = program.types[stage.reads[0]]
    if item.layout.is_sliced:
        return item.layout.dim
    if stage.op == "reduce_scatter":
        return int(stage.setting("dim"))
    return ring_dim(item, program.group_sizes[item.group])


class Stream:
    """The units of a fused collective, or of an overlap.

    Parameters
    ----------
    lowering : RankLowering
    unit_members : sequence of sequences of str
        Producer first.
    order : str
        In which order producers make pieces.
    """

    def __init__(self, lowering: RankLowering, unit_members: Sequence[Sequence[str]], order: str) -> None:
        self.lowering, self.program, self.order = lowering, lowering.program, order
        units = [
            [stage for name in members if (stage := self.program.by_name[name]).op != "slice" and name in
             self.program.live]
            for members in unit_members
        ]  # fmt: skip
        self.producers, self.units = split_producers(self.program, units)
        self.stages = [stage for unit in self.units for stage in unit]
        self.label = " ".join(unit[-1].name for unit in units if unit)
        first = next(stage for stage in self.stages if _is_wide_collective(self.program, stage))
        item = self.program.types[first.reads[0]]
        self.pieces = Pieces(item, lowering.num_ranks, cut_dim(self.program, first), lowering.num_pieces)
        self.events: dict[tuple[int, int], int] = {}

    @staticmethod
    def fits(program: Program, unit_members: Sequence[Sequence[str]]) -> bool:
        """Whether all stages work on the same pieces, which are ranges of elements."""
        units = [[program.by_name[name] for name in names if program.by_name[name].op != "slice"]
                 for names in unit_members]  # fmt: skip
        producers, rest = split_producers(program, units)
        stages = [stage for unit in rest for stage in unit]
        collectives = [stage for stage in stages if _is_wide_collective(program, stage)]
        if not collectives or any(stage.op in ("reduce", "broadcast", "matmul") for stage in stages):
            return False
        cuts = {(program.types[stage.name].shape, cut_dim(program, stage)) for stage in collectives}
        (shape, dim), *others = cuts
        wide = [
            program.types[stage.reads[0] if stage.op in REDUCTIONS else stage.name]
            for stage in (*producers, *stages)
            if not program.types[stage.reads[0] if stage.op in REDUCTIONS else stage.name].is_scalar
        ]
        producer_names = {stage.name for stage in producers}
        reads_late = any(
            name in producer_names and stage.op not in ("reduce_scatter", "all_reduce")
            for stage in stages
            for name in stage.reads
        )
        overwritten = {stage.operands[0] for stage in stages if stage.op == "update"}
        return (
            not others
            and not overwritten & {_memory_of(program, name) for stage in producers for name in stage.reads}
            and not reads_late
            and is_contiguous(dim)
            and all(item.shape == shape and sum_dtype(item.dtype) == item.dtype for item in wide)
            and all(not item.layout.is_sliced or item.layout.dim == dim for item in wide)
            and all(_is_by_rows(program, stage, dim) for stage in producers)
        )

    # --- instructions ---------------------------------------------------------------------------------------

    def add(self) -> None:
        """Add all instructions."""
        lowering = self.lowering
        here = [stage for stage in self.producers if self.program.types[stage.name].group == lowering.group]
        thread = "communication" if here else "compute"
        start = done = -1
        if here:
            start, done = lowering.event(), lowering.event()
            lowering.emit([Signal(start), *self._produce(here)], self.label)
            lowering.emit([Wait(start)], self.label, thread)
        for phase, steps in sorted(self._phases().items()):
            lowering.emit(self._once(steps) if phase % 2 else self._phase(steps), self.label, thread)
        if here:
            lowering.emit([Signal(done)], self.label, thread)
            lowering.emit([Wait(done)], self.label)

    def _produce(self, producers: Sequence[Stage]) -> list[Instruction]:
        """Pieces of what is reduced afterwards, each with a signal."""
        loops = {
            stage.name: Loop(self.program, self.lowering.memory, [stage]) for stage in producers if stage.op != "matmul"
        }
        items: list[Instruction] = []
        for key in self.pieces.all(self.lowering.rank, self.order):
            first, size = self.pieces.range(*key)
            if not size:
                continue
            for stage in producers:
                if stage.op == "matmul":
                    items.append(self.lowering.rows(stage, first, size))
                else:
                    items += loops[stage.name].calls(0, first, size)
            self.events[key] = self.lowering.event()
            items.append(Signal(self.events[key]))
        return items

    def _once(self, steps: Sequence[_Step]) -> list[Instruction]:
        """Single elements between phases."""
        items: list[Instruction] = []
        for step in steps:
            stage = step.stages[0]
            items += self.lowering.communicate(stage) if stage.communicates else self.lowering.compute([stage])
        return items

    def _phase(self, steps: Sequence[_Step]) -> list[Instruction]:
        """All pieces: the hops of a piece's last steps alternate with those of the next piece's first ones."""
        loops = [step.loop for step in steps if step.loop is not None]
        cut = next((i for i, step in enumerate(steps) if step.kind in ("gather", "send")), len(steps))
        count = self.pieces.num_pieces
        items = merge_hops(self._hops(steps[:cut], 0))
        for piece in range(count):
            following = self._hops(steps[:cut], piece + 1) if piece + 1 < count else []
            items += merge_hops(self._hops(steps[cut:], piece), following)
        return [
            *(item for loop in loops for item in loop.clear()),
            *items,
            *(item for loop in loops for item in loop.total()),
        ]

    # --- steps ----------------------------------------------------------------------------------------------

    def _phases(self) -> dict[int, list[_Step]]:
        """Steps by phase, in order: even ones go over pieces, odd ones are between them."""
        levels = self._levels()
        groups: dict[str, list[Stage]] = {}
        for index, unit in enumerate(self.units):
            for stage in unit:
                is_fused = not stage.communicates and len(unit) > 1 and levels[stage.name] % 2 == 0
                groups.setdefault(f"unit {index} {levels[stage.name]}" if is_fused else stage.name, []).append(stage)
        group_of = {stage.name: key for key, stages in groups.items() for stage in stages}
        before = {
            key: {
                group_of[name] for stage in stages for name in self.program.predecessors[stage.name] if name in group_of
            }
            - {key}
            for key, stages in groups.items()
        }
        result: dict[int, list[_Step]] = {}
        for key in in_order(groups, before):
            stages = groups[key]
            steps = result.setdefault(levels[stages[0].name], [])
            if levels[stages[0].name] % 2 or stages[0].communicates:
                kinds = {"reduce_scatter": ["reduce"], "all_gather": ["gather"], "all_reduce": ["reduce", "gather"]}
                steps += [_Step(kind, stages) for kind in kinds.get(stages[0].op, ["send"])]
            elif self.program.types[stages[0].name].group == self.lowering.group:
                steps.append(_Step("kernel", stages, Loop(self.program, self.lowering.memory, stages)))
        return result

    def _levels(self) -> dict[str, int]:
        """The phase of each stage: even for tensors, odd for single elements, which come after the sums before them."""
        levels: dict[str, int] = {}
        for stage in self.stages:
            # a sum is part of its phase, what reads it comes after
            first = max(
                (
                    levels[name] + (self.program.by_name[name].op in REDUCTIONS)
                    for name in self.program.predecessors[stage.name]
                    if name in levels
                ),
                default=-1,
            )
            is_single = self.program.types[stage.name].is_scalar and stage.op not in REDUCTIONS
            is_single |= stage.op in REDUCTIONS and self.program.types[stage.reads[0]].is_scalar
            levels[stage.name] = first + ((first % 2 == 0) if is_single else (first % 2 == 1))
        return levels

    def _hops(self, steps: Sequence[_Step], piece: int) -> list[Hop]:
        hops: list[Hop] = []
        for step in steps:
            following = self._step_hops(step, piece)
            if step.loop is not None and hops:  # computing is no hop of its own: the ring goes on meanwhile
                hops[-1].rest += following[0].rest
            else:
                hops += following
        return hops

    def _step_hops(self, step: _Step, piece: int) -> list[Hop]:
        """What a step does to a piece."""
        stage, lowering = step.stages[0], self.lowering
        if step.loop is not None:
            ranges = self._ranges(step.loop.space, piece)
            return [Hop(rest=[item for chunk, first, size in ranges for item in step.loop.calls(chunk, first, size)])]
        item = self.program.types[stage.reads[0]]
        if step.kind == "send":
            parts = [(first, size) for _, first, size in self._ranges(item, piece)]
            is_here = lowering.group in (item.group, self.program.types[stage.name].group)
            items = lowering.send(stage, parts) if is_here else []
            return [Hop(sends=items) if item.group == lowering.group else Hop(rest=items)]
        if item.group != lowering.group:
            return []
        target, tag = lowering.memory.view(stage.name), lowering.tags[stage.name]
        parts_of = self._parts(target, piece)
        if step.kind == "gather":
            if stage.op == "all_reduce":
                return gather_hops(lowering.place, parts_of, tag)
            own = self._own(lowering.memory.view(stage.reads[0]), piece)
            hops = gather_hops(lowering.place, parts_of, tag) or [Hop()]
            hops[0].sends[:0] = lowering.put(own, parts_of(lowering.rank))
            return hops
        result = self._own(target, piece) if stage.op == "reduce_scatter" else parts_of(lowering.rank)
        source = self._parts(lowering.memory.view(stage.reads[0]), piece)
        work = lowering.work([source(c).size for c in range(lowering.num_ranks)], item.dtype)

        def ready(chunk: int) -> list[Instruction]:
            event = self.events.get((chunk, piece))
            return [] if event is None else [Wait(event)]

        return reduce_hops(lowering.place, source, result, work, tag, stage.setting("reduction", "sum"), ready)

    def _ranges(self, item: TensorType, piece: int) -> list[tuple[int, int, int]]:
        """Chunk, first element and size of a piece, in what the rank stores of a tensor."""
        if item.layout.is_sliced:
            own = self._own(View("", 0, ()), piece)
            return [(self.lowering.rank, own.start, own.size)]
        return [(chunk, *self.pieces.range(chunk, piece)) for chunk in range(self.lowering.num_ranks)]

    def _own(self, view: View, piece: int) -> View:
        """A piece of the rank's slice."""
        rank = self.lowering.rank
        first, size = self.pieces.range(rank, piece)
        return view.part(first - self.pieces.range(rank, 0)[0], size)

    def _parts(self, view: View, piece: int) -> Callable[[int], View]:
        """A piece of each chunk of a full tensor."""
        return lambda chunk: view.part(*self.pieces.range(chunk, piece))


def _is_wide_collective(program: Program, stage: Stage) -> bool:
    return stage.communicates and not program.types[stage.name].is_scalar


def split_producers(program: Program, units: Sequence[Sequence[Stage]]) -> tuple[list[Stage], list[Sequence[Stage]]]:
    """Stages of the units before the first that communicates, and the other units."""
    index = next((i for i, unit in enumerate(units) if any(_is_wide_collective(program, stage) for stage in unit)), 0)
    return [stage for unit in units[:index] for stage in unit], list(units[index:])


def _memory_of(program: Program, value: str) -> str:
    """The value whose memory a slice may share."""
    while value in program.by_name and program.by_name[value].op == "slice":
        value = str(program.by_name[value].operands[0])
    return value


def _is_by_rows(program: Program, stage: Stage, dim: int) -> bool:
    """Whether a producer can make any range of its result."""
    item = program.types[stage.name]
    if stage.op == "matmul":
        return dim == 0 and item.layout.is_local
    return stage.is_pointwise and item.layout.is_local
