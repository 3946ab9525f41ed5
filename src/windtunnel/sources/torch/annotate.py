"""Say in the profile which module runs and which tensor is which parameter.

``Discovery`` learns during one warm-up iteration which modules are called from outside of any module (the models)
and which optimizers step. ``Annotator`` then marks, in the one rich iteration only, every module's forward, and
shows every parameter and optimizer state to the execution trace, so that its storage is known by name. Unwatched
iterations carry no hook at all.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from windtunnel.errors import InputError
from windtunnel.sources.torch.profile import annotate

__all__ = [
    "GRADIENT",
    "MODULE",
    "PARAMETER",
    "STATE",
    "Annotator",
    "Discovery",
    "asks_to_compile",
    "is_compiling",
    "local",
    "module_paths",
    "outermost",
    "require_host",
    "state_bytes",
]

MODULE = "wt:module:"
PARAMETER = "wt:parameter:"
GRADIENT = "wt:gradient:"
STATE = "wt:state:"


@dataclass
class Discovery:
    """The models and optimizers that an iteration uses, in the order in which they show themselves."""

    models: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    _depth: int = 0
    _hooks: list[Any] = field(default_factory=list)
    _sparse: set[int] = field(default_factory=set)

    def add(self, models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> Discovery:
        """Take what the caller already knows."""
        for model in models:
            _add_once(self.models, model)
        for optimizer in optimizers:
            _add_once(self.optimizers, optimizer)
        return self

    def watch(self) -> None:
        """Look at every module call and optimizer step from now on."""
        self._depth = 0
        self._hooks = [register_optimizer_step_pre_hook(self._see_step)]
        if not is_compiling():
            self._hooks += [
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._leave, always_call=True),
            ]

    def unwatch(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.models = outermost(self.models)

    def _see_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        _add_once(self.optimizers, optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._sparse |= {
            id(parameter) for parameter in parameters if parameter.grad is not None and parameter.grad.is_sparse
        }

    def has_sparse_gradient(self, parameter: torch.Tensor) -> bool:
        """Whether an optimizer was seen to step with a sparse gradient of it."""
        return id(parameter) in self._sparse

    def _enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        if self._depth == 0:
            _add_once(self.models, module)
        self._depth += 1

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        self._depth -= 1

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Every parameter once, by its full name; those of no model are numbered by optimizer and place."""
        result: dict[int, tuple[str, torch.nn.Parameter]] = {}
        paths = module_paths(self.models)
        for model in self.models:
            for name, module in model.named_modules():
                del name
                for own, parameter in module.named_parameters(recurse=False):
                    result.setdefault(id(parameter), (f"{paths[id(module)]}.{own}", parameter))
        for number, optimizer in enumerate(self.optimizers):
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            for index, parameter in enumerate(tensors):
                result.setdefault(id(parameter), (f"optimizer{number}.{index}", parameter))
        return dict(result.values())

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor of optimizer state, by parameter name and its own."""
        names = {id(parameter): name for name, parameter in self.parameters().items()}
        return {
            f"{names.get(id(parameter), '')}:{key}": value
            for optimizer in self.optimizers
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        }

    def resident_bytes(self) -> int:
        """Bytes that live through every iteration: parameters, buffers, optimizer state."""
        buffers = [buffer for model in self.models for buffer in model.buffers()]
        tensors = [*self.parameters().values(), *self.state().values(), *buffers]
        storages = {item._cdata: item.nbytes() for tensor in tensors for item in (local(tensor).untyped_storage(),)}
        return sum(storages.values())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor that lies on this rank; any other tensor itself."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the tensors that an optimizer keeps from step to step on this rank; its counters are single numbers."""
    leaves = tree_leaves(list(optimizer.state.values()))
    return sum(local(leaf).nbytes for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim())


def _add_once(items: list[Any], item: Any) -> None:
    if not any(item is known for known in items):
        items.append(item)


def require_host(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse what computes on a device: its kernels would be missing, and waiting for them would look like work.

    Raises
    ------
    InputError
        Some tensors lie elsewhere than on the host.
    """
    devices = sorted({tensor.device.type for tensor in tensors} - {"cpu"})
    if devices:
        raise InputError(
            f"this step computes on {', '.join(devices)}, whose kernels are not captured",
            where=f"parameters on {', '.join(devices)}",
            fix="record it with torch.profiler (activities CPU and the device), export the trace, load it as Kineto",
        )


def is_compiling() -> bool:
    """Whether this program has compiled anything with torch.compile that is still there, and runs as compiled."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None and frames._stance.stance == "force_eager":
        return False
    dynamo = sys.modules.get("torch._dynamo.utils")
    has_compiled = dynamo is not None and any(map(dynamo.counters.get, ("frames", "stats")))  # a whole graph: no frames
    return has_compiled and asks_to_compile()


def asks_to_compile() -> bool:
    """Whether this program holds anything that it gave to torch.compile, also where nothing runs as compiled."""
    return "torch._dynamo" in sys.modules and any(map(_is_compiled, gc.get_objects()))


def _is_compiled(thing: Any) -> bool:
    kind = type(thing)
    if issubclass(kind, torch.nn.Module):
        return kind.__name__ == "OptimizedModule" or thing.__dict__.get("_compiled_call_impl") is not None
    if kind is not FunctionType:
        return False
    return "_torchdynamo_orig_callable" in thing.__dict__ and not thing.__dict__.get("_torchdynamo_disable", False)


def outermost(models: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """The modules that hold the given ones, as far up as there are any: a checkpoint calls inner ones by themselves."""
    holder: dict[int, torch.nn.Module] = {}
    for candidate in gc.get_objects():
        if issubclass(type(candidate), torch.nn.Module):
            for child in candidate.__dict__.get("_modules", {}).values():
                holder.setdefault(id(child), candidate)
    result: list[torch.nn.Module] = []
    for model in models:
        climbed = {id(model)}
        while (above := holder.get(id(model))) is not None and id(above) not in climbed:
            model = above
            climbed.add(id(model))
        _add_once(result, model)
    return result


def module_paths(models: Iterable[torch.nn.Module]) -> dict[int, str]:
    """Path of every module by identity: as ``named_modules`` says; below a second model its class name comes first."""
    paths: dict[int, str] = {}
    used: set[str] = set()
    roots = list(models)
    with_parameters = [model for model in roots if any(True for _ in model.parameters())]
    for model in roots:
        title = type(model).__name__
        while title in used:
            title += "'"
        used.add(title)
        prefix = f"{title}." if len(with_parameters) > 1 or model not in with_parameters else ""
        for name, module in model.named_modules():
            path = name.removeprefix("_orig_mod").removeprefix(".")  # what torch.compile wraps keeps its own name
            paths.setdefault(id(module), f"{prefix}{path}" if path else title)
    return paths


class Annotator:
    """Marks in the rich iteration.

    Attributes
    ----------
    paths : dict of id(module) to str
    """

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self.paths = module_paths(discovery.models)
        self._open: list[Any] = []
        self._hooks: list[Any] = []

    def roll_call(self) -> None:
        """Show every parameter and state tensor to the execution trace, before the iteration."""
        for name, parameter in self._discovery.parameters().items():
            with annotate(PARAMETER + name, [local(parameter)]):
                pass
        for name, tensor in self._discovery.state().items():
            with annotate(STATE + name, [local(tensor)]):
                pass

    def roll_call_gradients(self) -> None:
        """Show every gradient that is there to the execution trace, after the iteration."""
        for name, parameter in self._discovery.parameters().items():
            if parameter.grad is not None and parameter.grad.layout is torch.strided:
                with annotate(GRADIENT + name, [local(parameter.grad)]):
                    pass

    def watch(self, compiled: Collection[int] | None = None) -> None:
        """Mark every module's forward from now on.

        Parameters
        ----------
        compiled : collection of int, optional
            Identities of modules that lie within compiled code. They stay unmarked, as a hook would have them compiled
            anew. None: it is not known which do, and nothing of a program that compiles is marked.
        """
        if compiled is not None:
            modules = {id(module): module for model in self._discovery.models for module in model.modules()}
            for number, module in modules.items():
                if number not in compiled and type(module).__name__ != "OptimizedModule":
                    self._hooks.append(module.register_forward_pre_hook(self._enter))
                    self._hooks.append(module.register_forward_hook(self._leave, always_call=True))
        elif not is_compiling():
            self._hooks = [
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._leave, always_call=True),
            ]

    def unwatch(self) -> None:
        """Remove the hooks and close what is open."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        while self._open:
            self._open.pop().__exit__(None, None, None)

    def _enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        path = self.paths.setdefault(id(module), type(module).__name__)
        mark = annotate(MODULE + path)
        mark.__enter__()
        self._open.append(mark)

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)
