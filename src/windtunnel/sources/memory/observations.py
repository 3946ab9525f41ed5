"""Notes of what passes by while a step runs, as little as can be.

In: module calls, saved tensors, accumulated gradients, updates and fetched batches. Out: ``Sightings``: lists of plain
tuples (when, at which address); and the storages that were there before or lie outside of torch's allocators, whose
deaths only a weak reference tells. What only Python knows is learnt in one iteration before, operator by operator
(``Learned``): the source line of every birth, and data that rest in memory and no hook would show. An operator's lines
are given to the births of another iteration in their order, and only if there are as many of them: what differs keeps
an empty line. All that follows from them is worked out after the step (``block_lifetimes``).
"""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from windtunnel.sources.memory.patches import allow_transforms, watch_arrays, watch_fetches, watch_saved_hooks
from windtunnel.sources.memory.storages import (
    BIRTH,
    DATA,
    FEATURE_MAP,
    GRADIENT,
    INPUT,
    STATE,
    TEMPORARY,
    UPDATE,
    WEIGHT,
    Interned,
    Lines,
    all_storages,
    buffers_of,
    storages_of,
)
from windtunnel.sources.memory.tracker import StorageTracker
from windtunnel.sources.torch.annotate import Discovery, is_compiling, module_paths

__all__ = ["Learned", "Mark", "Outside", "Sightings"]

LEFT = -1
_LINES = Lines()  # what was looked up once is known to the next
Birth = tuple[int, str, int]  # phase, operator, size_bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """At this time the storage at this address is seen to be of a category."""

    time_ns: int
    address: int
    category: int
    name: str = ""
    layer: int | None = None  # None: only if no module has made it


@dataclass(slots=True)
class Outside:
    """A storage that no log shows coming: it was there before, or lies elsewhere (an array of numpy, shared memory)."""

    address: int
    size_bytes: int
    name: str
    begin_ns: int | None = None  # None: it was there before
    end_ns: int | None = None
    line: str = ""
    category: int = INPUT
    reference: Any = None


class Sightings:
    """Look while it is entered.

    Parameters
    ----------
    discovery : Discovery
        Models and optimizers; those that show themselves later are added.
    resting : list of (weak reference, str, int)
        Storages, with their names and categories, known to be used though nothing may show them: data that rest in
        memory.
    """

    def __init__(self, discovery: Discovery, resting: Iterable[tuple[weakref.ref[Any], str, int]] = ()) -> None:
        self.layers = Interned()
        self.calls: list[tuple[int, int]] = []  # time_ns, layer or LEFT
        self.forced: list[tuple[int, int]] = []  # time_ns, phase that begins, 0 where it ends
        self.saved: list[tuple[int, int]] = []  # time_ns, address
        self.accumulated: list[tuple[int, int, int]] = []  # time_ns, address, id(parameter)
        self.marks: list[Mark] = []
        self.iterations: list[int] = []  # when the second and later ones began
        self.outside: list[Outside] = []
        self.forced_phase = 0
        self.begin_ns = 0
        self._discovery = discovery
        self._resting = resting
        self._there: dict[int, Outside] = {}  # id(storage)
        self._depth = 0
        self._layer_of: dict[int, int] = {}  # id(module)
        self._names: dict[int, tuple[str, int]] = {}  # id(parameter): name of its gradient, layer
        self._hooks: list[Any] = []
        self._patches = ExitStack()

    # --- life -------------------------------------------------------------------------------------------

    def __enter__(self) -> Sightings:
        for storage in all_storages():
            self._note_outside(storage, "")
        self._look()  # first, as it knows the layers
        for reference, name, category in self._resting:
            storage = reference()
            if storage is not None:
                self._mark(storage.data_ptr(), category, name)
        self._saving = saved_tensors_hooks(self._pack, _unpack)
        self._patches.enter_context(watch_saved_hooks(self._see_saved_tensor))
        self._patches.enter_context(allow_transforms(self._saving))
        self._patches.enter_context(watch_fetches(self, self._see_batch_tensor))
        self._patches.enter_context(watch_arrays(self._see_array_tensor))
        self._hooks += [
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        if not is_compiling():
            self._watch_modules()
        self._saving.__enter__()
        self.begin_ns = time.time_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._saving.__exit__()
        self._look()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._patches.close()
        for item in self.outside:
            item.reference = None

    def next_iteration(self) -> None:
        """Another iteration begins."""
        self._look()
        self.iterations.append(time.time_ns())

    def force(self, phase: int) -> None:
        """From now on it is this phase, whatever runs; 0: as it seems."""
        self.forced_phase = phase
        self.forced.append((time.time_ns(), phase))

    def _watch_modules(self) -> None:
        models = self._discovery.models
        for module, path in module_paths(models).items():
            self._layer_of[module] = self.layers.number(path)
        self._hooks += [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
            # the hook on all modules is not shown what is passed by name
            *(model.register_forward_pre_hook(self._enter_by_name, with_kwargs=True) for model in models),
        ]

    # --- what passes by ---------------------------------------------------------------------------------

    def _enter_module(self, module: torch.nn.Module, inputs: Any) -> None:
        if not self._depth:
            if self.forced_phase == DATA:
                self.force(0)
            self._see_inputs(inputs)
        self._depth += 1
        self.calls.append((time.time_ns(), self._layer_of.get(id(module), LEFT - 1)))

    def _leave_module(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._depth:
            self._depth -= 1
            self.calls.append((time.time_ns(), LEFT))

    def _enter_by_name(self, _module: torch.nn.Module, _inputs: Any, named: Any) -> None:
        if self._depth == 1 and named:
            self._see_inputs(named)

    def _see_inputs(self, values: Any) -> None:
        for tensor in tree_leaves(values):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is None:
                self._see(tensor, INPUT, layer=None)

    def _see_batch_tensor(self, tensor: torch.Tensor) -> None:
        self._see(tensor, INPUT, layer=None)

    def _see_array_tensor(self, tensor: torch.Tensor) -> None:
        """A tensor of an array: only what lies there is news; within a module it is no input."""
        if not any(storage.resizable() for storage in storages_of(tensor)):
            self._see(tensor, TEMPORARY if self._depth else INPUT, layer=None)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            storage = tensor.untyped_storage()
            if storage.resizable():
                self.saved.append((time.time_ns(), storage.data_ptr()))
                return tensor
        except (NotImplementedError, RuntimeError):  # of another layout
            pass
        self._see_saved_tensor(tensor)
        return tensor

    def _see_saved_tensor(self, tensor: torch.Tensor) -> None:
        self._see(tensor, FEATURE_MAP, layer=None)

    def _see_gradient(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        is_sparse = gradient.layout is torch.sparse_coo
        for part in (gradient._indices(), gradient._values()) if is_sparse else (gradient,):
            try:
                address = part.untyped_storage().data_ptr()
            except (NotImplementedError, RuntimeError):  # of another layout, or of parts
                self._see(part, GRADIENT, *self._names.get(id(parameter), ("", 0)))
            else:
                self.accumulated.append((time.time_ns(), address, id(parameter)))

    def all_marks(self) -> list[Mark]:
        """What was seen, in order of time."""
        saved = (Mark(time_ns, address, FEATURE_MAP) for time_ns, address in self.saved)
        accumulated = (
            Mark(time_ns, address, GRADIENT, *self._names.get(parameter, ("", 0)))
            for time_ns, address, parameter in self.accumulated
        )
        return sorted([*self.marks, *saved, *accumulated], key=attrgetter("time_ns"))

    def _before_update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not any(optimizer is known for known in self._discovery.optimizers):
            self._discovery.add((), [optimizer])
            self._look()
        self.force(UPDATE)

    def _after_update(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.force(0)

    # --- storages ---------------------------------------------------------------------------------------

    def _see(self, tensor: torch.Tensor, category: int, name: str = "", layer: int | None = 0) -> None:
        for storage in storages_of(tensor):
            is_elsewhere = storage.nbytes() > 0 and (not storage.resizable() or storage.is_shared())
            if is_elsewhere and id(storage) not in self._there:
                self._note_outside(storage, f"tensor {list(tensor.shape)}", time.time_ns())
                self._there[id(storage)].category = TEMPORARY if category == TEMPORARY else INPUT
            self._mark(storage.data_ptr(), category, name or f"tensor {list(tensor.shape)}", layer)

    def _mark(self, address: int, category: int, name: str = "", layer: int | None = None) -> None:
        self.marks.append(Mark(time.time_ns(), address, category, name, layer))

    def _note_outside(self, storage: Any, name: str, begin_ns: int | None = None) -> None:
        key = id(storage)
        if key in self._there or not storage.nbytes() or storage.device.type == "meta":  # a fake one's
            return
        line = "" if begin_ns is None else _LINES.texts[_LINES.here()]
        one = Outside(storage.data_ptr(), storage.nbytes(), name, begin_ns, line=line)

        def gone(_: Any) -> None:
            one.end_ns = time.time_ns()
            self._there.pop(key, None)

        one.reference = weakref.ref(storage, gone)
        self._there[key] = one
        self.outside.append(one)

    def _look(self) -> None:
        """Find weights, gradients and states anew: a program may have replaced some."""
        number = self.layers.number
        for name, parameter in self._discovery.parameters().items():
            layer = number(name.rpartition(".")[0])
            if parameter.requires_grad and id(parameter) not in self._names:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._see_gradient))
            self._names[id(parameter)] = f"{name}.grad", layer
            self._see(parameter.data, WEIGHT, name, layer)
            for kind in ("grad", "main_grad"):
                gradient = getattr(parameter, kind, None)
                if isinstance(gradient, torch.Tensor):
                    self._see(gradient, GRADIENT, f"{name}.{kind}", layer)
        for name, state in self._discovery.state().items():
            self._see(state, STATE, name, number(name.partition(":")[0].rpartition(".")[0]))
        paths = module_paths(self._discovery.models)
        for model in self._discovery.models:
            for module, own, buffer in buffers_of(model):
                path = paths.get(id(module), "")
                self._see(buffer, WEIGHT, f"{path}.{own}", number(path))


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass
class Learned:
    """One iteration's births with their lines, and what rests in memory, with its names."""

    births: list[tuple[Birth, str]] = field(default_factory=list)
    resting: list[tuple[weakref.ref[Any], str, int]] = field(default_factory=list)

    @classmethod
    def of(cls, tracker: StorageTracker) -> Learned:
        """What a tracker has seen; to be asked before it stops."""
        ledger, lines = tracker.ledger, tracker.places.lines.texts
        alive, initial = dict(tracker.storages_alive()), set(ledger.initial)
        births = [
            ((ledger.phases[number], ledger.makers[number]._schema.name, ledger.first_sizes[number]), number)
            for _, event, number, *_ in ledger.entries
            if event == BIRTH and not isinstance(ledger.makers[number], str)
        ]
        resting = [
            (weakref.ref(storage), str(ledger.names[number]), ledger.categories[number])
            for number, storage in alive.items()
            # a weight of a model that no optimizer updates, as that of an average, rests there as data do
            if number in initial and ledger.categories[number] in (INPUT, WEIGHT)
        ]
        return cls([(birth, lines[ledger.lines[number]]) for birth, number in births], resting)

    def lines(self, births: Sequence[Birth]) -> list[str]:
        """Lines of the births of one iteration, in order; empty where it cannot be said."""
        result = [""] * len(births)
        for key in (_by_size, _by_operator):  # whole operators last, as they are surer
            known: dict[Hashable, list[str]] = defaultdict(list)
            for birth, line in self.births:
                known[key(birth)].append(line)
            requested: dict[Hashable, list[int]] = defaultdict(list)
            for index, birth in enumerate(births):
                requested[key(birth)].append(index)
            for group, indices in requested.items():
                if len(indices) == len(known[group]):
                    for index, line in zip(indices, known[group], strict=True):
                        result[index] = line
        return result


def _by_operator(birth: Birth) -> Hashable:
    return birth[:2]


def _by_size(birth: Birth) -> Hashable:
    return birth
