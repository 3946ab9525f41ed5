"""Batch norm that rectifies as it normalizes (flight of "reconstructed-batchnorm").

In: a live program with batch norms. Out: each of them as one operator that really trains, together with the ReLU or
leaky ReLU behind it if there is one, with little more than half the memory traffic. Which norm feeds which
rectifier is seen in the first iteration, so that the model's source is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights.proof import differs, proven_by
from windtunnel.sources.torch.live import LiveProgram, Undo, swap, together

if TYPE_CHECKING:
    import torch

_LEAKS = "leak of the rectifier behind each norm"
_NO_RECTIFIER = 1.0


@registry.flight("reconstructed-batchnorm", source="Jung et al., MLSys 2019; Daydream, ATC 2020")
@proven_by(differs("operators"))
@contextmanager
def reconstructed_batchnorm(program: LiveProgram) -> Iterator[None]:
    """Run every batch norm together with the ReLU behind it."""
    import torch

    leaks: dict[int, float] = program.kept.setdefault(_LEAKS, {})
    norms: list[torch.nn.Module] = []

    def change(model: torch.nn.Module) -> Undo:
        local = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
        norms.extend(local)
        return together([_with_rectifier(module, leaks) for module in local])

    with ExitStack() as stack:
        stack.callback(_rectify_once(leaks))
        stack.enter_context(program.each_model(change))
        if program.models and not norms:
            raise FlightError("no model has a batch norm")
        yield


def _with_rectifier(norm: Any, leaks: dict[int, float]) -> Undo:
    """Let a norm do the work of the rectifier behind it; its first output is marked, to see where it goes."""
    plain = norm.forward
    seen: list[bool] = []

    def forward(x: torch.Tensor) -> Any:
        if (not seen and id(norm) not in leaks) or not _is_plain(norm, x):
            seen.append(True)
            y: Any = plain(x)
            y.normed_by = id(norm)
            return y
        from windtunnel.cost.rerun import RectifiedNorm

        leak = leaks.setdefault(id(norm), _NO_RECTIFIER)
        parameters = (norm.weight, norm.bias, norm.eps, leak)
        y, mean, variance = RectifiedNorm.apply(x, *parameters)
        _update_running(norm, mean, variance, x.numel() // x.shape[1])
        y.is_rectified = leak != _NO_RECTIFIER
        return y

    return swap(norm, "forward", forward)


def _is_plain(norm: Any, x: torch.Tensor) -> bool:
    import torch

    is_usual = bool(norm.training and norm.affine and norm.momentum is not None)
    return is_usual and x.dtype is torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def _update_running(norm: Any, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
    import torch

    if not norm.track_running_stats:
        return
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        # .data, as torch's own norm does not count its running statistics as changed either
        norm.running_mean.data.lerp_(mean, norm.momentum)
        norm.running_var.data.lerp_(variance * (count / max(count - 1, 1)), norm.momentum)


def _rectify_once(leaks: dict[int, float]) -> Undo:
    """Let every rectifier pass on what is rectified already, and learn whose output it got."""
    import torch

    functional = torch.nn.functional

    def watch_rectifier(plain: Any, leak: float) -> Any:
        def rectify(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if getattr(x, "is_rectified", False):
                return x
            if hasattr(x, "normed_by"):
                leaks[x.normed_by] = float(args[0] if args and leak else kwargs.get("negative_slope", leak))
            return plain(x, *args, **kwargs)

        return rectify

    return together(
        [
            swap(functional, "relu", watch_rectifier(functional.relu, 0.0)),
            swap(torch, "relu", watch_rectifier(torch.relu, 0.0)),
            swap(functional, "leaky_relu", watch_rectifier(functional.leaky_relu, 0.01)),
        ]
    )
