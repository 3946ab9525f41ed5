"""What of a program's memory a GPU would not hold: data that stay on its host.

In: storages as a tracker finds them, the operators that use them, and which tensors lie on the host, as dry runs know
it (``dry.host_side``). Out: the bytes of each storage that the GPU would hold. Not here: following storages
(``tracker``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from windtunnel.sources.dry.host_side import ON_HOST, HostSide, lies_on_host
from windtunnel.sources.memory.dispatch import tensors_in
from windtunnel.sources.memory.storages import INPUT, TEMPORARY, Ledger, storages_of

__all__ = ["HostData"]

_SELECTIONS = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_select.default,
    torch.ops.aten.gather.default,
    torch.ops.aten.take.default,
}


class HostData:
    """Tells what stays on the host from what the GPU holds.

    A script that uses a device says itself where its data lie. One that uses none is imagined with everything on the
    GPU except data sets: of an input that was there before the iteration, the GPU holds the largest part that an
    operator reads other than to select a batch from it.

    Parameters
    ----------
    host : HostSide
        Has followed the program from its start.
    imagines_device : bool
        A program that puts nothing on a device is meant to run on one.
    """

    def __init__(self, host: HostSide, *, imagines_device: bool) -> None:
        self._host, self._imagines_device = host, imagines_device
        self._facts: list[dict[str, Any]] = []  # of each storage, where its place is noted; they outlive it
        self._read_bytes: dict[int, int] = {}  # of each resting input

    def enrol(self, storage: Any) -> None:
        """Follow the next storage of the ledger."""
        self._facts.append(vars(storage))

    def note_input(self, number: int, storage: Any, tensor: torch.Tensor) -> None:
        """Take this storage for data that the program has brought along, until it shows to be something else."""
        vars(storage).setdefault(ON_HOST, lies_on_host(tensor))
        self._read_bytes[number] = 0

    def note_use(self, func: Any, args: Sequence[Any], result: Any, known: dict[int, int], *, is_outside: bool) -> None:
        """Keep how much of the inputs an operator reads; views and selections outside of any module read nothing."""
        # a graph network selects from the features of all its nodes, which have to be there
        if not self._read_bytes or (is_outside and func in _SELECTIONS):
            return
        results = {id(storage) for tensor in tensors_in(result) for storage in storages_of(tensor)}
        for tensor in tensors_in(args) if results else ():  # what has none only asks for a property
            for storage in storages_of(tensor):
                number = known.get(id(storage), -1)
                if number in self._read_bytes and id(storage) not in results:
                    read_bytes = tensor.numel() * tensor.element_size()
                    self._read_bytes[number] = max(self._read_bytes[number], read_bytes)

    def limit_bytes(self, ledger: Ledger, number: int) -> int | None:
        """At most this much of a storage lies on the GPU; None: all of it.

        Weights, gradients, states and what autograd keeps always count: where they are made, a program moves them.
        """
        if ledger.categories[number] not in (INPUT, TEMPORARY):
            return None
        if self._host.uses_device:
            is_batch = not ledger.layers[number]  # a layer makes its tensors on the device of others
            return 0 if is_batch and self._facts[number].get(ON_HOST, False) else None
        return self._read_bytes.get(number) if self._imagines_device else None
