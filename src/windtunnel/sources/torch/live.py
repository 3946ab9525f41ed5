"""The program under test, as a flight sees it.

In: models and optimizers, given or seen at their first use. Out: places where a flight can change them, each with
its way back, so that one flight serves a live step function (changed and restored at every turn) and an unmodified
script (changed for good). Not here: timing, processes, what the changes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from windtunnel.graph import Graph
from windtunnel.sources.torch.compile_boundaries import SuspendedCall, aside, exclude_from_compilation

if TYPE_CHECKING:
    import torch

__all__ = ["LiveProgram", "SuspendedCall", "Undo", "adapt_by", "apart", "at_start", "on_ranks", "swap", "together"]

Undo = Callable[[], None]
StepChange = Callable[["torch.optim.Optimizer", SuspendedCall], Any]
Flight = TypeVar("Flight", bound=Callable[..., Any])
_ABSENT = object()


class LiveProgram:
    """What runs, as far as it is known yet.

    Attributes
    ----------
    models : list of Module
        Modules that are called from outside of any module, losses among them.
    optimizers : list of Optimizer
    kept : dict
        What a flight made once (a compiled block) and wants back at the next turn.
    counts : Counter
        What a flight counts of its own change, as proof that it took place.
    iterations_per_sample : int
        A flight sets k where only k iterations together are one unit of the changed program.
    is_hooked : bool
        Whether hooks of the script call :meth:`step` and :meth:`loader_arguments`.
    rank, num_ranks : int
        Which of how many processes this is.
    """

    def __init__(
        self,
        models: Iterable[torch.nn.Module] = (),
        optimizers: Iterable[torch.optim.Optimizer] = (),
        *,
        rank: int = 0,
        num_ranks: int = 1,
        is_hooked: bool = False,
    ) -> None:
        self.models = list(models)
        self.optimizers = list(optimizers)
        self.kept: dict[Any, Any] = {}
        self.counts: Counter[str] = Counter()
        self.iterations_per_sample = 1
        self.rank, self.num_ranks = rank, num_ranks
        self.is_hooked = is_hooked
        self._step_changes: list[StepChange] = []
        self._loader_changes: list[Callable[[dict[str, Any]], dict[str, Any]]] = []
        self._workload_changes: list[Callable[[dict[str, Any]], dict[str, Any]]] = []
        self._model_changes: list[Callable[[torch.nn.Module], None]] = []
        self._optimizer_changes: list[Callable[[torch.optim.Optimizer], None]] = []

    @contextmanager
    def each_model(self, change: Callable[[torch.nn.Module], Undo | None]) -> Iterator[None]:
        """Change every model, those that show themselves later too, and restore them at the end."""
        with self._each(self.models, self._model_changes, change):
            yield

    @contextmanager
    def each_optimizer(self, change: Callable[[torch.optim.Optimizer], Undo | None]) -> Iterator[None]:
        """Change every optimizer, those that show themselves later too, and restore them at the end."""
        with self._each(self.optimizers, self._optimizer_changes, change):
            yield

    @contextmanager
    def each_step(self, change: StepChange) -> Iterator[None]:
        """Put ``change(optimizer, step)`` in place of every ``optimizer.step()``."""
        if self.is_hooked:
            self._step_changes.append(change)
            yield
            self._step_changes.remove(change)
        else:
            with self.each_optimizer(lambda optimizer: swap(optimizer, "step", _wrap_step(optimizer, change))):
                yield

    @contextmanager
    def each_loader(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
        """Change the keyword arguments of every ``DataLoader`` that is made from now on."""
        self._loader_changes.append(change)
        yield
        self._loader_changes.remove(change)

    @contextmanager
    def each_workload(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
        """Change the parameters with which a registered workload is built."""
        self._workload_changes.append(change)
        yield
        self._workload_changes.remove(change)

    def step(self, optimizer: torch.optim.Optimizer, step: SuspendedCall) -> Any:
        """What happens at ``optimizer.step()``."""
        return self._step_changes[-1](optimizer, step) if self._step_changes else step()

    def loader_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a ``DataLoader`` is made with."""
        for change in self._loader_changes:
            arguments = change(arguments)
        return arguments

    def workload_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a registered workload is built with."""
        for change in self._workload_changes:
            arguments = change(arguments)
        return arguments

    @contextmanager
    def _each(self, known: list[Any], changes: list[Any], change: Callable[[Any], Undo | None]) -> Iterator[None]:
        with ExitStack() as stack:

            def apply(item: Any) -> None:
                undo = change(item)
                if undo is not None:
                    stack.callback(undo)

            for item in known:
                apply(item)
            changes.append(apply)
            stack.callback(changes.remove, apply)
            yield

    def add(self, models: Iterable[torch.nn.Module] = (), optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
        """Take note of models and optimizers, each once, and apply the changes that wait for them.

        What a change wrapped around a known model is no model of its own: it must not be changed again.
        """
        for model in models:
            parts = {id(part) for part in model.modules()}
            if not any(id(known) in parts for known in self.models):
                self.models.append(model)
                for change in self._model_changes:
                    change(model)
        for optimizer in optimizers:
            if not any(optimizer is known for known in self.optimizers):
                self.optimizers.append(optimizer)
                for update in self._optimizer_changes:
                    update(optimizer)

    def modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Every module with its path, model by model."""
        for model in self.models:
            yield from model.named_modules()


def _wrap_step(optimizer: torch.optim.Optimizer, change: StepChange) -> Callable[..., Any]:
    original = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        return aside(change, optimizer, partial(original, *args, **kwargs))

    exclude_from_compilation(step)
    return step


def swap(owner: Any, name: str, value: Any) -> Undo:
    """Set an attribute and return the way back; one that came from the class is inherited again."""
    own = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)

    def restore() -> None:
        if own is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return restore


def together(undos: Iterable[Undo]) -> Undo:
    """Several ways back as one, the latest first."""
    steps = list(undos)

    def restore() -> None:
        for undo in reversed(steps):
            undo()

    return restore


def at_start(flight: Flight) -> Flight:
    """Mark a flight that must be in place before the program builds its parts."""
    flight.is_at_start = True  # type: ignore[attr-defined]
    return flight


def apart(flight: Flight) -> Flight:
    """Mark a flight that needs a process of its own."""
    flight.is_apart = True  # type: ignore[attr-defined]
    return at_start(flight)


def on_ranks(parameter: str) -> Callable[[Flight], Flight]:
    """Mark a flight that runs in as many processes as its parameter of this name says."""

    def decorate(flight: Flight) -> Flight:
        flight.ranks_parameter = parameter  # type: ignore[attr-defined]
        return apart(flight)

    return decorate


def adapt_by(adapt: Callable[[Graph, Mapping[str, Any]], Mapping[str, Any]]) -> Callable[[Flight], Flight]:
    """Mark a flight whose parameters follow from those of its what-if and from the captured program."""

    def decorate(flight: Flight) -> Flight:
        flight.adapt = adapt  # type: ignore[attr-defined]
        return flight

    return decorate
