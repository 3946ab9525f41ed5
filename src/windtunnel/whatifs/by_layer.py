"""Which layers of a network a change is worth it for.

In: an answer whose change puts other layers in place of some. Out: ``LayerGain`` for each of these: what the iteration
would gain if it alone were changed, the best first; those that lose are in it. What changes outside the layers, such as
updates of fewer weights, is not attributed to them. Not here: prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from windtunnel.graph.table import Strings
from windtunnel.simulate import replay_many
from windtunnel.whatifs.answer import Answer
from windtunnel.whatifs.measured import REPLACED

__all__ = ["LayerGain", "by_layer", "worth_it"]

_MARGIN = 0.005  # of an iteration: less is as good as nothing


@dataclass(frozen=True)
class LayerGain:
    """One layer that a change replaces.

    Attributes
    ----------
    layer : str
        Its path.
    now_ns, predicted_ns : float
        Its own work in an iteration, forward and backward.
    speedup : float
        Of the whole iteration, if this layer alone is changed.
    """

    layer: str
    now_ns: float
    predicted_ns: float
    speedup: float

    @property
    def pays(self) -> bool:
        """Whether the iteration gets quicker by more than nothing."""
        return self.speedup > 1 + _MARGIN

    def to_dict(self) -> dict[str, Any]:
        """Plain values with raw units."""
        return {**asdict(self), "pays": self.pays}


def by_layer(answer: Answer) -> list[LayerGain]:
    """The layers that a change replaces, the most worthwhile first.

    Returns
    -------
    list of LayerGain
        Empty where the change does not apply, or replaces no layers.
    """
    before, after = answer.baseline.graph, answer.graph
    if not answer.is_applicable or before.num_tasks != after.num_tasks:
        return []
    if "cost_source" not in after.tasks or "layer" not in after.tasks:
        replaced = np.zeros(after.num_tasks, dtype=bool)
    else:
        sources: Strings = after.tasks.strings("cost_source")
        replaced = sources.where({text: text == REPLACED for text in sources.values})
    layers: Strings = before.tasks.strings("layer")
    codes = np.unique(layers.codes[replaced])
    if not len(codes):
        return []
    masks = [replaced & (layers.codes == code) for code in codes]
    durations_KT = np.stack([np.where(mask, after.duration_ns, before.duration_ns) for mask in masks])
    ends_ns = replay_many(before, durations_KT, like=answer.baseline).makespan_ns
    num = max(before.num_iterations, 1)
    result = [
        LayerGain(
            layers.values[code],
            float(before.duration_ns[mask].sum()) / num,
            float(after.duration_ns[mask].sum()) / num,
            answer.baseline.makespan_ns / float(end_ns),
        )
        for code, mask, end_ns in zip(codes, masks, ends_ns, strict=True)
    ]
    return sorted(result, key=lambda gain: -gain.speedup)


def worth_it(gains: Sequence[LayerGain]) -> str:
    """The value of ``layer=`` that names the layers which pay; empty where all do, or none."""
    paying = sorted(item.layer for item in gains if item.pays)
    if not paying or len(paying) == len(gains):
        return ""
    return "|".join(name.replace(".", r"\.") for name in paying)
