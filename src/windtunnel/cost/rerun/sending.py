"""How DistributedDataParallel may send its gradients: what partial flights price and flights fly.

In: options. Out: state and communication hook, ready to be registered. Not here: processes, links, timing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["SENDERS", "in_order", "thin_factors"]

Sender = tuple[Any, Callable[..., Any]]


def thin_factors(rank: int = 2) -> Sender:
    """As two factors of each matrix (Vogels et al., PowerSGD, NeurIPS 2019); the first two iterations as they are."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    return state, powerSGD_hook.powerSGD_hook


SENDERS: Mapping[str, Callable[..., Sender]] = {"powersgd": thin_factors}


def in_order(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Wait for every message before the next: PowerSGD sends from within callbacks, which gloo runs in any order."""

    def blocking(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        work = all_reduce(tensor, *args, **kwargs)
        if work is not None:
            work.wait()
        return work

    return blocking
