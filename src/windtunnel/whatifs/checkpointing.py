"""Activations computed again in the backward pass (what-if family "memory for time").

In: a captured graph and a pattern over layers. Out: matching blocks run twice and keep only their inputs; or what the
program runs twice already runs once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windtunnel import registry
from windtunnel.cost.rerun import Form, OperatorsNeed, Ratios
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Phase
from windtunnel.simulate.limits import Baseline, less_work, no_faster
from windtunnel.whatifs.block_patterns import block_ranges
from windtunnel.whatifs.insert_tasks import insert_ahead, rescale
from windtunnel.whatifs.layer_gradients import positions
from windtunnel.whatifs.measured import SOURCE, Unpriced, apply_ratios, calls_of, require_program
from windtunnel.whatifs.peak_memory import note_form

__all__ = ["activation_checkpointing", "no_activation_checkpointing"]


_RANDOM_STATE_BYTES = 8192  # of a generator, which each checkpoint keeps; 5,056 on CPUs


def _random_states(baseline: Baseline) -> float:
    blocks = block_ranges(require_program(baseline.graph), baseline.options["layer"])
    return float(_RANDOM_STATE_BYTES * len(blocks))


def _random_state_bytes(baseline: Baseline) -> float:
    return float(_RANDOM_STATE_BYTES * len(require_program(baseline.graph).recomputed))


@registry.whatif(
    "activation-checkpointing",
    source="Chen et al., Training deep nets with sublinear memory cost, 2016",
    decides="recomputation",
    limits=no_faster("recomputation adds work", max_added_bytes=_random_states),
)
def activation_checkpointing(graph: Graph, layer: str = "") -> Unpriced:
    """Run blocks again in the backward pass instead of keeping their activations.

    The blocks run under a checkpoint, interleaved with the original, so that what is not computed again (all after the
    last tensor that backward needs) is known exactly.

    Parameters
    ----------
    graph : Graph
    layer : str
        Regular expression that matches the whole path of a block; empty: the blocks that the model stacks.

    Raises
    ------
    NotApplicableError
        No block matches.
    InEffectError
        Checkpoints run all of them again already.
    """
    program = require_program(graph)
    blocks = block_ranges(program, layer)
    ranges = tuple(
        block
        for block in blocks
        if not any((block[0] < again[1] and again[0] < block[1]) for again in program.recomputed)
    )
    if not ranges:
        raise InEffectError(
            f"{len(program.recomputed)} checkpoints run operators of these {len(blocks)} blocks again",
            where=f"{program.calls[blocks[0][0]].layer} and others",
            reverse="no-activation-checkpointing",
        )
    form = Form(checkpointed=ranges)

    def add_recomputation(ratios: Ratios) -> Graph:
        changed = apply_ratios(graph, _no_shorter(replace(ratios, output_bytes=np.ones(len(program.calls)))))
        iterations = graph.tasks.get("iteration", np.zeros(graph.num_tasks))
        for iteration in np.unique(iterations).tolist():
            for block in ranges:
                changed = _run_again(graph, changed, block, iteration)
        return note_form(changed, form)

    return Unpriced((OperatorsNeed(program, form),), add_recomputation)


def _is_recomputed(baseline: Baseline) -> np.ndarray:
    graph = baseline.graph
    result: np.ndarray = graph.tasks.get("is_recomputed", np.zeros(graph.num_tasks, dtype=bool))
    return result


@registry.whatif(
    "no-activation-checkpointing",
    source="Chen et al., Training deep nets with sublinear memory cost, 2016: what it costs",
    decides="recomputation",
    limits=less_work(
        _is_recomputed, "no more than the recomputation is saved", min_speedup=1.0, max_saved_bytes=_random_state_bytes
    ),
)
def no_activation_checkpointing(graph: Graph) -> Graph:
    """Keep all activations where the program computes some again in the backward pass.

    Raises
    ------
    NotApplicableError
        The program computes nothing again.
    """
    again = graph.tasks.get("is_recomputed", np.zeros(graph.num_tasks, dtype=bool))
    if not again.any():
        raise NotApplicableError("no checkpoint computes anything again", where="column is_recomputed")
    return note_form(rescale(graph, again, 0.0, "not recomputed"), Form(keeps_activations=True))


def _no_shorter(ratios: Ratios) -> Ratios:
    """The forward pass does what it did: where it was measured to be shorter, that is noise."""
    return replace(
        ratios, forward=np.maximum(ratios.forward, 1.0), forward_total=float(np.fmax(ratios.forward_total, 1.0))
    )


def _run_again(graph: Graph, changed: Graph, block: tuple[int, int], iteration: int) -> Graph:
    """Put the second run of a block in front of its backward pass: that feeds it now, and the first run no longer."""
    call = calls_of(changed)
    inside = (call >= block[0]) & (call < block[1]) & changed.select(iteration=iteration)
    first, again = inside & changed.select(phase=Phase.FORWARD), inside & changed.select(phase=Phase.BACKWARD)
    rows = np.flatnonzero(again)
    if not len(rows):
        return changed
    extra_ns = max(0, int(changed.duration_ns[rows].sum() - graph.duration_ns[rows].sum()))
    edges, index = changed.edges, positions(changed)
    anchor = rows[[int(index[rows].argmin())]]  # rows need not be in the order of time
    is_data = edges["kind"] == EdgeKind.DATA
    kept = is_data & first[edges["src"]] & again[edges["dst"]]
    enters = np.unique(edges["src"][is_data & ~first[edges["src"]] & first[edges["dst"]]])
    enters = enters[index[enters] < index[anchor]]
    held, readers = np.unique(edges["src"][kept]), np.unique(edges["dst"][kept])
    columns = {"name": "recompute", "op": "recompute", "duration_ns": extra_ns, "cost_source": SOURCE}
    if "output_bytes" in changed.tasks:
        columns["output_bytes"] = int(changed.tasks["output_bytes"][held].sum())
    restored = changed.set_duration(again, graph.duration_ns[rows]).disconnect(kept)
    extended, new = insert_ahead(restored, anchor, columns)
    extended = extended.connect(enters, np.repeat(new, len(enters)), EdgeKind.DATA)
    return extended.connect(np.repeat(new, len(readers)), readers, EdgeKind.DATA)
