"""Look into a training program that knows nothing of us, and act between its iterations.

In: callbacks. Out: calls at every boundary between iterations, with the models, optimizers and loaders that the
program has shown so far. Capture measures there; a flight changes the program there, or at a construction
(``on_optimizer``, ``on_loader``). Everything is put back on leaving. Works on the main thread of this process only:
a forked child (a loader's worker) runs without hooks.

    def change(hooks: StepHooks) -> None:
        for optimizer in hooks.optimizers:
            for group in optimizer.param_groups:
                group["foreach"] = True

    with StepHooks(on_boundary=lambda hooks, is_regular: change(hooks) if hooks.num_boundaries == 3 else None):
        runpy.run_path("train.py", run_name="__main__")
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from windtunnel.base.extras import require
from windtunnel.measure.host_state import hold_heap
from windtunnel.sources.torch.boundary import BoundaryFinder, Found, Token
from windtunnel.sources.torch.compile_boundaries import SuspendedCall, aside, exclude_from_compilation

__all__ = ["StepHooks", "loop_loaders", "steps_per_epoch"]

OnBoundary = Callable[["StepHooks", bool], None]
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
_LOADER_ARGUMENTS = (
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
)


class StepHooks:
    """Call back at the boundaries between iterations of whatever program runs inside of the ``with`` block.

    Parameters
    ----------
    on_boundary : callable
        ``f(hooks, is_regular)`` between two iterations; ``is_regular`` says that the one behind had the form of the
        others and was seen whole. It may change models and optimizers, and may raise to end the program.
    on_optimizer : callable, optional
        ``f(optimizer)`` after an optimizer has been made.
    on_loader : callable, optional
        ``f(arguments) -> arguments`` with the arguments of a ``DataLoader`` by name before it is made.
    on_step : callable, optional
        ``f(optimizer, step)`` in place of every outermost ``optimizer.step()``; ``step`` is the program's own call,
        made by ``step()``.
    holds_heap : bool
        Hold the heap (``sources.allocator``) from the start, as every run does that is compared with a captured
        graph.

    Attributes
    ----------
    models, optimizers, loaders : list
        What the program has shown so far: modules called from outside of any module, in order of first call.
    num_boundaries : int
        Boundaries so far, this one included.
    num_epochs_ended : int
        How often a loader of the loop came to its end.
    num_steps, num_foreign_steps : int
        Optimizer steps on the main thread, and on other threads.
    finder : BoundaryFinder
        The pattern of the loop.
    """

    def __init__(
        self,
        *,
        on_boundary: OnBoundary,
        on_optimizer: Callable[[Any], None] | None = None,
        on_loader: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        on_step: Callable[[Any, SuspendedCall], Any] | None = None,
        holds_heap: bool = True,
    ) -> None:
        require("torch", extra="torch")
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.loaders: list[Any] = []
        self.num_boundaries = 0
        self.num_steps = 0
        self.num_foreign_steps = 0
        self.num_epochs_ended = 0
        self.finder = BoundaryFinder()
        self._on_boundary = on_boundary
        self._on_optimizer = on_optimizer
        self._on_loader = on_loader
        self._on_step = on_step
        self._holds_heap = holds_heap
        self._patched: list[tuple[Any, str, Any]] = []
        self._handles: list[Any] = []
        self._not_compiled: list[Callable[..., Any]] = []
        self._depth = {"module": 0, "step": 0, "next": 0, "backward": 0}
        self._is_pending_regular: bool | None = None  # of a boundary that waits for the end of the backward pass
        self._home = (os.getpid(), threading.get_ident())

    # --- life ---------------------------------------------------------------------------------------------

    def __enter__(self) -> StepHooks:
        self._home = (os.getpid(), threading.get_ident())
        if self._holds_heap:
            hold_heap()
        self._patch_optimizers()
        self._patch_loaders()
        self._patch_backward()
        self._patch_compiler()
        self._watch_modules()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unwatch_modules()
        for owner, name, original in reversed(self._patched):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._patched = []

    def unwatch_modules(self) -> None:
        """Stop looking for models: the hook on every module call is only needed until they are known."""
        if self._handles:
            from windtunnel.sources.torch.annotate import outermost

            self.models[:] = outermost(self.models)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def is_home(self) -> bool:
        """Whether this is the thread and process that is watched."""
        return self._is_home()

    def _is_home(self) -> bool:
        return (os.getpid(), threading.get_ident()) == self._home

    # --- optimizers ---------------------------------------------------------------------------------------

    def _patch_optimizers(self) -> None:
        from torch.optim import Optimizer

        def patch_construction(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def construct(optimizer: Any, *args: Any, **kwargs: Any) -> None:
                original(optimizer, *args, **kwargs)
                self._see_optimizer(optimizer)

            return construct

        def patch_hooking(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def hook_step(optimizer: Any) -> None:
                original(optimizer)
                self._patch_step(type(optimizer))

            return hook_step

        self._patch(Optimizer, "__init__", patch_construction)
        self._patch(Optimizer, "_patch_step_function", patch_hooking)
        for cls in _subclasses(Optimizer):
            if getattr(cls.__dict__.get("step"), "hooked", False):
                self._patch_step(cls)

    def _patch_step(self, cls: type) -> None:
        if getattr(cls.step, "is_windtunnel", False):  # type: ignore[attr-defined]
            return  # by itself, or by the class that it inherits from

        def patch_step(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                return aside(self._step, optimizer, functools.partial(original, optimizer, *args, **kwargs))

            step.is_windtunnel = True  # type: ignore[attr-defined]
            exclude_from_compilation(step)
            self._not_compiled.append(step)
            return step

        self._patch(cls, "step", patch_step)

    def _step(self, optimizer: Any, step: SuspendedCall) -> Any:
        if not self._is_home():
            self.num_foreign_steps += 1
            return step()
        self._see_optimizer(optimizer)
        if self._depth["step"]:  # a part of one that holds several
            self.finder.known_optimizers.discard(self._key(optimizer))
            return step()
        self._depth["step"] += 1
        try:
            result = step() if self._on_step is None else self._on_step(optimizer, step)
        finally:
            self._depth["step"] -= 1
        self.num_steps += 1
        self._feed(Token("step", self._key(optimizer)))
        return result

    def _see_optimizer(self, optimizer: Any) -> None:
        if self._is_home() and not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
            self.finder.known_optimizers.add(self._key(optimizer))
            if self._on_optimizer is not None:
                self._on_optimizer(optimizer)

    def _key(self, optimizer: Any) -> str:
        place = next(index for index, known in enumerate(self.optimizers) if known is optimizer)
        return f"{type(optimizer).__name__}#{place}"

    # --- loaders ------------------------------------------------------------------------------------------

    def _patch_loaders(self) -> None:
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        def patch_construction(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def construct(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
                if self._is_home() and self._on_loader is not None:
                    kwargs = self._on_loader({"dataset": dataset, **_name_loader_arguments(args, kwargs)})
                    dataset, args = kwargs.pop("dataset"), ()
                original(loader, dataset, *args, **kwargs)
                if self._is_home():
                    self.loaders.append(loader)

            return construct

        def patch_next(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def fetch(iterator: Any) -> Any:
                return self._next(iterator, functools.partial(original, iterator))

            return fetch

        self._patch(DataLoader, "__init__", patch_construction)
        self._patch(_BaseDataLoaderIter, "__next__", patch_next)

    def _next(self, iterator: Any, fetch: Callable[[], Any]) -> Any:
        if not self._is_home() or self._depth["next"] or self._depth["step"]:
            return fetch()
        self._feed(Token("next", _loader_key(iterator)))
        self._depth["next"] += 1
        try:
            return fetch()
        except StopIteration:
            self.num_epochs_ended += Token("next", _loader_key(iterator)) in self.finder.pattern
            self.finder.retract()
            raise
        finally:
            self._depth["next"] -= 1

    # --- modules ------------------------------------------------------------------------------------------

    def _patch_compiler(self) -> None:
        import torch

        def patch_compile(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def compile_model(model: Any = None, **options: Any) -> Any:
                # the compiler would trace the hooks too, and break its graphs at them
                if self._is_home():
                    if isinstance(model, torch.nn.Module) and not any(model is known for known in self.models):
                        self.models.append(model)
                    self.unwatch_modules()
                compiled = original(model, **options)
                for step in self._not_compiled:
                    exclude_from_compilation(step)
                return compiled

            return compile_model

        self._patch(torch, "compile", patch_compile)

    def _watch_modules(self) -> None:
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]

    def _enter_module(self, module: Any, _inputs: Any) -> None:
        if not self._is_home():
            return
        if self._depth["module"] == 0 and not any(module is known for known in self.models):
            self.models.append(module)
        self._depth["module"] += 1

    def _leave_module(self, _module: Any, _inputs: Any, _output: Any) -> None:
        if self._is_home():
            self._depth["module"] = max(0, self._depth["module"] - 1)

    # --- boundaries ---------------------------------------------------------------------------------------

    def _feed(self, token: Token) -> None:
        result = self.finder.feed(token)
        if result is Found.NOTHING:
            return
        is_regular = result is Found.REGULAR
        if self._depth["backward"]:
            # updated within the backward pass: no instrument can be changed in the middle of an operator
            self._is_pending_regular = is_regular and self._is_pending_regular is not False
            return
        self._meet_boundary(is_regular)

    def _meet_boundary(self, is_regular: bool) -> None:
        self._is_pending_regular = None
        self.num_boundaries += 1
        if self.num_boundaries == 2:
            self.unwatch_modules()  # one whole iteration has been seen
        self._on_boundary(self, is_regular)

    def _patch_backward(self) -> None:
        import torch

        def patch_backward(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def backward(*args: Any, **kwargs: Any) -> Any:
                if not self._is_home():
                    return original(*args, **kwargs)
                self._depth["backward"] += 1
                try:
                    result = original(*args, **kwargs)
                finally:
                    self._depth["backward"] -= 1
                if self._is_pending_regular is not None and not self._depth["backward"]:
                    self._meet_boundary(self._is_pending_regular)
                return result

            return backward

        self._patch(torch.autograd, "backward", patch_backward)

    def _patch(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        # what is inherited is given back by deleting, so that no class keeps a function of another one
        self._patched.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, wrapper(getattr(owner, name)))


def _subclasses(cls: type) -> list[type]:
    children: list[type] = list(cls.__subclasses__())
    return children + [subclass for child in children for subclass in _subclasses(child)]


def _name_loader_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A ``DataLoader``'s arguments after the data set, all by name."""
    return {**dict(zip(_LOADER_ARGUMENTS, args, strict=False)), **kwargs}


def steps_per_epoch(hooks: StepHooks) -> int | None:
    """Iterations of the loop until its loader comes to its end; None where it has no loader or no known end."""
    for loader, num_fetches in loop_loaders(hooks):
        num_batches = _length(loader)
        return max(1, int(num_batches) // num_fetches) if num_batches != "?" else None
    return None


def loop_loaders(hooks: StepHooks) -> Iterator[tuple[Any, int]]:
    """Loaders of the loop, and how many batches of each an iteration fetches."""
    keys = [token.key for token in hooks.finder.pattern if token.kind == "next"]
    for loader in hooks.loaders:
        key = _key_of(loader.dataset, loader.num_workers, getattr(loader, "_index_sampler", None))
        if key in keys:
            yield loader, keys.count(key)


def _loader_key(iterator: Any) -> str:
    """Describe alike the loaders that a script creates anew in every epoch."""
    return _key_of(
        getattr(iterator, "_dataset", None),
        getattr(iterator, "_num_workers", 0),
        getattr(iterator, "_index_sampler", None),
    )


def _key_of(dataset: Any, num_workers: int, sampler: Any) -> str:
    parts = (dataset, num_workers)
    return f"{type(parts[0]).__name__}/{getattr(sampler, 'batch_size', '')}/{parts[1]}/{_length(parts[0])}"


def _length(sized: Any) -> str:
    try:
        return str(len(sized))
    except (TypeError, NotImplementedError):
        return "?"
