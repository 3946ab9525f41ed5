"""Count what live code computes: exact, per operator, type and layer.

In: a function that calls PyTorch, on real or on fake tensors. Out: ``FlopCount``. Also the formulas of layers as one
writes them on paper, to check it. What an operator's shapes mean is said once, in ``graph.flops``; modules and calls
are followed by PyTorch's own ``FlopCounterMode``. Not here: how long any of it takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.graph.flops import CONTRACTIONS, contraction_flops, operator_flops

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

__all__ = ["FlopCount", "conv_flops", "conv_output_size", "count"]

_FORM_ONLY = frozenset(
    {"detach", "alias", "lift_fresh", "_unsafe_view", "new_empty", "new_empty_strided", "set_", "resize_"}
)


@dataclass(frozen=True)
class FlopCount:
    """Floating point operations; a multiply and an add are two.

    Parameters
    ----------
    total : int
        Of all operators that sum products (matrix products, convolutions, attention, recurrent layers): what a
        network's published count means.
    by_op, by_dtype, by_layer : dict
        The same, by operator, by type of the first tensor (such as ``float32``), by innermost module.
    elementwise : int
        Beside it: one per element for every other operator that computes.
    """

    total: int
    by_op: dict[str, int]
    by_dtype: dict[str, int]
    by_layer: dict[str, int]
    elementwise: int = 0

    @property
    def all(self) -> int:
        """Sums of products and elementwise work together."""
        return self.total + self.elementwise


def count(step: Callable[[], Any]) -> FlopCount:
    """Run ``step`` once and count what it computes, forward and backward.

    Parameters
    ----------
    step : callable
        Without arguments. Under ``FakeTensorMode`` nothing is computed and the count is the same.

    Returns
    -------
    FlopCount
        Nominal: a convolution by Winograd's or by a Fourier algorithm does fewer operations than are counted here, a
        causal mask and zeros save nothing.

    Raises
    ------
    MissingExtraError
        PyTorch is not installed.

    Notes
    -----
    PyTorch's counter does not know attention and recurrent layers on CPUs, ``mv`` and ``addbmm``, and forgets the
    groups in the gradient of a convolution's weights; here they count as what they do. Its way of following modules
    cannot stand a gradient with respect to a module's input (a gradient penalty): such a step is run again, and
    ``by_layer`` then has one entry.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(64, 32)
    >>> count(lambda: layer(torch.zeros(8, 64))).total == 2 * 64 * 32 * 8
    True
    """
    require("torch", extra="torch")
    counter = _counter()
    try:
        with counter.following:
            step()
    except RuntimeError as error:
        if "_will_engine_execute_node" not in str(error):
            raise
        counter = _counter()
        counter.following.mod_tracker = _NoModules()  # type: ignore[assignment,unused-ignore]
        with counter.following:
            step()
    by_op, by_dtype, by_layer = Counter[str](), Counter[str](), Counter[str]()
    for (operator, dtype, layer), flops in counter.contractions.items():
        by_op[operator] += flops
        by_dtype[dtype] += flops
        by_layer[layer] += flops
    return FlopCount(sum(by_op.values()), dict(by_op), dict(by_dtype), dict(by_layer), counter.elementwise)


@dataclass
class _Counter:
    """What the mode has seen: by (operator, type, layer)."""

    contractions: Counter[tuple[str, str, str]]
    elementwise: int
    following: FlopCounterMode


class _NoModules:
    """Follows no modules: everything belongs to the whole."""

    parents = frozenset({"Global"})

    def __enter__(self) -> _NoModules:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was begun."""


def _counter() -> _Counter:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    class Following(FlopCounterMode):  # type: ignore[misc,unused-ignore]
        """PyTorch's counter, which also asks for the type, the innermost module and the elementwise work."""

        def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
            result = super()._count_flops(func_packet, out, args, kwargs)
            name = str(func_packet).replace(".", "::", 1)
            if func_packet in self.flop_registry:
                flops = int(self.flop_registry[func_packet](*args, **kwargs, out_val=out))
                results.contractions[name, _dtype(args), _innermost(self.mod_tracker.parents)] += flops
            elif _computes(func_packet):
                results.elementwise += operator_flops(name, _shapes(args), [], _output_shapes(out))
            return result

    extended = {packet: _formula(name) for name in CONTRACTIONS if (packet := getattr(torch.ops.aten, name, None))}
    results = _Counter(Counter(), 0, Following(display=False, custom_mapping=extended))
    return results


def _formula(name: str) -> Callable[..., int]:
    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        arguments = (*args, *kwargs.values())
        shapes, outputs = _shapes(arguments), _output_shapes(out_val)
        return (
            contraction_flops(
                name, shapes, [None if _is_tensor(argument) else argument for argument in arguments], outputs
            )
            or 0
        )

    formula._get_raw = True  # type: ignore[attr-defined]
    return formula


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _shapes(values: Any) -> list[Any]:
    """Shapes of tensors and of lists of tensors; empty for all else."""
    if not isinstance(values, (list, tuple)):
        values = (values,)
    return [
        list(value.shape)
        if _is_tensor(value)
        else [list(item.shape) for item in value if _is_tensor(item)]
        if isinstance(value, (list, tuple)) and any(map(_is_tensor, value))
        else []
        for value in values
    ]


def _output_shapes(out: Any) -> list[Any]:
    return _shapes(out if isinstance(out, (list, tuple)) else (out,))


def _dtype(args: Sequence[Any]) -> str:
    first = next((argument for argument in args if _is_tensor(argument)), None)
    return str(first.dtype).removeprefix("torch.") if first is not None else ""


def _innermost(parents: set[str]) -> str:
    """The deepest module that runs now; the root's class name is taken off, as in a module's own names."""
    name = max((parent for parent in parents if parent != "Global"), key=lambda parent: parent.count("."), default="")
    return name.partition(".")[2] or name


def _computes(packet: Any) -> bool:
    """Whether an operator touches elements: views, allocations and the profiler's marks do not."""
    schema = getattr(packet, getattr(packet, "overloads", list)()[0], None)
    name = str(packet).rpartition(".")[2]
    if schema is None or getattr(schema, "is_view", False) or name in _FORM_ONLY or name.startswith("empty"):
        return False
    return str(packet).startswith("aten")


# --- on paper ---------------------------------------------------------------------------------------------


def conv_output_size(
    size: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1, *, transposed: bool = False
) -> int:
    """Places along one dimension after a convolution (Dumoulin and Visin, arXiv 1603.07285).

    Examples
    --------
    >>> conv_output_size(224, kernel=7, stride=2, padding=3)
    112
    """
    if transposed:
        return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def conv_flops(
    num_inputs: int,
    num_outputs: int,
    kernel: Sequence[int],
    size: Sequence[int],
    *,
    batch_size: int = 1,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    transposed: bool = False,
) -> int:
    """Of a convolution of any number of dimensions; the bias counts nothing, padding counts as elements.

    Parameters
    ----------
    num_inputs, num_outputs : int
        Channels.
    kernel, size : sequence of int
        Per dimension: of the filter, of the input.
    batch_size, stride, padding, dilation, groups, transposed
        As of the layer.

    Examples
    --------
    >>> conv_flops(3, 64, (7, 7), (224, 224), stride=2, padding=3)
    236027904
    """
    products = math.prod(kernel) * (num_inputs // groups) * (num_outputs // groups) * groups
    indices = [
        item if transposed else conv_output_size(item, width, stride, padding, dilation)
        for item, width in zip(size, kernel, strict=True)
    ]
    return 2 * batch_size * math.prod(indices) * products
