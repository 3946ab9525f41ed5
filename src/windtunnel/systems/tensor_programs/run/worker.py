"""A process that draws, builds and times programs, and may die doing so.

In: orders. Out: answers, or ``WorkerError`` where a compiler took its process with it. The asking side
needs no compiler, and waits without using a core while something is timed. Not here: which programs, and their order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.errors import FlightError, InputError, WindtunnelError
from windtunnel.hardware.host import stay_on, usable_cores
from windtunnel.measure.workers import Place, Workers
from windtunnel.systems.tensor_programs.run.tasks import Task

if TYPE_CHECKING:
    from windtunnel.systems.tensor_programs.run.build import Built
    from windtunnel.systems.tensor_programs.run.measure import Band, Look

__all__ = ["SampledProgram", "Worker", "main"]

MAX_LEAVES = 16
MAX_TEMPORARY_BYTES = 64 * 2**20
MAX_CODE_OPERATIONS = 1500
MAX_RUN_S = 0.1
MAX_DRAWS = 12
PATIENCE_S = 120.0
CANARY = Task("matmul", {"m": 128, "n": 128, "k": 128})
CANARY_STEPS = (
    ("split", "main", 0, 8, 8, 1),
    ("split", "main", 4, 2, 1, 8),
    ("split", "main", 8, 8),
    ("reorder", "main", 3, 1, 1, 0),
    ("parallel", "main", 0),
    ("vectorize", "main", 9),
    ("init", "main", 2),
    ("vectorize", "main_init", 7),
)
"""Whatever else changes, this kernel does not: times of batches are only alike if their canaries are."""
_CANARY = (-1, "sse4.2")  # its key, and the instruction set that every host has


@dataclass(frozen=True)
class SampledProgram:
    """A sampled program: its schedule's rows and its encoded nest."""

    sched: Any
    features: Any
    code: Any
    leaf_pos: Any
    tree: Any


class Worker:
    """The asking side. Use as a context manager: leaving it ends the process.

    Parameters
    ----------
    num_threads : int
        How many threads its programs may use at most.
    """

    def __init__(self, num_threads: int = 2) -> None:
        self._num_threads = num_threads
        self._workers: Workers | None = None

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start a new, empty process."""
        self.stop()
        self._workers = Workers(__name__, self._num_threads, title="process that runs programs", patience_s=PATIENCE_S)
        self._workers.__enter__()

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def send(self, order: str, *arguments: Any) -> None:
        """Send an order whose answer is fetched later."""
        assert self._workers is not None
        self._workers.send((order, arguments))

    def receive(self) -> Any:
        """The answer of the last order.

        Raises
        ------
        WorkerError
            There will be none; ``start`` makes a new process.
        WindtunnelError
            What the order itself met.
        """
        assert self._workers is not None
        answer = self._workers.receive()
        if isinstance(answer, WindtunnelError):
            raise answer
        return answer

    def ask(self, order: str, *arguments: Any) -> Any:
        """Send an order and wait for its answer."""
        self.send(order, *arguments)
        return self.receive()


@dataclass
class _State:
    """State of the process: scheduled modules, code by program and instruction set."""

    cores: tuple[int, ...] = ()
    modules: dict[int, Any] = field(default_factory=dict)
    code: dict[tuple[int, str], Built] = field(default_factory=dict)


def main(process: Place) -> None:
    """The process: orders in, answers out, until the line closes."""
    from windtunnel.systems.tensor_programs.run.build import prepare_process

    prepare_process(process.config)
    state = _State(usable_cores())
    with contextlib.suppress(EOFError, OSError):
        while True:
            order, arguments = process.order()
            try:
                answer = _ORDERS[order](state, *arguments)
            except WindtunnelError as error:
                answer = error
            except Exception as error:  # the compiler has no common class for what it refuses
                answer = FlightError(f"{type(error).__name__}: {str(error)[:300]}", where=order)
            process.tell(answer)


def _draw(state: _State, key: int, task: Task, seed: int) -> SampledProgram:
    """Draw until a program keeps all limits."""
    from windtunnel.systems.tensor_programs.run.sampling import sample

    reason = ""
    for attempt in range(MAX_DRAWS):
        scheduled = sample(task, seed + attempt)
        reason, sampled = _within_limits(scheduled)
        if sampled is not None:
            state.modules[key] = scheduled.module
            return sampled
    raise FlightError(f"no schedule out of {MAX_DRAWS} keeps the limits: {reason}", where=task.name)


def _replay(state: _State, key: int, task: Task, rows: Any) -> SampledProgram:
    from windtunnel.systems.tensor_programs.run.schedules import replay

    scheduled = replay(task, rows)
    reason, sampled = _within_limits(scheduled)
    if sampled is None:
        raise FlightError(f"the schedule breaks the limits: {reason}", where=task.name)
    state.modules[key] = scheduled.module
    return sampled


def _within_limits(scheduled: Any) -> tuple[str, SampledProgram | None]:
    from windtunnel.systems.tensor_programs.model.encoding import encode
    from windtunnel.systems.tensor_programs.run.code_size import code_operations
    from windtunnel.systems.tensor_programs.run.nests import is_sound, nest_of, temporary_bytes
    from windtunnel.systems.tensor_programs.run.schedules import to_rows

    try:
        nest = nest_of(scheduled.module, scheduled.task.name)
    except InputError as error:
        return error.message, None
    if not is_sound(nest):
        return "a loop within a vector", None
    if temporary_bytes(nest) > MAX_TEMPORARY_BYTES:
        return f"temporaries of {temporary_bytes(nest)} bytes", None
    if code_operations(nest) > MAX_CODE_OPERATIONS:
        return f"{code_operations(nest):.0f} operations of code", None
    tree = encode(nest)
    if len(tree.positions) > MAX_LEAVES:
        return f"{len(tree.positions)} statements", None
    rows = to_rows(scheduled.steps)
    return "", SampledProgram(
        rows, tree.features.astype(np.float16), tree.code.astype(np.float16), tree.positions, tree.serialized
    )


def _build(state: _State, key: int, task: Task, isas: Sequence[str]) -> float:
    """Code for every instruction set; says the longest first run in seconds."""
    from windtunnel.systems.tensor_programs.run.build import arguments_of, build, use_threads

    use_threads(1)
    stay_on(state.cores)  # the compiler binds its second thread to the second core
    values, expected = arguments_of(task)
    module = state.modules.pop(key)
    built = {isa: build(module, isa, values, expected) for isa in isas}
    longest_s = max(code.first_run_ns for code in built.values()) / 1e9
    if longest_s > MAX_RUN_S:
        raise FlightError(f"one run takes {longest_s:.2f} s, more than {MAX_RUN_S:g} s", where=task.name)
    state.code |= {(key, isa): code for isa, code in built.items()}
    return longest_s


def _time(state: _State, key: int, isa: str, num_threads: int, band_s: Band | None = None) -> tuple[Look, ...]:
    from windtunnel.systems.tensor_programs.run.build import use_threads
    from windtunnel.systems.tensor_programs.run.measure import looks_at

    canary = _canary(state)
    use_threads(num_threads)
    stay_on(state.cores[:1])
    canary()
    code = state.code[key, isa]
    return looks_at(code.evaluate, code.once, canary, band_s)


def _fly(
    state: _State, order: Sequence[int], isa: str, num_threads: int, repeats: int
) -> tuple[tuple[float, ...], dict[int, tuple[float, ...]]]:
    """Seconds of whole passes in an order, and in turn with them those of each program, visited in random order.

    Each call has arguments of its own, as each layer of a network has its own weights. Both see the same machine and
    caches as cold: every pass, and every round of visits, comes after one in its own order that is not counted, so that
    between two uses of a tensor all others were used once, as in a job that runs on and on.
    """
    from windtunnel.systems.tensor_programs.run.build import copies_of, use_threads

    use_threads(num_threads)
    stay_on(state.cores[:1])
    codes = [state.code[key, isa] for key in order]
    calls = [(code.executable["main"], copies_of(code.values)) for code in codes]
    generator = np.random.default_rng(0)
    visits: dict[int, list[float]] = {key: [] for key in order}
    passes = []
    for _ in range(repeats):
        _seconds_of(calls)
        passes.append(_seconds_of(calls))
        indices = generator.permutation(len(order)).tolist()
        _seconds_of([calls[position] for position in indices])
        for index in indices:
            visits[order[index]].append(_seconds_of([calls[index]]))
    return tuple(passes), {key: tuple(seconds) for key, seconds in visits.items()}


def _seconds_of(calls: Iterable[tuple[Any, Any]]) -> float:
    began_ns = time.perf_counter_ns()
    for call, values in calls:
        call(*values)
    return (time.perf_counter_ns() - began_ns) / 1e9


def _canary(state: _State) -> Callable[[], float]:
    """The kernel that never changes, built once, as something that runs it and says its seconds."""
    from windtunnel.systems.tensor_programs.run.schedules import Scheduled

    key, isa = _CANARY
    if (key, isa) not in state.code:
        scheduled = Scheduled.of(CANARY)
        for primitive, block, *arguments in CANARY_STEPS:
            scheduled.try_step(primitive, block, *arguments)
        state.modules[key] = scheduled.module
        _build(state, key, CANARY, [isa])
    return state.code[key, isa].once


def _watch(state: _State, num_threads: int, num_runs: int) -> tuple[float, ...]:
    """Seconds of the canary, run after run."""
    from windtunnel.systems.tensor_programs.run.build import use_threads

    canary = _canary(state)
    use_threads(num_threads)
    stay_on(state.cores[:1])
    return tuple(canary() for _ in range(num_runs))


def _describe(state: _State, isa: str, num_threads: int) -> dict[str, float]:
    """The measured rates of a device."""
    from windtunnel.systems.tensor_programs.run.devices import rates

    stay_on(state.cores[:1])
    return rates(isa, num_threads)


def _forget(state: _State, keys: Sequence[int]) -> None:
    """Free the code of some programs."""
    state.code = {pair: code for pair, code in state.code.items() if pair[0] not in keys}
    state.modules = {key: module for key, module in state.modules.items() if key not in keys}


_ORDERS: dict[str, Callable[..., Any]] = {
    "draw": _draw,
    "replay": _replay,
    "build": _build,
    "time": _time,
    "fly": _fly,
    "watch": _watch,
    "describe": _describe,
    "forget": _forget,
}
