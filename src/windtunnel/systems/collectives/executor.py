"""Run plans for real: a process for each rank, two threads in each, several plans in turn.

In: plans, contents of their buffers. Out: contents afterwards, times of interleaved rounds, begin and end of each
instruction. Not here: what a process does (``worker``), how messages travel (``measure.channels``), prices
(``simulated``).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.progress import Progress
from windtunnel.errors import FlightError, InputError
from windtunnel.hardware import Link, machine
from windtunnel.hardware.host import available_bytes, usable_cores
from windtunnel.measure.channels import TRANSPORTS, Start, file_bytes, make_file
from windtunnel.measure.turns import rounds as count_rounds
from windtunnel.measure.workers import WorkerError, Workers
from windtunnel.systems.collectives.interpret import Buffers, collect, fill_buffers
from windtunnel.systems.collectives.lower import lower
from windtunnel.systems.collectives.plan import Plan
from windtunnel.systems.collectives.program import Program
from windtunnel.systems.collectives.validation import describe_waits, validate
from windtunnel.units import format_size

__all__ = ["Executor", "RankProcesses", "Span", "last_cache_bytes"]

Array = NDArray[Any]
_MAX_RANKS_PER_CORE = 16
_CACHE_BYTES = 32 << 20  # of a host that does not say it
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def last_cache_bytes() -> int:
    """The largest cache of this host, which its cores share."""
    return max(machine().cache_bytes.values(), default=_CACHE_BYTES)


@dataclass(frozen=True, slots=True)
class Span:
    """When a rank was in an instruction, from the beginning of the round."""

    rank: int
    thread: str
    index: int
    start_ns: int
    end_ns: int


class RankProcesses:
    """Processes that run what they have loaded in rounds. Use as a context manager.

    Parameters
    ----------
    module : str
        Its ``main`` runs in each process.
    num_ranks : int
    transport : str
    link : Link, optional
    patience_s : float
        A round that takes longer is given up.

    Raises
    ------
    InputError
        There are too many ranks.
    """

    def __init__(self, module: str, num_ranks: int, transport: str, link: Link | None, patience_s: float) -> None:
        max_ranks = _MAX_RANKS_PER_CORE * len(usable_cores())
        if num_ranks > max_ranks:
            raise InputError(
                f"{num_ranks} processes are too many for {len(usable_cores())} cores",
                fix=f"run at most {max_ranks} ranks here, or price the program on a cluster (--on 16xdgx-2)",
            )
        self.num_ranks, self.transport, self.link, self.patience_s = num_ranks, transport, link, patience_s
        self._module = module
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of ours within it
            folder = tempfile.TemporaryDirectory(prefix="windtunnel-plans-", dir=memory)
            self._folder = Path(self._stack.enter_context(folder))
            control = self._folder / "control"
            make_file(control, Start.size_bytes(self.num_ranks))
            self._start = Start(control, self.num_ranks)
            cores = usable_cores()
            self._workers = self._stack.enter_context(
                Workers(
                    self._module,
                    (self.transport, self.link, str(control)),
                    num_ranks=self.num_ranks,
                    title="plan",
                    # free to move, ranks share cores unequally, and a ring is as slow as its slowest rank
                    cores=[cores[rank % len(cores) :: self.num_ranks] for rank in range(self.num_ranks)],
                    environment=_ONE_THREAD,
                )
            )
            for rank in range(self.num_ranks):
                self._workers.receive(rank)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def load_program(self, program: Program) -> int:
        """Prepare a scheduled program, and return its number."""
        raise NotImplementedError

    def run_program(self, number: int, program: Program, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        """Run a program on full arrays; inputs and outputs afterwards, as each rank of their group has them."""
        raise NotImplementedError

    def name_of(self, number: int) -> str:
        """The name of what was loaded."""
        raise NotImplementedError

    def describe_waits(self, number: int) -> str:
        """What each thread is doing."""
        raise NotImplementedError

    def fill(self, number: int, memory: Sequence[Buffers]) -> None:
        """Set what buffers of each rank contain at the beginning of every round; others keep what they have."""
        for rank, buffers in enumerate(memory):
            self._ask(rank, "fill", number, dict(buffers))

    def time(
        self,
        numbers: Sequence[int],
        rounds: int = 15,
        *,
        warmup: int = 2,
        budget_s: float = float("inf"),
        progress: Progress | None = None,
    ) -> NDArray[np.int64]:
        """Wall-clock times of plans that take turns, which one is first changes.

        Parameters
        ----------
        numbers : sequence of int
        rounds : int
            In each of which all plans run once.
        warmup : int
            Rounds before, which do not count.
        budget_s : float
            No round begins later, except for the first three.
        progress : callable, optional

        Returns
        -------
        int64 [rounds, plans, ranks]
            A plan took the largest time of its ranks.

        Raises
        ------
        FlightError
            A round did not end in time.
        """
        samples = []
        for turn in count_rounds(min(3, rounds), rounds, budget_s, warmup=warmup, progress=progress):
            row = np.zeros((len(numbers), self.num_ranks), dtype=np.int64)
            for i in np.roll(np.arange(len(numbers)), turn).tolist():
                row[i] = [elapsed_ns for elapsed_ns, _ in self._round(numbers[i])]
            if turn >= 0:
                samples.append(row)
        return np.stack(samples)

    def _require_memory(self, name: str, needed_bytes: int, free_bytes: int) -> None:
        """Refuse what does not fit into memory."""
        if needed_bytes > free_bytes:
            raise InputError(
                f"{name} needs {format_size(needed_bytes)} of memory, and {format_size(free_bytes)} are free",
                fix="give it smaller tensors, or price it on a cluster (--on 16xdgx-2)",
            )

    def _ask_all(self, order: str, *arguments: Any) -> list[Any]:
        """Let all ranks do the same, at the same time; their answers, if they come in time."""
        for rank in range(self.num_ranks):
            self._workers.send((order, *arguments), rank)
        return [self._workers.receive(rank, self.patience_s) for rank in range(self.num_ranks)]

    def _ask(self, rank: int, *order: Any) -> Any:
        self._workers.send(order, rank)
        return self._workers.receive(rank)

    def _round(self, number: int, *, record: bool = False) -> list[Any]:
        for rank in range(self.num_ranks):  # a thread that has not started is at its first instruction
            for thread in range(2):
                self._start.words[self._start.progress_word(thread, rank)] = 0
        try:
            return self._ask_all("round", number, record)
        except WorkerError as error:
            if any(code is not None for code in self._workers.exit_codes()):
                raise
            raise FlightError(
                f"{self.name_of(number)} did not end in {self.patience_s:g} s",
                where=self.describe_waits(number) or "behind the last instruction",
                fix="one of these instructions does not end, or the time limit is too short",
                log_tail=error.log_tail,
            ) from error

    def _position(self, rank: int, thread: int) -> int:
        """The instruction that a thread is in."""
        return int(self._start.words[self._start.progress_word(thread, rank)])


class Executor(RankProcesses):
    """Processes that run plans. Use as a context manager.

    Parameters
    ----------
    num_ranks : int
    transport : str
        ``shared_memory``, or ``gloo``.
    link : Link, optional
        Emulate one between any two ranks, in each direction; by default messages go as fast as this host's memory.
    patience_s : float
        A round that takes longer is given up.

    Raises
    ------
    InputError
        There is no such transport, or there are too many ranks.
    NotApplicableError
        It cannot be used on this host.

    Examples
    --------
    >>> from windtunnel.systems.collectives.lower import lower
    >>> from windtunnel.systems.collectives.workloads import sgd
    >>> plan = lower(sgd(num_ranks=2, num_parameters=1 << 16))
    >>> with Executor(num_ranks=2) as executor:                                               # doctest: +SKIP
    ...     executor.time([executor.load(plan)], rounds=5).shape
    (5, 1, 2)
    """

    def __init__(
        self,
        num_ranks: int,
        transport: str = "shared_memory",
        link: Link | None = None,
        *,
        patience_s: float = 120.0,
    ) -> None:
        if transport not in TRANSPORTS:
            raise InputError(f"there is no transport {transport!r}", fix=f"use {', '.join(TRANSPORTS)}, torch or nccl")
        super().__init__("windtunnel.systems.collectives.worker", num_ranks, transport, link, patience_s)
        self.plans: list[Plan] = []

    def load(self, plan: Plan) -> int:
        """Prepare a plan, and return its number; kernels are compiled now, rank by rank.

        Raises
        ------
        InputError
            It cannot be run to its end, has another number of ranks, or needs more memory than there is.
        """
        if len(plan.ranks) != self.num_ranks:
            fix = f"start {len(plan.ranks)} processes"
            raise InputError(f"{plan.name} has {len(plan.ranks)} ranks, not {self.num_ranks}", fix=fix)
        messages = validate(plan)
        layout = messages.layout(plan)
        path = self._folder / f"plan{len(self.plans)}"
        self._require_memory(plan.name, plan.memory_bytes + layout.num_bytes, available_bytes())
        is_shared = self.transport == "shared_memory"
        make_file(path, file_bytes(layout.slots, layout.num_bytes) if is_shared else 0)
        numbers = messages.numbers()
        for rank in range(self.num_ranks):
            local = {(thread, index): number for (owner, thread, index), number in numbers.items() if owner == rank}
            regions = {name: start for (owner, name), start in layout.regions.items() if owner == rank}
            self._ask(rank, "load", plan.ranks[rank], local, layout.slots, regions, str(path))
        path.unlink()  # the processes keep what they have mapped
        self.plans.append(plan)
        return len(self.plans) - 1

    def run(self, number: int, memory: Sequence[Buffers] = ()) -> list[Buffers]:
        """Fill buffers, run a plan once, and return all buffers of each rank.

        Raises
        ------
        FlightError
            It did not end in time; says in which instruction each thread is.
        """
        if memory:
            self.fill(number, memory)
        self._round(number)
        return [
            self._ask(rank, "read", number, list(item.buffers)) for rank, item in enumerate(self.plans[number].ranks)
        ]

    def load_program(self, program: Program) -> int:
        """Prepare the plan of a program."""
        return self.load(lower(program))

    def run_program(self, number: int, program: Program, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        """Run the plan of a program on full arrays; the values that ``interpret`` gives for it."""
        plan = self.plans[number]
        memory = [fill_buffers(rank, program, inputs) for rank in plan.ranks]
        return collect(plan, program, self.run(number, memory))

    def timeline(self, number: int) -> list[Span]:
        """Run a plan once, and note when each thread was in each instruction."""
        answers = self._round(number, record=True)
        names = [list(rank.threads) for rank in self.plans[number].ranks]
        return [
            Span(rank, names[rank][thread], index, start_ns, end_ns)
            for rank, (_, threads) in enumerate(answers)
            for thread, stamps in enumerate(threads)
            for index, (start_ns, end_ns) in enumerate(stamps)
        ]

    def time_instructions(
        self, number: int, positions: Mapping[int, Sequence[tuple[str, int]]]
    ) -> dict[int, tuple[float, float]]:
        """Time instructions of a plan, without their waiting.

        Parameters
        ----------
        number : int
        positions : mapping of int to sequence of (thread, index)
            Which instructions the ranks run one after the other, at the same time.

        Returns
        -------
        dict of int to (float, float)
            Mean ns of an instruction by rank: with data that have left the caches, and right after it has run.
        """
        for rank in range(self.num_ranks):
            self._workers.send(("time_work", number, list(positions.get(rank, ())), last_cache_bytes()), rank)
        answers = [self._workers.receive(rank) for rank in range(self.num_ranks)]
        return {rank: answers[rank] for rank in positions}

    def name_of(self, number: int) -> str:
        """The name of a plan."""
        return self.plans[number].name

    def describe_waits(self, number: int) -> str:
        """The instruction that each thread is in."""
        plan = self.plans[number]
        threads = [(rank, i, name) for rank, item in enumerate(plan.ranks) for i, name in enumerate(item.threads)]
        return describe_waits(plan, {(rank, name): self._position(rank, i) for rank, i, name in threads})
