"""How nets are really run on this host, and what a runtime fuses.

In: modules. Out: ``Runtime``s: ``eager``, PyTorch as it is, and ``onednn``, norms folded into convolutions that also
rectify, weights laid out once, channels last; measured times; the pairs of layers that a runtime fuses, found from
times alone. Not here: which kernels a net has (``layer_kernels``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.measure.allocator import hold_heap
from windtunnel.systems.tensor_programs.runtimes.layer_kernels import LayerKernel, build, layer_of, shaped

if TYPE_CHECKING:
    import torch

__all__ = [
    "PAIRS",
    "RUNTIMES",
    "Compiled",
    "FusionTest",
    "checked_runtime",
    "compile_for",
    "find_fusions",
    "in_turn",
    "is_fused",
    "measure_kernels",
]

Clock = Callable[[], int]
RUNTIMES = ("eager", "onednn")
PAIRS = (
    ("conv", "bn"),
    ("conv", "relu"),
    ("conv-bn", "relu"),
    ("dwconv", "bn"),
    ("dwconv", "relu"),
    ("dwconv-bn", "relu"),
    ("bn", "relu"),
    ("add", "relu"),
    ("maxpool", "relu"),
)
"""Tested unless others are given; not a linear layer's ReLU, which is all call."""
_WARMUP, _ROUNDS, _AT_ONCE = 2, 7, 64
_UNDISTURBED = 5  # percentile: a saving is smaller than what others on the machine cost a layer


@dataclass(frozen=True, eq=False)
class Compiled:
    """A model as a runtime runs it, on fixed inputs.

    Parameters
    ----------
    model : torch.nn.Module
    inputs : tuple of tensors
    """

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]

    def __call__(self) -> Any:
        """Run it once, inside of ``torch.inference_mode``."""
        return self.model(*self.inputs)

    def write_inputs(self) -> None:
        """Write the inputs once more, as the kernel before would have: then they are where a net finds them."""
        for one in self.inputs:
            one.mul_(1.0)


def checked_runtime(runtime: str) -> str:
    """The name, if it is one of ``RUNTIMES``.

    Raises
    ------
    InputError
        It is not.
    """
    if runtime not in RUNTIMES:
        raise InputError(f"no runtime is called {runtime!r}", where="runtime", fix=f"use {', '.join(RUNTIMES)}")
    return runtime


def compile_for(runtime: str, model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Compiled:
    """The model as the runtime runs it, on these inputs.

    Parameters
    ----------
    runtime : str
        Of ``RUNTIMES``.
    model : torch.nn.Module
        In ``eval`` mode; left as it is.
    inputs : sequence of tensors

    Raises
    ------
    InputError
        The runtime is unknown.
    PriceError
        ``onednn`` cannot trace the model.
    """
    require("torch", extra="torch")
    import torch

    if checked_runtime(runtime) == "eager":
        return Compiled(model, tuple(inputs))
    last = torch.channels_last
    given = (one.contiguous(memory_format=last) if one.ndim == 4 else one for one in inputs)
    return Compiled(_folded(model, inputs), tuple(given))


def _folded(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> torch.nn.Module:
    """Each convolution with the norm and the ReLU that alone read it as one call."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    traced = shaped(model, inputs)
    for head in list(traced.graph.nodes):
        if layer_of(head, traced) not in ("conv", "dwconv") or head.op != "call_module":
            continue
        module: Any = traced.get_submodule(str(head.target))
        group = [head]
        norm = _next(head, "bn", traced)
        if norm is not None:
            folded: Any = traced.get_submodule(str(norm.target))
            module = fuse_conv_bn_eval(module, folded)
            group.append(norm)
        rectifier = _next(group[-1], "relu", traced)
        group += [rectifier] if rectifier is not None else []
        name = f"fused_{head.name}"
        traced.add_submodule(name, _fused_convolution(module, head, rectifies=rectifier is not None))
        with traced.graph.inserting_after(head):
            node = traced.graph.call_module(name, (head.args[0],))
        node.meta = group[-1].meta
        group[-1].replace_all_uses_with(node)
        for old in reversed(group):
            traced.graph.erase_node(old)
    traced.recompile()
    return traced.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _next(node: torch.fx.Node, layer: str, traced: torch.fx.GraphModule) -> torch.fx.Node | None:
    """The only reader of a node, if it is of that layer."""
    reader = next(iter(node.users)) if len(node.users) == 1 else None
    return reader if reader is not None and layer_of(reader, traced) == layer else None


def _fused_convolution(module: Any, node: torch.fx.Node, *, rectifies: bool) -> torch.nn.Module:
    import torch
    from torch import nn

    shape = list(node.all_input_nodes[0].meta["tensor_meta"].shape)
    settings = (module.padding, module.stride, module.dilation, module.groups)
    padding, stride, dilation, groups = (list(one) if isinstance(one, tuple) else one for one in settings)
    packed = torch.ops.mkldnn._reorder_convolution_weight
    weight = packed(module.weight.detach(), padding, stride, dilation, groups, shape)
    bias = module.bias.detach() if module.bias is not None else None
    attribute = "relu" if rectifies else "none"

    class Fused(nn.Module):
        """One call of oneDNN."""

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            call = torch.ops.mkldnn._convolution_pointwise
            return call(features, weight, bias, padding, stride, dilation, groups, attribute, [], "")  # type: ignore[no-any-return]

    return Fused()


# --- measuring --------------------------------------------------------------------------------------------


def measure_kernels(
    kernels: Sequence[LayerKernel],
    runtime: str = "eager",
    *,
    rounds: int = _ROUNDS,
    clock: Clock = time.perf_counter_ns,
    progress: Progress | None = None,
) -> NDArray[np.float64]:
    """Nanoseconds of each kernel [K], run alone, in turn with others so that a net's caches are as in a net.

    Parameters
    ----------
    kernels : sequence of LayerKernel
    runtime : str
    rounds : int
    clock : callable
        See :class:`windtunnel.cost.lookup.Stand`.
    progress : callable, optional
        Called with (what, done, total).

    Raises
    ------
    InputError, PriceError
        As of :func:`compile_for` and :func:`windtunnel.systems.tensor_programs.runtimes.layer_kernels.build`.

    Notes
    -----
    The number of threads is the caller's. The lower quartile of the rounds counts; what it takes to call a module that
    does nothing is taken off, since a net calls its kernels from one loop.
    """
    times: list[float] = []
    for begin in range(0, len(kernels), _AT_ONCE):
        runs = [compile_for(runtime, *build(kernel)) for kernel in kernels[begin : begin + _AT_ONCE]]
        times += in_turn(runs, rounds, clock)
        if progress is not None:
            progress("measuring kernels", len(times), len(kernels))
    return np.array(times)


def in_turn(
    runs: Sequence[Compiled], rounds: int = _ROUNDS, clock: Clock = time.perf_counter_ns, *, percentile: float = 25
) -> list[float]:
    """A low percentile of each one's nanoseconds, each once per round, less what calling a module takes by itself."""
    require("torch", extra="torch")
    import torch

    hold_heap()  # as capture and flights do: a page fault is no kernel's
    everything = [*runs, _nothing()]
    taken: list[list[float]] = [[] for _ in everything]
    with torch.inference_mode():
        for turn in range(_WARMUP + rounds):
            for run, row in zip(everything, taken, strict=True):
                run.write_inputs()
                begin = clock()
                run()
                if turn >= _WARMUP:
                    row.append(clock() - begin)
    *found, calling = (float(np.percentile(row, percentile)) for row in taken)
    return [max(one - calling, one / 4) for one in found]  # a kernel is never all call


def _nothing() -> Compiled:
    import torch
    from torch import nn

    return Compiled(nn.Sequential(nn.Identity()).eval(), (torch.zeros(1),))


# --- finding fusions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FusionTest:
    """A kernel and the layer after it, on one runtime.

    Parameters
    ----------
    pair : (str, str)
        Kind of the kernel, layer.
    first_ns, second_ns, chained_ns : float
        Each layer alone, and the second after the first.
    is_fused : bool
    """

    pair: tuple[str, str]
    first_ns: float
    second_ns: float
    chained_ns: float
    is_fused: bool


def is_fused(first_ns: float, second_ns: float, chained_ns: float, alpha: float = 0.5) -> bool:
    """Whether two layers ran as one: the chain saves more than ``alpha`` of the shorter one.

    Source: nn-Meter (Zhang et al., MobiSys 2021), section 4.2.

    Examples
    --------
    >>> is_fused(100.0, 40.0, 105.0), is_fused(100.0, 40.0, 130.0)
    (True, False)
    """
    return chained_ns < first_ns + second_ns - alpha * min(first_ns, second_ns)


def find_fusions(
    runtime: str,
    pairs: Iterable[tuple[str, str]] = PAIRS,
    *,
    size: int = 112,
    channels: int = 32,
    rounds: int = 40,
    clock: Clock = time.perf_counter_ns,
) -> list[FusionTest]:
    """Run each pair of layers alone and chained.

    Parameters
    ----------
    runtime : str
    pairs : iterable of (str, str)
    size, channels : int
        Of the features: large enough that a layer's time is no call's.
    rounds : int
    clock : callable

    Raises
    ------
    InputError, PriceError
        As of :func:`measure_kernels`.
    """

    def layer(kind: str) -> LayerKernel:
        names = kind.split("-")
        side = 1 if names[0] == "fc" else size
        width = 16 * channels if names[0] == "fc" else channels
        kernel = 3 if names[0] in ("dwconv", "maxpool", "avgpool") else 1
        return LayerKernel(kind, side, width, width, kernel, groups=width if names[0] == "dwconv" else 1)

    found = []
    for first, second in pairs:
        alone = _after(layer(first), second)
        wanted = [layer(first), alone, layer(f"{first}-{second}")]
        runs = [compile_for(runtime, *build(kernel)) for kernel in wanted]
        first_ns, second_ns, chained_ns = in_turn(runs, rounds, clock, percentile=_UNDISTURBED)
        fuses = is_fused(first_ns, second_ns, chained_ns)
        found.append(FusionTest((first, second), first_ns, second_ns, chained_ns, fuses))
    return found


def _after(first: LayerKernel, second: str) -> LayerKernel:
    """The second layer alone, on what the first puts out."""
    return LayerKernel(second, first.out_size, first.out_channels, first.out_channels)
