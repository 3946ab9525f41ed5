"""More or fewer samples per update (what-if family "batch").

In: a captured graph. Out: the same iteration on another number of samples; ``meta.samples_ratio`` says how many
times more, since a longer iteration that trains on more samples may still be the better one.
"""

from __future__ import annotations

import numpy as np

from windtunnel import registry
from windtunnel.cost.rerun import Form, OperatorsNeed, Ratios
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.whatifs._batch_size import batch_size_of
from windtunnel.whatifs._measured import SOURCE, captured_program, reformed
from windtunnel.whatifs._peaks import noted
from windtunnel.whatifs.unpriced import Unpriced

__all__ = ["batch_size", "gradient_accumulation"]


@registry.whatif("batch-size", source="Goyal et al., Accurate, large minibatch SGD, 2017")
def batch_size(graph: Graph, factor: float = 2.0, samples: int = 0) -> Unpriced:
    """Train on batches ``factor`` times as large.

    The captured operators run again on inputs of the new size beside the old ones; loading takes ``factor`` times as
    long; updates stay.

    Parameters
    ----------
    graph : Graph
    factor : float
        New batch size over the captured one.
    samples : int
        The captured batch size; 0: the first dimension that most inputs share.

    Raises
    ------
    NotApplicableError
        The inputs share no first dimension.
    """
    if not factor > 0:
        raise InputError(f"a batch cannot be {factor} times as large", fix="use a factor above 0")
    program = captured_program(graph)
    captured = samples or batch_size_of(program)
    changed = max(1, round(captured * factor))
    if captured < 1:
        raise NotApplicableError(
            "no batch size can be seen in the inputs", where=f"{len(program.calls)} calls", fix="pass samples="
        )
    if changed == captured:
        raise NotApplicableError(f"the batch size is {captured} already")
    form = Form(batch=(captured, changed))

    def with_loads(scaled: Graph) -> Graph:
        loads = graph.select(phase=Phase.DATA)
        scaled = scaled.scale(loads, form.batch_ratio).note(
            {"samples_ratio": graph.meta.samples_ratio * form.batch_ratio}
        )
        return noted(scaled, form)

    return reformed(graph, form, with_loads)


@registry.whatif("gradient-accumulation", source="Ott et al., Scaling neural machine translation, WMT 2018")
def gradient_accumulation(graph: Graph, passes: int = 4) -> Unpriced:
    """Run ``passes`` forward and backward passes, each on a batch of the captured size, before every update.

    Forward, loading and Python repeat exactly; a further backward pass also adds into the gradients, which a partial
    flight measures.

    Raises
    ------
    InputError
        ``passes`` is below 2.
    NotApplicableError
        There is no backward pass.
    """
    if passes < 2:
        raise InputError(f"{passes} passes accumulate nothing", fix="use 2 or more")
    backward = graph.select(phase=Phase.BACKWARD)
    if not backward.any():
        raise NotApplicableError("there is no backward pass", where="phase BACKWARD")
    form = Form(num_passes=2)

    def repeated(ratios: Ratios) -> Graph:
        factor = 1.0 + (passes - 1) * max(ratios.backward_total - 1.0, 0.0)
        duration = np.rint(graph.duration_ns[backward] * factor).astype(np.int64)
        changed = graph.set_duration(backward, duration, cost_source=SOURCE)
        changed = changed.scale(graph.select(phase=(Phase.DATA, Phase.FORWARD)), passes)
        # the third pass holds what the second does: gradients beside all that one pass holds
        return noted(changed.note({"samples_ratio": graph.meta.samples_ratio * passes}), form)

    return Unpriced((OperatorsNeed(captured_program(graph), form),), repeated)
