"""One operator for all parameters of an optimizer (what-if family "optimizer").

In: a graph with UPDATE tasks. Out: the same updates by fewer, larger operators.
Source: Daydream (ATC 2020), FusedAdam.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from windtunnel import registry
from windtunnel.cost.rerun import UpdateForm, sparse_parameters
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.simulate.limits import less_work, of_phase
from windtunnel.whatifs.device_tasks import lies_on_device
from windtunnel.whatifs.measured import Unpriced, apply_update, has_program, update_need, update_steps
from windtunnel.whatifs.peak_memory import note_form

_RUN = "fused-optimizer.run"

__all__ = ["foreach_optimizer", "fused_optimizer"]


_LIMITS = less_work(of_phase(Phase.UPDATE), "no more than the updates are saved")


@registry.whatif("fused-optimizer", source="Daydream, ATC 2020, FusedAdam", decides="optimizer kernels", limits=_LIMITS)
def fused_optimizer(graph: Graph) -> Unpriced:
    """Update all parameters of a group with one fused operator.

    Measured: the captured optimizers step with ``fused=True``, interleaved with the original, on parameters of the same
    sizes. Paper: one kernel as long as all removed ones together; their launches and the host time between them go. On
    a GPU one pass over memory takes the place of those of multi-tensor kernels: 7 tensors of about 20 for Adam, 5 of 11
    for SGD with momentum.

    Raises
    ------
    NotApplicableError
        Nothing is updated, the updates are fused already, or a gradient is sparse: no fused implementation takes those.
    PriceError
        The optimizer has no fused implementation.
    """
    return _change_implementation(graph, {"fused": True, "foreach": False})


@registry.whatif(
    "foreach-optimizer",
    source="PyTorch multi-tensor optimizers; Daydream, ATC 2020",
    decides="optimizer kernels",
    limits=_LIMITS,
)
def foreach_optimizer(graph: Graph) -> Unpriced:
    """Update all parameters of a group with a few operators on lists of tensors.

    Raises
    ------
    NotApplicableError
        Nothing is updated, or the updates are done so already.
    """
    return _change_implementation(graph, {"foreach": True, "fused": False})


def _change_implementation(graph: Graph, options: dict[str, Any]) -> Unpriced:
    steps = update_steps(graph)
    _check_not_yet(graph, next(iter(options)))
    if options.get("fused"):
        _check_dense(graph)
    published = partial(_paper, graph, bool(options.get("fused")))
    if not (has_program(graph) and graph.meta.optimizers):  # traces of others do not name the optimizers' options
        return Unpriced.from_paper(published)
    if int(steps.sum()) <= graph.num_iterations * graph.num_ranks:
        raise InEffectError("the updates are one task per iteration", where="phase UPDATE")
    form = UpdateForm(options)
    need = update_need(graph, form)
    return Unpriced((need,), lambda ratio: note_form(apply_update(graph, ratio), update=form), published)


def _check_not_yet(graph: Graph, option: str) -> None:
    operators = graph.select(phase=Phase.UPDATE) & graph.select(op=rf".*_{option}_.*")
    if operators.any():
        raise InEffectError(f"the updates run by {option} operators", where=f"{int(operators.sum())} tasks of updates")
    groups = [group for optimizer in graph.meta.optimizers for group in optimizer["groups"]]
    if groups and all(group["options"].get(option) for group in groups):
        raise InEffectError(f"every optimizer has {option}=True", where="options of the captured optimizers")


def _check_dense(graph: Graph) -> None:
    sparse = sparse_parameters(graph.meta.optimizers)
    if sparse:
        raise NotApplicableError(
            f"no fused update takes sparse gradients, and {len(sparse)} parameters have them",
            where=", ".join(sparse[:3]),
            fix="make their embeddings with sparse=False, or ask for another change",
        )


def _traffic_ratio(graph: Graph, kernels: np.ndarray) -> float:
    """What one pass moves, over what the passes of these kernels move; 1 where names do not tell which they are."""
    if "op" not in graph.tasks or not graph.has_streams:
        return 1.0
    steps = kernels & graph.select(op=r".*(addcdiv|_foreach_|aten::lerp|aten::addcmul).*")
    if not steps.any():
        return 1.0
    return 7 / 20 if (steps & graph.select(op=r".*addcdiv.*")).any() else 5 / 11


def _paper(graph: Graph, is_fused: bool) -> Graph:
    """One task of the length of all that compute, per run of updates; host work between them goes."""
    steps = update_steps(graph)
    kernels = steps & graph.select(kind=Kind.COMPUTE)
    # counters that the host keeps are host work of an update on a device
    if (kernels & lies_on_device(graph)).any():
        kernels &= lies_on_device(graph)
    if int(kernels.sum()) <= graph.num_iterations * graph.num_ranks:
        raise InEffectError("the updates are one kernel per iteration", where="phase UPDATE")
    runs = _runs(graph, steps)
    graph = graph.set_columns({_RUN: np.where(kernels, runs, -1)})
    hosts = steps & ~kernels
    first_host = _first_of_each(np.where(hosts, runs, -1))
    ratio = _traffic_ratio(graph, kernels) if is_fused else 1.0
    passes_ns = np.rint(graph.duration_ns[kernels] * ratio).astype(np.int64)
    graph = graph.set_duration(kernels, passes_ns, cost_source="paper")
    graph = graph.remove(hosts & ~first_host, keep_gaps=False)
    fused = graph.fuse(graph.tasks[_RUN] >= 0, by=("rank", "iteration", "resource", _RUN), name="update")
    return fused.drop_columns([_RUN])


def _runs(graph: Graph, mask: np.ndarray) -> np.ndarray:
    """Number of the uninterrupted run of masked tasks that each row lies in, per resource, in topological order."""
    order = graph.topological_order()
    runs = np.zeros(graph.num_tasks, dtype=np.int64)
    for resource in np.unique(graph.tasks["resource"]):
        rows = order[graph.tasks["resource"][order] == resource]
        begins = mask[rows] & ~np.concatenate([[False], mask[rows][:-1]])
        runs[rows] = np.cumsum(begins)
    return runs


def _first_of_each(runs: np.ndarray) -> np.ndarray:
    first = np.zeros(len(runs), dtype=bool)
    numbers, rows = np.unique(runs, return_index=True)
    first[rows[numbers >= 0]] = True
    return first
