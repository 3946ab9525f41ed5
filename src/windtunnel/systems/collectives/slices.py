"""This rank's slices of parameters, gradients and optimizer state.

In: DDP's buckets and an optimizer. Out: per bucket the parameters in one flat tensor, of which the modules hold views,
and the pieces of this rank's chunk, each a part of one parameter, with the state that belongs to them. Not here: when
they are updated (``sliced``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.errors import NotApplicableError
from windtunnel.systems.collectives.background import BackgroundRing
from windtunnel.systems.collectives.layouts import block

if TYPE_CHECKING:
    import torch

__all__ = ["Bucket", "Piece", "cut_bucket", "gather_state", "move_state"]


@dataclass(frozen=True)
class Piece:
    """What this rank updates of one parameter; positions in elements of the flat bucket."""

    owner: torch.Tensor
    group: int
    parameter_start: int
    start: int
    stop: int
    tensor: torch.Tensor


@dataclass
class Bucket:
    """A bucket of DDP.

    Attributes
    ----------
    parameters : Tensor [N]
        All parameters of the bucket, one behind the other, as the gradients lie in DDP's bucket.
    owners : list of (parameter, first element)
    cuts : list of Piece
        Of this rank.
    """

    parameters: torch.Tensor
    owners: list[tuple[torch.Tensor, int]]
    cuts: list[Piece]
    num_groups: int

    def __post_init__(self) -> None:
        self.parameter_ids = tuple(id(parameter) for parameter, _ in self.owners)
        self.pieces = [cut.tensor for cut in self.cuts]
        self.pieces_by_group = [
            [cut.tensor for cut in self.cuts if cut.group == group] for group in range(self.num_groups)
        ]
        self._address = 0

    def set_gradients(self, buffer: torch.Tensor) -> None:
        """Let each piece have its part of DDP's bucket as its gradient."""
        is_known, self._address = self._address == buffer.data_ptr(), buffer.data_ptr()
        if not is_known:
            for cut in self.cuts:
                cut.tensor.grad = buffer[cut.start : cut.stop]


def cut_bucket(
    optimizer: torch.optim.Optimizer,
    buffer: torch.Tensor,
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    *,
    num_ranks: int,
    rank: int,
) -> Bucket:
    """Move the parameters of a bucket into one flat tensor, and cut this rank's chunk of it into pieces.

    Raises
    ------
    NotApplicableError
        A parameter or its gradient does not fill its memory without gaps, or their types differ.
    """
    import torch

    group_of = {id(item): number for number, group in enumerate(optimizer.param_groups) for item in group["params"]}
    flat = torch.empty_like(buffer)
    low, high = block(len(flat), rank, num_ranks)
    owners, cuts = [], []
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            first = (gradient.data_ptr() - buffer.data_ptr()) // buffer.element_size()
            if gradient.stride() != parameter.stride() or parameter.dtype != buffer.dtype or not _is_dense(parameter):
                raise NotApplicableError(
                    "a parameter does not lie in memory as its gradient does",
                    where=f"of shape {tuple(parameter.shape)}",
                    fix="use contiguous parameters of one type",
                )
            view = flat.as_strided(parameter.shape, parameter.stride(), first)
            view.copy_(parameter)
            parameter.data = view
            owners.append((parameter, first))
            start, stop = max(low, first), min(high, first + parameter.numel())
            if start < stop:
                tensor = torch.nn.Parameter(flat[start:stop], requires_grad=False)
                cuts.append(Piece(parameter, group_of[id(parameter)], first, start, stop, tensor))
    return Bucket(flat, owners, cuts, len(optimizer.param_groups))


def move_state(optimizer: torch.optim.Optimizer, buckets: list[Bucket]) -> None:
    """Keep only what belongs to this rank's pieces of the state of whole parameters."""
    for bucket in buckets:
        for cut in bucket.cuts:
            whole = optimizer.state.get(cut.owner, {})
            first, last = cut.start - cut.parameter_start, cut.stop - cut.parameter_start
            optimizer.state[cut.tensor] = {
                name: _flatten(value)[first:last].clone() if _is_per_element(value, cut.owner) else _copy(value)
                for name, value in whole.items()
            }
        for parameter, _ in bucket.owners:
            optimizer.state.pop(parameter, None)


def gather_state(optimizer: torch.optim.Optimizer, buckets: list[Bucket], ring: BackgroundRing) -> None:
    """Put the state of all ranks' pieces together again; all ranks have to call it."""
    import torch

    for bucket in buckets:
        states = [optimizer.state.pop(cut.tensor, {}) for cut in bucket.cuts]
        names = sorted({name for state in states for name in state})
        for name in names:
            sample = next(state[name] for state in states if name in state)
            if not isinstance(sample, torch.Tensor):
                for parameter, _ in bucket.owners:
                    optimizer.state[parameter][name] = sample
                continue
            # a count per piece travels as if each element had its own
            is_count = sample.dim() == 0
            flat = torch.zeros(len(bucket.parameters), dtype=sample.dtype)
            for cut, state in zip(bucket.cuts, states, strict=True):
                flat[cut.start : cut.stop] = state[name]
            ring.all_gather(flat).wait()
            for parameter, first in bucket.owners:
                whole = flat.as_strided(parameter.shape, parameter.stride(), first)
                optimizer.state[parameter][name] = flat[first].clone() if is_count else whole.clone()


def _is_per_element(value: Any, parameter: torch.Tensor) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.shape == parameter.shape and (value.dim() > 0)


def _flatten(value: torch.Tensor) -> torch.Tensor:
    return value.as_strided((value.numel(),), (1,))


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory."""
    pairs = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in pairs:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
