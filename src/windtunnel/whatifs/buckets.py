"""Other buckets for the gradients of a job that averages them (what-if family "gradient buckets").

In: a graph of several data-parallel ranks. Out: the same with its gradients gathered to other messages. What a message
of another size takes comes from those that were captured. Not here: jobs of one rank (``data_parallel``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.rerun import AllReduceNeed, AllReduceTimes, MessageCost
from windtunnel.errors import InEffectError, InputError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, Kind, Phase
from windtunnel.graph.parameters import parameter_bytes_by_layer
from windtunnel.graph.ranks import meetings
from windtunnel.simulate import replay
from windtunnel.simulate.limits import of_kind, other_order
from windtunnel.units import parse_size
from windtunnel.whatifs.ddp_reducer import way_between
from windtunnel.whatifs.insert_tasks import computes_on_host, insert_behind
from windtunnel.whatifs.layer_gradients import last_per_group, positions
from windtunnel.whatifs.measured import SOURCE, Unpriced, has_program

__all__ = ["Averaging", "averaging_of", "caps_of", "gradient_buckets"]

# R ranks, L layers in the order in which their gradients are there, M messages of a rank
Rows = NDArray[np.int64]
_ISSUE, _CARRY = "c10d::", "carry messages"


@dataclass(frozen=True, slots=True, eq=False)
class Averaging:
    """How a captured job averages its gradients.

    Attributes
    ----------
    ranks : tuple of int [R]
    layers : tuple of str [L]
        In the order in which their gradients are there.
    size_bytes : int64 [L]
    ready : int64 [R, L]
        The task of each rank after which a layer's gradients are there.
    messages : int64 [R, M]
        The all-reduces of each rank, in order.
    message : MessageCost
        What a message takes once all ranks have arrived, fitted to the captured ones.
    """

    ranks: tuple[int, ...]
    layers: tuple[str, ...]
    size_bytes: Rows
    ready: Rows
    messages: Rows
    message: MessageCost


@registry.whatif(
    "gradient-buckets",
    source="Hu et al., dPRO, MLSys 2022; PyTorch DDP, bucket_cap_mb_list",
    limits=other_order("the workers' own work stays", without=of_kind(Kind.COMM)),
)
def gradient_buckets(
    graph: Graph,
    caps_bytes: str = "25MiB",
    latency_ns: float | None = None,
    bandwidth_bytes_per_s: float | None = None,
) -> Graph | Unpriced:
    """Gather gradients to other messages: a bucket is closed once it reaches the size limit.

    Measured: all-reduces of several sizes are timed between as many processes of this host, over the captured link;
    the captured messages say how much longer they take while the job computes. Paper: a line through the captured ones.

    Parameters
    ----------
    graph : Graph
        Of several ranks that average gradients.
    caps_bytes : str
        ``1MiB/25MiB``: the first bucket, the second and so on; the last also says for all that follow.
    latency_ns, bandwidth_bytes_per_s : float, optional
        What a message takes, fixed and by the bytes of the gradients; measured by default.

    Raises
    ------
    NotApplicableError
        The graph averages no gradients, does not say which layer has which parameters, or sends these messages already.
    InputError
        A cap is no size.
    """
    averaging = averaging_of(graph, latency_ns, bandwidth_bytes_per_s)
    ends = _bucket_ends(averaging.size_bytes, caps_of(caps_bytes))
    sizes = np.diff([0, *np.cumsum(averaging.size_bytes)[ends]])
    if sizes.tolist() == graph.tasks["message_bytes"][averaging.messages[0]].tolist():
        raise InEffectError(
            f"gradients travel in these {len(sizes)} messages already",
            where=f"caps {caps_bytes}",
            fix="ask for larger or smaller buckets",
        )
    fitted_ns = [averaging.message.duration_ns(size) for size in sizes.tolist()]

    def by_fit() -> Graph:
        return _regroup_messages(graph, averaging, ends, sizes, fitted_ns, "fitted to captured messages")

    job = graph.meta.origin.get("ranks")  # of processes that windtunnel started on one host
    is_given = latency_ns is not None or bandwidth_bytes_per_s is not None
    if is_given or not (job and has_program(graph) and computes_on_host(graph)):
        return by_fit()

    def by_times(times: AllReduceTimes) -> Graph:
        durations_ns = _times_in_job(graph, averaging, times, sizes)
        changed = _regroup_messages(graph, averaging, ends, sizes, durations_ns, SOURCE)
        return _carry_messages(graph, averaging, changed, times.lost_ratio)

    num_ranks = len(averaging.ranks)
    need = AllReduceNeed(num_ranks, job.get("bandwidth_bytes_per_s"), int(job.get("latency_ns") or 0))
    return Unpriced((need,), by_times, by_fit, way_between(graph, num_ranks))


def _times_in_job(graph: Graph, averaging: Averaging, times: AllReduceTimes, sizes: Rows) -> list[float]:
    """Times of messages of these sizes while the job computes, as much longer as all of its captured messages took."""
    captured = graph.tasks["message_bytes"][averaging.messages[0]].tolist()
    taken_ns = float(graph.duration_ns[averaging.messages].min(axis=0).sum())
    in_job_ratio = taken_ns / max(sum(times.duration_ns(size) for size in captured), 1.0)
    return [in_job_ratio * times.duration_ns(size) for size in sizes.tolist()]


def _carry_messages(graph: Graph, averaging: Averaging, changed: Graph, lost_ratio: float) -> Graph:
    """Let the backward pass take longer where more of the messages is under way during it than in the capture.

    Processes of one host carry their messages on the cores that they compute on. What the captured messages cost is in
    the captured times.
    """
    later = averaging_of(changed)
    more_ns = _under_way_ns(changed, later) - _under_way_ns(graph, averaging)
    cost_ns = np.rint(lost_ratio * np.maximum(more_ns, 0.0)).astype(np.int64)
    if not cost_ns.any():
        return changed
    columns = {"name": _CARRY, "op": _CARRY, "kind": int(Kind.COMPUTE), "duration_ns": cost_ns, "cost_source": SOURCE}
    return insert_behind(changed, later.ready[:, -1], columns)[0]


def _under_way_ns(graph: Graph, averaging: Averaging) -> NDArray[np.float64]:
    """How long messages are under way before the last gradient of their rank is there, float64 [R]."""
    timeline = replay(graph)
    end_ns = timeline.finish_ns[averaging.ready[:, -1:]]
    start_ns, finish_ns = timeline.start_ns[averaging.messages], timeline.finish_ns[averaging.messages]
    total_ns: NDArray[np.float64] = np.maximum(np.minimum(finish_ns, end_ns) - start_ns, 0).sum(axis=1).astype(float)
    return total_ns


def caps_of(text: str) -> list[int]:
    """Sizes in bytes of ``1MiB/25MiB``.

    Raises
    ------
    InputError
        One is no size, or none.
    """
    caps = [int(part) if part.strip().isdecimal() else parse_size(part) for part in str(text).split("/")]
    if min(caps) < 1:
        raise InputError(f"a bucket cannot hold {min(caps)} bytes", fix="give 1 or more")
    return caps


def _bucket_ends(size_bytes: Rows, caps: list[int]) -> list[int]:
    """Last layer of each bucket."""
    ends: list[int] = []
    held = 0
    for index, size in enumerate(size_bytes.tolist()):
        held += size
        if held >= caps[min(len(ends), len(caps) - 1)]:
            ends.append(index)
            held = 0
    return ends if held == 0 else [*ends, len(size_bytes) - 1]


def averaging_of(
    graph: Graph, latency_ns: float | None = None, bandwidth_bytes_per_s: float | None = None
) -> Averaging:
    """Find what a job averages.

    Raises
    ------
    NotApplicableError
        It averages nothing, or its ranks differ in what they average.
    """
    rank = graph.tasks.get("rank", np.zeros(graph.num_tasks, np.int32))
    ops = graph.tasks.strings("op") if "op" in graph.tasks else graph.tasks.strings("name")
    is_message = graph.select(kind=Kind.COMM, phase=Phase.BACKWARD) & ops.where(
        {text: text == "all_reduce" for text in ops.values}
    )
    ranks = tuple(np.unique(rank[is_message]).tolist())
    index = positions(graph)
    # all ranks send the same messages in the same order: message i of one rank meets message i of the others
    messages = [_sort_by_position(np.flatnonzero(is_message & (rank == item)), index) for item in ranks]
    if len(ranks) < 2 or len({len(rows) for rows in messages}) != 1:
        raise NotApplicableError(
            "no ranks average gradients here",
            fix="capture a job under DistributedDataParallel (windtunnel capture --nproc 2), or ask data-parallel",
        )
    sizes = {layer: sum(item) for layer, item in parameter_bytes_by_layer(graph).items()}
    if not sizes:
        raise NotApplicableError("the graph does not say which layer has which parameters")
    ready = [_ready(graph, rank == item, index, sizes) for item in ranks]
    layers = tuple(ready[0])
    if any(tuple(item) != layers for item in ready[1:]):
        raise NotApplicableError("the ranks have their gradients in different orders")
    rows = np.array(messages, np.int64)
    size, used = graph.tasks["message_bytes"][rows[0]], graph.duration_ns[rows].min(axis=0)
    fit = MessageCost.fit(size.tolist(), used.tolist())
    return Averaging(
        ranks,
        layers,
        np.array([sizes[layer] for layer in layers], np.int64),
        np.array([list(item.values()) for item in ready], np.int64),
        rows,
        MessageCost(
            fit.latency_ns if latency_ns is None else latency_ns,
            fit.ns_per_byte if bandwidth_bytes_per_s is None else 1e9 / bandwidth_bytes_per_s,
        ),
    )


def _sort_by_position(rows: Rows, order_T: Rows) -> list[int]:
    result: list[int] = rows[np.argsort(order_T[rows], kind="stable")].tolist()
    return result


def _ready(graph: Graph, on_rank: NDArray[np.bool_], order_T: Rows, sizes: dict[str, int]) -> dict[str, int]:
    """The last backward task of each layer with parameters, in order."""
    names, layers = graph.tasks.strings("name"), graph.tasks.strings("layer")
    issues = names.where({text: text.startswith(_ISSUE) for text in names.values})
    works = np.isin(graph.tasks["kind"], (Kind.HOST, Kind.COMPUTE, Kind.COPY))
    rows = np.flatnonzero(on_rank & graph.select(phase=Phase.BACKWARD) & works & ~issues)
    last = last_per_group(order_T, rows, layers.codes[rows])
    result = {layers.values[code]: row for code, row in last.items() if layers.values[code] in sizes}
    return dict(sorted(result.items(), key=lambda item: order_T[item[1]]))


def _regroup_messages(
    graph: Graph, averaging: Averaging, ends: list[int], sizes: Rows, durations_ns: list[float], cost_source: str
) -> Graph:
    """Old messages go, with what issued them; new ones come, and are waited for where those bytes were."""
    # What waited for the old message that carried the last byte of a new bucket waits for the new one.
    old_waits = _waits(graph, averaging.messages)
    old_bytes = np.cumsum(graph.tasks["message_bytes"][averaging.messages[0]])
    index = np.minimum(np.searchsorted(old_bytes, np.cumsum(sizes)), len(old_bytes) - 1)
    issue_ns, kept, moved = _without_messages(graph, averaging)
    count, num_ranks = len(ends), len(averaging.ranks)
    host = graph.tasks["resource"][averaging.ready[:, ends]]
    ready, waits = moved[averaging.ready[:, ends]], moved[old_waits[:, index]]
    issues = {
        "name": np.tile([f"issue bucket {i}" for i in range(count)], num_ranks).tolist(),
        "kind": int(Kind.HOST),
        "phase": int(Phase.BACKWARD),
        "rank": np.repeat(averaging.ranks, count),
        "resource": host.ravel(),
        "duration_ns": issue_ns,
        "cost_source": "measured",
    }
    #      gradient ready --> issue (host) --> all_reduce (network) --> the optimizer's waits
    # Buckets follow each other on the network; members of one bucket on all ranks meet.
    issued = kept.insert(issues, ready.ravel().tolist(), splice=True)
    issue_rows = kept.num_tasks + np.arange(count * num_ranks)
    network = graph.tasks["resource"][averaging.messages[:, :1]]
    messages = {
        "name": np.tile([f"all_reduce bucket {i}" for i in range(count)], num_ranks).tolist(),
        "op": "all_reduce",
        "kind": int(Kind.COMM),
        "phase": int(Phase.BACKWARD),
        "rank": np.repeat(averaging.ranks, count),
        "group": np.repeat(graph.tasks["group"][averaging.messages[:, 0]], count),
        "sequence": np.tile(np.arange(count), num_ranks),
        "message_bytes": np.tile(sizes, num_ranks),
        "resource": np.repeat(network, count),
        "duration_ns": np.tile([round(duration) for duration in durations_ns], num_ranks),
        "cost_source": cost_source,
    }
    sent = issued.insert(messages, None, waits.ravel().tolist(), edge_kind=EdgeKind.SYNC)
    rows = (issued.num_tasks + np.arange(count * num_ranks)).reshape(num_ranks, count)
    sent = sent.connect(issue_rows, rows.ravel(), EdgeKind.LAUNCH, from_start=True)
    chained = sent.connect(rows[:, :-1].ravel(), rows[:, 1:].ravel(), EdgeKind.ORDER)
    met = chained.meet(rows.ravel(), np.tile(np.arange(count), num_ranks))
    caps = {"sizes": [int(size) for size in sizes]}
    return met.note({"buckets": {**(graph.meta.buckets or {}), **caps}})


def _waits(graph: Graph, messages: Rows) -> Rows:
    """The task that waits for each message [R, M]; the last of the rank where none does."""
    edges = graph.edges
    is_wait = np.isin(edges["src"], messages) & (edges["kind"] == EdgeKind.SYNC)
    waits = dict(zip(edges["src"][is_wait].tolist(), edges["dst"][is_wait].tolist(), strict=True))
    rank = graph.tasks["rank"]
    last = {item: int(np.flatnonzero(rank == item)[-1]) for item in np.unique(rank[messages]).tolist()}
    result: Rows = np.array([[waits.get(row, last[int(rank[row])]) for row in rows] for rows in messages.tolist()])
    return result


def _without_messages(graph: Graph, averaging: Averaging) -> tuple[int, Graph, Rows]:
    """Duration of issuing a message, the graph without gradient averaging, and the new index of each row."""
    edges, messages = graph.edges, averaging.messages.ravel()
    met = meetings(graph)
    averages = np.isin(met.member, messages)
    gone = np.unique(np.concatenate([messages, met.arrival[averages], met.hub[averages]]))
    launches = edges["src"][np.isin(edges["dst"], gone) & (edges["kind"] == EdgeKind.LAUNCH)]
    issue_ns = round(float(np.median(graph.duration_ns[launches]))) if len(launches) else 0
    mask = np.zeros(graph.num_tasks, bool)
    mask[launches] = True
    idle = graph.set_duration(mask, 0)
    cut = idle.disconnect(np.isin(edges["src"], gone) | np.isin(edges["dst"], gone))
    left = np.zeros(graph.num_tasks, bool)
    left[gone] = True
    return issue_ns, cut.remove(left), np.cumsum(~left) - 1
