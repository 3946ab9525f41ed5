"""Attention in one kernel (what-if family "attention").

In: a graph of a device on which attention is written by hand: a product of queries and keys, a softmax, a product with
the values. Out: one kernel for these, and one for their gradients, which take as long as the products of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from windtunnel import registry
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.graph.kernel_classes import class_of
from windtunnel.simulate.limits import Baseline, less_work
from windtunnel.whatifs.insert_tasks import is_on_host
from windtunnel.whatifs.kernel_groups import KernelGroup, replace_groups, streams_in_order
from windtunnel.whatifs.product_speed import host_time_per_launch_ns

__all__ = ["sdpa"]

_REACH = 5  # kernels between a softmax and the products around it: scaling, mask, dropout, copies
_RECOMPUTED = 1.25  # gradients compute the first of two products again, in addition to four others


def _work(baseline: Baseline) -> np.ndarray:
    graph = baseline.graph
    return graph.select(phase=(Phase.FORWARD, Phase.BACKWARD)) & (graph.select(kind=Kind.COMPUTE) | is_on_host(graph))


@registry.whatif(
    "sdpa",
    source="Dao et al., FlashAttention-2, ICLR 2024; torch.nn.functional.scaled_dot_product_attention",
    limits=less_work(_work, "attention saves no more than forward and backward passes"),
)
def sdpa(graph: Graph) -> Graph:
    """Run attention that is written by hand as one kernel.

    A batched product, a softmax and a batched product become one kernel that takes as long as both products: scores
    stay on the chip. Their gradients become one that takes as long as five products of the same size. Copies that only
    make inputs contiguous go.

    Raises
    ------
    NotApplicableError
        No softmax lies between two batched products on a device.
    InEffectError
        Attention is one kernel already.
    """
    groups = [group for stream in streams_in_order(graph) for group in _groups(graph, stream)]
    if groups:
        return replace_groups(graph, groups, name="fused attention", op="aten::scaled_dot_product_attention")
    fused = graph.select(kind=Kind.COMPUTE) & graph.select(op=r".*(attention|sdpa).*") if "op" in graph.tasks else None
    if fused is not None and fused.any():
        raise InEffectError(f"{int(fused.sum())} tasks compute attention in one operator")
    raise NotApplicableError("no softmax lies between two batched products on a device", fix="attention is not used")


def _groups(graph: Graph, stream: np.ndarray) -> Iterator[KernelGroup]:
    names, took_ns = graph.tasks.strings("name").take(stream), graph.duration_ns[stream]
    ops = graph.tasks.strings("op").take(stream) if "op" in graph.tasks else names
    op_of, name_of = ops.to_numpy().tolist(), names.to_numpy().tolist()
    phases = graph.tasks["phase"][stream].tolist() if "phase" in graph.tasks else [Phase.FORWARD] * len(stream)
    is_batched = ["bmm" in op and class_of(op, name) == "product" for op, name in zip(op_of, name_of, strict=True)]
    is_copy = [op == "aten::copy_" for op in op_of]
    added = {phase: round(host_time_per_launch_ns(graph, phase)) for phase in (Phase.FORWARD, Phase.BACKWARD)}
    until = 0  # kernels before are in a group
    for i, op in enumerate(op_of):
        if "_softmax" not in op or "log_softmax" in op or i < until:
            continue
        count = 2 if "backward" in op else 1
        before = _products(is_batched, range(i - 1, max(until, i - 1 - _REACH - count) - 1, -1), count)
        after = _products(is_batched, range(i + 1, min(len(stream), i + 1 + _REACH + count)), count)
        if len(before) < count or len(after) < count:
            continue
        first, last = min(before), max(after)
        while first > until and is_copy[first - 1] and phases[first - 1] == phases[i]:
            first -= 1
        products_ns = int(took_ns[[*before, *after]].sum())
        yield KernelGroup(
            tuple(stream[first : last + 1].tolist()),
            round(products_ns * (_RECOMPUTED if count == 2 else 1.0)),
            added.get(phases[i], 0),
        )
        until = last + 1


def _products(is_batched: Sequence[bool], indices: range, count: int) -> list[int]:
    """The nearest batched products in the direction of the indices."""
    return [index for index in indices if is_batched[index]][:count]
