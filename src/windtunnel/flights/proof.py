"""What a program really does in an iteration, counted: proof that a change took place; and the loss it computes.

In: a live program. Out: counts per iteration: elements that enter its models, updates, operators by precision, layout
and kind, threads, workers, ranks, compiled graphs. They are taken once, in iterations that are not timed. A flight
says by ``proven_by`` which of them its change must move; ``unproven`` says what did not. The loss is the scalar that
``backward`` is called on, read outside of measurements.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from windtunnel.graph.flops import PRODUCT_OPERANDS
from windtunnel.sources.torch.live import LiveProgram, Undo, swap

if TYPE_CHECKING:
    import torch

__all__ = [
    "BATCHES_AHEAD",
    "DISTRIBUTED",
    "LOADING_THREAD",
    "Claim",
    "Counts",
    "LossWatch",
    "Witness",
    "becomes",
    "differs",
    "falls",
    "falls_if_any",
    "proven_by",
    "rises",
    "scales",
    "unproven",
]

Counts = Mapping[str, float]
Claim = Callable[[Counts, Counts, Mapping[str, Any]], str]
Flight = TypeVar("Flight", bound=Callable[..., Any])
LOADING_THREAD = "loads batches ahead"  # name of a thread that a flight starts
BATCHES_AHEAD = "batches loaded ahead"  # where a flight keeps how many a thread has ready
DISTRIBUTED = "distributed models"  # where a flight keeps what it wrapped
_COPIES = ("_to_copy", "copy_")
_LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
_MIN_SHARE = 0.5  # of what was promised: sizes are rounded, and some inputs do not depend on the batch


class Witness:
    """Counts what a program does while it is watched.

    Parameters
    ----------
    program : LiveProgram
    loaders : iterable
        What draws its batches.
    sees_operators : bool
        Operators are seen one by one; not where a compiler must not be disturbed.
    """

    def __init__(self, program: LiveProgram, loaders: Iterable[Any] = (), *, sees_operators: bool = True) -> None:
        self._program, self._loaders, self._sees_operators = program, list(loaders), sees_operators
        self._found: Counter[str] = Counter()
        self._stack = ExitStack()

    def begin(self) -> None:
        """Watch from here on."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._found.subtract(self._program.counts)  # of the iterations before
        for model in self._program.models:
            handle = model.register_forward_pre_hook(self._see_inputs, with_kwargs=True)
            self._stack.callback(handle.remove)
        self._stack.callback(register_optimizer_step_post_hook(self._see_update).remove)
        self._stack.callback(_count_replays(self._found))
        if self._sees_operators:
            self._stack.enter_context(_operators(self._found))

    def end(self, num_iterations: int) -> dict[str, float]:
        """Stop watching; counts per iteration, and settings as they are now."""
        self._found.update(self._program.counts)
        settings = self._settings()  # what a flight set is unset when it is left
        self._stack.close()
        counts = {key: value / max(num_iterations, 1) for key, value in self._found.items()}
        return counts | settings

    @contextmanager
    def watching(self, num_iterations: int, into: dict[str, float]) -> Iterator[None]:
        """Count operators during a block of ``num_iterations`` iterations."""
        self.begin()
        try:
            yield
        finally:
            into.update(self.end(num_iterations))

    def _see_inputs(self, _module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._found["input elements"] += max((tensor.numel() for tensor in _tensors((args, kwargs))), default=0)

    def _see_update(self, optimizer: Any, *_: Any) -> None:
        self._found["updates"] += 1
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        self._found["sparse gradients"] += sum(gradient is not None and gradient.is_sparse for gradient in gradients)

    def _settings(self) -> dict[str, float]:
        import torch

        from windtunnel.sources.torch.annotate import state_bytes

        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] if "torch._dynamo" in sys.modules else 0
        distributed = self._program.kept.get(DISTRIBUTED, [])
        reducers = [model._get_ddp_logging_data() for model in distributed]
        hooks = [
            str(reducer.get("comm_hook", "")).lower() for reducer in reducers if int(reducer.get("iteration", 0)) > 0
        ]
        return {
            "threads": torch.get_num_threads(),
            "collector": float(gc.isenabled()),
            "loading threads": float(sum(thread.name == LOADING_THREAD for thread in threading.enumerate())),
            "optimizer state bytes": float(sum(map(state_bytes, self._program.optimizers))),
            # of each loader: one for training and one for testing have as many
            "workers": max((int(loader.num_workers) for loader in self._loaders), default=0),
            "compiled graphs": float(graphs),
            "ranks": float(self._program.num_ranks),
            "averaged models": float(len(hooks)),
            "models averaged in half precision": float(sum("fp16" in hook for hook in hooks)),
            "models averaged by factors": float(sum("powersgd" in hook for hook in hooks)),
        }


def _count_replays(counts: Counter[str]) -> Undo:
    import torch

    replay = torch.cuda.CUDAGraph.replay

    def count(graph: Any) -> None:
        counts["replayed graphs"] += 1
        replay(graph)

    return swap(torch.cuda.CUDAGraph, "replay", count)


def _tensors(value: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _operators(counts: Counter[str]) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    low = (torch.bfloat16, torch.float16)

    class Operators(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        """Counts every operator that is dispatched."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func._opname
            seen = _tensors((args, kwargs))
            created = _tensors(result)
            counts["operators"] += 1
            counts["elements"] += sum(item.numel() for item in created)
            counts["low-precision operators"] += any(item.dtype in low for item in (*seen, *created))
            counts["channels-last operators"] += any(_is_channels_last(item) for item in seen)
            counts["fused updates"] += name.startswith("_fused_")
            counts["updates of many tensors"] += name.startswith("_foreach_")
            counts["TF32 products"] += _rounds_inputs(name, seen)
            counts["copies from pinned memory"] += name in _COPIES and any(item.is_pinned() for item in seen)
            counts["averaged messages"] += name == "allreduce_"
            counts["losses"] += name in _LOSSES
            return result

    return Operators()


def _rounds_inputs(name: str, tensors: Iterable[Any]) -> bool:
    """Whether a product of float32 on a GPU takes its inputs as TensorFloat-32."""
    import torch

    backends: Any = torch.backends
    if not any(tensor.is_cuda and tensor.dtype is torch.float32 for tensor in tensors):
        return False
    if name.startswith(("convolution", "cudnn_convolution")):
        return bool(backends.cudnn.conv.fp32_precision == "tf32")
    return name in PRODUCT_OPERANDS and bool(backends.cuda.matmul.fp32_precision == "tf32")


def _is_channels_last(tensor: Any) -> bool:
    import torch

    if tensor.dim() != 4 or tensor.is_contiguous():
        return False
    return bool(tensor.is_contiguous(memory_format=torch.channels_last))


# --- what a flight must show --------------------------------------------------------------------------------


def proven_by(*claims: Claim, sees_operators: bool = True) -> Callable[[Flight], Flight]:
    """Say of a flight which counts its change must move."""

    def decorate(flight: Flight) -> Flight:
        flight.claims = claims  # type: ignore[attr-defined]
        flight.sees_operators = sees_operators  # type: ignore[attr-defined]
        return flight

    return decorate


def rises(key: str) -> Claim:
    """There is more of it."""
    return lambda before, after, _: _unless(after.get(key, 0) > before.get(key, 0), key, before, after)


def falls(key: str) -> Claim:
    """There is less of it."""
    return lambda before, after, _: _unless(after.get(key, 0) < before.get(key, 0), key, before, after)


def falls_if_any(key: str) -> Claim:
    """There is less of it, unless there was none."""
    return lambda before, after, given: falls(key)(before, after, given) if before.get(key, 0) else ""


def differs(key: str) -> Claim:
    """There is more or less of it."""
    return lambda before, after, _: _unless(after.get(key, 0) != before.get(key, 0), key, before, after)


def becomes(key: str, expected: str | float) -> Claim:
    """It is as a parameter of the flight says, or as given, and was not before."""

    def claim(before: Counts, after: Counts, given: Mapping[str, Any]) -> str:
        value = float(given[expected] if isinstance(expected, str) else expected)
        return _unless(after.get(key, 0) == value != before.get(key, 0), key, before, after)

    return claim


def scales(key: str, factor_of: Callable[[Mapping[str, Any]], float], *, instead: str = "") -> Claim:
    """It is so many times as much, to the half of what that changes; ``instead`` counts where the key never occurs."""

    def claim(before: Counts, after: Counts, given: Mapping[str, Any]) -> str:
        name = key if key in before and key in after else instead or key
        old, new = before.get(name, 0.0), after.get(name, 0.0)
        factor = factor_of(given)
        moved = (new / old - 1) / (factor - 1) if old and factor != 1 else 0.0
        return _unless(_MIN_SHARE <= moved <= 1 / _MIN_SHARE, name, before, after)

    return claim


def _defaults(flight: Any) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(flight).parameters.items()}


def _unless(is_so: bool, key: str, before: Counts, after: Counts) -> str:
    if is_so:
        return ""
    return f"{key} per iteration: {before.get(key, 0):g} without it, {after.get(key, 0):g} with it"


def unproven(before: Counts, after: Counts, flights: Sequence[tuple[Any, Mapping[str, Any]]]) -> str:
    """What did not change although a flight says so; empty where all took place.

    A flight that claims nothing must change something that is counted.
    """
    for flight, reported in flights:
        given = _defaults(flight) | dict(reported)
        claims = getattr(flight, "claims", ())
        missing = next((text for claim in claims if (text := str(claim(before, after, given)))), "")
        if missing:
            return missing
        if not claims and dict(before) == dict(after):
            return "nothing that is counted changed"
    return ""


class LossWatch:
    """Remember the last tensor from which a backward pass began; it is read only on demand, as reading waits for it."""

    def __init__(self) -> None:
        self._last: torch.Tensor | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch ``Tensor.backward``."""
        import torch

        backward = torch.Tensor.backward

        def watch_backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._last = tensor.detach()
            return backward(tensor, *args, **kwargs)

        restore = swap(torch.Tensor, "backward", watch_backward)
        try:
            yield
        finally:
            restore()

    def read(self) -> list[float]:
        """The last loss, if there was one and it is a number."""
        last, self._last = self._last, None
        return [float(last)] if last is not None and last.numel() == 1 else []
