"""Layers that make a network itself cheaper, in place of torch's.

In: what torch's layers take. Out: what they give, for less work: dropout that drops whole units of a batch, so that
products shrink (``dropout``), and weights of circulant blocks, whose products are Fourier transforms (``circulant``).
Each is registered as a layer under the name of the what-if that asks where it pays. May not enter: captured graphs,
searches, flights.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from windtunnel import registry
from windtunnel.base.extras import require

if TYPE_CHECKING:
    from windtunnel.systems.layers.nn.circulant.convolution import BlockCirculantConv2d as BlockCirculantConv2d
    from windtunnel.systems.layers.nn.circulant.layers import BlockCirculantLinear as BlockCirculantLinear
    from windtunnel.systems.layers.nn.circulant.layers import CirculantAdapter as CirculantAdapter
    from windtunnel.systems.layers.nn.circulant.lstm import BlockCirculantLSTM as BlockCirculantLSTM
    from windtunnel.systems.layers.nn.circulant.modules import project as project
    from windtunnel.systems.layers.nn.dropout.feedforward import StructuredFeedForward as StructuredFeedForward
    from windtunnel.systems.layers.nn.dropout.feedforward import StructuredLinear as StructuredLinear
    from windtunnel.systems.layers.nn.dropout.recurrent import StructuredGRU as StructuredGRU
    from windtunnel.systems.layers.nn.dropout.recurrent import StructuredLSTM as StructuredLSTM

__all__ = [
    "BlockCirculantConv2d",
    "BlockCirculantLSTM",
    "BlockCirculantLinear",
    "CirculantAdapter",
    "StructuredFeedForward",
    "StructuredGRU",
    "StructuredLSTM",
    "StructuredLinear",
    "project",
]

_HOMES = {
    "BlockCirculantConv2d": "circulant.convolution",
    "BlockCirculantLSTM": "circulant.lstm",
    "BlockCirculantLinear": "circulant.layers",
    "CirculantAdapter": "circulant.layers",
    "project": "circulant.modules",
    "StructuredFeedForward": "dropout.feedforward",
    "StructuredLinear": "dropout.feedforward",
    "StructuredGRU": "dropout.recurrent",
    "StructuredLSTM": "dropout.recurrent",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    require("torch", extra="torch")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


if importlib.util.find_spec("torch") is not None:  # without it there is no layer, and no operator to be replaced
    registry.discover(__name__)
