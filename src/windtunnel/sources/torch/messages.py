"""Which messages an iteration sends, and to whom.

In: one iteration of a program whose ranks talk through ``torch.distributed``. Out: ``Message`` per call of a process
group, in the order in which they were issued: what no profile tells of gloo. Not here: how long they took
(``collectives``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.graph.meta import ProcessGroup
from windtunnel.sources.torch.profile import annotate

__all__ = [
    "FUNCTIONAL",
    "OPS",
    "PEER_TO_PEER",
    "WAIT",
    "Message",
    "MessageLog",
    "WaitMarks",
    "is_distributed",
    "size_of",
]

WAIT = "wt:wait:"

# operator of torch.distributed -> our name
OPS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
# what DTensor and the compiler call; they come to the same operators where no mode can see them
FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
_TABLES = {"c10d": OPS, "_c10d_functional": FUNCTIONAL, "_c10d_functional_autograd": FUNCTIONAL}
PEER_TO_PEER = ("send", "recv")
_NUMBERED = {12: "send", 13: "recv", 14: "recv"}  # c10d::OpType


@dataclass(frozen=True, slots=True)
class Message:
    """One call of a process group.

    Parameters
    ----------
    op : str
    group : ProcessGroup
    size_bytes : int
        The larger of what goes in and what comes out: of an all-gather the result, of a reduce-scatter the input.
    peer, tag : int
        The other rank of the job and the tag of a message between two; -1 for a collective.
    """

    op: str
    group: ProcessGroup
    size_bytes: int
    peer: int = -1
    tag: int = -1


def is_distributed() -> bool:
    """Whether this program talks to others."""
    return distributed.is_available() and distributed.is_initialized()


class MessageLog(TorchDispatchMode):
    """Note every call of a process group within the ``with`` block, those of C++ (a reducer's) too."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Let the call pass, and note it."""
        del types
        op = _TABLES.get(func.namespace, {}).get(func.overloadpacket.__name__)
        index = len(self.messages)
        result = func(*args, **(kwargs or {}))
        if op and len(self.messages) == index:  # what calls another of these is noted there
            self.messages.append(_make_message(op, args, result))
        return result


class WaitMarks:
    """Show in profiles where Python waits for a message; what C++ waits for (a reducer) shows itself otherwise."""

    def __init__(self) -> None:
        self._original: Any = None

    def install(self) -> None:
        """Mark every wait from now on."""
        if not is_distributed() or self._original is not None:
            return
        work: Any = distributed.Work
        original = self._original = work.wait

        @functools.wraps(original)
        def wait(one: Any, *args: Any, **kwargs: Any) -> Any:
            with annotate(WAIT + _work_name(one)):
                return original(one, *args, **kwargs)

        work.wait = wait

    def remove(self) -> None:
        """Leave no mark."""
        if self._original is not None:
            work: Any = distributed.Work
            work.wait, self._original = self._original, None


def _work_name(work: Any) -> str:
    try:
        return _NUMBERED.get(work._get_op_type(), "collective")
    except RuntimeError:  # one that a program made itself
        return "work"


def _make_message(op: str, args: tuple[Any, ...], result: Any) -> Message:
    group = _group(args)
    ranks = tuple(distributed.get_process_group_ranks(group))
    sizes = [size_of(arg) for arg in (*args, result) if isinstance(arg, (list, tuple, torch.Tensor))]
    peer, tag = -1, -1
    if op in PEER_TO_PEER:
        numbers = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)]
        peer, tag = (ranks[numbers[0]], numbers[1]) if len(numbers) > 1 else (-1, numbers[0])
    return Message(op, ProcessGroup(str(group.group_name), ranks), max(sizes, default=0), peer, tag)


def _group(args: tuple[Any, ...]) -> Any:
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            return distributed.ProcessGroup.unbox(arg)  # the first: a reduction may follow
        if isinstance(arg, distributed.ProcessGroup):
            return arg
    name = next(arg for arg in reversed(args) if isinstance(arg, str))
    c10d: Any = distributed.distributed_c10d
    return c10d._resolve_process_group(name)


def size_of(value: Any) -> int:
    """Bytes of the elements of all tensors in it."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(size_of, value)) if isinstance(value, Iterable) and not isinstance(value, str) else 0
