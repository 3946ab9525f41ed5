"""Other layers in place of the given ones (what-if family "substitution").

In: a graph and what is replaced. Out: the tasks of replaced layers removed or scaled, batch normalization
reconstructed.
"""

from __future__ import annotations

import math

import numpy as np

from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.simulate.limits import all_work, less_work

__all__ = ["metaflow"]


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
