"""Gradients of one replica become those of all: averaged, and clipped if asked.

In: what the microbatches of a batch have added up on a rank. Out: what the optimizers get. The norm of a clipped
gradient is that of the whole model, so that all ranks of a pipeline have to agree on it: one that is flushed waits for
them; one that is not clips by the norm of the batch before, which is known by then without a wait. Not here: passes,
versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Gradients", "Reduction"]

_EPSILON = 1e-6
Gradients = Sequence[torch.Tensor | None]


class Reduction:
    """How a rank's gradients are finished.

    Parameters
    ----------
    holders : mapping of int to process group
        The ranks that hold a stage, where there are several; each has gone through a part of the batch.
    num_replicas : int
        Number of data-parallel pipelines, over which gradients are averaged.
    pipeline : process group, optional
        The ranks of this replica, where they are not all there are.
    max_norm : float, optional
        Gradients are scaled to at most this, where their norm is larger.
    is_delayed : bool
        By the norm of the batch before; the first batch is not clipped.
    """

    def __init__(
        self,
        holders: Mapping[int, Any] | None = None,
        num_replicas: int = 1,
        *,
        pipeline: Any = None,
        max_norm: float | None = None,
        is_delayed: bool = False,
    ) -> None:
        self._holders, self._num_replicas, self._pipeline = dict(holders or {}), num_replicas, pipeline
        self._max_norm, self._is_delayed = max_norm, is_delayed
        self._coming: tuple[torch.Tensor, Any] | None = None  # the square of a norm, and its messages

    @property
    def waits(self) -> bool:
        """Whether all stages of a rank are finished together: other ranks finish them in the same order."""
        return self._max_norm is not None or bool(self._holders)

    def share(self, stage: int, gradients: Gradients) -> Callable[[], None]:
        """Begin to make a stage's gradients those of all who hold it; what is returned waits, and puts them in place.

        Other stages go on meanwhile.
        """
        there = [gradient for gradient in gradients if gradient is not None]
        if stage not in self._holders or not there:
            return _do_nothing
        flat = torch.cat([item.reshape(-1) for item in there])
        work = dist.all_reduce(flat, group=self._holders[stage], async_op=True)

        def copy_mean() -> None:
            work.wait()
            flat.div_(self._num_replicas)
            for item, part in zip(there, flat.split([entry.numel() for entry in there]), strict=True):
                item.copy_(part.view_as(item))

        return copy_mean

    def clip(self, gradients: Iterable[Gradients]) -> None:
        """Scale all gradients of a rank, in place; all ranks call this once per batch."""
        if self._max_norm is None:
            return
        there = [entry for part in gradients for entry in part if entry is not None]
        square = torch.tensor([sum(float(entry.double().square().sum()) for entry in there)], dtype=torch.float64)
        work = dist.all_reduce(square, group=self._pipeline, async_op=True) if dist.is_initialized() else None
        known = self._coming if self._is_delayed else (square, work)
        self._coming = (square, work)
        norm = _norm(known)
        if norm > self._max_norm:
            for item in there:
                item.mul_(self._max_norm / (norm + _EPSILON))

    def state(self) -> float:
        """The norm that a delayed clip goes on with."""
        return _norm(self._coming)

    def restore(self, norm: float) -> None:
        """Restore a saved ``state``."""
        self._coming = (torch.tensor([norm * norm], dtype=torch.float64), None)


def _do_nothing() -> None:
    """Skip the average: no other rank holds these parameters."""


def _norm(coming: tuple[torch.Tensor, Any] | None) -> float:
    if coming is None:
        return 0.0
    square, work = coming
    if work is not None and not work.is_completed():
        work.wait()
    return math.sqrt(float(square))
