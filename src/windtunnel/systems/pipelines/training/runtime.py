"""The runtime of pipelines: one rank does its row of any table of actions.

In: a ``Schedule``, this rank's stages, a batch in microbatches. Out: losses, gradients applied. Passes are torch's
autograd, split ones by ``torch.distributed.pipelining``; messages go by ``messages``, which weights a pass sees says
``weights``. Not here: who starts processes, where batches come from, clocks.
"""

# m microbatches of a batch, w replicas

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch.distributed.pipelining import _backward as torch_backward
from torch.utils.checkpoint import checkpoint

from windtunnel.errors import InputError
from windtunnel.systems.pipelines.schedules import Action, Schedule
from windtunnel.systems.pipelines.training.messages import Edge, P2PChannel
from windtunnel.systems.pipelines.training.reduction import Gradients, Reduction
from windtunnel.systems.pipelines.training.weights import MakeOptimizer, StageWeights

if TYPE_CHECKING:
    from windtunnel.systems.pipelines.training.stages import CutStage

__all__ = ["BatchSource", "Loss", "MakeOptimizer", "PipelineRank", "StageRun", "microbatch_passes", "pipeline_rank"]

Tensors = list[torch.Tensor]
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


class BatchSource(Protocol):
    """Source of batches."""

    def inputs(self, batch: int, part: int) -> tuple[torch.Tensor, ...]:
        """Return the inputs of the first stage for a microbatch of a batch."""

    def target(self, batch: int, part: int) -> torch.Tensor:
        """Return the target for the last stage's output."""


class _Kept(NamedTuple):
    """Saved tensors of a microbatch after its forward pass."""

    module: torch.nn.Module
    inputs: Tensors
    outputs: Tensors


class _Halfway(NamedTuple):
    """Saved tensors of a microbatch whose weight gradients are still missing."""

    kept: _Kept
    gradients: Tensors | None
    groups: list[dict[str, Any]] | None


@dataclass
class StageRun:
    """One stage on its rank.

    Parameters
    ----------
    weights : StageWeights
    output_indices : tuple of int
        Which of its outputs the next stage reads, in that stage's order; empty for the last one.
    is_first : bool
    recomputes : bool
        Keep a microbatch's inputs only, and run forward again for its backward pass.
    """

    weights: StageWeights
    output_indices: tuple[int, ...]
    is_first: bool
    recomputes: bool = False
    _kept: dict[int, _Kept] = field(default_factory=dict)
    _halfway: dict[int, _Halfway] = field(default_factory=dict)

    def forward(self, key: int, module: torch.nn.Module, inputs: Tensors, loss: Callable[[Any], Any] | None) -> Tensors:
        """A microbatch forward; returns what the next stage gets, or the loss."""
        if not self.is_first:
            for tensor in inputs:
                tensor.requires_grad_()
        result = checkpoint(module, *inputs, use_reentrant=False) if self.recomputes else module(*inputs)
        values = result if isinstance(result, tuple) else (result,)
        outputs = [values[index] for index in self.output_indices] if loss is None else [loss(values[0])]
        self._kept[key] = _Kept(module, inputs, outputs)
        return [item.detach() for item in outputs]

    def backward(self, key: int, gradients: Tensors | None) -> Tensors:
        """Gradients for the weights, added up, and for the inputs, returned."""
        kept = self._kept.pop(key)
        _whole_backward(kept, gradients)
        return _input_gradients(kept)

    def backward_input(self, key: int, gradients: Tensors | None) -> Tensors:
        """Gradients for the inputs only; those for the weights are left to ``backward_weight``."""
        kept = self._kept.pop(key)
        if self.is_first:
            self._halfway[key] = _Halfway(kept, gradients, None)
            return []
        outputs = [
            tensor.clone() if tensor._is_view() else tensor for tensor in kept.outputs
        ]  # torch detaches them in place
        _, groups = torch_backward.stage_backward_input(outputs, gradients, kept.inputs, kept.module.parameters())
        result = _input_gradients(kept)
        self._halfway[key] = _Halfway(_Kept(kept.module, [], []), None, groups)
        return result

    def backward_weight(self, key: int) -> None:
        """Compute the weight gradients that ``backward_input`` has left."""
        kept, gradients, groups = self._halfway.pop(key)
        if groups is None:
            _whole_backward(kept, gradients)
        else:
            torch_backward.stage_backward_weight(kept.module.parameters(), groups)


def _whole_backward(kept: _Kept, gradients: Tensors | None) -> None:
    pairs = [
        (tensor, None if gradients is None else gradients[index])
        for index, tensor in enumerate(kept.outputs)
        if tensor.requires_grad
    ]
    torch.autograd.backward([item for item, _ in pairs], [gradient for _, gradient in pairs])


def _input_gradients(kept: _Kept) -> Tensors:
    return [
        torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        for tensor in kept.inputs
        if tensor.requires_grad
    ]


class PipelineRank:
    """One process of a pipeline.

    Parameters
    ----------
    stages : mapping of int to StageRun
        Stages of this rank.
    shapes : mapping of int to sequence of (shape, dtype)
        What each stage of the pipeline hands on.
    position : int
        Its row of every table.
    num_positions : int
        Ranks of one replica; replica r has the processes from ``r * num_positions`` on.
    replica : int
    loss : callable
        Of the last stage's output and a target; the mean over a microbatch.
    feed : BatchSource
    reduction : Reduction
        How gradients become those of all replicas, and are clipped.
    on_update : callable
        Called with the batch after its gradients were applied to a stage of this rank.
    """

    def __init__(
        self,
        stages: Mapping[int, StageRun],
        shapes: Mapping[int, Sequence[tuple[torch.Size, torch.dtype]]],
        position: int,
        num_positions: int,
        replica: int,
        loss: Loss,
        feed: BatchSource,
        reduction: Reduction,
        on_update: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._stages, self._shapes = stages, shapes
        self._position, self._num_positions, self._replica = position, num_positions, replica
        self._loss, self._feed, self._reduction, self._on_update = loss, feed, reduction, on_update
        self._ready: dict[int, dict[int, Gradients]] = {}  # by batch and stage
        self._sharing: dict[int, list[Callable[[], None]]] = {}  # by batch: what is still to be waited for
        self.losses: dict[int, list[torch.Tensor]] = {}

    @property
    def reduction(self) -> Reduction:
        """How gradients are averaged and clipped before an update."""
        return self._reduction

    @property
    def stages(self) -> Mapping[int, StageRun]:
        """Stages of this rank by number."""
        return self._stages

    def run(self, schedule: Schedule, first_batch: int = 0) -> None:
        """Do this rank's row; the table's batch 0 is ``first_batch``.

        Raises
        ------
        InputError
            The table asks for weights that are not there.
        FlightError
            Another rank is gone.
        """
        mail = P2PChannel(
            schedule, self._position, lambda position: self._replica * self._num_positions + position, self._shapes
        )
        row = schedule.actions[self._position]
        # of each stage and batch, how many backward passes are still to come: after the last one its weights are
        # updated
        left = Counter(
            (item.stage, item.microbatch // schedule.num_microbatches) for item in row if item and item.kind in "BW"
        )
        for slot, action in enumerate(row):
            if action is None:
                continue
            batch, part = divmod(action.microbatch, schedule.num_microbatches)
            try:
                self._act(action, mail, schedule, first_batch + batch, part)
            except InputError as error:
                error.where = f"rank {self._position}, slot {slot}: {action}; {error.where}"
                raise
            if action.kind in "BW":
                left[action.stage, batch] -= 1
                if not left[action.stage, batch]:
                    self._finish(action.stage, first_batch + batch)
        mail.end()

    def _act(self, action: Action, mail: P2PChannel, schedule: Schedule, batch: int, part: int) -> None:
        stage, key = self._stages[action.stage], action.microbatch
        into, out = Edge.into(action, schedule.num_stages), Edge.out_of(action, schedule.num_stages)
        values = mail.take(into) if into is not None else None
        given: Tensors = []
        if action.kind == "F":
            loss = None
            if not stage.output_indices:
                target = self._feed.target(batch, part)
                loss = lambda output: self._loss(output, target) / schedule.num_microbatches  # noqa: E731 - one line
            inputs = values if values is not None else list(self._feed.inputs(batch, part))
            given = stage.forward(key, stage.weights.begin(batch), inputs, loss)
            if not stage.output_indices:
                self.losses.setdefault(batch, []).append(given[0])
        elif action.kind == "B":
            given = stage.backward(key, values)
        elif action.kind == "I":
            given = stage.backward_input(key, values)
        else:
            stage.backward_weight(key)
        if action.kind in "BW":
            stage.weights.end(batch)
        if out is not None:
            mail.give(out, given)

    def _finish(self, stage: int, batch: int) -> None:
        """A stage has all gradients of a batch that are made here."""
        ready = self._ready.setdefault(batch, {})
        ready[stage] = self._stages[stage].weights.gradients(batch)
        self._sharing.setdefault(batch, []).append(self._reduction.share(stage, ready[stage]))
        if self._reduction.waits and len(ready) < len(self._stages):
            return
        sharing = self._sharing.pop(batch)
        while sharing:
            sharing.pop(0)()  # what was sent is given up before the update takes its own
        self._reduction.clip(ready.values())
        for key, gradients in self._ready.pop(batch).items():
            self._stages[key].weights.update(gradients)
        self._on_update(batch)


def pipeline_rank(
    cut: Sequence[CutStage],
    table: Schedule,
    position: int,
    loss: Loss,
    feed: BatchSource,
    make_optimizer: MakeOptimizer,
    *,
    replica: int = 0,
    recomputes: bool = False,
    reduction: Reduction | None = None,
    on_update: Callable[[int], None] = lambda _: None,
) -> PipelineRank:
    """A rank with its stages of a model that was cut.

    Parameters
    ----------
    cut : sequence of CutStage [S]
    table : Schedule
        A schedule of the kind that will run.
    position, loss, feed, replica, reduction, on_update
        As of ``PipelineRank``.
    make_optimizer : callable
        Function that makes the optimizer of a stage's parameters.
    recomputes : bool
    """
    num_copies = 2 if table.versions == "2bw" else 1
    if table.versions == "stash" and table.max_in_flight:
        num_copies = table.max_in_flight[position]
    here = {action.stage for action in table.actions[position] if action is not None}
    stages = {
        index: StageRun(
            StageWeights(item.module, make_optimizer, table.versions, num_copies),
            item.output_indices,
            index == 0,
            recomputes,
        )
        for index, item in enumerate(cut)
        if index in here
    }
    shapes = {index: item.shapes for index, item in enumerate(cut)}
    return PipelineRank(
        stages, shapes, position, table.num_ranks, replica, loss, feed, reduction or Reduction(), on_update
    )


def microbatch_passes(cut: Sequence[CutStage], loss: Loss, feed: BatchSource) -> list[Callable[[], None]]:
    """A microbatch through all stages of one process: forward; and whole backward; or the first part; or both parts."""

    def through(kinds: str) -> None:
        runs = [StageRun(cast("Any", None), entry.output_indices, index == 0) for index, entry in enumerate(cut)]
        values, gradients = list(feed.inputs(0, 0)), None
        for run, item in zip(runs, cut, strict=True):
            ends = None if item.output_indices else lambda output: loss(output, feed.target(0, 0))
            values = run.forward(0, item.module, values, ends)
        for run in reversed(runs) if kinds else ():
            gradients = (run.backward if kinds == "B" else run.backward_input)(0, gradients)
        for run in runs if kinds == "IW" else ():
            run.backward_weight(0)

    return [partial(through, kinds) for kinds in ("", "B", "I", "IW")]
