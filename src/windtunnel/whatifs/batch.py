"""More or fewer samples per update (what-if family "batch").

In: a captured graph. Out: the same iteration on another number of samples; ``meta.samples_ratio`` says how many
times more, since a longer iteration that trains on more samples may still be the better one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from windtunnel import registry
from windtunnel.cost.rerun import Form, OperatorsNeed, Ratios
from windtunnel.errors import InEffectError, InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Phase, lags
from windtunnel.simulate.limits import Baseline, up_to
from windtunnel.whatifs.measured import SOURCE, Unpriced, require_program, rerun_in_form, updates_and_zeroing
from windtunnel.whatifs.peak_memory import note_form
from windtunnel.whatifs.samples_per_iteration import batch_size_of, passes_of

__all__ = ["batch_size", "gradient_accumulation"]


def _larger_batch(baseline: Baseline) -> float:
    """A larger batch takes no less time; the updates of a smaller one take as long as before."""
    captured, factor = baseline.options["samples"], baseline.options["factor"]
    if captured:
        factor = max(1, round(captured * factor)) / captured
    if factor >= 1:
        return float(factor)
    updates_ns = baseline.work_ns(baseline.graph.select(phase=Phase.UPDATE))
    return float(factor * baseline.iteration_ns / updates_ns) if updates_ns else math.inf


def _fewer_updates(baseline: Baseline) -> float:
    """Updates, and the zeroing of gradients, are divided by the number of passes."""
    once_ns = baseline.work_ns(updates_and_zeroing(baseline.graph))
    known = passes_of(require_program(baseline.graph))
    passes = baseline.options["passes"] / known
    return float(baseline.iteration_ns / max(baseline.iteration_ns - once_ns * (passes - 1) / passes, 1.0))


@registry.whatif(
    "batch-size",
    source="Goyal et al., Accurate, large minibatch SGD, 2017",
    limits=up_to(_larger_batch, "a larger batch takes no less time than a smaller one"),
)
def batch_size(graph: Graph, factor: float = 2.0, samples: int = 0) -> Unpriced:
    """Train on batches ``factor`` times as large.

    The captured operators run again on inputs of the new size, interleaved with the old ones; loading takes ``factor``
    times as long; updates stay.

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
    program = require_program(graph)
    captured = samples or batch_size_of(program)
    changed = max(1, round(captured * factor))
    if captured < 1:
        raise NotApplicableError(
            "no batch size can be seen in the inputs", where=f"{len(program.calls)} calls", fix="pass samples="
        )
    if changed == captured:
        raise InEffectError(f"the batch size is {captured} already")
    form = Form(batch=(captured, changed))

    def with_loads(scaled: Graph) -> Graph:
        loads = graph.select(phase=Phase.DATA)
        scaled = scaled.scale(loads, form.batch_ratio).note(
            {"samples_ratio": graph.meta.samples_ratio * form.batch_ratio}
        )
        return note_form(scaled, form)

    change = rerun_in_form(graph, form)
    finish = change.finish
    assert finish is not None
    return replace(change, finish=lambda ratios: with_loads(finish(_in_order(ratios, is_larger=changed > captured))))


def _in_order(ratios: Ratios, *, is_larger: bool) -> Ratios:
    """No operator is faster on a larger batch, or slower on a smaller one: a measurement that says so is noise."""
    bound = np.maximum if is_larger else np.minimum
    total = np.fmax if is_larger else np.fmin
    return replace(
        ratios,
        forward=bound(ratios.forward, 1.0),
        backward=bound(ratios.backward, 1.0),
        forward_total=float(total(ratios.forward_total, 1.0)),
        backward_total=float(total(ratios.backward_total, 1.0)),
    )


@registry.whatif(
    "gradient-accumulation",
    source="Ott et al., Scaling neural machine translation, WMT 2018",
    limits=up_to(_fewer_updates, "accumulation saves only what runs once per update", max_saved_bytes=0),
)
def gradient_accumulation(graph: Graph, passes: int = 4) -> Unpriced:
    """Run ``passes`` forward and backward passes, each on a batch of the captured size, before every update.

    Where the program accumulates some already, ``passes`` is a multiple of them.

    All but the optimizers' steps and the zeroing of gradients repeats: loading, forward pass, clipping, logging, and
    the Python between them. A further backward pass also adds into the gradients, which a partial flight measures.

    Raises
    ------
    InputError
        ``passes`` is below 2.
    NotApplicableError
        There is no backward pass.
    InEffectError
        The program accumulates as many passes already.
    """
    if passes < 2:
        raise InputError(f"{passes} passes accumulate nothing", fix="use 2 or more")
    backward = graph.select(phase=Phase.BACKWARD)
    if not backward.any():
        raise NotApplicableError("there is no backward pass", where="phase BACKWARD")
    program = require_program(graph)
    known = passes_of(program)
    if passes <= known or passes % known:
        raise InEffectError(
            f"{known} passes accumulate into each update",
            where="backward passes of the captured program",
            fix=f"ask for a multiple of them: gradient-accumulation:passes={2 * known}",
        )
    passes //= known
    form = Form(num_passes=2)

    def repeat_backward(ratios: Ratios) -> Graph:
        # adding into the gradients takes no less than making them, so a shorter second pass is noise
        factor = 1.0 + (passes - 1) * max(ratios.backward_total - 1.0, 1.0)
        duration = np.rint(graph.duration_ns[backward] * factor).astype(np.int64)
        changed = graph.set_duration(backward, duration, cost_source=SOURCE)
        repeats = ~updates_and_zeroing(graph)
        changed = changed.scale(repeats & ~backward, passes)
        edges, lag_ns = graph.edges, lags(graph.edges)
        between = (edges["kind"] == EdgeKind.ORDER) & repeats[edges["dst"]] & (lag_ns > 0)
        changed = changed.set_lag(between, lag_ns[between] * passes) if between.any() else changed
        # the third pass holds the same as the second: gradients in addition to the memory of one pass
        return note_form(changed.note({"samples_ratio": graph.meta.samples_ratio * passes}), form)

    return Unpriced((OperatorsNeed(program, form),), repeat_backward)
