"""Geometry of boxes for detection, in fixed sizes.

In: boxes as (left, top, right, bottom) in pixels, continuous coordinates. Out: overlaps, codes, anchors, what to train
on. No function reads a tensor's value, so a step of them can be recorded and dry-run. Not here: suppression
(``nms.py``) and networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

__all__ = ["anchors", "clip", "decode", "encode", "first_true", "iou", "match", "sample"]

LARGEST_LOG_SCALE = math.log(1000 / 16)
"""A box grows at most this much in one step of regression (as in the authors' later code)."""


def iou(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Intersection over union of each of N boxes with each of M others: [..., N, M]."""
    corner = torch.maximum(boxes[..., :, None, :2], others[..., None, :, :2])
    opposite = torch.minimum(boxes[..., :, None, 2:], others[..., None, :, 2:])
    common = (opposite - corner).clamp_min(0).prod(-1)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(-1)[..., :, None]
    other_areas = (others[..., 2:] - others[..., :2]).prod(-1)[..., None, :]
    return common / (areas + other_areas - common)


def encode(boxes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """How an anchor has to move and grow to become the box (Girshick et al., CVPR 2014, appendix C): [..., 4]."""
    sizes, anchor_sizes = boxes[..., 2:] - boxes[..., :2], anchors[..., 2:] - anchors[..., :2]
    centers = (boxes[..., :2] + boxes[..., 2:]) / 2
    anchor_centers = (anchors[..., :2] + anchors[..., 2:]) / 2
    return torch.cat([(centers - anchor_centers) / anchor_sizes, (sizes / anchor_sizes).log()], dim=-1)


def decode(codes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """The boxes that anchors become; the inverse of ``encode``."""
    anchor_sizes = anchors[..., 2:] - anchors[..., :2]
    centers = (anchors[..., :2] + anchors[..., 2:]) / 2 + codes[..., :2] * anchor_sizes
    sizes = codes[..., 2:].clamp_max(LARGEST_LOG_SCALE).exp() * anchor_sizes
    return torch.cat([centers - sizes / 2, centers + sizes / 2], dim=-1)


def clip(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The part of each box that lies in the picture."""
    across, down = boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)
    return torch.stack([across[..., 0], down[..., 0], across[..., 1], down[..., 1]], dim=-1)


def anchors(
    rows: int, columns: int, *, stride: int, sides: Sequence[float], ratios: Sequence[float],
    device: torch.device | None = None,
) -> torch.Tensor:  # fmt: skip
    """Boxes around each cell of a feature map [rows * columns * sides * ratios, 4] (Ren et al., section 3.1).

    Each side is that of a square, each ratio is height over width at the same area.
    """
    shapes = [(side / math.sqrt(ratio), side * math.sqrt(ratio)) for side in sides for ratio in ratios]
    sizes = torch.tensor(shapes, device=device)  # [A, 2]
    down, right = ((torch.arange(count, device=device) + 0.5) * stride for count in (rows, columns))
    centers = torch.stack([right.expand(rows, -1), down[:, None].expand(-1, columns)], dim=-1)[:, :, None]
    return torch.cat([centers - sizes / 2, centers + sizes / 2], dim=-1).reshape(-1, 4)


def match(overlaps_BNM: torch.Tensor, present_BM: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return, for each of N boxes, the best object: its overlap, its index, and whether no box overlaps it more.

    Returns
    -------
    overlap : Tensor
        [B, N]; 0 where no object is touched.
    object : Tensor
        [B, N] int64; one that is present wherever the picture has any.
    is_best : Tensor
        [B, N] bool; this box overlaps some object as much as any box does.
    """
    overlaps = overlaps_BNM.masked_fill(~present_BM[:, None, :], -1.0)
    overlap, which = overlaps.max(dim=-1)
    is_best = ((overlaps == overlaps.amax(dim=1, keepdim=True)) & (overlaps > 0)).any(dim=-1)
    return overlap.clamp_min(0), which, is_best


def sample(eligible_BN: torch.Tensor, limit: torch.Tensor | int) -> torch.Tensor:
    """At most ``limit`` (a number, or [B, 1]) of the eligible ones, drawn at random: [B, N] bool."""
    lots = torch.rand(eligible_BN.shape, device=eligible_BN.device).masked_fill(~eligible_BN, -1.0)
    ranks = lots.argsort(dim=-1, descending=True).argsort(dim=-1)
    return eligible_BN & (ranks < limit)


def first_true(mask_BN: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the first ``count`` true entries are: [B, count] int64, and which of these places are really true.

    Where there are fewer, others fill up.
    """
    num = mask_BN.shape[-1]
    urgency = torch.where(mask_BN, 2 * num, num) - torch.arange(num, device=mask_BN.device)
    index = urgency.topk(count, dim=-1).indices
    return index, mask_BN.gather(-1, index)
