"""What can be flown: a script, a workload, a step function.

In: what a user hands over. Out: one of three values that say how to run it. A graph stands for the program that it
was captured from, where it says which.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel import registry
from windtunnel.errors import FlightError, InputError
from windtunnel.graph import Graph
from windtunnel.measure.host_state import hold_heap
from windtunnel.sources.scratch import files_kept_away
from windtunnel.sources.torch.hooks import StepHooks
from windtunnel.sources.torch.launch import Ranks
from windtunnel.sources.torch.live import LiveProgram
from windtunnel.sources.torch.ranks import capture_ranks
from windtunnel.sources.torch.script import capture_script
from windtunnel.sources.torch.step import capture
from windtunnel.workloads.workload import Workload

__all__ = ["Script", "StepFunction", "Target", "WorkloadName", "build_workload", "discover", "target_of"]

_DISCOVERY_STEPS = 3


@dataclass(frozen=True)
class Script:
    """A program of the user, unmodified; with ``keeps_files``, what it writes goes to a temporary folder."""

    path: Path
    argv: tuple[str, ...] = ()
    ranks: Ranks = field(default_factory=Ranks)
    keeps_files: bool = False

    def __str__(self) -> str:
        return " ".join([str(self.path), *self.argv])

    def capture(self, iterations: int, progress: Any, warmup: int = 3) -> Graph:
        """Capture its baseline."""
        given: dict[str, Any] = {"iterations": iterations, "warmup": warmup, "progress": progress}
        if self.ranks.num_ranks > 1:
            return capture_ranks(self.path, self.argv, ranks=self.ranks, **given)
        with files_kept_away(self.path) if self.keeps_files else nullcontext():
            return capture_script(self.path, self.argv, **given)


@dataclass(frozen=True)
class WorkloadName:
    """A registered workload with its parameters."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ",".join(f"{key}={value}" for key, value in sorted(self.parameters.items()))
        return f"{self.name}:{given}" if given else self.name

    def capture(self, iterations: int, progress: Any, warmup: int = 3) -> Graph:
        """Capture its baseline."""
        built = build_workload(self.name, self.parameters)
        used = {"model": list(built.models), "optimizer": list(built.optimizers)}
        try:
            graph = capture(built.step, iterations=iterations, warmup=warmup, **used, progress=progress)
        finally:
            built.close()
        return graph.with_meta(origin={"workload": self.name, "parameters": dict(self.parameters)})


@dataclass(frozen=True)
class StepFunction:
    """A function of this process that does one whole training iteration."""

    step: Callable[[], Any]
    models: tuple[Any, ...] = ()
    optimizers: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return getattr(self.step, "__qualname__", type(self.step).__name__)

    def capture(self, iterations: int, progress: Any) -> Graph:
        """Capture its baseline."""
        models, optimizers = list(self.models), list(self.optimizers)
        return capture(self.step, iterations=iterations, model=models, optimizer=optimizers, progress=progress)


Target = Script | WorkloadName | StepFunction


def target_of(
    target: Any, *, argv: Sequence[str] = (), model: Any = (), optimizer: Any = (), ranks: Ranks | None = None
) -> Target:
    """Understand what a user hands over.

    Raises
    ------
    InputError
        It is neither a script, nor a workload, nor a function, nor a graph that says where it came from.
    """
    if isinstance(target, Script | WorkloadName | StepFunction):
        return target
    if isinstance(target, Workload):
        return StepFunction(target.step, tuple(target.models), tuple(target.optimizers))
    if callable(target):
        return StepFunction(target, _as_tuple(model), _as_tuple(optimizer))
    if isinstance(target, Graph):
        return _origin(target)
    if isinstance(target, Path) or str(target).endswith(".py"):
        if not Path(target).is_file():
            raise InputError(f"there is no script {target}", where=str(Path(target).resolve()), fix="check the path")
        return Script(Path(target).resolve(), tuple(argv), ranks or Ranks())
    return WorkloadName(registry.get("workload", str(target)).name)


def _origin(graph: Graph) -> Target:
    origin = graph.meta.origin
    if "script" in origin:
        return target_of(origin["script"], argv=origin.get("argv", ()), ranks=Ranks.of(origin.get("ranks", {})))
    if "workload" in origin:
        return WorkloadName(origin["workload"], dict(origin.get("parameters", {})))
    raise InputError(
        "this graph does not say which program it was captured from",
        fix="pass the script, the workload's name or the step function, and the graph as graph=",
    )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def build_workload(name: str, parameters: Mapping[str, Any], program: LiveProgram | None = None) -> Workload:
    """Build a registered workload, as the flights of ``program`` want it."""
    factory = registry.get("workload", name).function
    defaults = {
        key: parameter.default
        for key, parameter in inspect.signature(factory).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    program = program or LiveProgram()
    arguments = program.workload_arguments(defaults | dict(parameters))
    with StepHooks(on_boundary=lambda *_: None, on_loader=program.loader_arguments):
        built: Workload = factory(**arguments)
    program.add(built.models, built.optimizers)
    return built


def discover(step: Callable[[], Any], program: LiveProgram) -> None:
    """Run some iterations to see which models and optimizers they use."""
    hold_heap()  # as capture does: what one lane allocates must not change what the other pays
    with StepHooks(on_boundary=lambda *_: None) as hooks:
        for _ in range(_DISCOVERY_STEPS):
            step()
    program.add(hooks.models, hooks.optimizers)
    if not program.models and not program.optimizers:
        raise FlightError(
            "the step used no torch module and no optimizer",
            where=repr(step),
            fix="pass a function that does one whole training iteration",
        )
