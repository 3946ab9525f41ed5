"""Linear layers and convolutions of circulant blocks (what-if family "layers").

In: a captured graph with such layers. Out: these layers with a k-th of the weights, as they run here, and updates of
what is left of their weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windtunnel import registry
from windtunnel.cost.rerun import Call, Program, UpdateForm
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.simulate.limits import all_work, less_work
from windtunnel.whatifs.layers import calls_in, readers, replacing, weights_of
from windtunnel.whatifs.measured import Unpriced, require_program, with_update

__all__ = ["block_circulant"]

_OPERATORS = ("aten::linear", "aten::conv2d")
_WEIGHT, _GROUPS = 1, 6  # places among their arguments


@registry.whatif(
    "block-circulant",
    source="Ding et al., CirCNN, MICRO 2017; Liao et al., ICCAD 2017",
    limits=less_work(all_work, "operators and updates cannot take less than no time"),
)
def block_circulant(graph: Graph, k: int = 64, layer: str = "") -> Unpriced:
    """Make linear layers and convolutions of circulant blocks of k, which are multiplied by Fourier transforms.

    Layers with a side below k, convolutions of groups, and weights that others read too, stay as they are unless they
    are named.

    Parameters
    ----------
    graph : Graph
    k : int
        Rows and columns of a block.
    layer : str
        Regular expression that matches the whole path of a layer; all that can be by default.

    Raises
    ------
    NotApplicableError
        There is no such layer.
    InputError
        A layer that is named is smaller than a block, or shares its weight.
    """
    if k < 2:
        raise InputError(f"a circulant block has 2 rows or more, not {k}", where=f"k={k}")
    program = require_program(graph)
    result = calls_in(program, _OPERATORS, layer, "linear layer or convolution that trains")
    problems = {position: _problem(program, position, k) for position in result}
    indices = [key for key, problem in problems.items() if not problem]
    if layer and len(indices) < len(result):
        index, problem = next((key, problem) for key, problem in problems.items() if problem)
        raise InputError(f"{program.calls[index].layer} {problem}", where=f"layer={layer}", fix="leave it dense")
    if not indices:
        raise NotApplicableError(
            f"none of {len(result)} layers can be of circulant blocks of {k}",
            where=f"{program.calls[result[0]].layer} {problems[result[0]]}",
            fix="take a smaller k",
        )
    calls = [program.calls[position] for position in indices]
    columns = {program.parameters[_weight(call)]: _first_columns(call.shapes[_WEIGHT], k) for call in calls}
    return with_update(graph, replacing(indices, "block-circulant", k=k), UpdateForm(reshaped=columns))


def _first_columns(shape: Sequence[int], k: int) -> tuple[int, ...]:
    """What is trained in place of a weight: the first column of each block, for each place of a kernel."""
    outputs, inputs, *kernel = shape
    return (*((math.prod(kernel),) if kernel else ()), -(-outputs // k), -(-inputs // k), k)


def _weight(call: Call) -> int:
    return int(call.inputs[_WEIGHT][0])


def _problem(program: Program, index: int, k: int) -> str:
    """Why a layer stays as it is; empty where nothing speaks against it."""
    call = program.calls[index]
    shape, weight = call.shapes[_WEIGHT], _weight(call)
    if weight not in weights_of(program, index):
        return "multiplies with something that is no parameter"
    if min(shape[:2]) < k:
        return f"is {shape[1]} x {shape[0]}, smaller than a block of {k}"
    if call.operator == "aten::conv2d" and int(call.inputs[_GROUPS]) != 1:
        return f"is a convolution of {call.inputs[_GROUPS]} groups"
    others = [reader for reader in readers(program, weight) if reader != index]
    if others:
        return (
            f"shares its weight: {program.calls[others[0]].operator} in {program.calls[others[0]].layer} reads it too"
        )
    return ""
