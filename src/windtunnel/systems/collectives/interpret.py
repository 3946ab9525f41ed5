"""Run a plan in one process: all ranks and threads in turn, the same way each time.

In: a plan and full arrays of the inputs. Out: the values of all ranks. For tests. Not here: time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.systems.collectives.layouts import numpy_dtype
from windtunnel.systems.collectives.plan import (
    Call,
    Copy,
    Instruction,
    MatMul,
    Plan,
    RankPlan,
    Receive,
    ReceiveReduce,
    Send,
    Signal,
    Wait,
)
from windtunnel.systems.collectives.program import Program
from windtunnel.systems.collectives.reference import distribute, multiply
from windtunnel.systems.collectives.validation import validate

__all__ = ["Buffers", "collect", "compute", "fill_buffers", "interpret"]

Array = NDArray[Any]
Buffers = dict[str, Array]
_Messages = dict[tuple[int, int], deque[Array]]


def fill_buffers(plan: RankPlan, program: Program, inputs: Mapping[str, Array]) -> Buffers:
    """Buffers of a rank with its parts of full arrays, as ``reference.distribute`` cuts them."""
    buffers: Buffers = {name: np.zeros(item.size, numpy_dtype(item.dtype)) for name, item in plan.buffers.items()}
    for name, item in program.inputs.items():
        ranks = program.groups[item.group]
        if plan.rank in ranks:
            full = np.asarray(inputs[name]).astype(numpy_dtype(item.dtype), copy=False)
            part = distribute(item, full, len(ranks))[ranks.index(plan.rank)]
            buffers[name][: part.size] = part.reshape(-1)
    return buffers


def compute(item: Instruction, buffers: Buffers, *, compiled: bool = False) -> None:
    """Run an instruction that neither communicates nor waits."""
    if isinstance(item, Call):
        item.kernel([view.of(buffers) for view in item.arguments], item.first, item.base, compiled=compiled)
    elif isinstance(item, MatMul):
        with np.errstate(all="ignore"):
            multiply(item.a.of(buffers), item.b.of(buffers), item.target.of(buffers))
    elif isinstance(item, Copy):
        np.copyto(item.target.of(buffers), item.source.of(buffers), casting="unsafe")


def interpret(
    plan: Plan, program: Program, inputs: Mapping[str, Array], *, compiled: bool = False
) -> dict[str, list[Array]]:
    """Values of a program after one step of a plan.

    Parameters
    ----------
    plan : Plan
    program : Program
        That the plan was lowered from.
    inputs : mapping of str to array
        Full arrays; not changed.
    compiled : bool
        Compile kernels; by default NumPy computes the same.

    Returns
    -------
    dict of str to list of arrays
        What each rank of a value's group stores of it, for outputs, inputs and updated inputs.

    Raises
    ------
    InputError
        The plan cannot be run to its end.
    """
    validate(plan)
    memory = [fill_buffers(rank, program, inputs) for rank in plan.ranks]
    threads = [(rank.rank, items) for rank in plan.ranks for items in rank.threads.values()]
    position = [0] * len(threads)
    messages: _Messages = {}
    events: set[tuple[int, int]] = set()
    while any(position[i] < len(items) for i, (_, items) in enumerate(threads)):
        for i, (rank, items) in enumerate(threads):
            while position[i] < len(items) and _advance(rank, items[position[i]], memory, messages, events, compiled):
                position[i] += 1
    return collect(plan, program, memory)


def _advance(
    rank: int,
    item: Instruction,
    memory: list[Buffers],
    messages: _Messages,
    events: set[tuple[int, int]],
    compiled: bool,
) -> bool:
    """Run an instruction, unless it has to wait."""
    buffers = memory[rank]
    if isinstance(item, Send):
        messages.setdefault((rank, item.peer), deque()).append(item.source.of(buffers).copy())
    elif isinstance(item, Receive | ReceiveReduce):
        waiting = messages.get((item.peer, rank))
        if not waiting:
            return False
        data, target = waiting.popleft(), item.target.of(buffers)
        if isinstance(item, ReceiveReduce):
            reduce = np.maximum if item.reduction == "max" else np.add
            with np.errstate(all="ignore"):
                reduce(data, item.own.of(buffers), out=target)
        else:
            target[...] = data
    elif isinstance(item, Signal):
        events.add((rank, item.event))
    elif isinstance(item, Wait):
        return (rank, item.event) in events
    else:
        compute(item, buffers, compiled=compiled)
    return True


def collect(plan: Plan, program: Program, memory: Sequence[Buffers]) -> dict[str, list[Array]]:
    """What each rank of a value's group stores of it, for inputs and outputs, from the buffers of all ranks."""
    result: dict[str, list[Array]] = {}
    for name in dict.fromkeys([*program.inputs, *program.outputs]):
        item = program.types[name]
        ranks = program.groups[item.group]
        result[name] = [
            plan.ranks[rank].values[name].of(memory[rank]).reshape(item.local_shape(index, len(ranks)))
            for index, rank in enumerate(ranks)
        ]
    return result
