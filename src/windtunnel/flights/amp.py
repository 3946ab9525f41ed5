"""Forward passes in bfloat16, or no longer (flights of "amp" and "no-amp").

In: a live program. Out: every model's forward runs under autocast and gives float32 back, as trainer libraries do
it; backward follows automatically. Losses that are modules run under it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.flights.proof import falls, proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo, swap

if TYPE_CHECKING:
    import torch

_DTYPES = ("bfloat16", "float16")


@registry.flight("amp", source="Micikevicius et al., Mixed precision training, ICLR 2018; Daydream, ATC 2020")
@proven_by(rises("low-precision operators"))
@contextmanager
def amp(program: LiveProgram, *, dtype: str = "bfloat16") -> Iterator[None]:
    """Run every model's forward under autocast."""
    if dtype not in _DTYPES:
        raise InputError(f"autocast knows no {dtype!r}", fix=f"use one of {', '.join(_DTYPES)}")

    import torch

    def change(model: torch.nn.Module) -> Undo:
        forward = model.forward
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")

        def run_in_autocast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device, dtype=getattr(torch, dtype)):
                outputs = forward(*args, **kwargs)
            return _as_float32(outputs)

        return swap(model, "forward", run_in_autocast)

    with program.each_model(change):
        yield


@registry.flight("no-amp", source="Micikevicius et al., Mixed precision training, ICLR 2018")
@proven_by(falls("low-precision operators"))
@contextmanager
def no_amp(_program: LiveProgram) -> Iterator[None]:
    """Let the program's own autocast regions change nothing."""
    from torch.amp.autocast_mode import autocast

    enter = autocast.__enter__

    def enter_without_autocast(region: Any) -> Any:
        was_enabled, region._enabled = region._enabled, False
        try:
            return enter(region)
        finally:
            region._enabled = was_enabled

    restore = swap(autocast, "__enter__", enter_without_autocast)
    try:
        yield
    finally:
        restore()


def _as_float32(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_as_float32, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_as_float32, value))
    if isinstance(value, dict):
        return type(value)((key, _as_float32(item)) for key, item in value.items())
    return value
