"""Storages of tensors, where in a program each is born, and the record of what became of them.

In: tensors of any layout; module calls, autograd nodes and Python frames while a step runs. Out: the storages that
tensors lie in; ``Ledger``, the lists that a tracker fills; numbers of interned module paths and source lines. In a
backward pass the module is that whose forward made the running autograd node: nodes are numbered in the order of their
making, so the modules' entries and exits divide the numbers among them.
"""

from __future__ import annotations

import functools
import gc
import sys
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch._C._autograd import _get_sequence_nr
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from windtunnel.sources.memory.profile import CATEGORIES
from windtunnel.sources.torch.annotate import is_compiling, module_paths

__all__ = [
    "BACKWARD",
    "BEFORE",
    "BIRTH",
    "CATEGORY",
    "DATA",
    "DEATH",
    "EVENTS",
    "FEATURE_MAP",
    "FORWARD",
    "GRADIENT",
    "INPUT",
    "PHASES",
    "RESIZE",
    "STATE",
    "TEMPORARY",
    "UPDATE",
    "WEIGHT",
    "WORKSPACE",
    "Entry",
    "Interned",
    "Ledger",
    "Lines",
    "NodeLayers",
    "Places",
    "all_storages",
    "buffers_of",
    "failing_line",
    "program_frame",
    "storages_of",
]

EVENTS = ("birth", "death", "resize", "category")
BIRTH, DEATH, RESIZE, CATEGORY = range(len(EVENTS))
WEIGHT, GRADIENT, STATE, INPUT, FEATURE_MAP, WORKSPACE, TEMPORARY = range(len(CATEGORIES))  # by precedence

Entry = tuple[int, int, int, int, int, int]  # time_ns, event, storage, category, size_bytes, iteration
PHASES = ("before", "data", "forward", "backward", "update")
BEFORE, DATA, FORWARD, BACKWARD, UPDATE = range(len(PHASES))
_LIBRARIES = tuple(str(Path(str(library.__file__)).parent) for library in (torch, np))


@dataclass
class Ledger:
    """What happened, in order, and one row per storage in the lists."""

    entries: list[Entry] = field(default_factory=list)
    initial: list[int] = field(default_factory=list)  # storages that were there before
    names: list[Any] = field(default_factory=list)  # text, or the operator that made it
    makers: list[Any] = field(default_factory=list)  # the same, whatever it was recognized as later
    layers: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)  # types of the devices that they lie on
    first_sizes: list[int] = field(default_factory=list)
    first_categories: list[int] = field(default_factory=list)


def storages_of(tensor: Any) -> tuple[Any, ...]:
    """The storages that a tensor of any layout lies in; none where it is opaque (MKL-DNN's own)."""
    if is_traceable_wrapper_subclass(tensor):
        inner, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in inner]  # a distributed tensor has its mesh among them
        return tuple(storage for part in parts if isinstance(part, torch.Tensor) for storage in storages_of(part))
    try:
        return (tensor.untyped_storage(),)
    except (NotImplementedError, RuntimeError):
        return tuple(storage for part in _parts(tensor) for storage in storages_of(part))


def _parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Indices and values of a sparse tensor."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def all_storages() -> Iterator[Any]:
    """Storages of every tensor that Python holds."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            yield from storages_of(thing)


def buffers_of(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
    """Every buffer with the module that owns it and its name there."""
    for module in model.modules():
        for own, buffer in module.named_buffers(recurse=False):
            yield module, own, buffer


_OWN = str(Path(__file__).parents[2])
_MODELS = str(Path(_OWN) / "workloads")


class Interned:
    """Texts by number; number 0 is the empty text."""

    def __init__(self) -> None:
        self.texts = [""]
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        """The number of a text, a new one if it has none."""
        result = self._numbers.get(text)
        if result is None:
            result = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return result


class Lines(Interned):
    """Source lines of the program."""

    def __init__(self) -> None:
        super().__init__()
        self._line_of: dict[tuple[CodeType, int], int] = {}

    def here(self) -> int:
        """The number of the line that the program is at; 0 where none of its frames runs."""
        frame = program_frame()
        if frame is None:
            return 0
        key = (frame.f_code, frame.f_lineno)
        number = self._line_of.get(key)
        if number is None:
            text = f"{_shorten_path(frame.f_code.co_filename)}:{frame.f_lineno}"
            number = self._line_of[key] = self.number(text)
        return number


def program_frame() -> FrameType | None:
    """The innermost frame outside of torch, NumPy and what measures."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def failing_line(error: BaseException) -> str:
    """The program's innermost line that an error went through; empty where there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_foreign(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


class NodeLayers:
    """Which layer's forward made an autograd node: nodes are numbered in the order of their making."""

    def __init__(self) -> None:
        self._bounds: list[int] = [-1]  # sequence numbers from which the nodes belong to ...
        self._layers: list[int] = [0]  # ... these layers

    def bound(self, sequence: int, layer: int) -> None:
        """Nodes from this number on belong to ``layer``."""
        #      nodes    0 .... 17 | 18 .... 40 | 41 ...      bounds: the first node of each layer's forward
        #      layer    embedding | block 0    | block 1     layer(n): bisection
        if self._layers[-1] == layer:
            return
        if self._bounds[-1] >= sequence:
            self._layers[-1] = layer
        else:
            self._bounds.append(sequence)
            self._layers.append(layer)

    def layer(self, sequence: int) -> int:
        """The layer of a node."""
        return self._layers[bisect_right(self._bounds, sequence) - 1]


class Places:
    """Answers where the program is now; ``on_enter`` is called at every call of a module from outside of any."""

    def __init__(self, models: list[torch.nn.Module], on_enter: Callable[[Any], None]) -> None:
        self._models = models
        self.paths = module_paths(models)
        self._on_enter = on_enter
        self.layers, self.lines = Interned(), Lines()
        self.owner_of: dict[int, int] = {}  # id(parameter) -> layer
        self.forced_phase = 0  # DATA or UPDATE while one of them runs
        self._stack: list[tuple[int, bool]] = []  # (layer, entered in a backward pass)
        self._nodes = NodeLayers()
        self._hooks: list[Any] = []

    # --- modules ----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Follow every module call from now on; what is compiled stays unwatched, as a hook would compile it anew."""
        if not is_compiling():
            self._hooks = [
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._leave, always_call=True),
                # the hook on all modules is not shown what is passed by name
                *(model.register_forward_pre_hook(self._enter_by_name, with_kwargs=True) for model in self._models),
            ]

    def unwatch(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        if not self._stack:
            if self.forced_phase == DATA:
                self.forced_phase = 0
            self._on_enter(inputs)
        path = self.paths.get(id(module))
        layer = self.layers.number(path) if path is not None else self._stack[-1][0] if self._stack else 0
        self._stack.append((layer, torch._C._current_autograd_node() is not None))
        self._nodes.bound(_get_sequence_nr(), layer)

    def _enter_by_name(self, _module: torch.nn.Module, _inputs: Any, named: Any) -> None:
        if len(self._stack) == 1 and named:
            self._on_enter(named)

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._nodes.bound(_get_sequence_nr(), self._stack[-1][0] if self._stack else 0)

    @property
    def is_outside(self) -> bool:
        """Whether no module runs now."""
        return not self._stack

    def force(self, phase: int) -> None:
        """From now on it is this phase, whatever runs; 0: as it seems."""
        self.forced_phase = phase

    # --- now --------------------------------------------------------------------------------------------

    def now(self) -> tuple[int, int]:
        """Phase and layer."""
        node = torch._C._current_autograd_node()
        phase = self.forced_phase or (FORWARD if node is None else BACKWARD)
        if self._stack and (node is None or self._stack[-1][1]):
            layer = self._stack[-1][0]
        else:
            layer = 0 if node is None else self._layer_of(node)
        if torch.is_grad_enabled():
            self._nodes.bound(_get_sequence_nr() - 1, layer)  # the node of this very operator has been made already
        return phase, layer

    def _layer_of(self, node: Any) -> int:
        variable = getattr(node, "variable", None)  # of a node that accumulates a gradient
        if variable is not None:
            return self.owner_of.get(id(variable), 0)
        return self._nodes.layer(node._sequence_nr())


@functools.cache
def _is_foreign(filename: str) -> bool:
    if filename.startswith("<"):
        return True
    return filename.startswith((*_LIBRARIES, _OWN)) and not filename.startswith(_MODELS)


def _shorten_path(filename: str) -> str:
    """A path as short as it stays clear: within a package from its folder on, else as it is."""
    for root in (str(Path(_OWN).parent), *sys.path):
        if root and filename.startswith(f"{root}/"):
            return filename[len(root) + 1 :]
    return filename
