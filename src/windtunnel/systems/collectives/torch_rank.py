"""One process that runs programs with PyTorch: its operators, and the collectives of torch.distributed.

In: programs, contents of their inputs, requests to run. Out: times and contents. On GPUs the collectives are NCCL's, on
CPUs gloo's; nothing else differs. PyTorch has no operator that computes while it communicates, so that the stages of a
fusion run one after the other. The units of an overlap work piece by piece: a collective is waited for one turn later.

    compute          rows 0 ── rows 1 ───── rows 2, C 0 ── C 1 ─ ...
    communication              reduce 0 ─── reduce 1 ───── reduce 2, gather 0 ─ ...

NCCL runs what was started on a stream of its own, between events, and waiting for it holds up the device's stream only;
gloo runs it on threads of its own. Not here: who starts this (``torch_executor``), how rounds are timed (``worker``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from windtunnel.measure.workers import Place
from windtunnel.systems.collectives.dropout import keep_tensor
from windtunnel.systems.collectives.interpret import Buffers
from windtunnel.systems.collectives.layouts import FLAT, TensorType, numpy_dtype, sum_dtype
from windtunnel.systems.collectives.lower import run_order
from windtunnel.systems.collectives.memory import Pieces
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.rules import REDUCTIONS, spans
from windtunnel.systems.collectives.stream import Stream, cut_dim
from windtunnel.systems.collectives.torch_messages import start_collective
from windtunnel.systems.collectives.worker import Action, Rank, answer_orders

__all__ = ["Piece", "TorchProgram", "TorchRank", "cut_pieces", "main", "piece_turns"]

Tensor = torch.Tensor
_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "greater": torch.gt,
    "neg": torch.neg,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "relu": torch.relu,
    "cast": torch.clone,
    "select": lambda condition, positive, otherwise: torch.where(condition != 0, positive, otherwise),
    "update": lambda _target, value: value,
    "matmul": torch.matmul,
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece ``index`` of ``count`` of each rank's chunk of ``dim``, 0 or ``FLAT``; all are of equal size."""

    dim: int
    num_ranks: int
    count: int
    index: int

    def view(self, tensor: Tensor, item: TensorType) -> Tensor:
        """The piece of a slice, or [num_ranks, rows, ...] of a full tensor."""
        rows = tensor.reshape(-1) if self.dim == FLAT else tensor
        if item.layout.is_sliced and item.layout.dim == self.dim:
            return rows.reshape(self.count, len(rows) // self.count, *rows.shape[1:])[self.index]
        width = len(rows) // (self.num_ranks * self.count)
        return rows.reshape(self.num_ranks, self.count, width, *rows.shape[1:])[:, self.index]

    def take(self, tensor: Tensor, item: TensorType) -> Tensor:
        """The piece as a tensor of fewer rows."""
        part = self.view(tensor, item)
        return part if item.layout.is_sliced and item.layout.dim == self.dim else part.flatten(0, 1)

    def full_shape(self, item: TensorType) -> tuple[int, ...]:
        """Of the piece on all ranks of a tensor."""
        rows, *rest = (item.num_elements,) if self.dim == FLAT else item.shape
        return (rows // self.count, *rest)

    def shape(self, item: TensorType) -> tuple[int, ...]:
        """Of what ``take`` returns."""
        rows, *rest = self.full_shape(item)
        return (rows // self.num_ranks if item.layout.is_sliced else rows, *rest)

    def cuts(self, program: Program, stage: Stage, index: int) -> bool:
        """Whether a piece of a stage needs a piece of an operand only."""
        item = program.types[str(stage.operands[index])]
        return index == 0 if stage.op == "matmul" else spans(item, program.types[stage.name].shape, self.dim)


def cut_pieces(
    program: Program, units: Sequence[Sequence[Stage]], num_pieces: int = 0
) -> tuple[list[Piece], list[Stage]]:
    """Pieces of an overlap, and its stages up to the first sum over elements; no pieces where it cannot be cut."""
    types, names = program.types, [[stage.name for stage in members] for members in units]
    stages = [stage for members in units for stage in members if stage.op != "slice"]
    whole = (index for index, stage in enumerate(stages) if stage.op in REDUCTIONS or types[stage.name].is_scalar)
    chain = stages[: next(whole, len(stages))]
    first = next((stage for stage in chain if stage.communicates), None)
    if len(units) < 2 or first is None or not Stream.fits(program, names):
        return [], []
    item, dim = types[first.reads[0]], cut_dim(program, first)
    num_ranks = program.group_sizes[item.group]
    rows = item.num_elements if dim == FLAT else item.shape[0]
    count = Pieces(item, num_ranks, dim, num_pieces).num_pieces
    count = next((size for size in range(count, 1, -1) if rows % (num_ranks * size) == 0), 1)
    operands = [types[name] for stage in chain if stage.op != "matmul" for name in stage.reads]
    fits = all(operand.shape == item.shape or not spans(operand, item.shape, dim) for operand in operands)
    return [Piece(dim, num_ranks, count, index) for index in range(count)] if fits and count > 1 else [], chain


def piece_turns(stages: Sequence[Stage], pieces: Sequence[Piece]) -> Iterator[tuple[Piece, list[Stage], bool]]:
    """Which stages work on which piece, in order, and whether these are the last that work on it.

    A segment of stages ends with one that communicates. Each piece is a segment behind the piece before it, so that its
    collective, which is waited for before its next segment, is under way while the other pieces are computed.
    """
    segments: list[list[Stage]] = [[]]
    for stage in stages:
        segments[-1].append(stage)
        if stage.communicates:
            segments.append([])
    for turn in range(len(pieces) + len(segments) - 1):
        for index, segment in enumerate(segments):
            if 0 <= turn - index < len(pieces):
                yield pieces[turn - index], segment, index == len(segments) - 1


class TorchProgram:
    """A program of one rank as functions, and its values.

    Parameters
    ----------
    program : Program
    rank : int
        Among all ranks.
    device : torch.device
    process_group : process group
        That of the rank's group.
    num_pieces : int
        As ``lower`` takes it; a chunk is cut into as many as divide its rows.
    """

    def __init__(
        self, program: Program, rank: int, device: torch.device, process_group: Any, num_pieces: int = 0
    ) -> None:
        self.program, self.types, self.device, self.process_group = program, program.types, device, process_group
        self.group, ranks = next((index, ranks) for index, ranks in enumerate(program.groups) if rank in ranks)
        self.start, self.rank, self.num_ranks = ranks.start, ranks.index(rank), len(ranks)
        self.inputs: Buffers = {}
        self.values = {name: self._zeros(item) for name, item in program.inputs.items() if item.group == self.group}
        self.indices = {
            stage.name: self._indices(self.types[stage.name])
            for stage in program.stages
            if stage.op == "dropout" and self.types[stage.name].group == self.group
        }
        self.labels: list[str] = []
        self.actions: list[list[Action]] = [[]]
        for unit_members, _order in run_order(program):  # a collective takes the pieces of all ranks at once
            self._add([[program.by_name[name] for name in members] for members in unit_members], num_pieces)
        self._add_action("synchronize", self._synchronize)

    @property
    def buffers(self) -> Buffers:
        """Inputs and outputs of the rank's group."""
        names = dict.fromkeys([*self.program.inputs, *self.program.outputs])
        return {name: to_array(self.values[name]) for name in names if self.types[name].group == self.group}

    def reset(self) -> None:
        """Put the inputs as they were before the round."""
        for name, content in self.inputs.items():
            self.values[name].copy_(to_tensor(content).reshape(self.values[name].shape))
        self._synchronize()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # --- order ----------------------------------------------------------------------------------------------

    def _add(self, units: Sequence[Sequence[Stage]], num_pieces: int) -> None:
        """Add a unit, or an overlap: its stages that work on pieces as one action, all others one by one."""
        stages = [stage for members in units for stage in members if self._is_here(stage)]
        pieces, chain = cut_pieces(self.program, units, num_pieces)
        if pieces:
            slices = [stage for stage in stages if stage.op == "slice"]  # which need nothing of the others
            self._add_stages(slices)
            here = [stage for stage in chain if self._is_here(stage)]
            for stage in here:
                self._reserve(stage, {item.name for item in chain})
            label = " ".join(members[-1].name for members in units)
            self._add_action(label, functools.partial(self._run_pieces, chain, pieces))
            stages = [stage for stage in stages if stage not in slices and stage not in chain]
        self._add_stages(stages)

    def _add_stages(self, stages: Sequence[Stage]) -> None:
        for stage in stages:
            self._add_action(stage.name, functools.partial(self._run_stage, stage))

    def _add_action(self, label: str, action: Action) -> None:
        self.labels.append(label)
        self.actions[0].append(action)

    def _is_here(self, stage: Stage) -> bool:
        """Whether this rank takes part: a send has ranks of two groups."""
        return self.group in {self.types[name].group for name in (stage.name, *stage.reads)}

    def _run_stage(self, stage: Stage) -> None:
        """Run a stage on all that the rank stores."""
        item, values = self.types[stage.name], self.values
        if stage.communicates:
            source = self.types[stage.reads[0]]
            shape = item.local_shape(self.rank, self.num_ranks)
            dim = stage.setting("dim", source.layout.dim)
            result = start_collective(self, stage, values.get(stage.reads[0]), dim, shape)()
        else:
            operands = [values[operand] if isinstance(operand, str) else operand for operand in stage.operands]
            result = self._compute(stage, operands, self.indices.get(stage.name))
        if item.group == self.group:
            memory = self._memory(stage)
            values[stage.name] = result if memory is None else memory.copy_(result)

    def _run_pieces(self, stages: Sequence[Stage], pieces: Sequence[Piece]) -> None:
        """Run stages piece by piece: the collective of one piece is under way while the next piece is computed."""
        results: list[dict[str, Tensor]] = [{} for _ in pieces]
        pending: dict[int, Action] = {}
        for piece, segment, is_last in piece_turns(stages, pieces):
            local = results[piece.index]
            pending.pop(piece.index, lambda: None)()
            for stage in filter(self._is_here, segment):
                finish = self._start_piece(stage, piece, local)
                if stage.communicates:
                    pending[piece.index] = finish
                else:
                    finish()
            if is_last:
                local.clear()

    def _start_piece(self, stage: Stage, piece: Piece, local: dict[str, Tensor]) -> Action:
        """Start a stage on a piece; returns what waits for its result and keeps it."""
        item = self.types[stage.name]
        wait: Callable[[], Tensor]
        if stage.communicates:
            name = stage.reads[0]
            source = self._operand(stage, 0, piece, local) if self.types[name].group == self.group else None
            wait = start_collective(self, stage, source, 0, piece.shape(item))
        else:
            indices = piece.take(self.indices[stage.name], item) if stage.name in self.indices else None
            operands = [self._operand(stage, index, piece, local) for index in range(len(stage.operands))]
            wait = functools.partial(self._compute, stage, operands, indices)

        def finish() -> None:
            result = wait()
            if item.group == self.group:
                local[stage.name] = result
                if stage.name in self.values:
                    target = piece.view(self.values[stage.name], item)
                    target.copy_(result.reshape(target.shape))

        return finish

    def _operand(self, stage: Stage, index: int, piece: Piece, local: dict[str, Tensor]) -> Any:
        """The piece of an operand, or all of one that every piece needs."""
        name = stage.operands[index]
        if not isinstance(name, str) or name in local:
            return local[name] if isinstance(name, str) else name
        item, tensor = self.types[name], self.values[name]
        if item.is_scalar:
            return tensor.reshape(())
        return piece.take(tensor, item) if piece.cuts(self.program, stage, index) else tensor

    # --- memory ---------------------------------------------------------------------------------------------

    def _zeros(self, item: TensorType) -> Tensor:
        shape, dtype = item.local_shape(self.rank, self.num_ranks), getattr(torch, item.dtype)
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _block(self, full: Any, item: TensorType) -> Tensor:
        """The rank's block of a full tensor, a view."""
        block: Any = item.take_block(full, self.rank, self.num_ranks, item.layout.dim)
        return block  # type: ignore[no-any-return]

    def _indices(self, item: TensorType) -> Tensor:
        """Positions in the full tensor of what the rank stores."""
        full = torch.arange(item.num_elements, device=self.device).reshape(item.shape)
        return self._block(full, item) if item.layout.is_sliced else full

    def _memory(self, stage: Stage) -> Tensor | None:
        """Where the value of a stage has to be: an update, and what gathers it, in what is updated."""
        update = self.program.by_name.get(str(stage.operands[0])) if stage.op == "all_gather" else stage
        if update is None or update.op != "update":
            return None
        target, item = str(update.operands[0]), self.types[stage.name]
        if self.types[target].layout == item.layout:
            return self.values[target]
        return self._block(self.values[target], item) if item.layout.is_sliced else None

    def _reserve(self, stage: Stage, chain: set[str]) -> None:
        """Make memory for the value of a stage that works on pieces, if all of it is needed."""
        item, memory = self.types[stage.name], self._memory(stage)
        if item.group != self.group:
            return
        is_read = any(user.name not in chain for user in self.program.users[stage.name])
        if memory is not None or is_read or stage.name in self.program.outputs:
            self.values[stage.name] = self._zeros(item) if memory is None else memory

    # --- computation ----------------------------------------------------------------------------------------

    def _compute(self, stage: Stage, operands: Sequence[Any], indices: Tensor | None) -> Tensor:
        """An operator on what there is of its operands."""
        item, first = self.types[stage.name], operands[0]
        dtype = getattr(torch, item.dtype)
        if stage.op == "slice":  # an input that is updated would take its slices with it
            part = self._block(first, item)
            return part.clone() if stage.reads[0] in self.program.updates else part
        if stage.op in REDUCTIONS:
            wide = first.to(getattr(torch, sum_dtype(item.dtype)))
            return (wide.square() if stage.op == "sum_squares" else wide).sum().to(dtype)  # type: ignore[no-any-return]
        if stage.op == "dropout":
            step = torch.as_tensor((*operands, 0)[1], device=self.device).to(torch.int64).reshape(())
            probability = stage.setting("probability")
            kept = keep_tensor(stage.setting("seed"), indices, probability, step)
            return torch.where(kept.reshape(first.shape), first * (1 / (1 - probability)), 0).to(dtype)
        typed = [
            operand if isinstance(operand, Tensor) else torch.full((), operand, dtype=dtype, device=self.device)
            for operand in operands
        ]
        return _OPERATORS[stage.op](*typed).to(dtype)


def to_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor in the memory of an array."""
    if array.dtype == np.float64 or array.dtype == np.float32 or array.dtype == np.float16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def to_array(tensor: Tensor) -> NDArray[Any]:
    """An array of the contents of a tensor."""
    on_host = tensor.detach().cpu().contiguous()
    if on_host.dtype != torch.bfloat16:
        result: NDArray[Any] = on_host.numpy()
        return result
    return on_host.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))


class TorchRank(Rank):
    """What a rank that runs programs answers to its executor."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        is_gpu = self.transport == "nccl"
        self.device = torch.device("cuda", place.rank) if is_gpu else torch.device("cpu")
        if is_gpu:
            torch.cuda.set_device(self.device)
        place.join(backend="nccl" if is_gpu else "gloo")
        self.process_groups: dict[tuple[int, ...], list[Any]] = {}

    def free_bytes(self) -> int:
        """Memory of its GPU that is free."""
        return torch.cuda.mem_get_info(self.device)[0]

    def load_program(self, program: Program, num_pieces: int) -> list[str]:
        """Prepare a program, at the same time as all other ranks; names of what it does, in order."""
        sizes = program.group_sizes
        if sizes not in self.process_groups:  # every rank makes all groups
            self.process_groups[sizes] = [dist.new_group(list(ranks)) for ranks in program.groups]
        process_group = next(
            process_group
            for process_group, ranks in zip(self.process_groups[sizes], program.groups, strict=True)
            if self.place.rank in ranks
        )
        loaded = TorchProgram(program, self.place.rank, self.device, process_group, num_pieces)
        self.loaded.append(loaded)
        return loaded.labels


def main(place: Place) -> None:
    """Run programs."""
    torch.set_num_threads(1)
    answer_orders(place, TorchRank(place))
