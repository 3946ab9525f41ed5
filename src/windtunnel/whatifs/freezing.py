"""Layers that no longer learn (what-if family "freezing").

In: a captured graph and a pattern over layers. Out: no gradients of their weights, no updates of their parameters,
and no backward pass below the first layer that still learns.
"""

from __future__ import annotations

import re

from windtunnel import registry
from windtunnel.cost.rerun import Form, Program, UpdateForm
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.simulate.limits import less_work, of_phase
from windtunnel.whatifs.block_patterns import compile_pattern
from windtunnel.whatifs.measured import Unpriced, require_program, with_update

__all__ = ["freeze_layers"]


@registry.whatif(
    "freeze-layers",
    source="Transfer learning; Howard and Ruder, ULMFiT, ACL 2018",
    limits=less_work(
        of_phase(Phase.BACKWARD, Phase.UPDATE), "freezing saves gradients and updates only", max_added_bytes=0
    ),
)
def freeze_layers(graph: Graph, layer: str = "") -> Unpriced:
    """Train without the parameters of the layers that match.

    Parameters
    ----------
    graph : Graph
    layer : str
        Regular expression that matches the whole path of a module; its parameters, and those of modules in it, freeze.

    Raises
    ------
    NotApplicableError
        No layer is named, none matches, or nothing would be left to train.
    """
    if not layer:
        raise NotApplicableError("no layer is named to freeze", fix="pass layer=, such as layer=encoder\\..*")
    program = require_program(graph)
    frozen = _matching(program, layer)
    return with_update(graph, Form(frozen=frozen), UpdateForm(frozen=frozenset(frozen)))


def _matching(program: Program, layer: str) -> tuple[str, ...]:
    pattern = compile_pattern(layer)
    trained = sorted(set(program.parameters.values()) - program.frozen)
    already = [name for name in program.frozen if _lies_in(name, pattern)]
    if already and not any(_lies_in(name, pattern) for name in trained):
        raise InEffectError(f"all {len(already)} parameters of {layer!r} are frozen", where=already[0])
    frozen = tuple(name for name in trained if _lies_in(name, pattern))
    if not frozen or len(frozen) == len(trained):
        what = (
            "no trained parameter lies in a layer that matches" if not frozen else "nothing would be left to train with"
        )
        raise NotApplicableError(f"{what} {layer!r}", where=f"{len(trained)} trained parameters")
    return frozen


def _lies_in(parameter: str, pattern: re.Pattern[str]) -> bool:
    parts = parameter.split(".")[:-1]
    return any(pattern.fullmatch(".".join(parts[: length + 1])) for length in range(len(parts)))
