"""Bar ranks_build: 1,024 ranks of 1,400 tasks are built from one step within 1 s and 1 GiB.

One step (a thread, a stream, a NIC that is shared by the 8 ranks of a host, 24 all-reduces) becomes data x pipeline x
tensor ranks, and all of them meet in every all-reduce. Each round runs in a process of its own, as peak memory only
grows. The peer is the same graph by one recorded edit per rank, which is timed for fewer ranks. ``whatif
data-parallel`` is asked for as many ranks.
"""

import json
import resource
import subprocess
import sys
import time

import numpy as np

from benchmarks.bar import ROOT, report
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.whatifs import whatif

NUM_TASKS, NUM_MESSAGES = 1_400, 24
DATA, PIPELINE, TENSOR = 16, 8, 8
PEER_RANKS = 32
ROUNDS = 5
GIB = 2**30


def step(kind: ResourceKind = ResourceKind.STREAM, num_tasks: int = NUM_TASKS) -> Graph:
    """A training step of one rank."""
    builder = GraphBuilder()
    thread, stream = builder.resource("main thread", ResourceKind.HOST_THREAD), builder.resource("compute", kind)
    nic = builder.resource("nic", ResourceKind.LINK)
    last: dict[int, int] = {}
    every = NUM_TASKS // NUM_MESSAGES
    for number in range(num_tasks):
        is_message = number % every == every - 1
        where = nic if is_message else stream if number % 2 else thread
        backward = number > num_tasks // 3
        row = builder.task(
            f"task {number % 97}",
            resource=where,
            kind=Kind.COMM if is_message else Kind.COMPUTE,
            phase=Phase.BACKWARD if backward else Phase.FORWARD,
            duration_ns=1_000 + number % 13,
            op="all_reduce" if is_message else "addmm",
            layer=f"layer {number // 50}",
            message_bytes=1 << 20 if is_message else 0,
        )
        if where in last:
            builder.edge(last[where], row, kind=EdgeKind.ORDER)
        if number:
            builder.edge(row - 1, row)
        last[where] = row
    return builder.build()


def built(graph: Graph, data: int, pipeline: int, tensor: int) -> Graph:
    """All ranks, which meet in every all-reduce; the ranks of a host share its NIC."""
    host = graph.replicate(tensor, shared=[2])
    ranks = host.replicate(pipeline).replicate(data)
    rows = np.flatnonzero(ranks.select(kind=Kind.COMM))
    return ranks.meet(rows, np.tile(np.arange(len(rows) // ranks.num_ranks), ranks.num_ranks))


def one_by_one(graph: Graph, num_ranks: int) -> Graph:
    """The same by one edit per rank."""
    ranks = graph.replicate(num_ranks)
    messages = np.flatnonzero(graph.select(kind=Kind.COMM))
    hubs = np.arange(ranks.num_tasks, ranks.num_tasks + len(messages))
    columns = {"name": [f"meet {n}" for n in range(len(messages))], "kind": int(Kind.VIRTUAL), "duration_ns": 0}
    ranks = ranks.insert(columns)
    for rank in range(num_ranks):
        own = messages + rank * graph.num_tasks
        ranks = ranks.connect(own - 1, hubs).connect(hubs, own)
    return ranks


def child() -> None:
    """One round: seconds and bytes beyond what the process had before."""
    graph = step()
    built(graph, 2, 1, 1)  # compiled and imported before it counts
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begun_s = time.perf_counter()
    ranks = built(graph, DATA, PIPELINE, TENSOR)
    seconds = time.perf_counter() - begun_s
    size_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(json.dumps({"s": seconds, "bytes": size_bytes, "tasks": ranks.num_tasks, "ranks": ranks.num_ranks}))


def asked() -> None:
    """``whatif data-parallel`` on a host whose ranks share its cores: all ranks become rows."""
    graph = step(ResourceKind.HOST_THREAD)
    graph = graph.with_meta(hardware={"num_cores": 2, "num_threads": 1})
    sizes = np.where(graph.select(kind=Kind.COMM), 0, 4096)
    graph = graph.with_columns(kind=np.full(graph.num_tasks, int(Kind.COMPUTE)), param_bytes=sizes)
    begun_s = time.perf_counter()
    (answer,) = whatif(graph, f"data-parallel:num_ranks={DATA * PIPELINE * TENSOR}", prices="paper")
    seconds = time.perf_counter() - begun_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"s": seconds, "bytes": peak, "reason": answer.reason, "tasks": answer.graph.num_tasks}))


def in_a_process(what: str) -> dict[str, float]:
    """What a fresh process finds."""
    command = [sys.executable, "-m", "benchmarks.ranks_build", what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> bool:
    """Print the bar."""
    if sys.argv[1:]:
        {"build": child, "whatif": asked}[sys.argv[1]]()
        return True
    rounds = [in_a_process("build") for _ in range(ROUNDS)]
    seconds = [one["s"] for one in rounds]
    most = max(one["bytes"] for one in rounds)
    graph = step()
    begun_s = time.perf_counter()
    one_by_one(graph, PEER_RANKS)
    peer_s = (time.perf_counter() - begun_s) * DATA * PIPELINE * TENSOR / PEER_RANKS
    answer = in_a_process("whatif")
    median = float(np.median(seconds))
    return report(
        "ranks_build",
        median,
        "<= 1 s and <= 1 GiB for 1,024 ranks of 1,400 tasks",
        median <= 1.0 and most <= GIB and not answer["reason"],
        seconds=[min(seconds), max(seconds)],
        gib=most / GIB,
        tasks=rounds[0]["tasks"],
        ranks=rounds[0]["ranks"],
        one_edit_per_rank_s=peer_s,
        whatif_data_parallel=answer,
    )


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
