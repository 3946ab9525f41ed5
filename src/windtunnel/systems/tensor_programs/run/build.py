"""Code from scheduled programs, and the devices it is for.

In: a scheduled TensorIR module and an instruction set. Out: ``Built``: code in this process, its arguments, its result
checked against numpy. Not here: repeated runs and their times (``measure``), processes (``worker``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.base.extras import require
from windtunnel.errors import FlightError, InputError
from windtunnel.measure.turns import elapsed_ns
from windtunnel.systems.tensor_programs.run import references
from windtunnel.systems.tensor_programs.run.tasks import Task

__all__ = [
    "ISAS",
    "Built",
    "Target",
    "build",
    "parse_target",
    "require_targets",
    "targets_here",
]

ISAS: dict[str, tuple[str, ...]] = {
    "sse4.2": ("+sse4.2",),
    "avx2": ("+avx2", "+fma"),
    "avx512": ("+avx2", "+fma", "+avx512f", "+avx512bw", "+avx512dq", "+avx512vl"),
}
"""Instruction sets, and what the code generator may use for each."""
_NEEDS = {"sse4.2": ("sse4_2",), "avx2": ("avx2", "fma"), "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl")}
THREADS = (1, 2)


@dataclass(frozen=True)
class Target:
    """A device: an instruction set and a number of threads of the host."""

    isa: str
    num_threads: int

    @property
    def name(self) -> str:
        """Name of the target, such as ``avx2-1``."""
        return f"{self.isa}-{self.num_threads}"


def parse_target(name: str) -> Target:
    """Parse the name of a target."""
    known = {Target(isa, threads).name: Target(isa, threads) for isa in ISAS for threads in THREADS}
    if name not in known:
        raise InputError(f"no target is called {name!r}", where="targets", fix=f"choose of {', '.join(known)}")
    return known[name]


def targets_here() -> tuple[Target, ...]:
    """Return every target that this host can run."""
    from windtunnel import hardware

    host = hardware.machine()
    threads = [count for count in THREADS if count <= host.num_threads]
    isas = [isa for isa, flags in _NEEDS.items() if set(flags) <= set(host.isa_flags)]
    return tuple(Target(isa, count) for isa in isas for count in threads)


def require_targets(targets: Sequence[Target], here: Sequence[Target]) -> None:
    """Refuse targets that this host cannot run."""
    missing = [target.name for target in targets if target not in here]
    if missing:
        raise FlightError(
            f"this host cannot run {', '.join(missing)}", fix=f"choose of {', '.join(t.name for t in here)}"
        )


@dataclass
class Built:
    """Code of one program for one instruction set, with its arguments.

    Parameters
    ----------
    executable : Any
        The compiler's module; keeps the code alive.
    values : list
        Arguments and the place of the result.
    first_run_ns : int
        The first run, with everything cold.
    """

    executable: Any
    values: list[Any]
    first_run_ns: int = 0

    def evaluate(self, number: int, repeat: int) -> list[float]:
        """Mean seconds of ``number`` runs, ``repeat`` times, after one that is not counted."""
        evaluator = self.executable.mod.time_evaluator("main", self.values[-1].device, number=number, repeat=repeat)
        return list(evaluator(*self.values).results)

    def once(self) -> float:
        """Seconds of one run with the call itself, which takes some microseconds."""
        call = self.executable["main"]
        return elapsed_ns(lambda: call(*self.values)) / 1e9


def arguments_of(task: Task) -> tuple[list[Any], Any]:
    """A task's arguments with room for the result in the compiler's form; the result."""
    runtime = require("tvm.runtime", extra="tvm")
    device = runtime.cpu()
    arrays = references.arguments(task)
    expected = references.result(task, arrays)
    room = runtime.empty(task.output_shape, "float32", device)
    return [*(runtime.tensor(array, device) for array in arrays), room], expected


def copies_of(values: list[Any]) -> list[Any]:
    """Return copies of the arguments, elsewhere in memory."""
    runtime = require("tvm.runtime", extra="tvm")
    copies = [runtime.empty(value.shape, value.dtype, value.device) for value in values]
    for value, copy in zip(values, copies, strict=True):
        value.copyto(copy)
    return copies


def build(module: Any, isa: str, values: list[Any], expected: Any) -> Built:
    """Compile a program, run it once and check what it computes."""
    tvm = require("tvm", extra="tvm")
    target = {"kind": "llvm", "mcpu": "x86-64", "mattr": list(ISAS[isa]), "jit": "mcjit"}
    executable = tvm.compile(module, tvm.target.Target(target))
    run = executable["main"]
    first_run_ns = elapsed_ns(lambda: run(*values))
    if not references.is_right(values[-1].numpy(), expected):
        raise FlightError("the program computes something else than its task", where=isa)
    return Built(executable, values, first_run_ns)


def use_threads(num_threads: int) -> None:
    """Set the number of threads of parallel loops in this process."""
    require("tvm", extra="tvm").get_global_func("runtime.config_threadpool")(1, num_threads)


def prepare_process(num_threads: int) -> None:
    """Before the compiler is loaded: how many threads it may ever use, and how long they look for work.

    By default they do so for some 100 ms after a run, and take a core from what another process is timing.
    """
    os.environ["TVM_NUM_THREADS"] = str(max(1, num_threads))
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "2000")  # about a millisecond
