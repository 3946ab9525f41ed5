"""Bar dlrm_8_ranks: the recorded step of an 8-rank job, replayed as one graph.

Each rank is read by itself for what was measured; the replay of the graph of all ranks never reads that. Every rank's
step has to be within 0.5 %, every collective has to end within 50 us on every rank. A collective lasts as long as the
shortest of its eight records; the mean, which holds the waiting, stands beside as what a naive model says.
"""

import sys
from pathlib import Path

import numpy as np
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.graph import Graph, Kind
from windtunnel.reports.waits import rank_waits
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.ranks import load_ranks
from windtunnel.sources.timeline.explain import explain_device_tasks

NUM_RANKS = 8
MOST_RATIO, MOST_US = 0.005, 50


def errors(graph: Graph, alone: list[Graph]) -> tuple[list[float], list[float]]:
    """Relative error of each rank's step; worst error in us of each collective's end."""
    timeline = replay(graph)
    finish, rank = timeline.finish_ns + graph.meta.origin_ns, graph.tasks["rank"]
    steps, ends = [], []
    for number, one in enumerate(alone):
        mine = np.flatnonzero(rank == number)[: one.num_tasks]  # what joining added comes last
        measured = one.tasks["start_ns"] + one.duration_ns + one.meta.origin_ns
        first = int(one.tasks["start_ns"].min()) + one.meta.origin_ns
        steps.append(float((finish[mine].max() - first) / (measured.max() - first) - 1))
        collectives = np.flatnonzero(one.select(kind=Kind.COMM))
        ends.append(np.abs(finish[mine][collectives] - measured[collectives]) / 1e3)
    return steps, np.max(ends, axis=0).tolist()


def with_means(graph: Graph, alone: list[Graph]) -> Graph:
    """The same job with the mean record as each collective's time."""
    members = np.flatnonzero(graph.select(kind=Kind.COMM))
    records = np.array([one.duration_ns[one.select(kind=Kind.COMM)] for one in alone])  # [rank, collective]
    return graph.set_duration(members, np.tile(np.rint(records.mean(axis=0)).astype(np.int64), len(alone)))


def main() -> int:
    """Replay and print the bar; 1 if it does not hold."""
    target = f"every rank's step within {MOST_RATIO:.1%}, every collective's end within {MOST_US} µs"
    found = [find_shared(f"replay/kineto_dlrm_8ranks/rank{rank}.json.gz") for rank in range(NUM_RANKS)]
    paths: list[str | Path] = [path for path in found if path is not None]
    if len(paths) < NUM_RANKS:
        bar.report("dlrm_8_ranks", float("nan"), target, False, reason="the public traces are not here")
        return 1
    alone = [load_kineto(path) for path in paths]
    graph = load_ranks(paths)
    steps, ends = errors(graph, alone)
    naive, _ = errors(with_means(graph, alone), alone)
    waits = rank_waits(replay(graph))
    worst = max(map(abs, steps))
    holds = worst <= MOST_RATIO and max(ends) <= MOST_US
    bar.report(
        "dlrm_8_ranks",
        worst,
        target,
        holds,
        worst_collective_end_us=max(ends),
        worst_step_with_mean_durations=max(map(abs, naive)),
        unexplained_ratio=explain_device_tasks(graph).unexplained_ratio,
        most_to_blame_rank=waits[0].rank,
        held_up_ms=waits[0].held_up_ns / 1e6,
        spread_of_ends_us=graph.meta.clocks["spread_ns"] / 1e3,
        steps=steps,
        collective_ends_us=ends,
    )
    if bar.is_verbose():
        print(bar.table([{"rank": rank, "step_error": error} for rank, error in enumerate(steps)]))
        print(bar.table([{"collective": place, "worst_end_us": error} for place, error in enumerate(ends)]))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
