"""Prices of schedules that PyTorch runs, from times of their stages.

In: the schedules of a program, a transport. Out: a graph of each, whose replay is the price. Every different stage, and
piece of one, is timed once, as a program of its own on all ranks. Not here: processes (``torch_executor``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from windtunnel.base.progress import Progress
from windtunnel.graph import Discipline, EdgeKind, Graph, GraphBuilder, Kind, ResourceKind
from windtunnel.hardware.host import usable_cores
from windtunnel.measure.turns import quiet_rows
from windtunnel.systems.collectives.layouts import TensorType
from windtunnel.systems.collectives.lower import run_order
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.torch_executor import TorchExecutor
from windtunnel.systems.collectives.torch_rank import Piece, cut_pieces, piece_turns

__all__ = ["TorchPrices", "price_stages"]

_ROUNDS, _MAX_LOADED_BYTES = 7, 1 << 30


@dataclass(frozen=True)
class TorchPrices:
    """What stages take on the ranks of a host.

    Attributes
    ----------
    durations_ns : mapping of Program to float
        By a program of one stage.
    num_cores : int
        That computing and messages of a rank share; 0 where messages use none.
    """

    durations_ns: Mapping[Program, float]
    num_cores: int = 0

    def build_graph(self, program: Program) -> Graph:
        """The graph of a program: the ranks of a group do the same, and wait for what they communicate."""
        timeline = _Timeline(program, self.durations_ns, self.num_cores)
        for stage, piece in walk(program):
            if stage is None:
                timeline.wait(piece)
            else:
                timeline.add(stage, piece)
        return timeline.builder.build({"source": "torch"})


def walk(program: Program) -> Iterator[tuple[Stage | None, Piece | None]]:
    """Stages, or pieces of them, in the order in which ``TorchProgram`` starts them.

    Without a stage: what communicates is waited for, that of a piece or any.
    """
    for unit_members, _ in run_order(program):
        units = [[program.by_name[name] for name in members] for members in unit_members]
        stages = [stage for members in units for stage in members]
        pieces, chain = cut_pieces(program, units)
        if pieces:
            yield from ((stage, None) for stage in stages if stage.op == "slice")
            for piece, segment, _ in piece_turns(chain, pieces):
                yield None, piece
                yield from ((stage, piece) for stage in segment)
            stages = [stage for stage in stages if stage.op != "slice" and stage not in chain]
        for stage in stages:
            yield stage, None
            yield None, None


class _Timeline:
    """What the ranks of each group compute and communicate, one after the other."""

    def __init__(self, program: Program, durations_ns: Mapping[Program, float], num_cores: int) -> None:
        self.program, self.durations_ns, self.builder = program, durations_ns, GraphBuilder()
        groups = range(len(program.group_sizes))
        if num_cores:  # gloo's threads compute, too
            kind, discipline = ResourceKind.POOL, Discipline.SHARED
            cores = [
                self.builder.resource(f"group {group}", kind, discipline=discipline, slots=num_cores)
                for group in groups
            ]
            self.resources = {False: cores, True: cores}
        else:
            streams = [self.builder.resource(f"group {group} stream", ResourceKind.STREAM) for group in groups]
            links = [self.builder.resource(f"group {group} links", ResourceKind.LINK) for group in groups]
            self.resources = {False: streams, True: links}
        self.last: dict[tuple[int, bool], int] = {}
        self.waiting: list[list[int]] = [[] for _ in groups]  # what the next computation of a group waits for
        self.pending: dict[Piece | None, tuple[int, list[int]]] = {}  # what is under way, and its groups

    def add(self, stage: Stage, piece: Piece | None) -> None:
        """Add a stage, or one of its pieces."""
        types = self.program.types
        groups = sorted({types[name].group for name in (stage.name, *stage.reads)})
        task = self.builder.task(
            str(stage), op=stage.op, layer=stage.name, rank=self.program.groups[groups[0]].start,
            kind=Kind.COMM if stage.communicates else Kind.COMPUTE,
            resource=self.resources[stage.communicates][groups[0]],
            duration_ns=round(self.durations_ns[single_stage(self.program, stage, piece)]),
        )  # fmt: skip
        for group in groups:
            before = [self.last[key] for key in ((group, False), (group, stage.communicates)) if key in self.last]
            for first in dict.fromkeys([*before, *self.waiting[group]]):
                self.builder.edge(first, task, kind=EdgeKind.ORDER)
            if not stage.communicates:
                self.waiting[group] = []
            self.last[group, stage.communicates] = task
        if stage.communicates:
            self.pending[piece] = task, groups

    def wait(self, piece: Piece | None) -> None:
        """Let the groups of a collective go on when it is done."""
        task, groups = self.pending.pop(piece, (0, []))
        for group in groups:
            self.waiting[group].append(task)


def single_stage(program: Program, stage: Stage, piece: Piece | None = None) -> Program:
    """A program of one stage, or of one piece of it; equal ones take the same time."""
    types = {name: program.types[name] for name in dict.fromkeys(stage.reads)}
    if stage.op == "update":  # of a slice, if it writes one
        target = str(stage.operands[0])
        types[target] = replace(types[target], layout=program.types[stage.name].layout)
    for index, name in enumerate(stage.operands):
        if piece is not None and isinstance(name, str) and piece.cuts(program, stage, index):
            types[name] = replace(types[name], shape=piece.full_shape(program.types[name]))
    names = {name: f"x{index}" for index, name in enumerate(types)}
    inputs = {names[name]: item for name, item in types.items()}
    only = replace(stage.with_reads(names), name="y")
    return Program("stage", program.group_sizes, inputs, (only,), ("y",))


def price_stages(
    programs: Sequence[Program], transport: str = "torch", progress: Progress | None = None
) -> TorchPrices:
    """Time all stages of these schedules of one program.

    Parameters
    ----------
    programs : sequence of Program
    transport : str
        ``torch`` or ``nccl``.
    progress : callable, optional
        Called with (what, done, total).
    """
    sizes = programs[0].group_sizes
    idle = Program("idle", sizes, {"x0": TensorType(())}, (), ("x0",))
    waiting = list(dict.fromkeys(
        single_stage(program, stage, piece)
        for program in programs
        for stage, piece in walk(program)
        if stage is not None and (piece is None or not piece.index)
    ))  # fmt: skip
    total, durations_ns = len(waiting), dict[Program, float]()
    while waiting:
        batch, loaded_bytes = [idle], 0
        with TorchExecutor(sum(sizes), transport) as executor:
            while waiting and (len(batch) == 1 or loaded_bytes + waiting[0].memory_bytes <= _MAX_LOADED_BYTES):
                loaded_bytes += waiting[0].memory_bytes
                batch.append(waiting.pop(0))
            numbers = [executor.load_program(item) for item in batch]
            times_ns = quiet_rows(executor.time(numbers, _ROUNDS).max(axis=2))
        durations_ns |= {
            item: max(float(time_ns - times_ns[0]), 0.0) for item, time_ns in zip(batch, times_ns, strict=True)
        }
        if progress is not None:
            progress("stages", total - len(waiting), total)
    return TorchPrices(durations_ns, 0 if transport == "nccl" else max(1, len(usable_cores()) // sum(sizes)))
