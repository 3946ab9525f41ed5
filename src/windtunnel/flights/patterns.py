"""Which modules of a live program a flight means.

In: a live program and a regular expression over module paths. Out: modules, outermost first. Paths are those of
``named_modules``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from windtunnel.errors import FlightError, InputError
from windtunnel.sources.torch.live import LiveProgram, Undo, together

if TYPE_CHECKING:
    import torch

__all__ = ["each_block", "find_repeated_blocks", "matching", "outermost", "paths_of"]


def paths_of(program: LiveProgram, model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules of a model by the path that a capture gives them; the model itself has the name of its class."""
    from windtunnel.sources.torch.annotate import module_paths

    paths = module_paths(program.models)
    return {paths[id(module)]: module for module in model.modules()}


def matching(program: LiveProgram, model: torch.nn.Module, pattern: str) -> dict[str, torch.nn.Module]:
    """Modules whose whole path the regular expression matches.

    Raises
    ------
    InputError
        The pattern is no regular expression.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"{pattern!r} is not a regular expression: {error}", fix="escape its special signs") from error
    return {path: module for path, module in paths_of(program, model).items() if compiled.fullmatch(path)}


def outermost(modules: dict[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Without those that lie within another one of them."""
    inner = {id(child) for module in modules.values() for child in module.modules() if child is not module}
    return {path: module for path, module in modules.items() if id(module) not in inner}


def find_repeated_blocks(program: LiveProgram, model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The largest parts that a model stacks: numbered members of a list, with parameters; else its direct children."""
    paths = {
        path: module for path, module in paths_of(program, model).items() if any(True for _ in module.parameters())
    }
    parents = [path.rpartition(".")[0] for path in paths_of(program, model) if path.rpartition(".")[2].isdigit()]
    blocks = {
        path: module
        for path, module in paths.items()
        if path.rpartition(".")[2].isdigit() and parents.count(path.rpartition(".")[0]) > 1
    }
    children = {id(child) for child in model.children()}
    return outermost(blocks or {path: module for path, module in paths.items() if id(module) in children})


@contextmanager
def each_block(program: LiveProgram, layer: str, change: Callable[[torch.nn.Module], Undo]) -> Iterator[None]:
    """Change the modules that match, or without a pattern the blocks that a model stacks; restore them at the end.

    Raises
    ------
    FlightError
        No module matches.
    """
    changed: list[str] = []

    def change_model(model: torch.nn.Module) -> Undo | None:
        if not any(True for _ in model.parameters()):
            return None
        modules = outermost(matching(program, model, layer)) if layer else find_repeated_blocks(program, model)
        changed.extend(modules)
        return together([change(module) for module in modules.values()])

    with program.each_model(change_model):
        if program.models and not changed:
            raise FlightError(f"no module matches {layer!r}")
        yield
