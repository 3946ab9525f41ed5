"""Other layers in place of the given ones (what-if family "substitution").

In: a graph and what is replaced. Out: the tasks of replaced layers removed or scaled, batch normalization
reconstructed; the calls of a program that another layer could run, checked for weights that others read too, and the
form in which they are replaced. Not here: the layers themselves, which are registered by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from windtunnel import registry
from windtunnel.cost.rerun import Call, Form, Program, tensors_of
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.registry import did_you_mean
from windtunnel.simulate.limits import all_work, less_work
from windtunnel.whatifs.block_patterns import compile_pattern

__all__ = ["calls_in", "metaflow", "replacing", "weights_of"]


@registry.whatif(
    "metaflow",
    source="Jia et al., MetaFlow, MLSys 2019; Daydream, ATC 2020",
    limits=less_work(all_work, "layers cannot take less than no time"),
)
def metaflow(graph: Graph, layer: str = "", factor: float = 0.0) -> Graph:
    """Substitute layers: remove the tasks of those that match, or scale them.

    Parameters
    ----------
    graph : Graph
    layer : str
        Regular expression that matches the whole path of the replaced layers.
    factor : float
        Duration of the replacement over the captured one; 0 removes the layers.

    Raises
    ------
    NotApplicableError
        No layer is named, or none matches.
    """
    if not math.isfinite(factor) or factor < 0:
        raise InputError(f"a layer cannot take {factor} times as long", fix="use a factor of 0 or more")
    replaced = graph.select(layer=layer, phase=(Phase.FORWARD, Phase.BACKWARD)) if layer else ~graph.all_tasks
    if not replaced.any():
        what = f"no layer matches {layer!r}" if layer else "no layer is named to replace"
        raise NotApplicableError(what, fix="pass layer=, such as layer=block\\.[0-9]+\\.conv2")
    if factor == 0:
        return graph.remove(replaced, keep_gaps=False)
    duration = np.rint(graph.duration_ns[replaced] * factor).astype(np.int64)
    return graph.set_duration(replaced, duration, cost_source="assumed factor")


def calls_in(program: Program, operators: tuple[str, ...], layer: str, what: str) -> list[int]:
    """Places of the calls of these operators that train, in layers that match.

    Raises
    ------
    NotApplicableError
        There is none.
    InputError
        Layers are named, and none has such a name; the nearest are offered.
    """
    result = [index for index, call in enumerate(program.calls) if call.grad and call.operator in operators]
    if not result:
        raise NotApplicableError(f"there is no {what}", where=f"{len(program.calls)} calls")
    if not layer:
        return result
    pattern = compile_pattern(layer)
    matching = [index for index in result if pattern.fullmatch(program.calls[index].layer)]
    if not matching:
        known = sorted({program.calls[index].layer for index in result})
        raise InputError(f"no {what} is called {layer!r}", where="layer=", fix=did_you_mean(layer, known))
    return matching


def weights_of(program: Program, index: int) -> dict[int, str]:
    """Names of the trained parameters that a call reads, by identity."""
    return {item: program.parameters[item] for item in _read_by(program.calls[index]) if item in program.parameters}


def readers(program: Program, identity: int) -> list[int]:
    """Calls that read a tensor."""
    return [index for index, call in enumerate(program.calls) if not call.mark and identity in set(_read_by(call))]


def _read_by(call: Call) -> Iterator[int]:
    return (spec.identity for spec in tensors_of(call.inputs, call.shapes, call.types, call.strides))


def replacing(indices: list[int], layer: str, **settings: Any) -> Form:
    """The form in which a registered layer runs these calls."""
    return Form(replaced=tuple((index, layer, tuple(sorted(settings.items()))) for index in indices))
