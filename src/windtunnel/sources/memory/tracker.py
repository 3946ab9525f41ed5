"""Follow every storage of a running step from birth to death.

In: operators as they run, on real or fake tensors. Out: a ``Ledger``: one entry per birth, death, change of size and
change of category, and what is known of each storage. Views share a storage, so nothing is counted twice; deaths are
told by weak references, so nothing is kept alive. It costs as much as many a step; so fake tensors, of which no
allocator knows, are followed so, and one iteration of real ones, for what only Python knows (``python_facts``).
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from windtunnel.sources.memory.dispatch import DispatchTracer, is_of_wrappers
from windtunnel.sources.memory.host_data import HostData
from windtunnel.sources.memory.patches import (
    allow_transforms,
    watch_fetches,
    watch_random_states,
    watch_resizes,
    watch_saved_hooks,
)
from windtunnel.sources.memory.storages import (
    BEFORE,
    BIRTH,
    CATEGORY,
    DATA,
    DEATH,
    FEATURE_MAP,
    GRADIENT,
    INPUT,
    RESIZE,
    STATE,
    TEMPORARY,
    UPDATE,
    WEIGHT,
    Ledger,
    Places,
    all_storages,
    buffers_of,
    storages_of,
)
from windtunnel.sources.torch.annotate import Discovery

__all__ = ["StorageTracker"]

_RANDOM_STATE = "torch.get_rng_state"


class _Reference(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows the number of its storage."""

    __slots__ = ("key", "number")
    key: int
    number: int


class StorageTracker(DispatchTracer):
    """Watch while it is entered.

    Parameters
    ----------
    discovery : Discovery
        Models and optimizers; those that show themselves later are added.
    limit_bytes : int or None
        More than this held at once ends the program with ``on_excess``.
    on_excess : callable
        Called with the bytes held; raises.
    host_data : HostData, optional
        Is shown what may stay on the host of a GPU.
    """

    def __init__(
        self,
        discovery: Discovery,
        *,
        limit_bytes: int | None = None,
        on_excess: Callable[[int, StorageTracker], None] | None = None,
        host_data: HostData | None = None,
    ) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.live_bytes = 0
        self.iteration = 0
        self.audit: Callable[[StorageTracker], None] | None = None
        self._discovery = discovery
        self.places = Places(discovery.models, self._see_inputs)
        self._limit_bytes = limit_bytes
        self._on_excess = on_excess
        self.host_data = host_data
        self._known: dict[int, int] = {}  # id(storage) -> number
        self._references: dict[int, _Reference] = {}
        self._there_before: dict[int, tuple[weakref.ref[Any], int]] = {}  # id(storage) -> itself, its size then
        self._hooks: list[Any] = []
        self._patches = ExitStack()
        self._is_taking_stock = False
        self._updated: list[int] = []  # born in the running update
        self._parameter_names: dict[int, str] = {}

    # --- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take stock and begin to watch."""
        gc.collect()
        self._there_before = {
            id(all_storage): (weakref.ref(all_storage), all_storage.nbytes()) for all_storage in all_storages()
        }
        self._take_stock()
        self._saving = saved_tensors_hooks(self._pack, _unpack)
        self._patches.enter_context(watch_saved_hooks(self._see_saved_tensor))
        self._patches.enter_context(allow_transforms(self._saving))
        self._patches.enter_context(watch_fetches(self.places, self._see))
        self._patches.enter_context(watch_resizes(self._see_resize))
        self._patches.enter_context(watch_random_states(self._see_random_state))
        self._hooks.append(register_optimizer_step_pre_hook(self._before_update))
        self._hooks.append(register_optimizer_step_post_hook(self._after_update))
        self.places.watch()
        self._saving.__enter__()
        self.__enter__()

    def stop(self) -> None:
        """Stop watching; what is alive stays alive."""
        self.__exit__(None, None, None)
        self._saving.__exit__()
        self.places.unwatch()
        for hook in self._hooks:
            hook.remove()
        self._patches.close()
        self._hooks = []
        self._references.clear()
        self._known.clear()

    def next_iteration(self) -> None:
        """Another iteration begins."""
        self._recognize()
        self.iteration += 1

    def storages_alive(self) -> Iterator[tuple[int, Any]]:
        """Number and storage of all that is alive, for an audit."""
        for number, reference in list(self._references.items()):
            storage = reference()
            if storage is not None:
                yield number, storage

    # --- operators --------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and is_of_wrappers(types):
            return NotImplemented
        out = func(*args, **kwargs) if kwargs else func(*args)
        # The hot path of every operator: one dictionary look-up per tensor where nothing is new.
        known, sizes = self._known, self.ledger.sizes
        for value in args:
            if isinstance(value, torch.Tensor):
                try:
                    storage = value.untyped_storage()
                except (NotImplementedError, RuntimeError):  # of another layout
                    self._see(value)
                    continue
                number = known.get(id(storage))
                if number is None or sizes[number] != storage.nbytes():
                    self._see(value)
            elif isinstance(value, list | tuple):
                for item in value:
                    if isinstance(item, torch.Tensor):
                        self._see(item)
        if isinstance(out, torch.Tensor):
            self._see_result(out, func)
        elif out is not None:
            for item in tree_leaves(out):
                if isinstance(item, torch.Tensor):
                    self._see_result(item, func)
        if self.host_data is not None:
            self.host_data.note_use(func, args, (out,), known, is_outside=self.places.is_outside)
        return out

    def _see(self, tensor: torch.Tensor) -> None:
        """An argument that may have been made where no operator was seen, or whose size may have changed."""
        for storage in storages_of(tensor):
            number = self._known.get(id(storage))
            if number is None:
                self._adopt(storage, tensor)
            elif self.ledger.sizes[number] != storage.nbytes():
                self._resize(number, storage)

    def _see_result(self, tensor: torch.Tensor, func: Any) -> None:
        try:
            storages = (tensor.untyped_storage(),)
        except (NotImplementedError, RuntimeError):
            storages = storages_of(tensor)
        for storage in storages:
            number = self._known.get(id(storage))
            if number is None:
                self._birth(storage, func)
            elif self.ledger.sizes[number] != storage.nbytes():
                self._resize(number, storage)

    def _see_random_state(self, state: torch.Tensor) -> None:
        self._birth(state.untyped_storage(), _RANDOM_STATE)

    # --- events -----------------------------------------------------------------------------------------

    def _enrol(
        self, storage: Any, name: Any, layer: int, line: int, phase: int, category: int, size: int | None = None
    ) -> int:
        ledger = self.ledger
        size = storage.nbytes() if size is None else size
        number = len(ledger.names)
        ledger.names.append(name)
        ledger.makers.append(name)
        ledger.layers.append(layer)
        ledger.lines.append(line)
        ledger.phases.append(phase)
        ledger.sizes.append(size)
        ledger.categories.append(category)
        ledger.devices.append(storage.device.type)
        ledger.first_sizes.append(size)
        ledger.first_categories.append(category)
        reference = _Reference(storage, self._death)
        reference.key, reference.number = id(storage), number
        self._known[reference.key] = number
        self._references[number] = reference
        self.live_bytes += size
        if self.host_data is not None:
            self.host_data.enrol(storage)
        return number

    def _birth(self, storage: Any, func: Any) -> None:
        indices = self.places
        phase, layer = indices.now()
        category = INPUT if phase == DATA else TEMPORARY
        number = self._enrol(storage, func, layer, indices.lines.here(), phase, category)
        if phase == UPDATE:
            self._updated.append(number)
        self._note(BIRTH, number)
        if self._limit_bytes is not None and self.live_bytes > self._limit_bytes and self._on_excess is not None:
            self._on_excess(self.live_bytes, self)

    def _adopt(self, storage: Any, tensor: torch.Tensor, category: int | None = None, name: Any = "") -> int:
        """A storage that no watched operator has made: it was there before, or came from outside."""
        before, size = self._there_before.get(id(storage), (None, None))
        was_before = before is not None and before() is storage
        was_there = self._is_taking_stock or was_before
        if category is None:
            category = WEIGHT if isinstance(tensor, torch.nn.Parameter) else INPUT
        phase, layer = (BEFORE, 0) if was_there else self.places.now()
        line = 0 if was_there else self.places.lines.here()
        title, size = name or f"tensor {list(tensor.shape)}", size if was_before else None
        number = self._enrol(storage, title, layer, line, phase, category, size)
        if category == INPUT and self.host_data is not None:
            self.host_data.note_input(number, storage, tensor)
        if was_there:
            self.ledger.initial.append(number)
            self._see_resize(storage)  # an empty one may have been filled before it was seen
        else:
            self._note(BIRTH, number)
        return number

    def _death(self, reference: _Reference) -> None:
        # Called by the weak reference while the storage goes; it may be called after ``stop`` emptied the table.
        number = reference.number
        if self._references.pop(number, None) is None:
            return
        del self._known[reference.key]
        ledger = self.ledger
        self.live_bytes -= ledger.sizes[number]
        ledger.sizes[number] = 0
        self._note(DEATH, number)

    def _see_resize(self, storage: Any) -> None:
        number = self._known.get(id(storage))
        if number is not None and self.ledger.sizes[number] != storage.nbytes():
            self._resize(number, storage)

    def _resize(self, number: int, storage: Any) -> None:
        size = storage.nbytes()
        self.live_bytes += size - self.ledger.sizes[number]
        self.ledger.sizes[number] = size
        self._note(RESIZE, number)

    def _categorize(self, number: int, category: int) -> None:
        # Categories are ordered by how much they say: a weight never becomes a temporary again.
        if category < self.ledger.categories[number]:
            self.ledger.categories[number] = category
            self._note(CATEGORY, number)

    def _note(self, event: int, number: int) -> None:
        ledger = self.ledger
        ledger.entries.append(
            (time.time_ns(), event, number, ledger.categories[number], ledger.sizes[number], self.iteration)
        )
        if self.audit is not None:
            self.audit(self)

    def _mark(self, tensor: torch.Tensor, category: int, name: str, layer: int) -> None:
        """This tensor is known to be a weight, a gradient or a state."""
        for storage in storages_of(tensor):
            number = self._known.get(id(storage))
            if number is None:
                number = self._adopt(storage, tensor, category, name)
                self.ledger.layers[number] = layer
            elif category < self.ledger.categories[number]:
                self.ledger.names[number], self.ledger.layers[number] = name, layer
                self._categorize(number, category)

    # --- categories -------------------------------------------------------------------------------------

    def _take_stock(self) -> None:
        """Weights, gradients and states that are there."""
        # What is found now existed before the first watched operator.
        self._is_taking_stock = True
        layers = self.places.layers
        for name, parameter in self._discovery.parameters().items():
            layer = layers.number(name.rpartition(".")[0])
            self.places.owner_of[id(parameter)] = layer
            self._parameter_names[id(parameter)] = name
            if parameter.requires_grad:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._see_gradient))
        self._recognize()
        self._is_taking_stock = False

    def _recognize(self) -> None:
        """Look for weights, gradients and states anew: a program may have replaced some."""
        layers = self.places.layers
        for name, parameter in self._discovery.parameters().items():
            layer = layers.number(name.rpartition(".")[0])
            self._mark(parameter.data, WEIGHT, name, layer)
            for kind in ("grad", "main_grad"):
                gradient = getattr(parameter, kind, None)
                if isinstance(gradient, torch.Tensor):
                    self._mark(gradient, GRADIENT, f"{name}.{kind}", layer)
        for name, state in self._discovery.state().items():
            self._mark(state, STATE, name, layers.number(name.partition(":")[0].rpartition(".")[0]))
        for model in self._discovery.models:
            for module, own, buffer in buffers_of(model):
                path = self.places.paths.get(id(module), "")
                self._mark(buffer, WEIGHT, f"{path}.{own}", layers.number(path))

    def _see_gradient(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None:
            layer = self.places.owner_of.get(id(parameter), 0)
            self._mark(gradient, GRADIENT, f"{self._parameter_names.get(id(parameter), '')}.grad", layer)

    def _before_update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not any(optimizer is known for known in self._discovery.optimizers):
            self._discovery.add((), [optimizer])
            self._take_stock()
        self.places.force(UPDATE)
        self._updated = []

    def _after_update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.places.force(0)
        if self._has_new_state(optimizer):
            for name, state in self._discovery.state().items():
                layer = self.places.layers.number(name.partition(":")[0].rpartition(".")[0])
                self._mark(state, STATE, name, layer)

    def _has_new_state(self, optimizer: Any) -> bool:
        if any(number in self._references for number in self._updated):
            return True
        known = self._known
        return any(
            id(storage) not in known
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
            for storage in storages_of(value)
        )

    def _see_inputs(self, values: Any) -> None:
        """What a module is called with from outside of any, and no module has made."""
        for tensor in tree_leaves(values):
            if not isinstance(tensor, torch.Tensor) or tensor.grad_fn is not None:
                continue
            for storage in storages_of(tensor):
                number = self._known.get(id(storage))
                if number is None:
                    self._adopt(storage, tensor)
                elif not self.ledger.layers[number]:
                    self._categorize(number, INPUT)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self._see_saved_tensor(tensor)
        return tensor

    def _see_saved_tensor(self, tensor: torch.Tensor) -> None:
        try:
            number = self._known.get(id(tensor.untyped_storage()))
            if number is not None:
                if self.ledger.categories[number] == TEMPORARY:
                    self._categorize(number, FEATURE_MAP)
                return
        except (NotImplementedError, RuntimeError):
            pass
        for storage in storages_of(tensor):
            number = self._known.get(id(storage))
            if number is None:
                number = self._adopt(storage, tensor)
            self._categorize(number, FEATURE_MAP)


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
