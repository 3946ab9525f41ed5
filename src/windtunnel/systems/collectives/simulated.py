"""Replay a plan instead of running it.

In: a plan, a calibration. Out: a ``Graph`` of the same instructions, whose replay says what the plan takes. Waiting is
no cost: a receive is the work on what has arrived, and an edge. A first replay, with all data in memory, says in which
order instructions touch them, and so what they find in the cache. Not here: measuring (``calibration``).

    rank 0   send ─────────┐ ORDER edges keep a thread's instructions in order; all threads share the host's cores
                           │ MESSAGE, or a task on the link of this direction and then the latency
    rank 1   (order) ──────┴──▶ receive
"""

from __future__ import annotations

from windtunnel.graph import Discipline, EdgeKind, Graph, GraphBuilder, Kind, ResourceKind
from windtunnel.hardware import Link
from windtunnel.simulate import replay
from windtunnel.systems.collectives.caches import Range, SharedCache
from windtunnel.systems.collectives.calibration import Calibration, work_of
from windtunnel.systems.collectives.plan import (
    Call,
    Instruction,
    MatMul,
    Plan,
    RankPlan,
    Receive,
    ReceiveReduce,
    Send,
    Signal,
    Wait,
)
from windtunnel.systems.collectives.validation import Layout, Messages, Position, end_of, validate, views_of

__all__ = ["build_plan_graph"]


def build_plan_graph(
    plan: Plan,
    calibration: Calibration,
    link: Link | None = None,
    *,
    num_cores: int | None = None,
) -> Graph:
    """The graph of one round of a plan.

    Parameters
    ----------
    plan : Plan
    calibration : Calibration
    link : Link, optional
        One from each rank to each other; by default messages cost no more than their copies.
    num_cores : int, optional
        Of the host that all ranks share; more threads than this slow each other down. By default each thread has a
        core of its own.

    Raises
    ------
    InputError
        The plan cannot be run to its end.
    PriceError
        The calibration does not know an instruction.
    """
    messages = validate(plan)
    direct = set() if calibration.copies_all else messages.find_direct(plan)

    def price(position: Position, item: Instruction, rank: RankPlan, missed_ratio: float = 1.0) -> int:
        copied_ns = 0 if position in direct else calibration.duration_ns(work_of(item, rank), missed_ratio)
        return copied_ns + (round(calibration.send_ns) if isinstance(item, Send) else 0)

    builder = GraphBuilder()
    cores = -1
    if num_cores is not None:
        cores = builder.resource("cores", ResourceKind.POOL, discipline=Discipline.SHARED, slots=num_cores)
    tasks: dict[tuple[int, str, int], int] = {}
    for rank in plan.ranks:
        for thread, items in rank.threads.items():
            name = f"rank {rank.rank} {thread}"
            resource = builder.resource(name, ResourceKind.HOST_THREAD, machine=0) if num_cores is None else cores
            for index, item in enumerate(items):
                label, position = rank.labels.get(thread, ()), (rank.rank, thread, index)
                tasks[position] = builder.task(
                    f"{thread}: {item}",
                    op=type(item).__name__,
                    layer=label[index] if index < len(label) else "",
                    kind=_kind(item),
                    rank=rank.rank,
                    resource=resource,
                    duration_ns=price(position, item, rank),
                )
                if index:
                    before = tasks[rank.rank, thread, index - 1]
                    builder.edge(before, tasks[position], kind=EdgeKind.ORDER)
    _add_events(builder, plan, calibration, tasks)
    layout = messages.layout(plan)
    for edge, slots in layout.slots.items():
        wire = builder.resource(f"link {edge[0]} to {edge[1]}", ResourceKind.LINK) if link is not None else -1
        for send, receive, (_, size) in zip(messages.sends[edge], messages.receives[edge], slots, strict=True):
            source, lag_ns = tasks[send], round(calibration.message_ns)
            if link is not None:
                carried_ns = round(size / link.bandwidth_bytes_per_s * 1e9)
                name = f"message of {size} bytes"
                task = builder.task(name, kind=Kind.COMM, rank=edge[0], resource=wire, duration_ns=carried_ns)
                builder.edge(source, task, kind=EdgeKind.MESSAGE)
                source, lag_ns = task, lag_ns + link.latency_ns
            builder.edge(source, tasks[receive], kind=EdgeKind.MESSAGE, lag_ns=lag_ns, size_bytes=size)
    graph = builder.build({"source": "plan"})
    if not calibration.cache_bytes:
        return graph
    cache, durations = SharedCache(calibration.cache_bytes), graph.duration_ns.copy()
    ranges, start_ns = _find_ranges(plan, messages, layout, direct), replay(graph).start_ns
    for position in sorted(tasks, key=lambda position: start_ns[tasks[position]]):
        owner, missed_ratio = plan.ranks[position[0]], cache.touch(ranges[position])
        item = owner.threads[position[1]][position[2]]
        durations[tasks[position]] = price(position, item, owner, missed_ratio)
    return graph.set_duration(graph.all_tasks, durations)


def _find_ranges(plan: Plan, messages: Messages, layout: Layout, direct: set[Position]) -> dict[Position, list[Range]]:
    """The memory that each instruction touches; a direct message is read by its receiver, in its sender's buffer."""
    result: dict[Position, list[Range]] = {}
    for rank in plan.ranks:
        for thread, items in rank.threads.items():
            for index, item in enumerate(items):
                position = (rank.rank, thread, index)
                ranges = result[position] = []
                for view in () if position in direct else views_of(item):
                    item_bytes = rank.buffers[view.buffer].item_bytes
                    first = layout.regions.get((rank.rank, view.buffer))
                    memory = (rank.rank, view.buffer) if first is None else None
                    start = (first or 0) + view.start * item_bytes
                    ranges.append((memory, start, start + (end_of(view) - view.start) * item_bytes))
    for edge, slots in layout.slots.items():
        for send, receive, (start, size) in zip(messages.sends[edge], messages.receives[edge], slots, strict=True):
            for end in (receive, *(() if send in direct else (send,))):
                result[end].append((None, start, start + size))
    return result


def _kind(item: Instruction) -> Kind:
    if isinstance(item, Call | MatMul):
        return Kind.COMPUTE
    if isinstance(item, Signal | Wait):
        return Kind.SYNC
    return Kind.COMM if isinstance(item, Send | Receive | ReceiveReduce) else Kind.COPY


def _add_events(
    builder: GraphBuilder, plan: Plan, calibration: Calibration, tasks: dict[tuple[int, str, int], int]
) -> None:
    """Edges from signals to waits."""
    for rank in plan.ranks:
        signals = {
            item.event: tasks[rank.rank, thread, index]
            for thread, items in rank.threads.items()
            for index, item in enumerate(items)
            if isinstance(item, Signal)
        }
        for thread, items in rank.threads.items():
            for index, item in enumerate(items):
                if isinstance(item, Wait):
                    target = tasks[rank.rank, thread, index]
                    lag_ns = round(calibration.event_ns)
                    builder.edge(signals[item.event], target, kind=EdgeKind.SYNC, lag_ns=lag_ns)
