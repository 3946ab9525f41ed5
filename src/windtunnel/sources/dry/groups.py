"""Collectives of a job whose other ranks are not there.

In: operators of ``torch.distributed`` as they are called. Out: what each sends, in which group, and a result that is
there at once. The process group is torch's fake one. Objects that one rank sends another are kept until that one is
traced, too, as pipelines tell each other shapes so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from windtunnel.graph.meta import ProcessGroup
from windtunnel.sources.torch.messages import FUNCTIONAL, OPS, PEER_TO_PEER, size_of

__all__ = ["Groups", "Message", "complete_collective"]

# places of what comes out and of what goes in among the arguments; of all others first and second
_PLACES = {
    "all_reduce": (0, 0),
    "broadcast": (0, 0),
    "reduce": (0, 0),
    "barrier": (0, 0),
    "send": (-1, 0),
    "recv": (0, -1),
}
WAIT = "_c10d_functional::wait_tensor"
WRAP = "_c10d_functional::_wrap_tensor_autograd"  # in a tensor that waits before it is first used


@dataclass(frozen=True, slots=True)
class Message:
    """One call of a process group.

    Parameters
    ----------
    op : str
    group : int
        Its place in ``Groups.known``.
    size_bytes : int
        The larger of what goes in and what comes out: of an all-gather the result, of a reduce-scatter the input.
    sequence : int
        The n-th of its group.
    peer, tag : int
        The other rank of the job and the tag of a message between two; -1 for a collective.
    blocks : bool
        The stream that calls it goes on only when it is done.
    outputs, inputs : tuple of int
        Places of its tensors among the arguments.
    """

    op: str
    group: int
    size_bytes: int
    sequence: int
    peer: int
    tag: int
    blocks: bool
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]


@dataclass
class Groups:
    """The process groups that were used, in the order of their first message."""

    known: list[ProcessGroup] = field(default_factory=list)
    _numbers: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """An iteration begins: count from 0."""
        self._counts.clear()

    def message_of(self, schema: Any, values: list[Any]) -> Message | None:
        """What an operator sends; None if it sends nothing."""
        namespace, _, name = schema.name.partition("::")
        if namespace == "c10d" and name in OPS:
            op = OPS[name]
            output, given = _PLACES.get(op, (0, 1))
            group = next(dist.ProcessGroup.unbox(value) for value in values if isinstance(value, torch.ScriptObject))
            named = {argument.name: value for argument, value in zip(schema.arguments, values, strict=True)}
            blocks = not named.get("async_op", True)
            indices = (() if output < 0 else (output,)), (() if given < 0 else (given,))
            return self._message(op, group, values, blocks, *indices, named=named)
        if namespace == "_c10d_functional" and name in FUNCTIONAL:
            op = FUNCTIONAL[name]
            group = _group_of(values[[argument.name for argument in schema.arguments].index("group_name")])
            size_ratio = group.size() if op == "all_gather" else 1
            return self._message(op, group, values, False, (), (0,), size_ratio=size_ratio)
        return None

    def _message(
        self,
        op: str,
        group: Any,
        values: list[Any],
        blocks: bool,
        outputs: tuple[int, ...],
        inputs: tuple[int, ...],
        *,
        named: dict[str, Any] | None = None,
        size_ratio: int = 1,
    ) -> Message:
        ranks = tuple(dist.get_process_group_ranks(group))
        name = str(group.group_name)
        number = self._numbers.setdefault((name, ranks), len(self.known))
        if number == len(self.known):
            self.known.append(ProcessGroup(name, ranks))
        size = size_ratio * max((size_of(values[index]) for index in (*outputs, *inputs)), default=0)
        peer, tag = -1, -1
        if op in PEER_TO_PEER and named is not None:
            reported = named.get("dst", named.get("src"))
            peer, tag = (-1 if reported is None else ranks[reported]), named["tag"]
        sequence = self._counts[number] = self._counts.get(number, -1) + 1
        size = 0 if op == "barrier" else size
        return Message(op, number, size, sequence, peer, tag, blocks, outputs, inputs)


def _group_of(group: Any) -> Any:
    resolve: Any = dist.distributed_c10d
    return resolve._resolve_process_group(group) if isinstance(group, str) else group


def complete_collective(schema: Any, message: Message, values: list[Any]) -> Any:
    """Return what an operator of ``c10d`` returns once the collective is complete."""
    filled = values[message.outputs[0]] if message.outputs else values[0]
    future: Any = torch.futures.Future()
    future.set_result([tree_leaf for tree_leaf in tree_leaves(filled) if isinstance(tree_leaf, torch.Tensor)])
    binding: Any = torch._C._distributed_c10d
    work = binding._create_work_from_future(future).boxed()
    return (filled, work) if len(schema.returns) == 2 else work
