"""Non-maximum suppression as one operator of torch.

In: boxes by falling score. Out: a mask of those that stay, of the same size whatever the boxes are, so that a step with
it can be recorded and dry-run. It is an operator of its own, not a hundred small ones, as on every detector's GPU.
"""

from __future__ import annotations

import numpy as np
import torch

from windtunnel.systems.suite.workloads.nms_engine import suppress

__all__ = ["nms"]


@torch.library.custom_op("windtunnel::nms", mutates_args=())
def nms(boxes: torch.Tensor, eligible: torch.Tensor, threshold: float, limit: int) -> torch.Tensor:
    """Which of the boxes [B, N, 4], the best first, stay: [B, N] bool, at most ``limit`` of each picture.

    A box stays if it is eligible [B, N] and overlaps no better one that stays by more than ``threshold`` (IoU).
    """
    indices, allowed = boxes.detach().cpu().numpy(), eligible.cpu().numpy()
    keep = np.zeros(allowed.shape, np.bool_)
    for picture in range(len(indices)):
        suppress(indices[picture], allowed[picture], threshold, limit, keep[picture])
    return torch.from_numpy(keep).to(boxes.device)


@nms.register_fake
def _shape_only(boxes: torch.Tensor, eligible: torch.Tensor, threshold: float, limit: int) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(eligible)
