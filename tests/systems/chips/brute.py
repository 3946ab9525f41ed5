"""Every schedule of a few operators, every plan of a few layers, tried: the slow obvious answers."""

import itertools
import math

import numpy as np
from benchmarks.peers.operator_schedules import Cores, is_beside

from windtunnel.systems.chips.operations import FUSED, Operations
from windtunnel.systems.chips.stages import Job, Network

__all__ = ["exhaustive", "least_cycles", "random_job", "random_network", "random_operations"]


def least_cycles(operations, single, spread, cores):
    """The shortest schedule over all choices of who is spread, who runs on which core, and all orders."""
    num, kinds = len(operations), operations.kind_N.tolist()
    before, beside = operations.is_before, is_beside(operations)
    best = [sum(min(a, b) for a, b in zip(single, spread, strict=True))]

    def share(a, b):
        return kinds[a] == kinds[b] or FUSED in (kinds[a], kinds[b])

    def extend(done, makespan):
        if makespan >= best[0]:
            return
        if len(done) == num:
            best[0] = makespan
            return
        last_start = max((start for start, _, _ in done.values()), default=0)
        for node in range(num):
            if node in done or any(before[other, node] and other not in done for other in range(num)):
                continue
            for core in [-1, *range(min(cores.of(kinds[node]), num))]:
                start = last_start  # orders by start time are all that there are
                for other, (_, end, its_core) in done.items():
                    is_alone = beside[other, node] and (core < 0 or its_core < 0)
                    if before[other, node] or is_alone or (its_core == core and share(node, other)):
                        start = max(start, end)
                end = start + (spread[node] if core < 0 else single[node])
                extend({**done, node: (start, end, core)}, max(makespan, end))

    extend({}, 0)
    return best[0]


def random_operations(seed, most=7):
    """Operators with random kinds, edges, cycles and cores."""
    random = np.random.default_rng(seed)
    num = int(random.integers(1, most + 1))
    share = random.choice([0.1, 0.3, 0.6])
    edges = [pair for pair in itertools.combinations(range(num), 2) if random.random() < share]
    operations = Operations.of(random.integers(0, 3, num), edges)
    cores = Cores(int(random.integers(1, 4)), int(random.integers(1, 4)))
    single = random.integers(0, 40, num)
    each = np.array([cores.of(kind) for kind in operations.kind_N.tolist()])
    spread = np.ceil(single / each * random.choice([1.0, 1.3], num)).astype(np.int64) + random.integers(0, 4, num)
    return operations, single, spread, cores


def random_network(seed, num, *, is_chain=True, degrees=(1, 2)):
    random = np.random.default_rng(seed)
    pairs = list(itertools.combinations(range(num), 2))
    chain = [(one, one + 1) for one in range(num - 1)]
    edges = chain if is_chain else sorted({pair for pair in pairs if random.random() < 0.5})
    size = (num, len(degrees))
    return (
        Network(
            names=tuple(f"layer{one}" for one in range(num)),
            degrees=degrees,
            src=np.array([a for a, _ in edges], np.int64),
            dst=np.array([b for _, b in edges], np.int64),
            sent_bytes_ET=random.integers(0, 5, (len(edges), len(degrees))).astype(float),
            param_bytes_LT=random.integers(0, 6, size).astype(float),
            kept_bytes_LT=random.integers(0, 6, size).astype(float),
            written_bytes_LT=random.integers(4, 9, size).astype(float),
            extra_bytes_LT=random.integers(0, 4, size).astype(float),
            is_split_L=random.random(num) < 0.7,
        ),
        random.integers(1, 20, size).astype(float),
        random.integers(1, 30, size).astype(float),
    )


def plans(layers, edges):
    """Every way to cut layers into stages, first to last: what a stage reads lies in it or before it."""
    if not layers:
        yield []
        return
    for size in range(1, len(layers) + 1):
        for stage in itertools.combinations(sorted(layers), size):
            if all(b not in stage or a in stage or a not in layers for a, b in edges):
                for rest in plans(layers - set(stage), edges):
                    yield [stage, *rest]


def exhaustive(net, job, forward, backward):
    """The least time of a batch by the definition, over all stages, degrees and numbers of pipelines."""
    edges = list(zip(net.src.tolist(), net.dst.tolist(), strict=True))
    best = math.inf
    for cuts in plans(frozenset(range(len(net.names))), edges):
        for degrees in itertools.product(range(len(net.degrees)), repeat=len(cuts)):
            loads, devices, fits = [], 0, True
            for place, (stage, t) in enumerate(zip(cuts, degrees, strict=True)):
                rows, behind = list(stage), len(cuts) - place
                into = sum(net.sent_bytes_ET[e, t] for e, (a, b) in enumerate(edges) if a not in stage and b in stage)
                out = sum(net.sent_bytes_ET[e, t] for e, (a, b) in enumerate(edges) if a in stage and b not in stage)
                fw, bw = forward[rows, t].sum(), backward[rows, t].sum()
                into_s, out_s = into / job.bandwidth_bytes_per_s, out / job.bandwidth_bytes_per_s
                again = job.is_recomputed and behind > 1
                loads.append(into_s + fw + (max(out_s, fw) if again else out_s) + bw)
                if job.memory_model == "alive":
                    stash = net.kept_bytes_LT[rows, t].sum()
                    held = stash + net.extra_bytes_LT[rows, t].max()
                else:
                    stash = held = net.written_bytes_LT[rows, t].sum()
                stash = into if job.is_recomputed else stash
                memory = job.copies * net.param_bytes_LT[rows, t].sum() + held + (behind - 1) * stash
                fits = fits and memory <= job.memory_bytes
                devices += net.degrees[t] if net.is_split_L[rows].any() else 1
            if not fits:
                continue
            params = net.param_bytes_LT[list(cuts[0]), degrees[0]].sum()
            for width in range(1, job.num_devices // devices + 1):
                batches = math.ceil(job.num_microbatches / width)
                sync = 4 * (width - 1) / width * params / job.bandwidth_bytes_per_s
                best = min(best, max(loads) * (batches + len(cuts) - 1) + sync)
    return best


def random_job(seed):
    random = np.random.default_rng(seed)
    return Job(
        num_devices=int(random.integers(1, 7)),
        memory_bytes=float(random.integers(15, 60)),
        bandwidth_bytes_per_s=float(random.choice([0.5, 2.0])),
        num_microbatches=int(random.integers(1, 12)),
        copies=int(random.choice([2, 3])),
        is_recomputed=bool(random.random() < 0.5),
        memory_model=str(random.choice(["alive", "sum"])),
    )
