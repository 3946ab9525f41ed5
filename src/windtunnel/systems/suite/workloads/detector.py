"""The two stages of Faster R-CNN.

In: a backbone, pictures, boxes. Out: ``FasterRcnn``: proposals of the first stage, their classes and boxes by the
second, and the four losses. Source: Ren, He, Girshick, Sun, NeurIPS 2015; for a residual backbone He et al., CVPR 2016,
appendix A: the last stage of the backbone is the head of each region. Regions are read by RoI align (He et al., ICCV
2017) instead of RoI pooling, as in every later implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from windtunnel.systems.suite.workloads.boxes import anchors, clip, decode, encode, first_true, iou, match, sample
from windtunnel.systems.suite.workloads.nms import nms
from windtunnel.systems.suite.workloads.scenes import SceneBatch

__all__ = ["FasterRcnn", "Rules", "roi_align"]

STRIDE = 16
"""Pixels per cell of the feature map, on which both stages work."""
RATIOS = (0.5, 1.0, 2.0)
CODE_SCALES = (10.0, 10.0, 5.0, 5.0)
"""Targets of the second stage are divided by their usual spread, 0.1 and 0.2, as in the authors' code."""


@dataclass(frozen=True)
class Rules:
    """The numbers of the method; the defaults are the paper's.

    Parameters
    ----------
    anchor_sides : tuple of float
        Pixels.
    num_anchors_trained, num_regions_trained : int
        Per picture; at most a half and a quarter of them are objects.
    num_before_suppression, num_after_suppression : int
        Proposals per picture.
    min_side : float
        Smaller proposals are dropped; pixels.
    pooled : int
        Cells on a side of what is read of a region.
    """

    anchor_sides: tuple[float, ...] = (128.0, 256.0, 512.0)
    num_anchors_trained: int = 256
    num_regions_trained: int = 128
    num_before_suppression: int = 12_000
    num_after_suppression: int = 2000
    min_side: float = 16.0
    pooled: int = 14


class Proposer(nn.Module):
    """The region proposal network: is there an object at this anchor, and where exactly."""

    def __init__(self, channels: int, width: int, rules: Rules) -> None:
        super().__init__()
        self.rules = rules
        per_cell = len(rules.anchor_sides) * len(RATIOS)
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.scores, self.codes = nn.Conv2d(width, per_cell, 1), nn.Conv2d(width, 4 * per_cell, 1)
        _small(self.conv, self.scores, self.codes, std=0.01)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Anchors [A, 4], their scores [B, A] and codes [B, A, 4]."""
        rows, columns = features.shape[-2:]
        inner = self.conv(features).relu()
        scores = self.scores(inner).permute(0, 2, 3, 1).flatten(1)
        codes = self.codes(inner).permute(0, 2, 3, 1).reshape(len(scores), -1, 4)
        sides, device = self.rules.anchor_sides, features.device
        return anchors(rows, columns, stride=STRIDE, sides=sides, ratios=RATIOS, device=device), scores, codes

    def losses(
        self, places_A4: torch.Tensor, scores: torch.Tensor, codes: torch.Tensor, batch: SceneBatch
    ) -> torch.Tensor:
        """Class and box loss over a sample of the anchors that lie within the picture (section 3.1.2)."""
        limit = self.rules.num_anchors_trained
        overlap, which, is_best = match(iou(places_A4, batch.boxes), batch.present)
        within = (clip(places_A4, *batch.images.shape[-2:]) == places_A4).all(-1)
        is_object = within & (is_best | (overlap >= 0.7))
        objects = sample(is_object, limit // 2)
        others = sample(within & ~is_object & (overlap < 0.3), limit - objects.sum(-1, keepdim=True))
        selected = (objects | others).float()
        class_loss = functional.binary_cross_entropy_with_logits(scores, objects.float(), selected, reduction="sum")
        targets = encode(batch.boxes.gather(1, which[..., None].expand(-1, -1, 4)), places_A4)
        box_loss = functional.smooth_l1_loss(codes, targets, reduction="none", beta=1 / 9).sum(-1)
        return (class_loss + (box_loss * objects).sum()) / selected.sum().clamp_min(1)

    @torch.no_grad()
    def proposals(
        self, places_A4: torch.Tensor, scores: torch.Tensor, codes: torch.Tensor, picture: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The best boxes that do not overlap [B, P, 4], and which of them are real [B, P]."""
        rules = self.rules
        best = scores.topk(min(rules.num_before_suppression, scores.shape[1]), dim=1).indices
        moved = decode(codes.gather(1, best[..., None].expand(-1, -1, 4)), places_A4[best])
        boxes = clip(moved, *picture).contiguous()
        is_large = (boxes[..., 2:] - boxes[..., :2] >= rules.min_side).all(-1)
        limit = min(rules.num_after_suppression, boxes.shape[1])
        index, is_real = first_true(nms(boxes, is_large, 0.7, limit), limit)
        return boxes.gather(1, index[..., None].expand(-1, -1, 4)), is_real


class Head(nn.Module):
    """The second stage: the class of each region, and for each class where its box lies."""

    def __init__(self, body: nn.Module, channels: int, num_classes: int) -> None:
        super().__init__()
        self.body, self.num_classes = body, num_classes
        self.scores, self.codes = nn.Linear(channels, num_classes + 1), nn.Linear(channels, 4 * num_classes)
        _small(self.scores, std=0.01)
        _small(self.codes, std=0.001)

    def forward(self, pooled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores [regions, classes + 1], of which the first is background, and codes [regions, classes, 4]."""
        inner = self.body(pooled).mean((2, 3))
        return self.scores(inner), self.codes(inner).unflatten(1, (self.num_classes, 4))

    def losses(
        self, pooled: torch.Tensor, labels: torch.Tensor, targets: torch.Tensor, is_sampled: torch.Tensor
    ) -> torch.Tensor:
        """Class loss over the sampled regions, box loss over those of an object (Girshick, ICCV 2015, section 2.3)."""
        scores, codes = self(pooled)
        class_loss = functional.cross_entropy(scores, labels, reduction="none") * is_sampled
        own = (labels - 1).clamp_min(0)[:, None, None].expand(-1, 1, 4)
        box_loss = functional.smooth_l1_loss(codes.gather(1, own)[:, 0], targets, reduction="none").sum(-1)
        return (class_loss.sum() + (box_loss * is_sampled * (labels > 0)).sum()) / is_sampled.sum().clamp_min(1)


class FasterRcnn(nn.Module):
    """Backbone, proposals, head; called with a batch it returns the sum of the four losses.

    Parameters
    ----------
    backbone : Module
        From pictures to a feature map of ``STRIDE`` pixels per cell.
    head : Module
        From the pooled map of a region to its features.
    channels : tuple of int
        Of the backbone's map, of the proposer, of the head's features.
    num_classes : int
        Without background.
    rules : Rules
    """

    def __init__(
        self, backbone: nn.Module, head: nn.Module, channels: Sequence[int], num_classes: int, rules: Rules
    ) -> None:
        super().__init__()
        self.rules, self.backbone = rules, backbone
        self.proposer = Proposer(channels[0], channels[1], rules)
        self.head = Head(head, channels[2], num_classes)

    def forward(self, batch: SceneBatch) -> torch.Tensor:
        """The loss of both stages, trained together (section 3.2, approximate joint training)."""
        features = self.backbone(batch.images)
        indices, scores, codes = self.proposer(features)
        height, width = batch.images.shape[-2:]
        proposals, is_real = self.proposer.proposals(indices, scores, codes, (height, width))
        regions, labels, targets, selected = self._regions(proposals, is_real, batch)
        pooled = roi_align(features, regions, 1 / STRIDE, self.rules.pooled)
        second: torch.Tensor = self.head.losses(pooled, labels.flatten(), targets.flatten(0, 1), selected.flatten())
        return self.proposer.losses(indices, scores, codes, batch) + second

    @torch.no_grad()
    def _regions(
        self, proposals: torch.Tensor, is_real: torch.Tensor, batch: SceneBatch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """A sample of proposals and true boxes, a quarter of them objects, with what the head shall say of them."""
        limit = self.rules.num_regions_trained
        boxes = torch.cat([proposals, batch.boxes], dim=1)
        is_real = torch.cat([is_real, batch.present], dim=1)
        overlap, which, _ = match(iou(boxes, batch.boxes), batch.present)
        objects = sample(is_real & (overlap >= 0.5), limit // 4)
        others = sample(is_real & (overlap < 0.5), limit - objects.sum(-1, keepdim=True))
        index, selected = first_true(objects | others, limit)
        which, is_object = which.gather(1, index), objects.gather(1, index)
        regions = boxes.gather(1, index[..., None].expand(-1, -1, 4))
        labels = (batch.classes.gather(1, which) + 1) * is_object
        true_boxes = batch.boxes.gather(1, which[..., None].expand(-1, -1, 4))
        targets = encode(true_boxes, regions) * torch.tensor(CODE_SCALES, device=regions.device)
        return regions, labels, targets.where(is_object[..., None], 0.0), selected.float()


def roi_align(features: torch.Tensor, boxes: torch.Tensor, scale: float, size: int, samples: int = 2) -> torch.Tensor:
    """Read ``size`` x ``size`` cells of each box out of a feature map (He et al., ICCV 2017, section 3).

    Each cell is the mean of ``samples`` x ``samples`` points, each of which is interpolated between the four nearest
    pixels, whose centers are at half coordinates. Points outside take the value of the edge.

    Parameters
    ----------
    features : Tensor
        [B, C, rows, columns].
    boxes : Tensor
        [B, R, 4] in pixels of the picture.
    scale : float
        Cells of the map per pixel of the picture.

    Returns
    -------
    Tensor
        [B * R, C, size, size].
    """
    points = size * samples
    shares = (torch.arange(points, device=boxes.device) + 0.5) / points
    corner, extent = boxes[..., None, :2] * scale, (boxes[..., None, 2:] - boxes[..., None, :2]) * scale
    indices = corner + extent * shares[:, None]  # [B, R, points, 2] in cells
    extents = torch.tensor([float(features.shape[-1]), float(features.shape[-2])], device=boxes.device)
    indices = 2 * indices / extents - 1
    across = indices[:, :, None, :, 0].expand(-1, -1, points, -1)
    down = indices[:, :, :, None, 1].expand(-1, -1, -1, points)
    grid = torch.stack([across, down], dim=-1).flatten(1, 2)  # [B, R * points, points, 2]
    result = functional.grid_sample(features, grid, padding_mode="border", align_corners=False)
    result = result.unflatten(2, (-1, points)).transpose(1, 2).flatten(0, 1)
    return functional.avg_pool2d(result, samples)


def _small(*layers: nn.Conv2d | nn.Linear, std: float) -> None:
    for layer in layers:
        nn.init.normal_(layer.weight, std=std)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
