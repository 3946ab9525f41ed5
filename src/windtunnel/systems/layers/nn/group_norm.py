"""Group norms in place of batch norms: each sample is normalized on its own.

In: the arguments of a batch norm. Out: a ``Replacement`` with the same scales and offsets. Source: Wu and He, Group
Normalization, ECCV 2018; Hsieh et al., The Non-IID Data Quagmire, ICML 2020, section 5, which takes it where workers
hold different classes: the mean of a batch is then not that of all data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.layers.nn.layers import Replacement

__all__ = ["group_norm", "num_groups"]


def num_groups(num_channels: int, groups: int) -> int:
    """The number of groups of equal size that is asked for, or the next smaller one that divides both.

    Examples
    --------
    >>> num_groups(64, 32), num_groups(24, 32)
    (32, 8)
    """
    if groups < 1:
        raise InputError(f"a group norm has 1 group or more, not {groups}", where=f"groups={groups}")
    return math.gcd(num_channels, groups)


@registry.layer("group-norm", source="Wu and He, ECCV 2018; Hsieh et al., ICML 2020")
def group_norm(operator: str, arguments: Sequence[Any], *, groups: int = 32) -> Replacement:
    """A norm over groups of channels of each sample, with the batch norm's scales and offsets.

    Parameters
    ----------
    operator : str
        ``aten::batch_norm``.
    arguments : sequence
        Of one call; its input says the number of channels.
    groups : int
    """
    if operator != "aten::batch_norm":
        raise InputError(f"a group norm cannot replace {operator}", fix="use it for batch norms")
    num = num_groups(arguments[0].shape[1], groups)

    def run(
        x: torch.Tensor, weight: Any, bias: Any, _mean: Any, _variance: Any, _training: bool, _momentum: float,
        eps: float, *_others: Any,
    ) -> torch.Tensor:  # fmt: skip
        return torch.nn.functional.group_norm(x, num, weight, bias, eps)

    return Replacement(run)
