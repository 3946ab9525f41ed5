"""Dropout that drops the same units for a whole batch (what-if family "layers").

In: a captured graph with LSTMs or GRUs, or with linear layers behind a module of dropout. Out: these layers with
products that leave out what is dropped, as they run here.
"""

from __future__ import annotations

from windtunnel import registry
from windtunnel.cost.rerun import Program, tensors_of
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.simulate.limits import less_work
from windtunnel.whatifs.layers import calls_in, replacing
from windtunnel.whatifs.measured import Unpriced, operators_of, require_program, rerun_in_form

__all__ = ["structured_dropout"]

_RECURRENT = ("aten::lstm", "aten::gru")
_LINEAR, _DROPOUT = "aten::linear", "aten::dropout"
_TRAINS = 2  # place among the arguments of aten::dropout


@registry.whatif(
    "structured-dropout",
    source="Sarma et al., Structured in Space, Randomized in Time, NeurIPS 2021",
    limits=less_work(operators_of, "operators cannot take less than no time"),
)
def structured_dropout(
    graph: Graph, p: float = 0.5, place: str = "nr+rh", period: int = 1, group: int = 1, layer: str = ""
) -> Unpriced:
    """Drop whole units for a batch in LSTMs, GRUs and linear layers behind a dropout, and do not multiply with them.

    Parameters
    ----------
    graph : Graph
    p : float
        Share of the units that are dropped.
    place : str
        ``nr``: on the way into each layer; ``rh``: from step to step, in recurrent layers only; ``nr+rh``: both.
    period : int
        Steps that share a set of dropped units.
    group : int
        Number of neighboring units that are dropped together.
    layer : str
        Regular expression that matches the whole path of such a layer; all of them by default.

    Raises
    ------
    NotApplicableError
        There is no such layer that trains.
    """
    if not 0.0 <= p <= 1.0:
        raise InputError(f"dropout is a share of units, and {p} is not from 0 to 1", where=f"p={p}")
    program = require_program(graph)
    what = "LSTM, GRU or linear layer behind a dropout that trains"
    before = _dropouts(program) if "nr" in place else {}
    result = calls_in(program, (*_RECURRENT, *((_LINEAR,) if before else ())), layer, what)
    indices = [item for item in result if program.calls[item].operator in _RECURRENT or item in before]
    if not indices:
        raise NotApplicableError(f"there is no {what}", where=f"layer={layer}" if layer else f"{len(result)} layers")
    form = replacing([*indices, *sorted({before[item] for item in indices if item in before})], "structured-dropout",
                     p=p, place=place, period=period, group=group)  # fmt: skip
    return rerun_in_form(graph, form)


def _dropouts(program: Program) -> dict[int, int]:
    """The call of a dropout module by the call of the linear layer that reads what it gives."""
    others = {call.layer for call in program.calls if not call.mark and call.operator != _DROPOUT}
    created = {
        spec.identity: index
        for index, call in enumerate(program.calls)
        if not call.mark and call.operator == _DROPOUT and call.inputs[_TRAINS] and call.layer not in others
        for spec in tensors_of(call.outputs, call.output_shapes, call.output_types)
    }
    return {
        index: created[int(call.inputs[0][0])]
        for index, call in enumerate(program.calls)
        if not call.mark and call.operator == _LINEAR and int(call.inputs[0][0]) in created
    }
