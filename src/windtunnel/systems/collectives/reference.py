"""What a program computes, stage by stage with NumPy: the slow, obvious meaning of every schedule.

In: a program and arrays of each rank. Out: arrays of each rank. Sums over ranks are added in the order of a ring, so
that schedules that keep the order agree bit for bit. Fusions and overlaps do not change the meaning. Not here: speed.

Legend: k ranks of a group. A value is a list of k arrays of the rank's own shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.systems.collectives.dropout import keep_mask
from windtunnel.systems.collectives.layouts import FLAT, TensorType, numpy_dtype, ring_dim, slice_layout, sum_dtype
from windtunnel.systems.collectives.program import Program, Stage

__all__ = ["Arrays", "apply_pointwise", "assemble", "distribute", "multiply", "random_inputs", "ring_order",
           "run_reference"]  # fmt: skip

Array = NDArray[Any]
Arrays = list[Array]


def ring_order(chunk: int, num_ranks: int) -> list[int]:
    """Ranks in the order in which a ring adds their parts of a chunk: it starts behind the rank that keeps it.

    Examples
    --------
    >>> ring_order(1, 4)
    [2, 3, 0, 1]
    """
    return [(chunk + 1 + step) % num_ranks for step in range(num_ranks)]


def distribute(item: TensorType, full: Array, num_ranks: int) -> Arrays:
    """What each rank has of a full array; of a local tensor, ``full`` has a first dimension of k."""
    shape = (num_ranks, *item.shape) if item.layout.is_local else item.shape
    if full.shape != shape:
        raise InputError(f"an array of shape {list(full.shape)} is not {item}", fix=f"pass one of shape {list(shape)}")
    if item.layout.is_local:
        return [part.copy() for part in full]
    if item.layout.is_sliced:
        return [item.take_block(full, rank, num_ranks, item.layout.dim).copy() for rank in range(num_ranks)]
    return [full.copy() for _ in range(num_ranks)]


def assemble(item: TensorType, parts: Sequence[Array]) -> Array:
    """The full array of a replicated, rooted or sliced tensor; of a local one, all of them."""
    if item.layout.is_local:
        return np.stack(parts)
    if item.layout.is_sliced and item.layout.dim == FLAT:
        return np.concatenate([part.reshape(-1) for part in parts]).reshape(item.shape)
    if item.layout.is_sliced:
        return np.concatenate(parts, axis=item.layout.dim)
    return parts[item.layout.root]


def random_inputs(program: Program, seed: int, dtype: str = "") -> dict[str, Array]:
    """Full arrays for all inputs: normal values, positive ones for scalars and what is updated by squares."""
    generator = np.random.default_rng(seed)
    result = {}
    for name, item in program.inputs.items():
        shape = (program.group_sizes[item.group], *item.shape) if item.layout.is_local else item.shape
        values = generator.standard_normal(shape)
        is_positive = item.is_scalar or name in ("v",)
        result[name] = (np.abs(values) if is_positive else values).astype(numpy_dtype(dtype or item.dtype))
    return result


def run_reference(program: Program, inputs: Mapping[str, Array], dtype: str = "") -> dict[str, Arrays]:
    """All values of a program.

    Parameters
    ----------
    program : Program
    inputs : mapping of str to array
        Full arrays, as ``distribute`` takes them; not changed.
    dtype : str
        Compute in this type instead of the program's own, ``float64`` for certificates.

    Returns
    -------
    dict of str to list of arrays
        By the name of the value; inputs that are updated have their new content under their own name.
    """
    missing = [name for name in program.inputs if name not in inputs]
    if missing:
        raise InputError(f"input {missing[0]} is missing", where=program.name, fix="pass an array for each input")
    values: dict[str, Arrays] = {}
    for name, item in program.inputs.items():
        full = np.asarray(inputs[name]).astype(numpy_dtype(dtype or item.dtype), copy=False)
        values[name] = distribute(item, full, program.group_sizes[item.group])
    for stage in program.stages:
        values[stage.name] = _run(program, stage, values, dtype)
    for target, stage in program.updates.items():
        gathers = [user.name for user in program.users[stage.name] if user.op == "all_gather"]
        is_whole = program.types[stage.name].layout == program.inputs[target].layout
        values[target] = values[stage.name if is_whole else gathers[0]]
    return values


# --- stages ---------------------------------------------------------------------------------------------------


def _run(program: Program, stage: Stage, values: Mapping[str, Arrays], dtype: str) -> Arrays:
    """The value of one stage on all ranks of its group."""
    types = [program.types[name] for name in stage.reads]
    num_ranks = program.group_sizes[types[0].group]
    operands = [values[item] if isinstance(item, str) else [item] * num_ranks for item in stage.operands]
    if stage.communicates:
        return _COLLECTIVES[stage.op](stage, types[0], operands[0], num_ranks)  # type: ignore[arg-type]
    if stage.op == "slice":
        dim = stage.setting("dim")
        return [types[0].take_block(part, rank, num_ranks, dim).copy() for rank, part in enumerate(operands[0])]  # type: ignore[arg-type]
    if stage.op in ("sum", "sum_squares"):
        return _reduce_elements(stage, types[0], operands[0], num_ranks)  # type: ignore[arg-type]
    result = []
    for rank in range(num_ranks):
        local = [operand[rank] for operand in operands]
        if stage.op == "dropout":
            result.append(_dropout(stage, types[0], local, rank, num_ranks))
        elif stage.op == "cast":
            result.append(local[0].astype(numpy_dtype(dtype or stage.setting("dtype"))))  # type: ignore[union-attr]
        else:
            result.append(apply_pointwise(stage.op, local, numpy_dtype(dtype or program.types[stage.name].dtype)))
    return result


_POINTWISE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "greater": np.greater,
    "neg": np.negative,
    "sqrt": np.sqrt,
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "select": lambda condition, positive, otherwise: np.where(condition != 0, positive, otherwise),
    "update": lambda _target, value: value,
    "matmul": lambda a, b: multiply(a, b),
}


def multiply(a: Array, b: Array, out: Array | None = None) -> Array:
    """A product of matrices, of 16-bit values added in 32 bits."""
    wide = np.dtype(sum_dtype(a.dtype.name))
    if wide == a.dtype:
        result: Array = np.matmul(a, b, out=out)
        return result
    result = np.matmul(a.astype(wide), b.astype(wide)).astype(a.dtype)
    if out is not None:
        out[...] = result
    return result


def apply_pointwise(op: str, operands: Sequence[Any], dtype: np.dtype[Any]) -> Array:
    """One operator on one rank; constants are of the tensor's own type."""
    typed = [np.asarray(item, dtype=dtype) if isinstance(item, float) else item for item in operands]
    with np.errstate(all="ignore"):
        return np.asarray(_POINTWISE[op](*typed)).astype(dtype)


def _dropout(stage: Stage, item: TensorType, operands: Sequence[Any], rank: int, num_ranks: int) -> Array:
    part, step = (*operands, 0)[:2]
    indices = np.arange(item.num_elements).reshape(item.shape)
    if item.layout.is_sliced:
        indices = item.take_block(indices, rank, num_ranks, item.layout.dim)
    probability = stage.setting("probability")
    scale = np.asarray(1 / (1 - probability), dtype=part.dtype)
    kept = keep_mask(stage.setting("seed"), indices, probability, int(step)).reshape(part.shape)
    return np.where(kept, part * scale, np.zeros((), part.dtype))


def _reduce_elements(stage: Stage, item: TensorType, parts: Arrays, num_ranks: int) -> Arrays:
    """Sums of all elements; of a replicated tensor as sums of its blocks, as if they were slices of ranks."""
    if item.layout.is_replicated and not item.is_scalar:
        blocks = distribute(item.with_layout(slice_layout(ring_dim(item, num_ranks))), parts[0], num_ranks)
        partial = [_sum(stage.op, part) for part in blocks]
        total = _add_in_order(partial, ring_order(0, num_ranks))
        return [total.copy() for _ in range(num_ranks)]
    return [_sum(stage.op, part) for part in parts]


def _sum(op: str, part: Array) -> Array:
    wide = part.astype(sum_dtype(part.dtype.name))
    return np.asarray((np.square(wide) if op == "sum_squares" else wide).sum(), dtype=part.dtype)


# --- communication --------------------------------------------------------------------------------------------


def _add_in_order(parts: Sequence[Array], order: Sequence[int], reduction: str = "sum") -> Array:
    """Add what comes around the ring to the own part of each rank; 16-bit values in 32 bits."""
    wide = np.dtype(sum_dtype(parts[0].dtype.name))
    result = parts[order[0]].astype(wide)
    for rank in order[1:]:
        own = parts[rank].astype(wide)
        result = np.maximum(result, own) if reduction == "max" else result + own
    return result.astype(parts[0].dtype)


def _reduce_blocks(stage: Stage, item: TensorType, parts: Arrays, num_ranks: int, dim: int) -> Arrays:
    """Block c of the sum, for all c, each added in its own order around the ring."""
    reduction = stage.setting("reduction", "sum")
    return [
        _add_in_order(
            [item.take_block(part, chunk, num_ranks, dim) for part in parts], ring_order(chunk, num_ranks), reduction
        )
        for chunk in range(num_ranks)
    ]


def _all_reduce(stage: Stage, item: TensorType, parts: Arrays, num_ranks: int) -> Arrays:
    dim = ring_dim(item, num_ranks)
    blocks = _reduce_blocks(stage, item, parts, num_ranks, dim)
    full = assemble(item.with_layout(slice_layout(dim)), blocks)
    return [full.copy() for _ in range(num_ranks)]


def _reduce_scatter(stage: Stage, item: TensorType, parts: Arrays, num_ranks: int) -> Arrays:
    return _reduce_blocks(stage, item, parts, num_ranks, stage.setting("dim"))


def _all_gather(_stage: Stage, item: TensorType, parts: Arrays, num_ranks: int) -> Arrays:
    full = assemble(item, parts)
    return [full.copy() for _ in range(num_ranks)]


def _reduce(stage: Stage, item: TensorType, parts: Arrays, num_ranks: int) -> Arrays:
    """The sum on the root, block by block as the ring of an all-reduce adds it; elsewhere what was there."""
    root = stage.setting("root")
    full = _all_reduce(stage, item, parts, num_ranks)[0]
    return [full if rank == root else part.copy() for rank, part in enumerate(parts)]


def _broadcast(stage: Stage, _item: TensorType, parts: Arrays, num_ranks: int) -> Arrays:
    return [parts[stage.setting("root")].copy() for _ in range(num_ranks)]


def _send(_stage: Stage, _item: TensorType, parts: Arrays, _num_ranks: int) -> Arrays:
    return [part.copy() for part in parts]


_COLLECTIVES: dict[str, Callable[[Stage, TensorType, Arrays, int], Arrays]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "send": _send,
}
