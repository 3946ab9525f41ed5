"""Run programs with PyTorch: a process for each rank, on its own GPU or on cores of this host.

In: scheduled programs, full arrays of inputs. Out: values afterwards, times of interleaved rounds. Not here: what a
process does (``torch_rank``), plans (``executor``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.hardware import Link
from windtunnel.hardware.host import available_bytes
from windtunnel.systems.collectives.executor import Executor, RankProcesses
from windtunnel.systems.collectives.layouts import numpy_dtype
from windtunnel.systems.collectives.program import Program
from windtunnel.systems.collectives.reference import distribute

__all__ = ["TORCH_TRANSPORTS", "TorchExecutor", "make_executor"]

Array = NDArray[Any]
TORCH_TRANSPORTS = ("torch", "nccl")
"""PyTorch's own operators and collectives: on CPUs over gloo, on GPUs over NCCL."""


class TorchExecutor(RankProcesses):
    """Processes that run programs with PyTorch. Use as a context manager.

    Parameters
    ----------
    num_ranks : int
    transport : str
        ``torch``: on CPUs, over gloo. ``nccl``: each rank on a GPU of this host.
    num_pieces : int
        Into how many pieces chunks are cut where units overlap; by default as plans are.
    patience_s : float
        A round that takes longer is given up.

    Raises
    ------
    InputError
        There are too many ranks, or fewer GPUs than ranks.
    """

    def __init__(
        self, num_ranks: int, transport: str = "torch", *, num_pieces: int = 0, patience_s: float = 120.0
    ) -> None:
        torch = require("torch", extra="torch")
        num_gpus = torch.cuda.device_count() if transport == "nccl" else num_ranks
        if num_gpus < num_ranks:
            raise InputError(
                f"{num_ranks} ranks over NCCL need {num_ranks} GPUs, and this host has {num_gpus}",
                where="transport nccl",
                fix="run fewer ranks, or the same operators on CPUs with the transport torch",
            )
        super().__init__("windtunnel.systems.collectives.torch_rank", num_ranks, transport, None, patience_s)
        self.num_pieces = num_pieces
        self.programs: list[tuple[Program, list[list[str]]]] = []

    def load_program(self, program: Program) -> int:
        """Prepare a scheduled program on all ranks, and return its number.

        Raises
        ------
        InputError
            It has another number of ranks, or needs more memory than there is.
        """
        if sum(program.group_sizes) != self.num_ranks:
            fix = f"start {sum(program.group_sizes)} processes"
            raise InputError(f"{program.name} has {sum(program.group_sizes)} ranks, not {self.num_ranks}", fix=fix)
        if self.transport == "nccl":  # each rank has a device of its own
            free_bytes = self._ask_all("free_bytes")
            for group, ranks in enumerate(program.groups):
                needed_bytes = program.memory_bytes_of(group)
                self._require_memory(program.name, needed_bytes, min(free_bytes[rank] for rank in ranks))
        else:
            self._require_memory(program.name, program.memory_bytes, available_bytes())
        self.programs.append((program, self._ask_all("load_program", program, self.num_pieces)))
        return len(self.programs) - 1

    def run_program(self, number: int, program: Program, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        """Run a program on full arrays; inputs and outputs afterwards, as each rank of their group has them."""
        names = dict.fromkeys([*program.inputs, *program.outputs])
        memory: list[dict[str, Array]] = [{} for _ in range(self.num_ranks)]
        for name, item in program.inputs.items():
            full = inputs[name].astype(numpy_dtype(item.dtype), copy=False)
            members = self._members(program, name)
            for rank, part in zip(members, distribute(item, full, len(members)), strict=True):
                memory[rank][name] = part
        self.fill(number, memory)
        self._round(number)
        buffers = [
            self._ask(rank, "read", number, [name for name in names if rank in self._members(program, name)])
            for rank in range(self.num_ranks)
        ]
        return {name: [buffers[rank][name] for rank in self._members(program, name)] for name in names}

    def name_of(self, number: int) -> str:
        """The name of a program."""
        return self.programs[number][0].name

    def describe_waits(self, number: int) -> str:
        """The stage that each rank is in."""
        labels = self.programs[number][1]
        waits = [(rank, names, self._position(rank, 0)) for rank, names in enumerate(labels)]
        return "; ".join(f"rank {rank}: {names[index]}" for rank, names, index in waits if index < len(names))

    @staticmethod
    def _members(program: Program, name: str) -> range:
        """The ranks that hold a value."""
        return program.groups[program.types[name].group]


def make_executor(num_ranks: int, transport: str, link: Link | None = None) -> RankProcesses:
    """What runs programs over a transport.

    Raises
    ------
    InputError
        There is no such transport, it cannot be used on this host, or it cannot have an emulated link.
    """
    if transport not in TORCH_TRANSPORTS:
        return Executor(num_ranks, transport, link)
    if link is not None:
        raise InputError(
            "PyTorch's own collectives cannot be slowed down to an emulated link",
            where=f"transport {transport}",
            fix="leave the bandwidth out, or use the transport shared_memory or gloo",
        )
    return TorchExecutor(num_ranks, transport)
