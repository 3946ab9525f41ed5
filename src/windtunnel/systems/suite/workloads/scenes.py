"""Drawn pictures with objects to be found.

In: a size, a number of classes, a seed. Out: ``Scenes``, whose ``draw`` gives fresh pictures with the boxes of their
objects. The statistics are those of Pascal VOC 2007: 2.5 objects per picture, one class (there: person) as frequent
as a third of all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from windtunnel.workloads.images import NOISE, Patterns, make_generator

__all__ = ["SceneBatch", "Scenes"]

MEAN_OBJECTS = 2.5
SHARE_OF_FIRST_CLASS = 0.37
SMALLEST, LARGEST = 0.25, 0.65
"""Sides of an object, as shares of the picture's shorter side."""


class SceneBatch(NamedTuple):
    """B pictures with at most M objects each: pixels in -1..1, corners (left, top, right, bottom) in pixels."""

    images: torch.Tensor  # [B, 3, height, width]
    boxes: torch.Tensor  # [B, M, 4]
    classes: torch.Tensor  # [B, M] int64
    present: torch.Tensor  # [B, M] bool: a picture with fewer than M objects has rows that mean nothing


class Scenes:
    """A source of pictures in which rectangles and ellipses carry the pattern of their class."""

    def __init__(
        self, *, height: int, width: int, num_classes: int, max_objects: int, batch_size: int, seed: int
    ) -> None:
        self.height, self.width = height, width
        self.shape_BM = (batch_size, max_objects)
        self.num_classes = num_classes
        self.generator = make_generator(seed)
        self.patterns = Patterns(num_classes, self.generator)
        self.data = f"synthetic: {width} x {height} pictures of 1 to {max_objects} shapes of {num_classes} classes"

    def draw(self) -> SceneBatch:
        """Fresh pictures; the first object is always there."""
        present, classes, boxes = self._present(), self._classes(), self._boxes()
        return SceneBatch(self._pictures(boxes, classes, present), boxes, classes, present)

    def _uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, device=self.generator.device)

    def _present(self) -> torch.Tensor:
        """Numbers of objects are geometric, cut at the largest."""
        stops = 1 / MEAN_OBJECTS
        numbers = 1 + self._uniform(self.shape_BM[0], 1).clamp_min(1e-9).log().div(math.log(1 - stops)).floor()
        return torch.arange(self.shape_BM[1], device=numbers.device) < numbers

    def _classes(self) -> torch.Tensor:
        device = self.generator.device
        others = torch.randint(1, self.num_classes, self.shape_BM, generator=self.generator, device=device)
        return others.where(self._uniform(*self.shape_BM) >= SHARE_OF_FIRST_CLASS, 0)

    def _boxes(self) -> torch.Tensor:
        """Large ones first, so that small ones are painted over them."""
        sides = SMALLEST + (LARGEST - SMALLEST) * self._uniform(*self.shape_BM).sort(dim=1, descending=True).values
        aspects = torch.exp2(self._uniform(*self.shape_BM) - 0.5)
        shorter = min(self.height, self.width)
        widths, heights = sides * aspects.sqrt() * shorter, sides / aspects.sqrt() * shorter
        lefts = self._uniform(*self.shape_BM) * (self.width - widths)
        tops = self._uniform(*self.shape_BM) * (self.height - heights)
        return torch.stack([lefts, tops, lefts + widths, tops + heights], dim=-1)

    def _pictures(self, boxes: torch.Tensor, classes: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        images = torch.zeros(self.shape_BM[0], 3, self.height, self.width, device=boxes.device)
        for index in range(self.shape_BM[1]):
            inside = _inside(boxes[:, index], classes[:, index], self.height, self.width) & present[:, index].view(
                -1, 1, 1
            )
            phases = self._uniform(self.shape_BM[0])
            painted = self.patterns.paint(classes[:, index], phases, self.height, self.width)
            images = torch.where(inside.unsqueeze(1), painted, images)
        noise = torch.randn(images.shape, generator=self.generator, device=images.device)
        return (images + NOISE * noise).clamp(-1, 1)


def _inside(boxes_B4: torch.Tensor, classes_B: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Which pixels [B, height, width] an object covers: odd classes are ellipses."""
    left, top, right, bottom = (side.view(-1, 1, 1) for side in boxes_B4.unbind(-1))
    columns, rows = (torch.arange(count, device=boxes_B4.device) + 0.5 for count in (width, height))
    across = (columns - (left + right) / 2) / (right - left) * 2  # -1..1 within the box
    down = (rows.view(-1, 1) - (top + bottom) / 2) / (bottom - top) * 2
    is_ellipse = (classes_B % 2 == 1).view(-1, 1, 1)
    return torch.where(is_ellipse, across.square() + down.square() <= 1, (across.abs() <= 1) & (down.abs() <= 1))
