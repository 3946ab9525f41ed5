"""All-reduce by messages: around a ring, or over the server.

In: the vector of one worker, messages that arrive. Out: messages to send, and finally the sum. Not here: the time
that messages take.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from windtunnel.systems.uneven.policy import CONTROL_BYTES, Message, Node, Send, dense_bytes

__all__ = ["Ring", "Star", "StarCenter"]


class Ring:
    """The state of one worker in a ring all-reduce: reduce-scatter, then all-gather.

    Rank r sends chunk r - 1 - j at step j of the reduce-scatter (all modulo k), so chunk ``c`` is complete on rank
    ``c``. The terms of a chunk are therefore added in one order under every driver, and sums are equal bit for bit.
    Source: Patarasu and Yuan, JPDC 2009.
    """

    def __init__(self, node: Node, tag: str) -> None:
        self._rank, self._num, self._tag = node.rank, node.num_workers, tag
        self._chunks: list[torch.Tensor] = []
        self._values: torch.Tensor | None = None
        self._early: list[Message] = []
        self._num_received = 0

    @property
    def total(self) -> torch.Tensor | None:
        """The sum, or None until it is complete."""
        is_done = self._values is not None and self._num_received == 2 * (self._num - 1)
        return self._values if is_done else None

    def add(self, values: torch.Tensor) -> list[Send]:
        """Start with this worker's vector."""
        self._values = values.clone()
        self._chunks = list(_chunk_views(self._values, self._num))
        if self._num == 1:
            return []
        early, self._early = self._early, []
        return [self._send(self._rank - 1), *(item for message in early for item in self._add_chunk(message))]

    def on_message(self, message: Message) -> list[Send]:
        """Add a chunk, or keep it until this worker's own vector is ready."""
        if self._values is None:
            self._early.append(message)
            return []
        return self._add_chunk(message)

    def _add_chunk(self, message: Message) -> list[Send]:
        # the first k - 1 chunks to arrive are partial sums (reduce-scatter), the rest are complete (all-gather)
        #      worker r sends chunk r-1 first; each chunk travels around the ring, growing by one addend per hop
        #      (n - 1 hops), and then once more as the complete sum (n - 1 hops)
        index = int(message.about["chunk"])
        if self._num_received < self._num - 1:
            self._chunks[index] += message.values
        else:
            self._chunks[index].copy_(message.values)
        self._num_received += 1
        return [self._send(index)] if self._num_received < 2 * (self._num - 1) else []

    def _send(self, chunk: int) -> Send:
        index = chunk % self._num
        values = self._chunks[index].clone()
        return Send(
            (self._rank + 1) % self._num, self._tag, values, dense_bytes(values) or CONTROL_BYTES, {"chunk": index}
        )


class Star:
    """The state of one worker in a sum over the server: it sends its vector and receives the sum."""

    def __init__(self, node: Node, tag: str) -> None:
        self._server, self._tag = node.server, tag
        self.total: torch.Tensor | None = None

    def add(self, values: torch.Tensor) -> list[Send]:
        """Start with this worker's vector."""
        return [Send(self._server, self._tag, values.clone(), dense_bytes(values))]

    def on_message(self, message: Message) -> list[Send]:
        """Store the sum."""
        self.total = message.values.clone()
        return []


class StarCenter:
    """The state of the server in a sum: it adds the vectors in the order of ranks once all have arrived.

    If a worker is lost before it sent its vector, the sum of the rest is scaled to the number of all workers, so that
    dividing it by that number still gives a mean.
    """

    def __init__(self, node: Node, tag: str) -> None:
        self._node, self._tag = node, tag
        self._parts: dict[int, torch.Tensor] = {}

    def on_message(self, message: Message) -> list[Send]:
        """Store the vector of a worker; send the sum once every vector has arrived."""
        self._parts[message.source] = message.values
        return self.whole()

    def whole(self) -> list[Send]:
        """Send the sum to all workers once every part has arrived."""
        alive = self._node.alive
        if not all(rank in self._parts for rank in alive):
            return []
        first, *others = sorted(self._parts)
        total = self._parts[first].clone()
        for rank in others:
            total += self._parts[rank]
        # Workers that were lost are missing: the sum is scaled up, so that a mean over all keeps its size.
        if len(self._parts) < self._node.num_workers:
            total *= self._node.num_workers / len(self._parts)
        return [Send(rank, self._tag, total, dense_bytes(total)) for rank in alive]


def _chunk_views(values: torch.Tensor, num: int) -> Iterator[torch.Tensor]:
    """Yield views of ``num`` parts whose sizes differ by at most one entry."""
    total = values.numel()
    for index in range(num):
        yield values[index * total // num : (index + 1) * total // num]
