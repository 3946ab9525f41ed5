"""Collectives of torch.distributed on tensors as programs cut them.

In: a stage, what a rank has of its operand. Out: a function that waits for the result. Not here: when (``torch_rank``).

torch.distributed exchanges blocks of equal sizes that lie one behind the other: blocks of other dimensions are moved to
the front, and the last ones padded. 16-bit values are added in 32 bits, as everywhere here. gloo has all of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from windtunnel.systems.collectives.layouts import FLAT, TensorType, sum_dtype
from windtunnel.systems.collectives.program import Program, Stage

__all__ = ["Member", "start_collective"]

Tensor = torch.Tensor
_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class Member(Protocol):
    """A rank of a group: its number within the group, the first rank of the group among all."""

    program: Program
    group: int
    rank: int
    start: int
    num_ranks: int
    device: torch.device
    process_group: Any


def start_collective(
    member: Member, stage: Stage, source: Any, dim: int, shape: tuple[int, ...]
) -> Callable[[], Tensor]:
    """Start a collective.

    Parameters
    ----------
    member : Member
    stage : Stage
    source : tensor
        What the rank has of the operand, or of a piece of it; None where it receives what another group sends.
    dim : int
        That blocks are of, where the collective has any.
    shape : tuple of int
        What the rank has of the result.
    """
    item: TensorType = member.program.types[stage.reads[0]]
    dtype, wide = getattr(torch, item.dtype), getattr(torch, sum_dtype(item.dtype))
    group, root = member.process_group, member.start + stage.setting("root", 0)
    reduction = _REDUCTIONS[stage.setting("reduction", "sum")]
    work: Any
    if stage.op == "send":
        return _start_send(member, item, source, shape)
    if stage.op == "reduce_scatter":
        width = -(-_num_rows(tuple(source.shape), dim) // member.num_ranks)
        blocks = _pad(_to_rows(source, dim), width * member.num_ranks).to(wide)
        result = blocks.new_empty(width, blocks.shape[1])
        work = dist.reduce_scatter_single(result, blocks, reduction, group, async_op=True)
    elif stage.op == "all_gather":
        width = -(-_num_rows(shape, dim) // member.num_ranks)
        own = _pad(_to_rows(source, dim), width)
        result = own.new_empty(width * member.num_ranks, own.shape[1])
        work = dist.all_gather_single(result, own, group, async_op=True)
    else:
        result = torch.empty(shape, dtype=dtype if stage.op == "broadcast" else wide, device=member.device)
        result.copy_(source)
        if stage.op == "broadcast":
            work = dist.broadcast(result, root, group, async_op=True)
        elif stage.op == "reduce":
            work = dist.reduce(result, root, reduction, group, async_op=True)
        else:
            work = dist.all_reduce(result, reduction, group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        if stage.op == "reduce" and root != member.start + member.rank:
            return source  # type: ignore[no-any-return] # what is there after a reduction is not defined
        if stage.op in ("reduce_scatter", "all_gather"):
            return _from_rows(result, shape, dim).to(dtype)
        return result.to(dtype)

    return finish


def _start_send(member: Member, item: TensorType, source: Any, shape: tuple[int, ...]) -> Callable[[], Tensor]:
    """From each rank to the same rank of the next group, which is as large."""
    number = member.start + member.rank
    work: Any
    if item.group == member.group:
        content = source.contiguous()
        work = dist.isend(content, number + member.num_ranks)
    else:
        content = torch.empty(shape, dtype=getattr(torch, item.dtype), device=member.device)
        work = dist.irecv(content, number - member.num_ranks)

    def finish() -> Tensor:
        work.wait()
        return content  # type: ignore[no-any-return]

    return finish


def _num_rows(shape: tuple[int, ...], dim: int) -> int:
    return math.prod(shape) if dim == FLAT else shape[dim]


def _to_rows(tensor: Tensor, dim: int) -> Tensor:
    """A matrix whose rows are the elements of a dimension, or all elements."""
    if dim == FLAT:
        return tensor.reshape(-1, 1)
    width = math.prod(size for index, size in enumerate(tensor.shape) if index != dim)
    return tensor.movedim(dim, 0).reshape(tensor.shape[dim], width)


def _from_rows(rows: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
    """The tensor of a shape whose first rows these are."""
    rows = rows[: _num_rows(shape, dim)]
    if dim == FLAT:
        return rows.reshape(shape)
    return rows.reshape(shape[dim], *shape[:dim], *shape[dim + 1 :]).movedim(0, dim)


def _pad(rows: Tensor, num_rows: int) -> Tensor:
    """Rows one behind the other, with rows of zeros behind them."""
    if len(rows) == num_rows:
        return rows.contiguous()
    padded = rows.new_zeros(num_rows, rows.shape[1])
    padded[: len(rows)] = rows
    return padded
