"""Layers of a net as the kernels that a runtime runs.

In: a model and the pairs of layers that the runtime fuses. Out: ``LayerKernel``s: one or more layers that run as one,
with the few numbers that their time depends on; each can be built and run alone. Not here: what a runtime fuses and
how long it takes (``run``), prices (``model``).
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.errors import InputError, PriceError

if TYPE_CHECKING:
    import torch

__all__ = ["LayerKernel", "build", "layer_of", "read_prior", "shaped", "split"]

Pair = tuple[str, str]
_JOINS = ("add", "mul", "concat")
_SHAPES_ONLY = frozenset(
    (
        "flatten",
        "view",
        "reshape",
        "size",
        "getattr",
        "getitem",
        "contiguous",
        "Flatten",
        "Identity",
        "Dropout",
        "dropout",
    )
)
_LAYERS = {
    "ReLU": "relu", "relu": "relu", "relu_": "relu", "ReLU6": "relu6", "relu6": "relu6", "Hardswish": "hardswish",
    "hardswish": "hardswish", "Sigmoid": "sigmoid", "sigmoid": "sigmoid", "SiLU": "silu", "silu": "silu",
    "add": "add", "iadd": "add", "mul": "mul", "imul": "mul", "cat": "concat", "BatchNorm2d": "bn", "Linear": "fc",
    "MaxPool2d": "maxpool", "AvgPool2d": "avgpool", "max_pool2d": "maxpool", "avg_pool2d": "avgpool",
    "AdaptiveAvgPool2d": "globalpool", "adaptive_avg_pool2d": "globalpool", "mean": "globalpool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerKernel:
    """One or more layers that run as one.

    Parameters
    ----------
    kind : str
        Layers joined by hyphens, such as ``conv-bn-relu``.
    size : int
        Height and width of the input; 1 of a linear layer.
    in_channels, out_channels : int
    kernel, stride : int
        Of a convolution or pooling, else 1.
    groups : int
        Of a convolution; as many as channels in a depth-wise one.
    batch_size : int
    has_bias : bool
        Of a convolution. A short one takes a third longer for it, and before a norm there is none.

    Examples
    --------
    >>> LayerKernel("conv-relu", 56, 64, 128, kernel=3, stride=2).flops
    115605504
    """

    kind: str
    size: int
    in_channels: int
    out_channels: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    batch_size: int = 1
    has_bias: bool = False

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers in their order."""
        return tuple(self.kind.split("-"))

    @property
    def out_size(self) -> int:
        """Height and width of the output."""
        if self.layers[0] == "globalpool":
            return 1
        padding = (self.kernel - 1) // 2
        return (self.size + 2 * padding - self.kernel) // self.stride + 1

    @property
    def num_parameters(self) -> int:
        """Weights of the first layer; norms and biases are left out."""
        if self.layers[0] == "fc":
            return self.in_channels * self.out_channels
        is_conv = self.layers[0] in ("conv", "dwconv")
        return self.kernel**2 * self.in_channels // self.groups * self.out_channels if is_conv else 0

    @property
    def flops(self) -> int:
        """A multiply and an add are two; layers without weights count their elements, pooling those it reads."""
        if self.num_parameters:
            return 2 * self.batch_size * self.num_parameters * self.out_size**2
        window = self.size if self.layers[0] == "globalpool" else self.kernel
        return self.batch_size * self.out_channels * (self.out_size * window) ** 2

    @property
    def bytes_moved(self) -> int:
        """Of float32: inputs and weights read once, the output written once."""
        inputs = self.in_channels * self.size**2 * (2 if self.layers[0] in ("add", "mul") else 1)
        return 4 * (self.batch_size * (inputs + self.out_channels * self.out_size**2) + self.num_parameters)


def build(kernel: LayerKernel, *, seed: int = 0) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """A module of just these layers, in ``eval`` mode, and inputs for it.

    Raises
    ------
    PriceError
        A layer is unknown.
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    import torch
    from torch import nn

    first = kernel.layers[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if first in _JOINS:
            rest = nn.Sequential(*(_layer(name, kernel, kernel.out_channels) for name in kernel.layers[1:]))
            module: nn.Module = _joined(first, rest)
        else:
            widths = [kernel.in_channels] + [kernel.out_channels] * len(kernel.layers)
            module = nn.Sequential(*map(_layer, kernel.layers, [kernel] * len(widths), widths))
        channels = [kernel.in_channels] * (1 + (first in _JOINS))
        if first == "concat":
            channels = [kernel.in_channels // 2, kernel.in_channels - kernel.in_channels // 2]
        sides = () if first == "fc" else (kernel.size, kernel.size)
        return module.eval(), [torch.rand(kernel.batch_size, width, *sides) for width in channels]


def _layer(name: str, kernel: LayerKernel, width: int) -> torch.nn.Module:
    from torch import nn

    padding = (kernel.kernel - 1) // 2
    sizes = (kernel.in_channels, kernel.out_channels, kernel.kernel, kernel.stride, padding, 1, kernel.groups)
    makers: dict[str, Any] = {
        "conv": lambda: nn.Conv2d(*sizes, bias=kernel.has_bias),
        "dwconv": lambda: nn.Conv2d(*sizes, bias=kernel.has_bias),
        "bn": lambda: nn.BatchNorm2d(width),
        "fc": lambda: nn.Linear(kernel.in_channels, kernel.out_channels),
        "globalpool": lambda: nn.AdaptiveAvgPool2d(1),
        "maxpool": lambda: nn.MaxPool2d(kernel.kernel, kernel.stride, padding),
        "avgpool": lambda: nn.AvgPool2d(kernel.kernel, kernel.stride, padding),
        "relu": nn.ReLU,
        "relu6": nn.ReLU6,
        "hardswish": nn.Hardswish,
        "sigmoid": nn.Sigmoid,
        "silu": nn.SiLU,
    }
    if name not in makers:
        raise PriceError(f"no layer {name!r} can be built", where=kernel.kind, fix=f"known: {', '.join(makers)}")
    module: nn.Module = makers[name]()
    return module


def _joined(name: str, rest: torch.nn.Module) -> torch.nn.Module:
    import torch
    from torch import nn

    joins = {"add": torch.add, "mul": torch.mul, "concat": lambda first, second: torch.cat([first, second], 1)}
    join: Any = joins[name]

    class Joined(nn.Module):
        """Two tensors joined, then the rest."""

        def __init__(self) -> None:
            super().__init__()
            self.rest = rest

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return self.rest(join(first, second))  # type: ignore[no-any-return]

    return Joined()


# --- splitting nets ---------------------------------------------------------------------------------------


def split(model: torch.nn.Module, inputs: Sequence[torch.Tensor], fused: Collection[Pair] = ()) -> list[LayerKernel]:
    """The kernels of one inference, in order.

    Parameters
    ----------
    model : torch.nn.Module
        In ``eval`` mode.
    inputs : sequence of tensors
    fused : collection of (str, str)
        Kinds of kernels with the layers that the runtime adds to them, where that layer alone reads their result:
        ``("conv", "bn")``, ``("conv-bn", "relu")``.

    Raises
    ------
    PriceError
        The model cannot be traced, or has layers of which no kernel is known; names them.
    MissingExtraError
        PyTorch is not installed.
    """
    traced = shaped(model, inputs)
    unknown: list[str] = []
    groups: dict[str, list[Any]] = {}  # by the name of the last node
    for node in traced.graph.nodes:
        layer = layer_of(node, traced)
        if layer is None:
            unknown.append(str(node.target if node.op != "call_module" else type(traced.get_submodule(node.target))))
        elif layer:
            before = groups.get(_producer(node, traced).name, [])
            if before and (_kind(before, traced), layer) in fused and len(before[-1].users) == 1:
                groups[node.name] = [*groups.pop(before[-1].name), node]
            else:
                groups[node.name] = [node]
    if unknown:
        raise PriceError(
            f"{len(unknown)} layers have no kernel",
            where=", ".join(dict.fromkeys(unknown)),
            fix="measure the whole net",
        )
    return [_kernel_of(group, traced) for group in groups.values()]


def shaped(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The model as a graph whose nodes know their shapes.

    Raises
    ------
    PriceError
        It decides by values.
    """
    require("torch", extra="torch")
    import torch
    from torch.fx import GraphModule, symbolic_trace
    from torch.fx.passes.shape_prop import ShapeProp

    try:
        traced: GraphModule = symbolic_trace(model)
        with torch.inference_mode():
            ShapeProp(traced).propagate(*inputs)  # type: ignore[no-untyped-call,unused-ignore]
    except (torch.fx.proxy.TraceError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise PriceError(
            f"the model cannot be traced: {str(error).partition(chr(10))[0]}", where=type(model).__name__
        ) from error
    return traced


def layer_of(node: torch.fx.Node, traced: torch.fx.GraphModule) -> str | None:
    """Name of a node's layer; empty if it computes nothing, None if it is not known."""
    if node.op in ("placeholder", "output", "get_attr"):
        return ""
    target = type(traced.get_submodule(str(node.target))) if node.op == "call_module" else node.target
    name = getattr(target, "__name__", str(target))
    if name in _SHAPES_ONLY:
        return ""
    if name == "Conv2d":
        convolution: Any = traced.get_submodule(str(node.target))
        return "dwconv" if convolution.groups == convolution.in_channels > 1 else "conv"
    return _LAYERS.get(name)


def _producer(node: torch.fx.Node, traced: torch.fx.GraphModule) -> torch.fx.Node:
    """The node whose result comes first into this one; what only changes the shape is passed by."""
    first = node.all_input_nodes[0]
    while layer_of(first, traced) == "" and first.all_input_nodes:
        first = first.all_input_nodes[0]
    return first


def _kind(group: Sequence[torch.fx.Node], traced: torch.fx.GraphModule) -> str:
    return "-".join(str(layer_of(node, traced)) for node in group)


def _kernel_of(group: list[torch.fx.Node], traced: torch.fx.GraphModule) -> LayerKernel:
    head = group[0]
    kind = _kind(group, traced)
    inside, outside = _shape(head.all_input_nodes[0]), _shape(head)
    for shape in (inside, outside):
        if len(shape) == 4 and shape[2] != shape[3]:
            raise PriceError(f"only square images have kernels, not {shape[2]} x {shape[3]}", where=str(head))
    if kind.startswith("concat"):
        inside = outside
    size = inside[2] if len(inside) == 4 else 1
    window, has_bias = _window(head, traced), _has_bias(head, traced)
    return LayerKernel(kind, size, inside[1], outside[1], *window, batch_size=inside[0], has_bias=has_bias)


def _has_bias(node: torch.fx.Node, traced: torch.fx.GraphModule) -> bool:
    if layer_of(node, traced) not in ("conv", "dwconv"):
        return False
    return traced.get_submodule(str(node.target)).bias is not None


def _shape(node: torch.fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)


def _window(node: torch.fx.Node, traced: torch.fx.GraphModule) -> tuple[int, int, int]:
    """Kernel, stride and groups."""
    if node.op == "call_module":
        module: Any = traced.get_submodule(str(node.target))
        given = [getattr(module, name, 1) for name in ("kernel_size", "stride", "groups")]
    else:
        named = [node.kwargs.get(name) for name in ("kernel_size", "stride")]
        pools = layer_of(node, traced) in ("maxpool", "avgpool")
        given = [*(each or (node.args[place] if pools and len(node.args) > place else None)
                   for place, each in enumerate(named, start=1)), 1]  # fmt: skip
        given[1] = given[1] or given[0]
    kernel, stride, groups = (each[0] if isinstance(each, tuple) else each for each in given)
    return int(kernel or 1), int(stride or 1), int(groups or 1)


# --- priors -----------------------------------------------------------------------------------------------


def read_prior(path: str | Path, kind: str) -> list[LayerKernel]:
    """Configurations that occur in real nets, from a CSV file with ``cin``, ``cout`` and, unless linear, ``input_h``.

    Parameters
    ----------
    path : str or Path
    kind : str
        What the rows are, such as ``conv-bn-relu``.

    Raises
    ------
    InputError
        A column is missing, or a row has no number; names its line.
    """
    is_linear = kind.startswith("fc")
    try:
        with Path(path).open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    except OSError as error:
        raise InputError(f"the prior cannot be read: {error}", where=str(path)) from error
    found = []
    for line, row in enumerate(rows, start=2):
        try:
            sides: dict[str, Any] = {} if is_linear else {"kernel": int(row["ks"]), "stride": int(row["stride"])}
            groups = int(row.get("groups") or 1)
            size = 1 if is_linear else int(row["input_h"])
            found.append(LayerKernel(kind, size, int(row["cin"]), int(row["cout"]), **sides, groups=groups))
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"a row of the prior cannot be read: {error}", where=f"{path}, line {line}") from error
    return list(dict.fromkeys(found))
