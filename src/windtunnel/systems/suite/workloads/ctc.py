"""The CTC loss as an operator of our own.

torch's ``aten::_ctc_loss`` says that the shape of its result depends on data, so fake tensors refuse it; it depends
only on the lengths, which are plain integers here. The operator around it says so. Source: Graves et al., ICML 2006.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["ctc_loss"]

BLANK = 0


def ctc_loss(
    log_chances: torch.Tensor, labels: torch.Tensor, num_frames: list[int], num_labels: list[int]
) -> torch.Tensor:
    """Mean over utterances of the loss per label, as ``torch.nn.functional.ctc_loss`` has it.

    Parameters
    ----------
    log_chances : float [T, B, C]
        Log-probabilities of the classes by frame; class 0 is the blank.
    labels : int64 [B, L]
        Padded.
    num_frames, num_labels : list of int
        Lengths without padding; every utterance must have room for its labels.
    """
    losses: torch.Tensor
    losses, _ = _operator()(log_chances, labels, num_frames, num_labels)
    return (losses / losses.new_tensor(num_labels).clamp(min=1)).mean()


@functools.cache
def _operator() -> Callable[..., Any]:
    """Define it once per process, for torch keeps it that long."""
    import torch

    # One operator with a registered shape function: it can be traced on fake tensors, and is one task.
    lengths = "SymInt[] num_frames, SymInt[] num_labels"
    forward = torch.library.custom_op(
        "windtunnel::ctc_loss",
        lambda *inputs: torch.ops.aten._ctc_loss(*inputs, BLANK),
        mutates_args=(),
        schema=f"(Tensor log_chances, Tensor labels, {lengths}) -> (Tensor, Tensor)",
    )
    backward = torch.library.custom_op(
        "windtunnel::ctc_loss_backward",
        lambda *inputs: torch.ops.aten._ctc_loss_backward(*inputs, BLANK),
        mutates_args=(),
        schema=f"(Tensor grad, Tensor log_chances, Tensor labels, {lengths}, Tensor losses, Tensor paths) -> Tensor",
    )

    @forward.register_fake
    def shapes(
        log_chances: torch.Tensor, _labels: torch.Tensor, _num_frames: list[int], num_labels: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_steps, num_utterances, _ = log_chances.shape
        # The labels with a blank around each: 2 L + 1 states of the forward recursion at every step.
        paths = log_chances.new_empty(num_utterances, num_steps, 2 * max(num_labels) + 1)
        return log_chances.new_empty(num_utterances), paths

    @backward.register_fake
    def shape(_grad: torch.Tensor, log_chances: torch.Tensor, *_others: Any) -> torch.Tensor:
        return torch.empty_like(log_chances)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        log_chances, labels, ctx.num_frames, ctx.num_labels = inputs
        ctx.save_for_backward(log_chances, labels, *output)

    def differentiate(ctx: Any, grad: torch.Tensor, _grad_paths: torch.Tensor) -> tuple[Any, ...]:
        log_chances, labels, losses, paths = ctx.saved_tensors
        inputs = (log_chances, labels, ctx.num_frames, ctx.num_labels, losses, paths)
        return backward(grad, *inputs), None, None, None

    forward.register_autograd(differentiate, setup_context=keep)
    return forward
