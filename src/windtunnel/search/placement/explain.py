"""Why a plan is as good as it is: what binds each device, and what moving one node would cost.

In: a ``Plan``. Out: rows of plain numbers. Not here: words and pictures (``reports``), better plans.
"""

# N nodes, D devices

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.base.extras import require
from windtunnel.search.placement.contraction import Contraction, contract
from windtunnel.search.placement.throughput import Plan, sync_ns

__all__ = ["DeviceRow", "Move", "device_rows", "is_in_stages", "moves"]


@dataclass(frozen=True)
class DeviceRow:
    """One device's part.

    Parameters
    ----------
    kind : str
    replicas, num_nodes : int
    load_ns, compute_ns, sent_ns, received_ns, sync_ns : float
        Per sample; what replicas take to agree on their weights comes last.
    memory_bytes, memory_limit_bytes : float
    bound_by : str
        The largest part of its load, or ``memory`` where less than a twentieth of it is free.
    """

    kind: str
    replicas: int
    num_nodes: int
    load_ns: float
    compute_ns: float
    sent_ns: float
    received_ns: float
    sync_ns: float
    memory_bytes: float
    memory_limit_bytes: float
    bound_by: str


@dataclass(frozen=True)
class Move:
    """A set of nodes that cannot be parted, on another device.

    Parameters
    ----------
    nodes : tuple of str
    source, target : int
        Devices.
    value_ns : float
        Of the plan after it.
    change_ns : float
        Against now: above zero is worse.
    is_allowed : bool
        Memory and support.
    """

    nodes: tuple[str, ...]
    source: int
    target: int
    value_ns: float
    change_ns: float
    is_allowed: bool


def device_rows(plan: Plan) -> list[DeviceRow]:
    """What every device does, in the order of the stages."""
    loads, problem = plan.loads, plan.problem
    parts = [item.sum(axis=0) / plan.replicas for item in (loads.compute_ns, loads.sent_ns, loads.received_ns)]
    parts.append(sync_ns(problem, plan.device, plan.kind, plan.replicas))
    causes = ("compute", "sending", "receiving", "replicas")
    rows = []
    for index, kind in enumerate(plan.kind.tolist()):
        shares = dict(zip(causes, (float(part[index]) for part in parts), strict=True))
        limit = problem.types[kind].memory_bytes
        is_full = loads.memory_bytes[index] > 0.95 * limit
        rows.append(
            DeviceRow(
                problem.types[kind].name,
                int(plan.replicas[index]),
                int((plan.device == index).sum()),
                sum(shares.values()),
                shares["compute"],
                shares["sending"],
                shares["receiving"],
                shares["replicas"],
                float(loads.memory_bytes[index]),
                float(limit),
                "memory" if is_full else max(shares, key=shares.__getitem__),
            )
        )
    return rows


def moves(plan: Plan, *, is_contiguous: bool = True) -> list[Move]:
    """Every single move of what cannot be parted to another device in use, cheapest first.

    Parameters
    ----------
    plan : Plan
        For throughput, without replicas.
    is_contiguous : bool
        Only moves after which no two devices wait for each other.
    """
    contraction = contract(plan.problem, shrink=False)
    device_S = np.zeros(contraction.num_nodes, np.int64)
    device_S[contraction.super_N] = plan.device
    now_ns = plan.loads.max_load_ns()
    result = []
    for node in range(contraction.num_nodes):
        own = int(device_S[node])
        # Devices of the neighbors.
        ends = np.concatenate([contraction.src[contraction.dst == node], contraction.dst[contraction.src == node]])
        near = set(device_S[ends].tolist())
        for target in sorted(near - {own}):
            device_S[node] = target
            if not is_contiguous or _has_order(contraction, device_S):
                loads = plan.problem.loads(device_S[contraction.super_N], plan.kind)
                value = loads.max_load_ns()
                names = tuple(plan.problem.names[row] for row in contraction.members(np.array([node])).tolist())
                result.append(Move(names, own, target, value, value - now_ns, loads.is_allowed))
            device_S[node] = own
    return sorted(result, key=lambda move: (not move.is_allowed, move.change_ns))


def is_in_stages(plan: Plan) -> bool:
    """Whether its devices can run one after another: forward nodes, each with what cannot be parted from it."""
    contraction = contract(plan.problem, shrink=False)
    device_S = np.zeros(contraction.num_nodes, np.int64)
    device_S[contraction.super_N] = plan.device
    return _has_order(contraction, device_S)


def _has_order(contraction: Contraction, device_S: np.ndarray) -> bool:
    """Whether the devices can run one after another."""
    rustworkx = require("rustworkx", extra="plan")
    graph = rustworkx.PyDiGraph(multigraph=False)
    graph.add_nodes_from(range(int(device_S.max()) + 1))
    ends = np.unique(np.stack([device_S[contraction.src], device_S[contraction.dst]]), axis=1)
    graph.add_edges_from_no_data([(a, b) for a, b in ends.T.tolist() if a != b])
    return bool(rustworkx.is_directed_acyclic_graph(graph))
