"""Modules compiled by Inductor (flights of "compile-block" and "compile").

In: a live program and a pattern over module paths. Out: those modules, or whole models, run as compiled code. Compiling
takes place once, before anything is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.errors import FlightError, InputError
from windtunnel.flights.patterns import each_block
from windtunnel.flights.proof import Counts, proven_by, rises
from windtunnel.sources.torch.live import LiveProgram, Undo, swap
from windtunnel.whatifs.compilation import COMPILE_MODES

if TYPE_CHECKING:
    import torch


@registry.flight("compile-block", source="PyTorch 2, ASPLOS 2024")
@proven_by(rises("compiled graphs"), sees_operators=False)
@contextmanager
def compile_block(program: LiveProgram, *, layer: str = "") -> Iterator[None]:
    """Run matching modules as compiled code."""
    with each_block(program, layer, lambda module: _compile_module(program, module)):
        yield


def _replays_graphs(before: Counts, after: Counts, given: Mapping[str, Any]) -> str:
    """In the mode that says so, compiled code is launched as CUDA graphs."""
    return rises("replayed graphs")(before, after, given) if given["mode"] == "reduce-overhead" else ""


@registry.flight("compile", source="PyTorch 2, ASPLOS 2024")
@proven_by(rises("compiled graphs"), _replays_graphs, sees_operators=False)
@contextmanager
def compile_models(program: LiveProgram, *, mode: str = "default") -> Iterator[None]:
    """Run every model as compiled code.

    Raises
    ------
    FlightError
        CUDA graphs are asked for, and there is no GPU.
    """
    import torch

    if mode not in COMPILE_MODES:
        raise InputError(f"torch.compile has no mode {mode!r} here", fix=f"use one of {', '.join(COMPILE_MODES)}")
    if mode == "reduce-overhead" and not torch.cuda.is_available():
        raise FlightError("mode=reduce-overhead replays CUDA graphs, which need a GPU", fix="fly compile-block")
    with program.each_model(lambda model: _compile_module(program, model, mode)):
        yield


def _compile_module(program: LiveProgram, module: torch.nn.Module, mode: str = "default") -> Undo:
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        # a frame of our own: the compiler skips those of torch's own modules, and would compile nothing of them
        return module._call_impl(*args, **kwargs)

    key = ("compiled", id(module), mode)
    if key not in program.kept:
        program.kept[key] = torch.compile(call, dynamic=False, mode=mode)
    return swap(module, "_compiled_call_impl", program.kept[key])
