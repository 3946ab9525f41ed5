"""Dropout that drops the same units for a whole batch, in recurrent layers (what-if family "layers").

In: a captured graph with LSTMs or GRUs. Out: these layers with products that leave out what is dropped, as they run
here.
"""

from __future__ import annotations

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.graph import Graph
from windtunnel.whatifs._measured import captured_program, reformed
from windtunnel.whatifs._replacing import calls_in, replacing
from windtunnel.whatifs.unpriced import Unpriced

__all__ = ["structured_dropout"]

_OPERATORS = ("aten::lstm", "aten::gru")


@registry.whatif("structured-dropout", source="Sarma et al., Structured in Space, Randomized in Time, NeurIPS 2021")
def structured_dropout(
    graph: Graph, p: float = 0.5, place: str = "nr+rh", period: int = 1, group: int = 1, layer: str = ""
) -> Unpriced:
    """Drop whole units for a batch in LSTMs and GRUs, and do not multiply with them.

    Parameters
    ----------
    graph : Graph
    p : float
        Share of the units that are dropped.
    place : str
        ``nr``: on the way into each layer; ``rh``: from step to step; ``nr+rh``: both.
    period : int
        Steps that share a set of dropped units.
    group : int
        Units are dropped in groups of so many neighbors.
    layer : str
        Regular expression that matches the whole path of a recurrent layer; all of them by default.

    Raises
    ------
    NotApplicableError
        There is no recurrent layer that trains.
    """
    if not 0.0 <= p <= 1.0:
        raise InputError(f"dropout is a share of units, and {p} is not from 0 to 1", where=f"p={p}")
    places = calls_in(captured_program(graph), _OPERATORS, layer, "LSTM or GRU that trains")
    return reformed(graph, replacing(places, "structured-dropout", p=p, place=place, period=period, group=group))
