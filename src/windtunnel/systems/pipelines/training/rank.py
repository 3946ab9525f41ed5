"""One process of a flown pipeline.

In: ``Orders`` and a rank. Out: a ``Span`` for everything that it did, on the clock that all processes of a host share.
All ranks hold the stages of all splits, whose weights do not move, and run in every round, in one shuffled order:
messages, stages that only pass their input on, the whole model alone and in parallel with others, each split.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.workers import Place
from windtunnel.systems.pipelines.schedules import Schedule
from windtunnel.systems.pipelines.training.parts import RestingBatch, build_parts, optimizer_like
from windtunnel.systems.pipelines.training.runtime import Loss, MakeOptimizer, microbatch_passes, pipeline_rank
from windtunnel.systems.pipelines.training.stages import cut_stages, split_model

if TYPE_CHECKING:
    from torch.distributed.pipelining import Pipe

__all__ = ["NUM_EXCHANGES", "Item", "Orders", "Span", "WholeModel"]

NUM_EXCHANGES = 4


class Orders(msgspec.Struct, frozen=True):
    """Orders of all ranks; ``splits`` are stages by path of a module, ``parts`` one whose passes are taken apart.

    There are processes for ``num_replicas`` tables; only the first ones run theirs.
    """

    workload: str
    home: str
    parameters: dict[str, Any]
    splits: tuple[dict[str, int], ...]
    table: Schedule
    message_bytes: tuple[int, ...]
    rounds: int
    time_limit_s: float
    recomputes: bool = False
    parts: dict[str, int] = {}
    num_replicas: int = 1
    seed: int = 0

    @property
    def num_ranks(self) -> int:
        """Number of processes."""
        return self.table.num_ranks * self.num_replicas


class Item(msgspec.Struct, frozen=True, order=True):
    """One thing of a round.

    ``message`` of so many bytes, ``step`` of one process, ``beside``: so many of them, ``split``, and ``idle``: stages
    that only pass their input on, which is of so many bytes. One process alone does ``parts``, as
    ``microbatch_passes`` has them, and a ``copy`` of all weights, of so many bytes.
    """

    what: str
    number: int = 0


class Span(msgspec.Struct, frozen=True):
    """What a rank did from when until when, and what all its threads computed in it, in ns; round 0 warms up."""

    round: int
    item: Item
    begin_ns: int
    end_ns: int
    compute_ns: int


class WholeModel:
    """A workload in one process, its batch cut into microbatches; gradients add up, weights do not move.

    Raises
    ------
    NotApplicableError
        A step is more than a model and a loss.
    InputError
        The batch does not divide into equal parts.
    """

    def __init__(self, workload: str, parameters: dict[str, Any], num_microbatches: int, home: str = "") -> None:
        built = build_parts(workload, parameters, num_microbatches, home)
        assert built.supervised is not None  # ``build_parts`` refuses others
        self.model, self.optimizer, self.loss = built.model, still(built.optimizer), built.supervised.loss
        self.feed = RestingBatch(*built.supervised.draw(), num_microbatches)
        self.num_microbatches = num_microbatches

    @property
    def microbatch(self) -> tuple[Any, ...]:
        """Return the inputs of the model."""
        return self.feed.inputs(0, 0)

    def passes(self, number: int) -> None:
        """Run ``number`` microbatches forward and backward."""
        for part in range(number):
            loss = self.loss(self.model(*self.feed.inputs(0, part)), self.feed.target(0, part))
            (loss / self.num_microbatches).backward()

    def step(self, number: int = 0) -> None:
        """Run ``number`` microbatches, by default all, and an update."""
        self.optimizer.zero_grad()
        self.passes(number or self.num_microbatches)
        self.optimizer.step()


def still(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """An optimizer that does all its work and moves nothing."""
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    return optimizer


def main(process: Place) -> None:
    """Run the splits and microbenchmarks that the orders list."""
    orders: Orders = process.config
    torch.set_num_threads(1)
    hold_heap()
    process.join()
    spans = _rounds(orders, process)
    dist.barrier()
    dist.destroy_process_group()
    process.tell(spans)


def _rounds(orders: Orders, process: Place) -> list[Span]:
    rank = process.rank
    num_parts = orders.table.num_microbatches * orders.num_replicas
    whole = WholeModel(orders.workload, orders.parameters, num_parts, orders.home)
    actions: dict[Item, Callable[[], None]] = {}
    for size in orders.message_bytes:
        actions[Item("message", size)] = _exchange(rank, size) if rank < 2 else _nothing
    if orders.splits:  # they are compared with it
        actions[Item("step")] = whole.step if rank == 0 else _nothing
    runs = rank < orders.table.num_ranks
    actions[Item("idle", min(orders.message_bytes))] = _idle(orders, rank) if runs else _nothing
    for number in range(1, orders.num_ranks + 1):
        actions[Item("beside", number)] = (lambda: whole.step(1)) if rank < number else _nothing
    if orders.parts:
        pipe = split_model(whole.model, whole.microbatch, orders.parts)
        for number, action in enumerate(microbatch_passes(cut_stages(pipe), whole.loss, whole.feed)):
            actions[Item("parts", number)] = action if rank == 0 else _nothing
    if orders.table.versions != "flush":
        size_bytes, copy_pairs = _copy(whole.model)
        actions[Item("copy", size_bytes)] = copy_pairs if rank == 0 else _nothing
    for number, stage_of in enumerate(orders.splits):
        actions[Item("split", number)] = _pipeline(orders, whole, stage_of, rank) if runs else _nothing
        _report_progress(process, "splits", number + 1, len(orders.splits))
    return _time_items(orders, actions, process)


def _time_items(orders: Orders, actions: dict[Item, Callable[[], None]], process: Place) -> list[Span]:
    spans: list[Span] = []
    items = sorted(actions)
    random = np.random.default_rng(orders.seed)
    until_s = time.monotonic() + orders.time_limit_s
    gc.disable()
    for number in range(orders.rounds + 1):
        goes_on = torch.tensor([number < 2 or time.monotonic() < until_s])
        dist.broadcast(goes_on, 0)  # one clock decides
        if not goes_on:
            break
        for which in random.permutation(len(items)).tolist():
            dist.barrier()
            begin_ns, computed_ns = time.perf_counter_ns(), time.process_time_ns()
            actions[items[which]]()
            end_ns, computed_ns = time.perf_counter_ns(), time.process_time_ns() - computed_ns
            spans.append(Span(number, items[which], begin_ns, end_ns, computed_ns))
        gc.collect()
        _report_progress(process, "rounds", number, orders.rounds)
    return spans


def _pipeline(orders: Orders, whole: WholeModel, stage_of: dict[str, int], rank: int) -> Callable[[], None]:
    pipe = split_model(whole.model, whole.microbatch, stage_of)
    return _batches(
        orders.table,
        rank,
        pipe,
        whole.loss,
        whole.feed,
        partial(optimizer_like, whole.optimizer),
        recomputes=orders.recomputes,
    )


class _Pass(torch.nn.Module):
    """Its input, and a gradient for it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def _idle(orders: Orders, rank: int) -> Callable[[], None]:
    """The real schedule on stages that do nothing: what remains is its own work."""
    table = orders.table
    batch = torch.zeros(table.num_microbatches, min(orders.message_bytes) // 4)
    model = torch.nn.Sequential(*(_Pass() for _ in range(table.num_stages)))
    pipe = split_model(model, (batch[:1],), {str(stage): stage for stage in range(table.num_stages)})
    feed = RestingBatch((batch,), batch, len(batch))
    return _batches(table, rank, pipe, lambda output, _: output.sum(), feed, lambda _: None)


def _batches(
    table: Schedule,
    rank: int,
    pipe: Pipe,
    loss: Loss,
    feed: RestingBatch,
    make_optimizer: MakeOptimizer,
    *,
    recomputes: bool = False,
) -> Callable[[], None]:
    """Run all batches of a table through the stages of a rank, with their updates."""
    runs = pipeline_rank(cut_stages(pipe), table, rank, loss, feed, make_optimizer, recomputes=recomputes)
    done = 0

    def batches() -> None:
        nonlocal done
        runs.run(table, done)
        runs.losses.clear()
        done += table.num_batches

    return batches


def _copy(model: torch.nn.Module) -> tuple[int, Callable[[], None]]:
    """Return the bytes of all weights and a function that copies them into another version."""
    pairs = [(parameter.detach(), parameter.detach().clone()) for parameter in model.parameters()]

    def copy_pairs() -> None:
        for item, other in pairs:
            other.copy_(item)

    return sum(item.nbytes for item, _ in pairs), copy_pairs


def _exchange(rank: int, size_bytes: int) -> Callable[[], None]:
    """Between the first two ranks and back, while all others wait: sharing cores with them is the replay's."""
    buffer = torch.zeros(size_bytes // 4)

    def exchange() -> None:
        for sender in (0, 1) * NUM_EXCHANGES:
            (dist.send if rank == sender else dist.recv)(buffer, 1 - rank)

    return exchange


def _nothing() -> None:
    """This rank waits for the others."""


def _report_progress(process: Place, what: str, done: int, total: int) -> None:
    if process.rank == 0:
        process.tell((what, done, total))
