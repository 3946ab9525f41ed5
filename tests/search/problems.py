"""Small placement problems, and the obvious way to solve them."""

import itertools
import math

import numpy as np

from windtunnel.search.placement.model import Problem
from windtunnel.search.work import DeviceType


def problem(
    times, edges, cost, *, size=None, backward=(), color=None, barred=(), accelerators=2, cpus=0, memory=math.inf
):
    """Nodes with (accelerator, CPU) times in ns."""
    num = len(times)
    is_barred = np.zeros((num, 2), bool)
    is_barred[list(barred), 0] = True
    is_backward = np.zeros(num, bool)
    is_backward[list(backward)] = True
    ends = np.array(edges, np.int64).reshape(-1, 2)
    return Problem(
        tuple(str(node) for node in range(num)),
        (DeviceType("accelerator", accelerators, memory), DeviceType("cpu", cpus, comm_scale=0.0)),
        np.array(times, float).reshape(num, 2),
        np.array(size if size is not None else [0.0] * num, float),
        is_barred,
        is_backward,
        np.array(color if color is not None else range(num), np.int64),
        ends[:, 0],
        ends[:, 1],
        np.array(cost, float),
    )


def chain(num=6, **changes):
    """Layers of 1, 2, 3 ... ns whose outputs cost half a ns."""
    given = {"accelerators": 3} | changes
    times = [(node + 1.0, 50.0) for node in range(num)]
    return problem(times, [(node, node + 1) for node in range(num - 1)], [0.5] * num, **given)


def random_problem(rng, num_forward, *, is_training=False, num_colors=None):
    """A random graph; in training each forward node has a backward partner of its color, in mirrored order."""
    forward = [(a, b) for a, b in itertools.combinations(range(num_forward), 2) if rng.random() < 0.4]
    color = list(range(num_forward))
    if num_colors:
        color = rng.integers(0, num_colors, num_forward).tolist()
    edges, num = list(forward), num_forward
    if is_training:
        edges += [(num_forward + b, num_forward + a) for a, b in forward]
        edges += [(node, num_forward + node) for node in range(num_forward) if rng.random() < 0.7]
        color += color
        num = 2 * num_forward
    has_cpu = rng.random() < 0.8
    return problem(
        np.round(rng.uniform(0, 10, (num, 2)) * [1, 4], 1),
        edges,
        np.round(rng.uniform(0, 4, num), 1),
        size=rng.integers(0, 5, num),
        backward=range(num_forward, num),
        color=color,
        barred=[node for node in range(num_forward) if has_cpu and rng.random() < 0.15],
        accelerators=int(rng.integers(1, 4)),
        cpus=int(rng.integers(1, 3)) if has_cpu else 0,
        memory=float(rng.integers(4, 14)) if rng.random() < 0.6 else math.inf,
    )


def order_exists(sets, edges):
    """Whether no two of some sets of nodes wait for each other, however far around."""
    owner = {node: at for at, members in enumerate(sets) for node in members}
    after = {at: {owner[b] for a, b in edges if owner[a] == at} - {at} for at in range(len(sets))}
    waiting = dict(after)
    while waiting:
        free = [at for at, others in waiting.items() if not others & set(waiting)]
        if not free:
            return False
        for at in free:
            del waiting[at]
    return True


def brute_force(one, *, is_contiguous=True, combine="sum"):
    """Every assignment of every node to every device that keeps all rules; the least max-load."""
    kinds = np.repeat([0, 1], [kind.count for kind in one.types])
    colors = np.unique(one.color)
    forward_edges = [
        (a, b)
        for a, b in zip(one.src.tolist(), one.dst.tolist(), strict=True)
        if not one.is_backward[a] and not one.is_backward[b]
    ]
    forward = np.flatnonzero(~one.is_backward)
    best = math.inf
    for choice in itertools.product(range(len(kinds)), repeat=len(colors)):
        device = np.array([choice[int(np.flatnonzero(colors == color)[0])] for color in one.color])
        loads = one.loads(device, kinds)
        if not loads.is_allowed or loads.max_load_ns(combine) >= best:
            continue
        sets = [set(forward[device[forward] == at].tolist()) for at in range(len(kinds))]
        if not is_contiguous or order_exists(sets, forward_edges):
            best = loads.max_load_ns(combine)
    return best
