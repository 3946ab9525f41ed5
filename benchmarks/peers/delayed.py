"""Training with delayed gradients in one process, as the recurrences are written down.

In: a workload, the stage of each of its modules, a rule of delay. Out: losses and weights. There is no pipeline here:
a forward pass with the weights that each stage would have seen, a backward pass, an update of the newest.

    flush:  W(t+1) = W(t) - lr * grad f(W(t))
    2bw:    W(t+1) = W(t) - lr * grad f(W(t-1))
    stash:  w(t+1) = w(t) - lr * grad f(w_0(t-n+1), w_1(t-n+2), ..., w_{n-1}(t))

Sources: PipeDream (SOSP 2019), section 3.3; PipeDream-2BW (ICML 2021), section 3.1.
"""

# n stages, m microbatches, t batches

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from windtunnel.systems.pipelines.training.parts import Batches, build_parts

__all__ = ["delayed_training", "largest_error"]

Weights = dict[str, NDArray[np.float32]]


def delayed_training(
    workload: str,
    parameters: Mapping[str, Any],
    stage_of: Mapping[str, int],
    num_batches: int,
    num_microbatches: int,
    rule: str,
    *,
    num_replicas: int = 1,
    max_norm: float = float("inf"),
    is_delayed: bool = False,
) -> tuple[list[float], Weights]:
    """Losses of all batches, and the weights after the last.

    Parameters
    ----------
    rule : str
        ``flush``, ``2bw`` or ``stash``.
    max_norm : float
        Of a gradient; ``is_delayed``: it is scaled by the norm of the batch before.
    """
    num_parts = num_microbatches * num_replicas
    built = build_parts(workload, dict(parameters), num_parts)
    assert built.supervised is not None
    model, optimizer, loss = built.model, built.optimizer, built.supervised.loss
    feed = Batches(built.supervised, num_parts, num_reads=(num_parts, num_parts))
    torch.manual_seed(torch.initial_seed())
    num_stages = 1 + max(stage_of.values())
    named = dict(model.named_parameters())
    history = [_values(named)]
    losses, before = [], 0.0
    for batch in range(num_batches):
        for name, parameter in named.items():
            delay = num_stages - 1 - _stage(name, stage_of) if rule == "stash" else int(rule == "2bw")
            parameter.data.copy_(torch.from_numpy(history[max(batch - delay, 0)][name]))
        optimizer.zero_grad()
        total = 0.0
        for part in range(num_parts):
            one = loss(model(*feed.inputs(batch, part)), feed.target(batch, part)) / num_parts
            one.backward()
            total += float(one.detach())
        losses.append(total)
        for name, parameter in named.items():
            parameter.data.copy_(torch.from_numpy(history[-1][name]))
        norm = float(torch.stack([one.grad.double().square().sum() for one in named.values()]).sum().sqrt())
        known, before = (before, norm) if is_delayed else (norm, norm)
        for parameter in named.values() if known > max_norm else ():
            parameter.grad *= max_norm / (known + 1e-6)
        optimizer.step()
        history.append(_values(named))
        if batch > num_stages:
            history[batch - num_stages - 1] = {}  # nobody looks further back
    return losses, history[-1]


def _stage(name: str, stage_of: Mapping[str, int]) -> int:
    """Of a parameter: that of the module with the longest path around it."""
    return stage_of[max((one for one in stage_of if name.startswith(f"{one}.")), key=len)]


def _values(named: Mapping[str, torch.nn.Parameter]) -> Weights:
    return {name: one.detach().numpy().copy() for name, one in named.items()}


def largest_error(found: Weights, expected: Weights) -> float:
    """The largest difference of a tensor, over that tensor's largest value."""
    assert found.keys() == expected.keys()
    return max(float(np.abs(found[name] - one).max() / max(np.abs(one).max(), 1e-30)) for name, one in expected.items())
