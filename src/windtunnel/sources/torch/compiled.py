"""Compiled regions of a running program: seen as they are compiled, marked and run uncompiled on demand.

In: what Dynamo gives to a backend: a graph of a region, the parameters that it reads. Out: a mark around every call of
a region, and the same region operator by operator, with its layers, for the one iteration in which its operators are
recorded. The user's compilation stays what it is: the backend, its options, its caches and its guards are not touched;
a region costs one more Python call.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from windtunnel.sources.torch.annotate import MODULE, Discovery
from windtunnel.sources.torch.kernels import KernelMarks
from windtunnel.sources.torch.profile import annotate

__all__ = ["REGION", "UPDATE_REGION", "CompiledRegions", "Mode"]

REGION = "wt:region:"
UPDATE_REGION = "wt:update region:"
_PARTS = re.compile(r"\._modules\['([^']+)'\]")
_PARAMETER = re.compile(r"\._(?:parameters|buffers)\['[^']+'\]$")


class Mode(Enum):
    """How regions run."""

    BARE = "compiled"
    MARKED = "compiled, with marks"
    UNCOMPILED = "operator by operator, with marks"


@dataclass
class _Region:
    """One graph that Dynamo handed to a backend, and what the backend made of it."""

    number: int
    graph: torch.fx.GraphModule
    function: Callable[..., Any]
    sources: list[tuple[str, weakref.ref[torch.Tensor]]] = field(default_factory=list)  # module as Dynamo names it
    failure: str = ""


class CompiledRegions:
    """Every region that this program compiles while this is installed.

    Attributes
    ----------
    mode : Mode
    on_call : callable, optional
        Called with the arguments of every region.
    failures : list of str
        Why some regions could not be run uncompiled.
    """

    def __init__(self) -> None:
        self.mode = Mode.BARE
        self.on_call: Callable[[tuple[Any, ...]], None] | None = None
        self._regions: list[_Region] = []
        self._roots: dict[str, str] = {}  # a module as Dynamo names it -> its path, empty for the model
        self._title = ""
        self._parameters: list[torch.nn.Parameter] = []
        self._states: set[int] = set()
        self._kernels = KernelMarks()
        self._undo: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._regions)

    @property
    def failures(self) -> list[str]:
        """Why some regions could not be run uncompiled."""
        return [region.failure for region in self._regions if region.failure]

    # --- life ---------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Look at every region from now on; Dynamo is imported by the program's first ``torch.compile``, not here."""
        if "torch._dynamo.output_graph" in sys.modules:
            self._patch_dynamo()
            return
        original = torch.compile

        @functools.wraps(original)
        def compile_and_patch(*args: Any, **kwargs: Any) -> Any:
            self._patch_dynamo()
            return original(*args, **kwargs)

        torch.compile = compile_and_patch
        self._undo.append(lambda: setattr(torch, "compile", original))

    def remove(self) -> None:
        """Stop looking; what is compiled already runs on, unmarked."""
        self.set_mode(Mode.BARE)
        self.on_call = None
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def set_mode(self, mode: Mode) -> None:
        """How regions run from now on; their kernels are marked where they are."""
        self.mode = mode
        if mode is Mode.BARE:
            self._kernels.off()
        else:
            self._kernels.on()

    def _patch_dynamo(self) -> None:
        from torch._dynamo.output_graph import OutputGraph

        original = OutputGraph._call_user_compiler
        if getattr(original, "regions", None) is self:
            return

        def call_compiler(output: Any, graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
            return self._register_region(graph, original(output, graph, example_inputs))

        call_compiler.regions = self  # type: ignore[attr-defined]
        setattr(OutputGraph, "_call_user_compiler", call_compiler)  # noqa: B010
        self._undo.append(lambda: setattr(OutputGraph, "_call_user_compiler", original))

    def _register_region(self, graph: torch.fx.GraphModule, function: Callable[..., Any]) -> Callable[..., Any]:
        region = _Region(len(self._regions), graph, function, list(_sources(graph)))
        self._regions.append(region)

        @functools.wraps(function)
        def run(*args: Any) -> Any:
            if self.on_call is not None:
                self.on_call(args)
            return function(*args) if self.mode is Mode.BARE else self._run_marked(region, args)

        return run

    # --- a call of a region -------------------------------------------------------------------------------

    def _run_marked(self, region: _Region, args: tuple[Any, ...]) -> Any:
        is_update = not torch.is_grad_enabled() and self._is_update(args)
        with annotate(f"{UPDATE_REGION if is_update else REGION}{region.number}"):
            if self.mode is Mode.MARKED or region.failure or is_update:
                return region.function(*args)
            try:
                return _Uncompiled(region.graph, self._layers(region.graph)).run(*args)
            except Exception as error:  # whatever a backend would have replaced
                region.failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                return region.function(*args)

    def _is_update(self, args: tuple[Any, ...]) -> bool:
        """Whether a region that makes no gradients reads some, or states of an optimizer."""
        gradients = {id(parameter.grad) for parameter in self._parameters if parameter.grad is not None}
        return any(id(value) in gradients or id(value) in self._states for value in args)

    def learn(self, discovery: Discovery, paths: Mapping[int, str]) -> None:
        """Take the names of modules and parameters, and what optimizers change.

        Parameters
        ----------
        discovery : Discovery
        paths : mapping of id(module) to path
        """
        owners = {
            id(parameter): paths[id(module)]
            for model in discovery.models
            for module in model.modules()
            for parameter in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        }
        self._title = next((paths[id(model)] for model in discovery.models), "")
        self._parameters = list(discovery.parameters().values())
        self._states = {id(state) for state in discovery.state().values()}
        for region in self._regions:
            for text, reference in region.sources:
                path = owners.get(id(reference()))
                if path is not None:
                    root, real = _without_common_end(text, path)
                    self._roots[root] = real

    def _layers(self, graph: torch.fx.GraphModule) -> dict[torch.fx.Node, str]:
        return {node: self._layer(node) for node in graph.graph.nodes if node.op not in ("placeholder", "output")}

    def _layer(self, node: torch.fx.Node) -> str:
        stack = node.meta.get("nn_module_stack") or {}
        text = next((str(entry[0]) for entry in reversed(list(stack.values()))), "")
        text = _PARTS.sub(r".\1", text)
        for root in sorted(self._roots, key=len, reverse=True):
            if text == root or text.startswith(root + "."):
                return _join_path(self._roots[root], text[len(root) + 1 :]) or self._title
        return next(iter(self._roots.values())) or self._title if len(self._roots) == 1 else ""

    def modules_in_regions(self, paths: Mapping[int, str]) -> set[int]:
        """Modules, by identity, that lie within compiled code: a hook on them would have it compiled anew."""
        roots = set(self._roots.values())
        if "" in roots:
            return set(paths)
        return {
            number
            for number, path in paths.items()
            if any(path == root or path.startswith(root + ".") for root in roots)
        }


class _Uncompiled(torch.fx.Interpreter):
    """Runs a region as Python would, each operator within a mark of its layer."""

    def __init__(self, graph: torch.fx.GraphModule, layers: Mapping[torch.fx.Node, str]) -> None:
        super().__init__(graph)
        self._layer_of = layers

    def run_node(self, node: torch.fx.Node) -> Any:
        """One operator."""
        layer = self._layer_of.get(node, "")
        with annotate(MODULE + layer) if layer else nullcontext():
            return super().run_node(node)


def _sources(graph: torch.fx.GraphModule) -> Iterator[tuple[str, weakref.ref[torch.Tensor]]]:
    """Parameters and buffers among a region's inputs: the module that Dynamo found each in."""
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        source, argument = getattr(node, "_dynamo_source", None), node.meta.get("grapharg")
        name = getattr(source, "name", "")
        name = name() if callable(name) else name
        example = getattr(argument, "example", None)
        if isinstance(example, torch.Tensor) and _PARAMETER.search(name):
            yield _PARTS.sub(r".\1", _PARAMETER.sub("", name)), weakref.ref(example)


def _without_common_end(text: str, path: str) -> tuple[str, str]:
    """Two names of one module without the parts that they end with alike.

    Examples
    --------
    >>> _without_common_end("L['self'].blocks.0.ch", "net.blocks.0.ch")
    ("L['self']", 'net')
    """
    first, second = text.split("."), path.split(".") if path else []
    while len(first) > 1 and second and first[-1] == second[-1]:
        first.pop()
        second.pop()
    return ".".join(first), ".".join(second)


def _join_path(root: str, rest: str) -> str:
    return f"{root}.{rest}" if root and rest else root or rest
