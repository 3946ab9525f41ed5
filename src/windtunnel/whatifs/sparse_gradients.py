"""Gradients of the rows that were read only (what-if family "sparse gradients").

In: a captured graph whose step looks rows of tables up. Out: the backward pass that makes, and the update that applies,
gradients of these rows instead of whole tables.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from windtunnel import registry
from windtunnel.cost.rerun import Form, Program, UpdateForm, embedding_row_ratios, sparse_parameters, tensors_of
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.simulate.limits import less_work, of_phase
from windtunnel.whatifs.measured import (
    Unpriced,
    add_update,
    require_program,
    rerun_in_form,
    update_need,
    update_steps,
    updates_and_zeroing,
)
from windtunnel.whatifs.peak_memory import note_form

__all__ = ["sparse_embedding_gradients"]

_LOOKUPS = ("aten::embedding", "aten::embedding_bag")
# classes whose update of a row depends on the gradient of that row alone; options that read whole tables
_ROW_BY_ROW = {"SGD": ("momentum", "weight_decay"), "Adagrad": ("weight_decay",)}
_NORMS = r"aten::(linalg_vector_norm|_foreach_norm|norm)"


@registry.whatif(
    "sparse-embedding-gradients",
    source="PyTorch, torch.nn.Embedding(sparse=True)",
    limits=less_work(of_phase(Phase.BACKWARD, Phase.UPDATE), "gradients and updates of tables only"),
)
def sparse_embedding_gradients(graph: Graph) -> Unpriced:
    """Give embedding tables gradients of the rows that were read, and update these rows only.

    The same weights are trained. Tables whose weights other layers use as well keep their gradients.

    Raises
    ------
    NotApplicableError
        Nothing is looked up in a trained table, or an optimizer needs gradients of whole tables.
    InEffectError
        All tables have sparse gradients already.
    """
    if graph.num_ranks > 1:
        raise NotApplicableError(
            "workers would have to average gradients of different rows", where=f"{graph.num_ranks} ranks"
        )
    program = require_program(graph)
    calls, tables = _lookups(program)
    already = set(sparse_parameters(graph.meta.optimizers))
    new = {name for name in tables if name not in already}
    if already and not new:
        raise InEffectError(f"all {len(already)} tables have sparse gradients", where=min(already))
    if not new:
        raise NotApplicableError("no row of a trained table is looked up", where=f"{len(program.calls)} calls")
    _check_optimizers(graph, new)
    if graph.select(phase=Phase.UPDATE, op=_NORMS).any():
        raise NotApplicableError(
            "gradients are clipped by their norm, which PyTorch does not compute of sparse ones",
            where="phase UPDATE",
            fix="clip the gradients of the other layers only",
        )
    form = Form(sparse=tuple(index for index, name in calls if name in new))
    left = _gradient_share(graph, program, new)
    change = rerun_in_form(graph, form, lambda priced: _scale_zeroing(note_form(priced, form=form), left))
    return add_update(change, update_need(graph, UpdateForm(sparse=frozenset(new))))


def _gradient_share(graph: Graph, program: Program, tables: set[str]) -> float:
    """Bytes of the gradients that are left, over those that there were."""
    touched = embedding_row_ratios(program)
    before = after = 0.0
    for optimizer in graph.meta.optimizers:
        for group in optimizer["groups"]:
            for name, shape in zip(group["parameters"], group["shapes"], strict=True):
                before += math.prod(shape)
                after += math.prod(shape) * (touched.get(name, 1.0) if name in tables else 1.0)
    return after / before if before else 1.0


def _scale_zeroing(graph: Graph, left: float) -> Graph:
    """Zero or free fewer bytes of gradients, which is what zeroing takes its time for."""
    zeroing = updates_and_zeroing(graph) & ~update_steps(graph)
    duration = np.rint(graph.duration_ns[zeroing] * left).astype(np.int64)
    return graph.set_duration(zeroing, duration, cost_source="scaled by bytes")


def _lookups(program: Program) -> tuple[list[tuple[int, str]], set[str]]:
    """Calls that look up trained tables, with the table's name; tables that nothing else reads."""
    readers: dict[str, set[bool]] = defaultdict(set)
    calls = []
    for index, call in enumerate(program.calls):
        if call.mark or call.phase is Phase.UPDATE:
            continue
        is_lookup = call.operator in _LOOKUPS
        specs = tensors_of(call.inputs, call.shapes, call.types)
        for spec in specs:
            name = program.parameters.get(spec.identity, "")
            if name and name not in program.frozen:
                readers[name].add(is_lookup)
        if is_lookup:
            calls.append((index, program.parameters.get(specs[0].identity, "")))
    return calls, {name for name, kinds in readers.items() if kinds == {True}}


def _check_optimizers(graph: Graph, tables: set[str]) -> None:
    """Refuse optimizers whose update of a row is not a matter of that row's gradient."""
    for optimizer in graph.meta.optimizers:
        name = str(optimizer["class"]).rpartition(".")[2]
        for group in optimizer["groups"]:
            affected = tables & set(group["parameters"])
            if not affected:
                continue
            if name not in _ROW_BY_ROW:
                raise NotApplicableError(
                    f"{name} needs gradients of whole tables",
                    where=f"{min(affected)}, {len(affected)} tables",
                    fix="train the tables by SGD, Adagrad or SparseAdam, and capture that",
                )
            whole = [option for option in _ROW_BY_ROW[name] if group["options"].get(option)]
            if whole:
                raise NotApplicableError(
                    f"{name} with {whole[0]}={group['options'][whole[0]]} changes rows that were not read",
                    where=f"{min(affected)}, {len(affected)} tables",
                    fix=f"train the tables with {whole[0]}=0, and capture that",
                )
