"""Reduce-scatter, update of a slice, all-gather under the next forward pass (what-if family "collective schedules").

In: a graph of several ranks that average gradients, one iteration. Out: a few iterations in which each all-reduce is
its two halves: the reduce-scatter where it was, the all-gather behind the update of its bucket, and forward tasks that
wait for the all-gather of their own parameters only. Not here: jobs whose updates run on GPUs (``whatif_on_devices``),
other buckets (gradient-buckets comes before, with a +).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.rerun import CarryingCost, CarryingNeed
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import Discipline, EdgeKind, Graph, Kind, Phase
from windtunnel.graph.ranks import arrivals
from windtunnel.simulate.limits import Baseline, other_order
from windtunnel.systems.collectives.whatif_on_devices import slice_on_devices, updates_on_devices
from windtunnel.whatifs.buckets import Averaging, averaging_of
from windtunnel.whatifs.insert_tasks import insert_ahead, insert_behind, is_on_host, rescale
from windtunnel.whatifs.layer_gradients import last_per_group, positions
from windtunnel.whatifs.measured import SOURCE, Unpriced
from windtunnel.whatifs.shared_cores import host_threads
from windtunnel.whatifs.zero import shard_base_bytes

__all__ = ["sliced_optimizer"]

# R ranks, B buckets, which are the captured messages of a rank
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
_COPIES = r"aten::copy_|aten::_foreach_copy_"
_SOURCE = "Jangda et al., CoCoNet, ASPLOS 2022"
_HALF, _CARRYING = "half of an all-reduce", "what messages cost computing"
_WORKER = "windtunnel.systems.collectives.carrying_worker"


def _moves_and_shrinks(baseline: Baseline) -> Mask:
    graph = baseline.graph
    return graph.select(phase=Phase.UPDATE) | graph.select(kind=Kind.COMM) | _copies_back(graph)


@registry.whatif(
    "sliced-optimizer",
    source=_SOURCE,
    limits=other_order("forward and backward pass stay", without=_moves_and_shrinks, max_added_bytes=0),
)
def sliced_optimizer(
    graph: Graph,
    overlaps_forward: bool = True,
    state_ratio: float | None = None,
    slowdown: float | None = None,
    num_iterations: int = 4,
) -> Graph | Unpriced:
    """Reduce-scatter gradients, update a slice on each rank, and gather parameters during the next forward pass.

    Parameters
    ----------
    graph : Graph
        Of several ranks under DistributedDataParallel, or of a rank that stands for all (a dry run); on CPUs one
        iteration.
    overlaps_forward : bool
        Layers wait for their own parameters; else the first one waits for all.
    state_ratio : float, optional
        Bytes of optimizer state over bytes of gradients (Adam in fp32: 2, SGD with momentum: 1); by default as
        captured.
    slowdown : float, optional
        How many times as long computing takes while a message is carried by the same cores. By default, where the
        ranks have no core to spare, it is measured between processes that multiply matrices.
    num_iterations : int
        Copies in time of a single iteration, at least 2: all-gathers overlap the iteration that follows.

    Raises
    ------
    NotApplicableError
        The graph averages no gradients, updates nothing, or holds several iterations.
    """
    if num_iterations < 2 or (slowdown is not None and slowdown < 1):
        raise InputError(f"{num_iterations} iterations and a slow-down of {slowdown}", fix="give at least 2 and 1")
    if updates_on_devices(graph).any():
        return slice_on_devices(
            graph, overlaps_forward=overlaps_forward, state_ratio=state_ratio, num_iterations=num_iterations
        )
    if graph.num_iterations > 1:
        raise NotApplicableError("the schedule starts from one iteration", fix="slice one out first")
    averaging = averaging_of(graph)
    if not (graph.select(phase=Phase.UPDATE) & is_on_host(graph)).any():
        raise NotApplicableError("no task updates parameters", where="phase UPDATE")
    job = _Job(graph, averaging, len(averaging.ranks))
    scattered = _scatter(graph, job)
    shared, ends = _part_updates(scattered, job)
    gathered, gathers = _gather(shared, job, ends)
    across = _across(gathered, job, gathers, overlaps_forward)
    base = shard_base_bytes(graph, float(averaging.size_bytes.sum()), job.num_ranks, state_ratio)

    def finish(timed: Graph, lost_ratio: float) -> Graph:
        crowded, moved = _contend(timed, job, lost_ratio, across)
        return crowded.concat(num_iterations, moved).note({"memory_base_bytes": base, "world_size": job.num_ranks})

    need = job.carrying_need if slowdown is None else None
    if need is None:
        return finish(gathered, 0.0 if slowdown is None else slowdown - 1)
    return Unpriced(
        (need,),
        lambda price: finish(_time_halves(gathered, job, gathers, price), price.lost_ratio),
        lambda: finish(gathered, 0.0),
    )


@dataclass(frozen=True, eq=False)
class _Job:
    """What the steps below share; rows are those of the captured graph, which stay."""

    graph: Graph
    averaging: Averaging
    num_ranks: int

    @property
    def messages(self) -> Rows:
        """All-reduces, int64 [R, B]."""
        return self.averaging.messages

    @property
    def half_ns(self) -> Rows:
        """What half of each all-reduce takes, int64 [B], as far as the capture knows.

        Gloo sends two messages at a time, so a captured duration holds what another one sent: all of them are shared
        out by bytes, and none takes less than the link needs.
        """
        size = self.graph.tasks["message_bytes"][self.messages[0]].astype(np.float64)
        total_ns = float(self.graph.duration_ns[self.messages].min(axis=0).sum())
        rate = self.graph.meta.origin.get("ranks", {}).get("bandwidth_bytes_per_s")
        least = 2 * (self.num_ranks - 1) / self.num_ranks * 1e9 / rate if rate else 0.0
        ns_per_byte = max(total_ns / max(size.sum(), 1.0), least)
        halves: Rows = np.rint(size * ns_per_byte / 2).astype(np.int64)
        return halves

    @property
    def carrying_need(self) -> CarryingNeed | None:
        """What has to be known of cores that carry messages, too; with cores to spare nothing.

        Ranks that compute with several threads have shared their cores with messages in the capture already.
        """
        threads = host_threads(self.graph)
        if threads > 1 or self.num_ranks * threads < self.graph.meta.hardware.get("num_cores", math.inf):
            return None
        ranks = self.graph.meta.origin.get("ranks", {})
        rate, latency_ns = ranks.get("bandwidth_bytes_per_s"), int(ranks.get("latency_ns", 0))
        return CarryingNeed(_WORKER, self.num_ranks, rate, latency_ns)

    def bucket_of_layer(self) -> dict[str, int]:
        """The bucket with the last gradient of each layer."""
        ends = np.cumsum(self.graph.tasks["message_bytes"][self.messages[0]])
        reached = np.cumsum(self.averaging.size_bytes)
        bucket = np.minimum(np.searchsorted(ends, reached), len(ends) - 1)
        return dict(zip(self.averaging.layers, bucket.tolist(), strict=True))

    def of_rank(self, rank: int, mask: Mask) -> Rows:
        """Rows of a rank on its host threads, in order."""
        rows = np.flatnonzero(mask & is_on_host(self.graph) & (self.graph.tasks["rank"] == rank))
        result: Rows = rows[np.argsort(positions(self.graph)[rows], kind="stable")]
        return result


def _copies_back(graph: Graph) -> Mask:
    """Copies of averaged gradients out of the buckets: they have no layer and come behind the messages."""
    copies = graph.select(phase=Phase.BACKWARD, name=_COPIES) & is_on_host(graph)
    if "layer" in graph.tasks:
        layers = graph.tasks.strings("layer")
        copies &= layers.where({text: not text for text in layers.values})
    waits = np.zeros(graph.num_tasks, bool)
    edges = graph.edges
    from_message = (edges["kind"] == EdgeKind.SYNC) & graph.select(kind=Kind.COMM)[edges["src"]]
    waits[edges["dst"][from_message]] = True
    if not waits.any() or not copies.any():
        return np.zeros(graph.num_tasks, bool)
    index, rank = positions(graph), graph.tasks.get("rank", np.zeros(graph.num_tasks, np.int32))
    first = last_per_group(index, np.flatnonzero(waits), rank[waits], first=True)
    after = np.array([index[first[item]] if item in first else graph.num_tasks for item in rank.tolist()])
    result: Mask = copies & (index > after)
    return result


def _scatter(graph: Graph, job: _Job) -> Graph:
    """Let each all-reduce be a reduce-scatter that the backward pass does not wait for."""
    sent = np.zeros(graph.num_tasks, bool)
    sent[job.messages] = True
    duration = graph.duration_ns.copy()
    duration[job.messages] = job.half_ns
    halved = graph.set_duration(sent, duration[sent], cost_source=_HALF)
    halved = halved.with_columns(op=graph.tasks.strings("op").assign(sent, "reduce_scatter"))
    edges = halved.edges
    freed = halved.disconnect(sent[edges["src"]] & (edges["kind"] == EdgeKind.SYNC))
    # gradients stay in the buckets, of which the parameters' gradients are views
    return rescale(freed, _copies_back(graph), 0.0, "gradients stay in the buckets")


def _part_updates(graph: Graph, job: _Job) -> tuple[Graph, Rows]:
    """Updates of 1/k, bucket by bucket, each behind its reduce-scatter; and the last task of each [R, B]."""
    updates = graph.select(phase=Phase.UPDATE)
    shared = rescale(graph, updates & is_on_host(graph), 1 / job.num_ranks, "share of the update")
    buckets = job.bucket_of_layer()
    ends, count = np.zeros(job.messages.shape, np.int64), job.messages.shape[1]
    for number, rank in enumerate(job.averaging.ranks):
        rows = job.of_rank(rank, updates)
        rows = rows[positions(graph)[rows] > positions(graph)[job.averaging.ready[number]].max()]
        if not len(rows):
            raise NotApplicableError("nothing is updated behind the backward pass", where=f"rank {rank}")
        block = _blocks(graph, rows, buckets, count)
        if block is None:  # one task for many parameters: all reduce-scatters come before, all all-gathers behind
            ends[number] = rows[-1]
            shared = shared.connect(job.messages[number], np.full(count, rows[0]), EdgeKind.SYNC)
            continue
        shared = _untie(shared, rows, block, job.messages[number])
        ends[number] = [rows[block == bucket][-1] for bucket in range(count)]
    return shared, ends


def _blocks(graph: Graph, rows: Rows, buckets: dict[str, int], count: int) -> Rows | None:
    """The bucket of each update; None where they are no tasks of single layers, or come in no order of buckets."""
    layers = graph.tasks.strings("layer").take(rows).to_numpy() if "layer" in graph.tasks else [""] * len(rows)
    block = np.array([buckets.get(layer, -1) for layer in layers], np.int64)
    known = np.flatnonzero(block >= 0)
    if len(np.unique(block[known])) != count:
        return None
    # Python and scalars between two updates prepare the next one
    following = known[np.minimum(np.searchsorted(known, np.arange(len(rows))), len(known) - 1)]
    block = block[following]
    is_sorted = int((np.diff(block) != 0).sum()) == count - 1
    return block if is_sorted else None


def _untie(graph: Graph, rows: Rows, block: Rows, messages: Rows) -> Graph:
    """Let blocks of updates run in any order, each once its reduce-scatter has ended, last buckets first."""
    edges, host = graph.edges, int(graph.tasks["resource"][rows[0]])
    number = np.full(graph.num_tasks, -1, np.int64)
    number[rows] = block
    src, dst = number[edges["src"]], number[edges["dst"]]
    between = (src >= 0) & (dst >= 0) & (src != dst) & (edges["kind"] == EdgeKind.ORDER)
    ordered = edges["kind"] == EdgeKind.ORDER
    into = edges["src"][(edges["dst"] == rows[0]) & ordered].tolist()
    out = edges["dst"][(edges["src"] == rows[-1]) & ordered].tolist()
    heads = [int(rows[block == item][0]) for item in range(len(messages))]
    tails = [int(rows[block == item][-1]) for item in range(len(messages))]
    freed = graph.disconnect(between).connect(messages, heads, EdgeKind.SYNC)
    for before in into:
        freed = freed.connect(before, [head for head in heads if head != rows[0]], EdgeKind.CONTROL)
    for following in out:
        freed = freed.connect([tail for tail in tails if tail != rows[-1]], following, EdgeKind.CONTROL)
    discipline = freed.resources["discipline"].copy()
    discipline[host] = Discipline.PRIORITY
    mask = np.zeros(freed.num_tasks, bool)
    mask[rows] = True
    priority = np.zeros(freed.num_tasks, np.int32)
    priority[rows] = len(messages) - 1 - block
    return freed.with_resources(freed.resources.replace(discipline=discipline)).prioritize(mask, priority[mask])


def _gather(graph: Graph, job: _Job, ends: Rows) -> tuple[Graph, Rows]:
    """All-gathers behind the updates, last buckets first; their rows [R, B]."""
    messages, count = job.messages, job.messages.shape[1]
    tasks = graph.tasks
    columns = {
        "name": np.tile([f"all_gather {i}" for i in range(count)], job.num_ranks).tolist(),
        "op": "all_gather",
        "kind": int(Kind.COMM),
        "phase": int(Phase.UPDATE),
        "duration_ns": np.tile(job.half_ns, job.num_ranks),
        "cost_source": _HALF,
        **{name: tasks[name][messages.ravel()] for name in ("rank", "resource", "message_bytes", "iteration", "group")
           if name in tasks},
    }  # fmt: skip
    extended = graph.insert(columns, after=ends.ravel().tolist(), edge_kind=EdgeKind.LAUNCH)
    rows: Rows = (graph.num_tasks + np.arange(messages.size)).reshape(messages.shape)
    first = extended.connect(messages[:, -1], rows[:, -1], EdgeKind.ORDER)
    chained = first.connect(rows[:, :0:-1].ravel(), rows[:, -2::-1].ravel(), EdgeKind.ORDER)
    return chained.meet(rows.ravel(), np.tile(np.arange(count), job.num_ranks)), rows


def _time_halves(graph: Graph, job: _Job, gathers: Rows, price: CarryingCost) -> Graph:
    """Halves as long as they take by themselves: a part per message and a part per byte."""
    size, duration = graph.tasks["message_bytes"], graph.duration_ns.copy()
    is_half = np.zeros(graph.num_tasks, bool)
    for rows, cost in ((job.messages.ravel(), price.reduce_scatter), (gathers.ravel(), price.all_gather)):
        duration[rows] = [round(cost.duration_ns(size_bytes)) for size_bytes in size[rows].tolist()]
        is_half[rows] = True
    return graph.set_duration(is_half, duration[is_half], cost_source=SOURCE)


def _across(graph: Graph, job: _Job, gathers: Rows, overlaps_forward: bool) -> Rows:
    """Which task of the next iteration waits for which of this one, int64 [M, 2]."""
    index, tasks, layers = positions(graph), graph.tasks, graph.tasks.strings("layer")
    buckets = job.bucket_of_layer()
    pairs = []
    for number, rank in enumerate(job.averaging.ranks):
        on_rank = (tasks["rank"] == rank) & (np.arange(graph.num_tasks) < job.graph.num_tasks)
        forward = np.flatnonzero(graph.select(phase=Phase.FORWARD, kind=Kind.COMPUTE) & on_rank)
        if not len(forward):
            raise NotApplicableError("no forward pass is seen", where=f"rank {rank}")
        first = last_per_group(index, forward, layers.codes[forward], first=True)
        by_layer = {layers.values[code]: row for code, row in first.items()}
        start = int(forward[np.argmin(index[forward])])
        for layer, bucket in buckets.items():
            reader = by_layer.get(layer, start) if overlaps_forward else start
            pairs.append((int(gathers[number, bucket]), reader))
        host = np.flatnonzero(on_rank & (tasks["resource"] == tasks["resource"][start]))
        if graph.resources["discipline"][tasks["resource"][start]] == Discipline.PRIORITY:
            # such a resource keeps no order between iterations by itself
            successors = np.zeros(graph.num_tasks, bool)
            edges = graph.edges
            same = tasks["resource"][edges["src"]] == tasks["resource"][edges["dst"]]
            successors[edges["src"][same]] = True
            head = int(host[np.argmin(index[host])])
            pairs += [(int(row), head) for row in host[~successors[host]]]
    return np.unique(np.array(pairs, np.int64), axis=0)


def _contend(graph: Graph, job: _Job, ratio: float, across: Rows) -> tuple[Graph, Rows]:
    """Work of the ranks' own cores for each message: behind its issue, and ahead of who waits for the parameters.

    The time is lost while the message is under way. Where the rank waits for that message anyway nothing is lost: the
    work lies in front of the wait.
    """
    if ratio <= 0:
        return graph, across
    columns = {"name": "carry messages", "kind": int(Kind.COMPUTE), "cost_source": _CARRYING}
    half, issues = graph.duration_ns[job.messages].ravel(), _issues(job)
    anchors, bucket = np.unique(issues.ravel(), return_inverse=True)
    time_ns = np.bincount(bucket, half) * ratio
    extended, _ = insert_behind(graph, anchors, {**columns, "duration_ns": np.rint(time_ns).astype(np.int64)})
    is_gather = np.isin(across[:, 0], np.flatnonzero(graph.select(kind=Kind.COMM)))
    pairs = across[is_gather]
    # the last reader of a bucket in the order of the forward pass waited for the longest
    reader = {int(row): int(target) for row, target in sorted(pairs.tolist(), key=lambda pair: -pair[1])}
    targets, member = np.unique(list(reader.values()), return_inverse=True)
    time_ns = np.bincount(member, graph.duration_ns[list(reader)]) * ratio
    extended, _ = insert_ahead(extended, targets, {**columns, "duration_ns": np.rint(time_ns).astype(np.int64)})
    return extended, across


def _issues(job: _Job) -> Rows:
    """The host's task that starts each message [R, B]; where none is known, the last that its gradients come from."""
    graph, edges = job.graph, job.graph.edges
    entry = arrivals(graph, job.messages.ravel())
    launches = edges["kind"] == EdgeKind.LAUNCH
    call = dict(zip(edges["dst"][launches].tolist(), edges["src"][launches].tolist(), strict=True))
    last = np.repeat(job.averaging.ready.max(axis=1), job.messages.shape[1])
    return np.array(
        [call.get(row, other) for row, other in zip(entry.tolist(), last.tolist(), strict=True)], np.int64
    ).reshape(job.messages.shape)
