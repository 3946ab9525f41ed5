"""The sliced optimizer of a job on GPUs: reduce-scatters, kernels of an update on 1/k, all-gathers under the next pass.

In: a graph that all-reduces gradients, of all ranks or of one that stands for all (a dry run). Out: the schedule; one
iteration is repeated, as all-gathers overlap the next one. Not here: jobs whose updates run on CPUs
(``whatif_optimizer``), which also has the what-if and its parameters.

Kernels of an update do not shrink to 1/k: each has a part that does not depend on its size. With P parameters in B
buckets, a rank's slices touch P/k of the parameters and one more per bucket:

    a kernel per parameter     calls and kernels: a share f = 1/k + B/P of them, at most 1
    kernels for many           as many calls and kernels as before: f = 1
    a kernel of d ns           f · fixed + (d - fixed) / k, where no kernel of the job is shorter than ``fixed``
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.graph.collectives import all_reduces, message_bytes, world_size
from windtunnel.graph.parameters import parameter_bytes_by_name
from windtunnel.whatifs.fully_sharded import messages_by_layer
from windtunnel.whatifs.insert_tasks import is_on_host, launch_calls, rescale
from windtunnel.whatifs.layer_gradients import gradients_of, last_per_group, positions
from windtunnel.whatifs.messages import PART, price_parts
from windtunnel.whatifs.zero import require_replicas, scatter_gradients, shard_base_bytes

__all__ = ["slice_on_devices", "updates_on_devices"]

_OF_LISTS = ".*(_foreach_|_fused_|multi_tensor).*"

# T tasks, S steps, which are the iterations of all ranks, B buckets, which are the messages of a step
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


def updates_on_devices(graph: Graph) -> Mask:
    """Kernels that update parameters, bool [T]."""
    result: Mask = graph.select(phase=Phase.UPDATE, kind=(Kind.COMPUTE, Kind.COPY)) & ~is_on_host(graph)
    return result


def slice_on_devices(graph: Graph, *, overlaps_forward: bool, state_ratio: float | None, num_iterations: int) -> Graph:
    """Apply the schedule to a graph whose updates run on devices.

    Raises
    ------
    NotApplicableError
        Nothing is all-reduced, the number of ranks or the sizes are unknown, or ranks send different messages.
    """
    require_replicas(graph)
    is_message = all_reduces(graph)
    num_ranks = world_size(graph, None)
    steps = _Steps(graph, is_message)
    per_step = message_bytes(graph, is_message).sum() / len(steps.messages)
    base = shard_base_bytes(graph, per_step, num_ranks, state_ratio)
    shrunk = _shrink_updates(_drop_copies(graph, is_message), num_ranks, steps.messages.shape[1])
    gathered, gathers = _gather(scatter_gradients(shrunk, is_message), steps)
    notes = {"memory_base_bytes": base, "world_size": num_ranks}
    pairs = _wait_for_parameters(steps, gathers, overlaps_forward=overlaps_forward)
    if graph.num_iterations == 1:
        return gathered.concat(num_iterations, pairs).note(notes)
    return gathered.connect(pairs[:, 0], pairs[:, 1], EdgeKind.SYNC).note(notes)


class _Steps:
    """Iterations of ranks, with their messages in order."""

    def __init__(self, graph: Graph, is_message: Mask) -> None:
        self.graph, self.index = graph, positions(graph)
        none = np.zeros(graph.num_tasks, np.int64)
        self.rank_T, self.iteration_T = (graph.tasks.get(name, none) for name in ("rank", "iteration"))
        rows = np.flatnonzero(is_message)
        rows = rows[np.argsort(self.index[rows], kind="stable")]
        keys = list(zip(self.rank_T[rows].tolist(), self.iteration_T[rows].tolist(), strict=True))
        self.keys = sorted(set(keys))  # (rank, iteration) of each step
        per_step = [rows[[key == item for key in keys]] for item in self.keys]
        counts = [len(item) for item in per_step]
        if len(set(counts)) != 1:
            where = f"{min(counts)} and {max(counts)} all-reduces"
            raise NotApplicableError("ranks or iterations send different messages", where=where)
        self.messages: Rows = np.array(per_step, np.int64)  # [S, B]

    def of(self, key: tuple[int, int]) -> Mask:
        """Tasks of a step, bool [T]."""
        result: Mask = (self.rank_T == key[0]) & (self.iteration_T == key[1])
        return result

    def following(self, key: tuple[int, int]) -> tuple[int, int] | None:
        """The next step of the rank; of one iteration itself, since it is repeated; None behind the last."""
        later = [item for item in self.keys if item[0] == key[0] and item[1] > key[1]]
        return later[0] if later else key if self.graph.num_iterations == 1 else None


def _drop_copies(graph: Graph, is_message: Mask) -> Graph:
    """Let the copies out of the buckets, which read a message, take no time: gradients stay where they are."""
    copies = np.zeros(graph.num_tasks, bool)
    reads = (graph.edges["kind"] == EdgeKind.DATA) & is_message[graph.edges["src"]]
    copies[graph.edges["dst"][reads]] = True
    copies &= graph.select(name="aten::copy_|aten::_foreach_copy_") & ~is_on_host(graph)
    calls = launch_calls(graph)[copies]
    copies[calls[calls >= 0]] = True
    return rescale(graph, copies, 0.0, "gradients stay in the buckets")


def _shrink_updates(graph: Graph, num_ranks: int, num_buckets: int) -> Graph:
    """Update 1/k: kernels with a fixed part, and as many calls as a slice has parameters."""
    kernels = updates_on_devices(graph) & (graph.duration_ns > 0)
    works = graph.select(kind=Kind.COMPUTE) & ~is_on_host(graph) & (graph.duration_ns > 0)
    num_parameters = len(parameter_bytes_by_name(graph))
    num_kernels = int(kernels.sum()) / (graph.num_ranks * graph.num_iterations)
    count_ratio = 1.0
    updates_lists = bool(graph.select(name=_OF_LISTS, phase=Phase.UPDATE).any())
    if 0 < num_parameters <= num_kernels and not updates_lists:
        count_ratio = min(1.0, 1 / num_ranks + num_buckets / num_parameters)
    fixed_ns = float(graph.duration_ns[works].min())
    duration = graph.duration_ns[kernels]
    shrunk_ns = count_ratio * fixed_ns + (duration - fixed_ns).clip(min=0) / num_ranks
    times = np.rint(np.minimum(shrunk_ns, duration)).astype(np.int64)
    shrunk = graph.set_duration(kernels, times, cost_source="share of the update")
    calls = graph.select(phase=Phase.UPDATE) & is_on_host(graph)
    return rescale(shrunk, calls, count_ratio, "share of the update")


def _gather(scattered: Graph, steps: _Steps) -> tuple[Graph, Rows]:
    """All-gathers behind the updates, last buckets first, and their rows [S, B]."""
    tasks, messages = steps.graph.tasks, steps.messages
    count, flat, updates = messages.shape[1], messages.ravel(), updates_on_devices(steps.graph)
    after: list[list[int]] = []
    for number, key in enumerate(steps.keys):
        rows = np.flatnonzero(updates & steps.of(key))
        ends = last_per_group(steps.index, rows, tasks["resource"][rows]).values()
        after += [list(ends) or [int(messages[number, -1])]] * count
    columns = {
        "name": np.tile([f"all_gather {i}" for i in range(count)], len(messages)).tolist(),
        "op": "all_gather",
        "kind": int(Kind.COMM),
        "phase": int(Phase.UPDATE),
        "duration_ns": price_parts(steps.graph, "all_gather", flat),
        "cost_source": PART,
        **{name: tasks[name][flat] for name in ("rank", "resource", "message_bytes", "iteration", "group")
           if name in tasks},
    }  # fmt: skip
    extended = scattered.insert(columns, after=after, edge_kind=EdgeKind.SYNC)
    gathers: Rows = (steps.graph.num_tasks + np.arange(messages.size)).reshape(messages.shape)
    chained = extended.connect(messages[:, -1], gathers[:, -1], EdgeKind.ORDER)
    chained = chained.connect(gathers[:, :0:-1].ravel(), gathers[:, -2::-1].ravel(), EdgeKind.ORDER)
    for number, key in enumerate(steps.keys):
        following = steps.following(key)
        if following is not None and following != key:
            chained = chained.connect(gathers[number, 0], messages[steps.keys.index(following), 0], EdgeKind.ORDER)
    if steps.graph.num_ranks == 1:
        return chained, gathers
    iterations = sorted({iteration for _, iteration in steps.keys})
    meeting = [iterations.index(iteration) * count + i for _, iteration in steps.keys for i in range(count)]
    return chained.meet(gathers.ravel(), meeting), gathers


def _wait_for_parameters(steps: _Steps, gathers: Rows, *, overlaps_forward: bool) -> Rows:
    """Which kernel of the next iteration waits for which all-gather of this one, int64 [M, 2]."""
    graph = steps.graph
    if overlaps_forward and not parameter_bytes_by_name(graph):
        raise NotApplicableError(
            "the graph does not say which layer has which parameters",
            fix="capture the script, or ask for one wait for all: sliced-optimizer:overlaps_forward=False",
        )
    forward = graph.select(phase=Phase.FORWARD, kind=(Kind.COMPUTE, Kind.COPY)) & ~is_on_host(graph)
    pairs: list[tuple[int, int]] = []
    for number, key in enumerate(steps.keys):
        following = steps.following(key)
        if following is None:
            continue
        passed = np.flatnonzero(forward & steps.of(following))
        if not len(passed):
            raise NotApplicableError("no forward pass on a device is seen", where="rank {}, iteration {}".format(*key))
        start = int(passed[np.argmin(steps.index[passed])])
        readers = _readers(steps, following) if overlaps_forward else {}
        for bucket, gather in enumerate(gathers[number].tolist()):
            pairs += [(gather, row) for row in readers.get(bucket, [start])]
    return np.unique(np.array(pairs, np.int64), axis=0)


def _readers(steps: _Steps, key: tuple[int, int]) -> dict[int, list[int]]:
    """The first kernels of a step's forward pass that read the parameters of each bucket."""
    graph, (rank, iteration) = steps.graph, key
    messages = steps.messages[steps.keys.index(key)]
    by_layer, on_host = messages_by_layer(graph, messages, iteration, rank), is_on_host(graph)
    bucket_of = {row: bucket for bucket, row in enumerate(messages.tolist())}
    result: dict[int, list[int]] = {}
    for gradient in gradients_of(graph, iteration, rank):
        rows = [row for row in gradient.forward if not on_host[row]]
        result.setdefault(bucket_of.get(by_layer[gradient.layer], -1), []).extend(rows)
    return {bucket: rows for bucket, rows in result.items() if rows}
