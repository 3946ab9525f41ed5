"""Modules compiled by Inductor (flights of "compile-block" and "compile").

In: a live program and a pattern over module paths. Out: those modules, or whole models, run as compiled code. Compiling
takes place once, before anything is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.flights.patterns import each_block
from windtunnel.flights.proof import proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo, swap

if TYPE_CHECKING:
    import torch


@registry.flight("compile-block", source="PyTorch 2, ASPLOS 2024")
@proven_by(rises("compiled graphs"), sees_operators=False)
@contextmanager
def compile_block(program: LiveProgram, *, layer: str = "") -> Iterator[None]:
    """Run matching modules as compiled code."""
    with each_block(program, layer, lambda module: _compile_module(program, module)):
        yield


@registry.flight("compile", source="PyTorch 2, ASPLOS 2024")
@proven_by(rises("compiled graphs"), sees_operators=False)
@contextmanager
def compile_models(program: LiveProgram) -> Iterator[None]:
    """Run every model as compiled code."""
    with program.each_model(lambda model: _compile_module(program, model)):
        yield


def _compile_module(program: LiveProgram, module: torch.nn.Module) -> Undo:
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        # a frame of our own: the compiler skips those of torch's own modules, and would compile nothing of them
        return module._call_impl(*args, **kwargs)

    key = ("compiled", id(module))
    if key not in program.kept:
        program.kept[key] = torch.compile(call, dynamic=False)
    return swap(module, "_compiled_call_impl", program.kept[key])
