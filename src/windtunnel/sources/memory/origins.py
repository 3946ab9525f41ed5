"""Where in a program a storage is born: module, source line, phase.

In: module calls, autograd nodes and Python frames while a step runs. Out: numbers of interned module paths and
source lines. In a backward pass the module is that whose forward made the running autograd node: nodes are numbered
in the order of their making, so the modules' entries and exits divide the numbers among them.
"""

from __future__ import annotations

import functools
import sys
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch._C._autograd import _get_sequence_nr
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from windtunnel.sources.torch.annotate import is_compiling, module_paths

__all__ = [
    "BACKWARD",
    "BEFORE",
    "DATA",
    "FORWARD",
    "PHASES",
    "UPDATE",
    "Interned",
    "Lines",
    "NodeLayers",
    "Places",
    "program_frame",
]

PHASES = ("before", "data", "forward", "backward", "update")
BEFORE, DATA, FORWARD, BACKWARD, UPDATE = range(len(PHASES))

_LIBRARIES = tuple(str(Path(str(library.__file__)).parent) for library in (torch, np))
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
