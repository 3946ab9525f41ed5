"""The logits of a language model a chunk of rows at a time (flight of "chunked-loss").

In: a live program that calls ``cross_entropy`` on the results of a linear layer. Out: the same loss, whose logits are
computed when the loss asks for them, chunk by chunk, and again in the backward pass. Which layer it is, is seen in the
first iteration, so that the model's source is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.flights.proof import proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo, swap

if TYPE_CHECKING:
    import torch

_LAYERS = "layers whose results a loss reads"
_COPIES = ("View", "UnsafeView", "ReshapeAlias", "Slice", "Clone", "ToCopy", "Transpose", "Permute", "Alias", "Select",
           "T", "Unsqueeze", "Squeeze")  # fmt: skip
_PRODUCTS = ("Mm", "Addmm", "Linear", "Bmm", "MkldnnLinear")


@registry.flight("chunked-loss", source="torchtune, CEWithChunkedOutputLoss, 2024; Hsu et al., Liger Kernel, 2024")
@proven_by(rises("losses"))
@contextmanager
def chunked_loss(program: LiveProgram, *, num_chunks: int = 8) -> Iterator[None]:
    """Compute logits and losses in chunks of rows, and again in the backward pass."""
    if num_chunks < 2:
        raise InputError(f"{num_chunks} chunks change nothing", where="num_chunks=", fix="use 2 or more")
    import torch

    native: Any = torch._C._nn
    compute_loss = native.cross_entropy_loss
    layers: list[Any] = program.kept.setdefault(_LAYERS, [])
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(_defer(layer, num_chunks))

        def watch_loss(logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            layer = _layer_behind(program, logits)
            if layer is not None and not any(layer is known for known in layers):
                layers.append(layer)
                stack.callback(_defer(layer, num_chunks))
            return compute_loss(logits, *args, **kwargs)

        stack.callback(swap(native, "cross_entropy_loss", watch_loss))
        yield


def _defer(layer: Any, num_chunks: int) -> Undo:
    """Let a layer compute its results later."""
    forward = layer.forward

    def defer(rows: torch.Tensor) -> Any:
        from windtunnel.flights.deferred_logits import DeferredLogits

        return DeferredLogits(rows, layer.weight, layer.bias, num_chunks, lambda: forward(rows))

    return swap(layer, "forward", defer)


def _layer_behind(program: LiveProgram, logits: torch.Tensor) -> torch.nn.Module | None:
    """The linear layer that gave these logits, or what they are a view or a copy of."""
    import torch

    node = logits.grad_fn
    while node is not None and _kind(node) in _COPIES:
        node = node.next_functions[0][0]
    if node is None or _kind(node) not in _PRODUCTS:
        return None
    leaves = {id(leaf) for entering, _ in node.next_functions for leaf in _leaves(entering)}
    layers = (module for model in program.models for module in model.modules() if type(module) is torch.nn.Linear)
    return next((layer for layer in layers if id(layer.weight) in leaves), None)


def _leaves(node: Any) -> Iterator[Any]:
    """The parameter that a node passes on."""
    while node is not None and _kind(node) in _COPIES:
        node = node.next_functions[0][0]
    if node is not None and hasattr(node, "variable"):
        yield node.variable


def _kind(node: Any) -> str:
    return str(node.name()).partition("Backward")[0]
