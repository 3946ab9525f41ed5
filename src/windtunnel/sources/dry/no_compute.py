"""Run a program without computing.

In: what the program may find on its host. Out: a context with fake tensors, values of what the program itself
computes, stand-ins where it reads anything else, and, on request, a CUDA device; and a script that runs in that
context. Dry runs, ``memory --fake`` and ``capture --fake`` all use it. Not here: what is noted of the operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.optim
from torch._subclasses import FakeTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from windtunnel.errors import InputError
from windtunnel.sources.dry.device import answer_reads, device_stands_in
from windtunnel.sources.dry.host_side import HostSide
from windtunnel.sources.dry.streams import Streams, patch_attributes
from windtunnel.sources.dry.values import Values, own_line
from windtunnel.sources.memory.fake_mode import fake_tensors
from windtunnel.sources.torch.compile_boundaries import run_eagerly
from windtunnel.sources.torch.script import Ended, Pilot, run_until_enough

__all__ = ["run_without_compute", "skip_compute", "without_workers"]

SomePilot = TypeVar("SomePilot", bound=Pilot)
_NEEDS_DEVICE = ("cuda", "dummy base class", "nvidia", "gpu", "accelerator")


@contextmanager
def skip_compute(
    values: Values,
    streams: Streams | None = None,
    *,
    has_device: bool = False,
    devices_per_host: int = 1,
    local_rank: int = 0,
    maps_devices: bool = True,
    host: HostSide | None = None,
) -> Iterator[None]:
    """Compute nothing within, and run what ``torch.compile`` made as plain Python.

    Parameters
    ----------
    values : Values
        Answer where the program reads a value that nothing has computed.
    streams : Streams, optional
        What the program queues where.
    has_device : bool
        The program finds CUDA devices, whose operators for attention, dropout and updates it uses.
    devices_per_host, local_rank : int
    maps_devices : bool
        What is meant for a CUDA device lies on the host even if the program finds none.
    host : HostSide, optional
        Notes copies to such a device, and what the program does on its host.
    """
    queues = streams or Streams()
    with ExitStack() as stack:
        if has_device:
            stack.enter_context(device_stands_in(queues, values, devices_per_host, local_rank))
        stack.enter_context(run_eagerly())
        stack.enter_context(fake_tensors(has_device=has_device))
        stack.enter_context(answer_reads(values, queues, has_device=has_device, maps_devices=maps_devices, host=host))
        stack.enter_context(_refuse_empty_inputs())
        stack.enter_context(patch_attributes(_multi_tensor_calls()))
        yield


def _multi_tensor_calls() -> dict[Any, dict[str, Any]]:
    """Let lists of fake tensors be clipped, and on a device updated, by one call, as lists of real ones are."""
    modules: list[Any] = [torch.utils._foreach_utils, sys.modules["torch.optim.optimizer"]]
    return {item: {"_foreach_supported_types": [*item._foreach_supported_types, FakeTensor]} for item in modules}


def run_without_compute(
    script: Path,
    argv: Sequence[str],
    make_pilot: Callable[[Values], SomePilot],
    *,
    has_device: bool = False,
    guesses: bool = False,
    loader_batch: int = 0,
    make_host: Callable[[], HostSide | None] = lambda: None,
) -> tuple[Ended, SomePilot]:
    """Run a script in one process without computing.

    A script that fails as it finds no CUDA device on this host is run again with one that stands in.

    Parameters
    ----------
    script : Path
    argv : sequence of str
    make_pilot : callable
        Makes what leads the instruments through the script.
    has_device : bool
        Let it find a device at once.
    guesses : bool
        Let the script decide by values that only a real run has.
    loader_batch : int
        Batch size of its data loaders; 0: their own.
    make_host : callable
        Makes what notes the program's work on its host, for each run of it.
    """
    host: HostSide | None = None

    def on_loader(arguments: dict[str, Any]) -> dict[str, Any]:
        if host is not None:
            host.note_loader(arguments)
        changed = without_workers(arguments)
        if loader_batch and changed.get("batch_size"):
            changed = {**changed, "batch_size": loader_batch}
        return _with_full_batches(changed)

    is_missing = not has_device and not torch.cuda.is_available()
    host = make_host()
    ended, pilot, has_asked = _run_once(script, argv, make_pilot, on_loader, has_device, is_missing, guesses, host)
    if is_missing and _needs_device(ended, has_asked):
        host = make_host()
        ended, pilot, _ = _run_once(script, argv, make_pilot, on_loader, True, False, guesses, host)
    return ended, pilot


def _with_full_batches(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a ``DataLoader`` without a last, shorter batch, which an iteration must not be judged by."""
    batch_size, samples = arguments.get("batch_size", 1), arguments.get("sampler") or arguments.get("dataset")
    try:
        has_one = bool(batch_size) and not arguments.get("batch_sampler") and len(samples) >= batch_size  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # a stream of samples
        has_one = False
    return {**arguments, "drop_last": True} if has_one else arguments


def _run_once(
    script: Path,
    argv: Sequence[str],
    make_pilot: Callable[[Values], SomePilot],
    on_loader: Callable[[dict[str, Any]], dict[str, Any]],
    has_device: bool,
    is_missing: bool,
    guesses: bool,
    host: HostSide | None,
) -> tuple[Ended, SomePilot, bool]:
    values = Values(guesses)
    pilot = make_pilot(values)
    with _questions(is_missing) as requested:
        ended = run_until_enough(
            script,
            argv,
            pilot,
            surroundings=skip_compute(values, has_device=has_device, maps_devices=False, host=host),
            on_loader=on_loader,
        )
    return ended, pilot, bool(requested)


@contextmanager
def _questions(is_missing: bool) -> Iterator[list[str]]:
    """Note whether the script asks for a device, where there is none."""
    requested: list[str] = []

    def answer() -> bool:
        requested.append(own_line())
        return False

    names: Mapping[Any, Mapping[str, Any]] = {torch.cuda: {"is_available": answer}} if is_missing else {}
    with patch_attributes(names):
        yield requested


def _needs_device(ended: Ended, has_asked: bool) -> bool:
    """Whether the script failed as it found no device: it says so, or had asked."""
    if isinstance(ended.failure, SystemExit):
        return has_asked and not ended.is_whole and not ended.hooks.num_steps
    words = str(ended.failure).lower()
    return isinstance(ended.failure, Exception) and any(word in words for word in _NEEDS_DEVICE)


def without_workers(arguments: dict[str, Any]) -> dict[str, Any]:
    """What a loader of fake tensors is made with: it fetches in its own process, into memory of its own."""
    kept = {key: value for key, value in arguments.items() if key not in ("prefetch_factor", "persistent_workers")}
    return {**kept, "num_workers": 0, "pin_memory": False}


@contextmanager
def _refuse_empty_inputs() -> Iterator[None]:
    """A model that is called with an empty batch does no work, so that all that is said of it would be wrong."""
    depth = 0

    def enter(module: torch.nn.Module, inputs: Any) -> None:
        nonlocal depth
        depth += 1
        # only what the script calls: modules within a model may have empty inputs, such as experts without a sample
        if depth > 1:
            return
        for leaf in tree_leaves(inputs):
            if isinstance(leaf, torch.Tensor) and not leaf.numel():
                raise InputError(
                    f"{type(module).__name__} is called with an empty batch, a tensor of shape {list(leaf.shape)}",
                    where=own_line() or "torch",
                    fix="check how the script selects its samples; every batch needs at least one",
                )

    def leave(*_: Any) -> None:
        nonlocal depth
        depth = max(depth - 1, 0)

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
